package bustest_test

import (
	"context"
	"io"
	"net"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/bustest"
	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/bus/natsd"
)

func TestOneServer(t *testing.T) {
	t.Parallel()
	oneServer(t, jetstream.SyncDefault)
}

// A server that syncs every write is told what waits together.
func TestOneServerThatSyncsAlways(t *testing.T) {
	t.Parallel()
	oneServer(t, jetstream.SyncAlways)
}

func oneServer(t *testing.T, sync string) {
	bustest.Exercise(t, func(t *testing.T) bustest.Fixture {
		dir := t.TempDir()
		server, err := natsd.Start(natsd.Options{StoreDir: dir, Port: -1, SyncAlways: sync == jetstream.SyncAlways})
		require.NoError(t, err)
		address := server.ClientURL()
		t.Cleanup(func() { require.NoError(t, server.Shutdown()) })
		f := fixture(t, address, 1, sync)
		// Each connection goes through a wire of its own, which can be cut.
		wires := map[bus.Bus]*wire{}
		f.Connect = func(t *testing.T) bus.Bus {
			w := newWire(t, address)
			b := connect(t, w.url(), 1, sync)
			wires[b] = w
			return b
		}
		f.Kill = func(_ *testing.T, b bus.Bus) { wires[b].cut() }
		f.Restart = func(t *testing.T) {
			require.NoError(t, server.Shutdown())
			u, err := url.Parse(address)
			require.NoError(t, err)
			port, err := strconv.Atoi(u.Port())
			require.NoError(t, err)
			server, err = natsd.Start(natsd.Options{StoreDir: dir, Port: port, SyncAlways: sync == jetstream.SyncAlways})
			require.NoError(t, err)
		}
		return f
	})
}

func TestThreeServers(t *testing.T) {
	t.Parallel()
	bustest.Exercise(t, func(t *testing.T) bustest.Fixture {
		cluster, err := natsd.StartCluster(3, natsd.Options{StoreDir: t.TempDir()})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, cluster.Shutdown()) })
		f := fixture(t, cluster.ClientURL(), 3, "")
		f.LostByBoth = true
		f.Restart = func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			require.NoError(t, cluster.Roll(ctx))
		}
		f.MoveLeader = func(t *testing.T, stream string) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			require.NoError(t, cluster.StepDown(ctx, stream))
		}
		return f
	})
}

func connect(t *testing.T, url string, replicas int, sync string) bus.Bus {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b, err := jetstream.Connect(ctx, jetstream.Options{
		URL: url, Name: t.Name(), Partitions: bustest.Partitions, Replicas: replicas, Sync: sync,
		Limits:       jetstream.Limits{CommandMessages: bustest.CommandMessages},
		InputAckWait: bustest.InputAckWait, WorkAckWait: bustest.WorkAckWait,
		TombstoneTTL: bustest.TombstoneTTL, SourceSettle: bustest.SourceSettle,
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// fixture is what one server and several have in common. It looks into the streams without our code.
func fixture(t *testing.T, url string, replicas int, sync string) bustest.Fixture {
	nc, err := nats.Connect(url)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := natsjs.New(nc)
	require.NoError(t, err)
	message := func(subject string, header nats.Header, body []byte) bustest.Message {
		m := bustest.Message{Subject: subject, Header: map[string]string{}, Body: body}
		for k := range header {
			m.Header[k] = header[k][0]
		}
		return m
	}
	return bustest.Fixture{
		Connect: func(t *testing.T) bus.Bus { return connect(t, url, replicas, sync) },
		Stored: func(t *testing.T, stream, subject string) (all []bustest.Message) {
			s, err := js.Stream(t.Context(), stream)
			require.NoError(t, err)
			info, err := s.Info(t.Context())
			require.NoError(t, err)
			for seq := info.State.FirstSeq; seq <= info.State.LastSeq; seq++ {
				m, err := s.GetMsg(t.Context(), seq)
				require.NoError(t, err)
				if m.Subject == subject {
					all = append(all, message(m.Subject, m.Header, m.Data))
				}
			}
			return all
		},
		OnNotice: func(t *testing.T, each func(bustest.Message)) {
			sub, err := nc.Subscribe("drover.notice.>", func(m *nats.Msg) { each(message(m.Subject, m.Header, m.Data)) })
			require.NoError(t, err)
			require.NoError(t, nc.Flush())
			t.Cleanup(func() { require.NoError(t, sub.Unsubscribe()) })
		},
		Spoil: func(t *testing.T) (string, string) {
			s, err := js.Stream(t.Context(), "EVENTS")
			require.NoError(t, err)
			c := s.CachedInfo().Config
			c.MaxMsgsPerSubject = 3
			c.Subjects = append(c.Subjects, "elsewhere.>")
			_, err = js.UpdateStream(t.Context(), c)
			require.NoError(t, err)
			return "max_msgs_per_subject", "subjects"
		},
	}
}

// wire carries connections to a server, until it is cut.
type wire struct {
	l      net.Listener
	server string

	mu    sync.Mutex
	open  []net.Conn
	isCut bool
	wg    sync.WaitGroup
}

func newWire(t *testing.T, address string) *wire {
	u, err := url.Parse(address)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &wire{l: l, server: u.Host}
	w.wg.Go(w.accept)
	t.Cleanup(func() {
		_ = l.Close()
		w.cut()
		w.wg.Wait()
	})
	return w
}

func (w *wire) url() string { return "nats://" + w.l.Addr().String() }

func (w *wire) accept() {
	for {
		a, err := w.l.Accept()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp", w.server)
		if err != nil {
			_ = a.Close()
			continue
		}
		w.mu.Lock()
		if w.isCut {
			_, _ = a.Close(), b.Close()
		}
		w.open = append(w.open, a, b)
		w.mu.Unlock()
		for _, ends := range [][2]net.Conn{{a, b}, {b, a}} {
			w.wg.Go(func() {
				_, _ = io.Copy(ends[0], ends[1])
				_, _ = ends[0].Close(), ends[1].Close()
			})
		}
	}
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isCut = true
	for _, c := range w.open {
		_ = c.Close()
	}
}
