package host_test

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/host"
)

func TestDefaults(t *testing.T) {
	t.Parallel()
	c := host.DefaultConfig()
	require.NoError(t, c.Validate())
	require.Equal(t, bus.Partitions, c.Partitions, "the two defaults are one decision")
	require.Equal(t, bus.WorkAckWaitDefault, c.WorkAckWait, "and these")
}

func TestEveryHostHasAnIDOfItsOwn(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 100 {
		h := host.New(host.Options{Name: "a.b c" + strings.Repeat("x", 200)})
		c := host.DefaultConfig()
		c.ID = h.ID()
		require.NoError(t, c.Validate(), h.ID())
		require.False(t, seen[h.ID()])
		seen[h.ID()] = true
	}
}

func TestRedactURL(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                       "",
		"nats://127.0.0.1:4222":  "nats://127.0.0.1:4222",
		"nats://user:pw@h:1":     "nats://xxxxx@h:1",
		"nats://token@h:1":       "nats://xxxxx@h:1",
		"user:pw@h:1":            "xxxxx@h:1",
		"tls://u:p@ss/w:rd@h":    "tls://xxxxx@h",
		"nats://a:b@h,tls://c@i": "nats://xxxxx@h,tls://xxxxx@i",
		"nats://u:%zz@h:1":       "nats://xxxxx@h:1",
		"nats://u:p,x,w@h":       "nats://xxxxx@h",
		"nats://h,i":             "nats://h,i",
		"nats://h,tls://u:p,w@i": "nats://h,tls://xxxxx@i",
	} {
		require.Equal(t, want, host.RedactURL(in), in)
	}
}

func TestLogger(t *testing.T) {
	t.Parallel()
	out := &bytes.Buffer{}
	log, err := host.NewLogger(out, "warn", host.FormatAuto)
	require.NoError(t, err)
	log.Info("unseen")
	log.Warn("seen", host.Partition(3), host.Resource("p", "k", "n"), host.Sequence(7))
	require.Equal(t, 1, strings.Count(out.String(), "\n"))
	require.Contains(t, out.String(), `"level":"warn"`)
	require.Contains(t, out.String(), `"msg":"seen","partition":3,"resource":"p/k/n","sequence":7}`)

	out.Reset()
	log, err = host.NewLogger(out, "debug", host.FormatConsole)
	require.NoError(t, err)
	log.Debug("for people", zap.Int("n", 1))
	require.Contains(t, out.String(), "DEBUG\tfor people")

	for _, bad := range [][2]string{{"loud", host.FormatJSON}, {"info", "xml"}} {
		_, err = host.NewLogger(out, bad[0], bad[1])
		require.Error(t, err)
	}

	file, err := os.Create(t.TempDir() + "/log")
	require.NoError(t, err)
	defer file.Close()
	log, err = host.NewLogger(file, "info", host.FormatAuto)
	require.NoError(t, err)
	log.Info("to a file")
	written, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	require.Contains(t, string(written), `"msg":"to a file"`)
}
