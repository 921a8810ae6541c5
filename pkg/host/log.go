package host

import (
	"fmt"
	"io"
	"os"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Formats of log lines.
const (
	FormatAuto    = "auto" // console on a terminal, JSON elsewhere
	FormatJSON    = "json"
	FormatConsole = "console"
)

// NewLogger writes lines to w, which need not be safe for concurrent use. Nothing is sampled or buffered: a line
// that was logged is written, and one before a crash is not lost.
func NewLogger(w io.Writer, level, format string) (*zap.Logger, error) {
	at, err := zapcore.ParseLevel(level)
	if err != nil {
		return nil, fmt.Errorf("log level: %w", err)
	}
	config := zap.NewProductionEncoderConfig()
	config.TimeKey = "time"
	config.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	config.EncodeDuration = zapcore.StringDurationEncoder
	var encoder zapcore.Encoder
	switch {
	case format == FormatJSON, format == FormatAuto && !terminal(w):
		encoder = zapcore.NewJSONEncoder(config)
	case format == FormatConsole, format == FormatAuto:
		config.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		config.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(config)
	default:
		return nil, fmt.Errorf("log format: must be %s, %s or %s", FormatAuto, FormatJSON, FormatConsole)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), at)), nil
}

// terminal reports whether w is a character device. /dev/null is one too, where the format is all the same.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
