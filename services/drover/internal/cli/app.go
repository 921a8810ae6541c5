package cli

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/services/drover/internal/bench"
	"github.com/droverproject/drover/services/drover/internal/render"
)

// Bus is what the commands need of the bus; bus/jetstream and bus/memory have it.
type Bus interface {
	bus.Readers
	bus.Output
	Request(ctx context.Context, subject string, header map[string]string, body []byte) (bus.Request, error)
	Setup(ctx context.Context, repair bool) ([]bus.Drift, error)
	Check(ctx context.Context) ([]bus.Drift, error)
	Partitions() int
	Healthy(ctx context.Context) error
	Close() error
}

// Limits of the CLI.
const (
	// RequestTimeout is how long one command may take to be answered, unless --timeout says otherwise.
	RequestTimeout = 10 * time.Second
	// ConnectTimeout bounds the first connection, unless the command is patient.
	ConnectTimeout = 3 * time.Second
	// OwnerPatience is how long a request is repeated while no intake listens, as in a failover.
	OwnerPatience = 3 * time.Second
	// RequestsInFlight is how many commands of one command line are on their way at once.
	RequestsInFlight = 32
	// ManifestBytesMax bounds one manifest file.
	ManifestBytesMax = 16 << 20
	// TargetsMax is how many resources one command line acts on.
	TargetsMax = 100_000
)

// App is what the commands stand on. Main fills what is left out of it, but for Connect.
type App struct {
	In       io.Reader
	Out, Err io.Writer
	// OutTerminal and ErrTerminal say whether a person looks on.
	OutTerminal, ErrTerminal bool
	// Width is the terminal's, in columns; 0 means unknown.
	Width int
	// Getenv is os.Getenv, or a test's own.
	Getenv func(string) string
	// Now is the clock that ages are shown by.
	Now func() time.Time
	// RequestID makes an id for commands that were given none.
	RequestID func() string
	// Connect opens the bus.
	Connect func(ctx context.Context, c Connection) (Bus, error)
	// Server asks a connection about the server; nil where it cannot be asked.
	Server func(ctx context.Context, b Bus) (ServerInfo, error)
	// Streams asks after the streams; nil where they cannot be asked after.
	Streams func(ctx context.Context, b Bus) ([]StreamInfo, error)
	// Backup copies a system into a folder, and Restore makes one of it; each is called after every stream. Nil where the
	// connection is none to a server.
	Backup  func(ctx context.Context, b Bus, folder string, each func(bus.Copied)) (bus.Backup, error)
	Restore func(ctx context.Context, b Bus, folder string, each func(bus.Copied)) (bus.Restored, error)
	// BenchSystem measures the system that both connections lead to.
	BenchSystem func(ctx context.Context, user, worker Connection, o bench.SystemOptions) (bench.SystemReport, error)
	// Up runs all services in this process until ctx ends.
	Up func(ctx context.Context, o UpOptions) error

	settings
	paint    render.Paint // of stdout
	errPaint render.Paint // of stderr
	began    bool         // the command line was understood
	patient  bool         // --timeout, where it is given, also bounds the first connection: a cluster may be coming up
	opened   Bus
}

// Main runs one command line and returns the exit code.
func Main(ctx context.Context, a *App, args []string) int {
	a.fill()
	root := newRoot(a)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if a.opened != nil {
		if cerr := a.opened.Close(); cerr != nil && err == nil {
			err = fmt.Errorf("close the connection: %w", cerr)
		}
	}
	if err == nil {
		return ExitOK
	}
	if !a.began {
		err = asUsage(err, args)
	}
	return a.report(err)
}

func (a *App) fill() {
	if a.In == nil {
		a.In = strings.NewReader("")
	}
	if a.Out == nil {
		a.Out = io.Discard
	}
	if a.Err == nil {
		a.Err = io.Discard
	}
	if a.Getenv == nil {
		a.Getenv = func(string) string { return "" }
	}
	if a.Now == nil {
		a.Now = time.Now
	}
	if a.RequestID == nil {
		a.RequestID = rand.Text
	}
}

// asUsage marks what cobra itself refuses.
func asUsage(err error, args []string) error {
	var f *failure
	if errors.As(err, &f) {
		return err
	}
	f = usage("%w", err)
	if strings.HasPrefix(err.Error(), "unknown command") {
		return f.withHint("`drover --help` lists the commands; a blueprint's own verb is run by `drover do VERB KIND/NAME`")
	}
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		return f.withHint("see `drover %s --help`", render.Text(args[0]))
	}
	return f.withHint("see `drover --help`")
}

// report tells an error, unless it was told, and returns its exit code.
func (a *App) report(err error) int {
	var f *failure
	if errors.As(err, &f) && f.told {
		return f.code
	}
	for i, line := range strings.Split(message(err), "\n") {
		prefix := a.errPaint.Bad("error:")
		if i > 0 {
			prefix = "      "
		}
		a.tell("%s %s", prefix, render.Line(line))
	}
	var refused *refusedError
	if errors.As(err, &refused) {
		a.tellViolations("  ", refused, nil)
	}
	if hint := hintOf(err); hint != "" {
		a.tell("%s %s", a.errPaint.Dim("hint:"), render.Text(hint))
	}
	return codeOf(err)
}

// tellViolations tells which fields are wrong, with their places where there are any.
func (a *App) tellViolations(indent string, e *refusedError, place func(field string) string) {
	for _, v := range e.refusal.Violations {
		at := ""
		if place != nil {
			at = render.Text(place(v.Field)) + ": "
		}
		a.tell("%s%s%s: %s", indent, at, render.Text(v.Field), render.Text(v.Reason))
	}
}

// message is an error's text, without what only a programmer would say.
func message(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "timeout: " + strings.ReplaceAll(err.Error(), "context deadline exceeded", "the time was up")
	}
	return strings.TrimSpace(err.Error())
}

// tell writes a line to stderr. The arguments must be safe texts.
func (a *App) tell(format string, args ...any) {
	_, _ = fmt.Fprintf(a.Err, format+"\n", args...) // there is nobody else to tell
}

// bus opens the connection once.
func (a *App) bus(ctx context.Context) (Bus, error) {
	if a.opened != nil {
		return a.opened, nil
	}
	if !a.patient || a.timeout == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, ConnectTimeout)
		defer cancel()
	}
	b, err := a.Connect(ctx, a.Connection)
	if err != nil {
		var f *failure
		if errors.As(err, &f) {
			return nil, err
		}
		return nil, fail(ExitUnreachable, "connect to %s: %w", a.Address(), err).withHint("%s", a.connectHint(err))
	}
	a.opened = b
	return b, nil
}

// connectHint is what the user can do about a connection that could not be opened.
func (a *App) connectHint(err error) string {
	var certificate *tls.CertificateVerificationError
	var file *fs.PathError
	switch {
	case errors.Is(err, bus.ErrDenied):
		return "the server refused this user; --creds, --nkey and --context say who asks, --inbox-prefix where replies come to"
	case errors.As(err, &certificate):
		return "--tlsca names the authority of the server's certificate"
	case strings.Contains(err.Error(), "tls: certificate required"): // the server's alert has no type
		return "--tlscert and --tlskey give the certificate that the server wants of its clients"
	case errors.As(err, &file):
		return "the file is named by a flag, a variable (see `drover --help`) or the configuration file"
	case errors.Is(err, context.DeadlineExceeded):
		return "a server is there, and does not answer: does it run JetStream, and has it a leader?"
	case a.Context != "" && a.Connection.Server == "":
		return "`nats context ls` lists contexts, and `nats context show` what one says"
	}
	return "is a server running there? `drover up` starts one; --server or NATS_URL names another"
}

// prepare runs before every command.
func (a *App) prepare(cmd *cobra.Command) error {
	a.began = true
	s, err := readSettings(cmd.Flags(), a.Getenv)
	if err != nil {
		return err
	}
	a.settings = s
	auto := s.color == "auto" && a.Getenv("TERM") != "dumb"
	a.paint = render.Paint(s.color == "always" || auto && a.OutTerminal)
	a.errPaint = render.Paint(s.color == "always" || auto && a.ErrTerminal)
	return nil
}

// bounded is ctx with --timeout, or with fallback where none was given; 0 means no bound.
func (a *App) bounded(ctx context.Context, fallback time.Duration) (context.Context, context.CancelFunc) {
	limit := a.timeout
	if limit == 0 {
		limit = fallback
	}
	if limit == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, limit)
}

// readAllBounded reads at most most bytes.
func readAllBounded(r io.Reader, name string, most int64) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r, most+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if int64(len(body)) > most {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, most)
	}
	return body, nil
}
