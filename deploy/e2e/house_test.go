package e2e_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
)

// house is a whole system: NATS servers and services, each a process. Everything of it is gone when the test has ended.
// What a thread needs of it, it asks it for, so that it need not know whether the house shares a cluster of containers with
// others (cluster.house).
type house struct {
	t        *testing.T
	ctx      context.Context
	dir      string // stores, logs, journals
	project  string // of all that is asked of it
	from     uint64 // sequence of EVENTS at which it begins
	seed     uint64
	random   *rand.Rand // of a thread's kills
	cluster  *cluster   // whose containers it stands on; nil where all processes are its own
	url      string
	servers  []*process
	services []*process
	keys     map[bus.Service]string // NKey files, where the house is guarded
	http     []string               // base URLs of the gateways
	rebar    []string               // URLs of the gateways' machine-agent APIs
	secrets  []string               // flags of these
	password string                 // of their operator
	tls      string                 // folder with a folder for each role (`drover certs`), where the servers want TLS

	partitions, replicas int
}

// plan says what a house is made of.
type plan struct {
	servers                                    int // 0 means 1; streams have as many replicas
	intakes, orchestrators, runners, notifiers int
	lifecycles, gateways                       int  // each gateway serves machine agents, on a port of its own
	partitions                                 int  // 0 means 8
	unsynced                                   bool // the servers sync now and then, as is their default
	// guarded: everybody has a key of its own, and the server lets each do what contract.go says and nothing else. The
	// streams are made by the operator.
	guarded   bool
	deployers int // of items of trees (cmd/deployer)
}

// newHouse starts it.
func newHouse(t *testing.T, p plan) *house {
	t.Helper()
	h := &house{t: t, ctx: t.Context(), dir: folder(t), project: project, from: 1, partitions: cmp.Or(p.partitions, 8), replicas: max(p.servers, 1)}
	t.Cleanup(func() {
		h.stop()
		if t.Failed() {
			h.tell()
		}
	})
	if p.guarded {
		h.forge()
	}
	h.serve(h.replicas, p.unsynced)
	if p.guarded {
		h.setUp(h.partitions, h.replicas)
	}
	for _, s := range []struct {
		name string
		n    int
	}{
		{"orchestrator", p.orchestrators}, {"intake", p.intakes}, {"runner", p.runners}, {"lifecycle", p.lifecycles},
		{"notifier", p.notifiers}, {"gateway", p.gateways},
	} {
		for i := range s.n {
			id := fmt.Sprintf("%s-%d", s.name, i)
			args := []string{"--nats", h.url, "--id", id, "--listen", "",
				"--partitions", fmt.Sprint(h.partitions), "--replicas", fmt.Sprint(h.replicas), "--log-format", "json"}
			if s.name == "gateway" {
				address := fmt.Sprintf("127.0.0.1:%d", ports(t, 1)[0])
				args, h.http = append(args, "--http", address), append(h.http, "http://"+address)
				args = append(args, h.agentFlags()...)
			}
			h.services = append(h.services, h.run(id, "drover-"+s.name, append(args, h.key(bus.Service(s.name))...)...))
		}
	}
	h.deploy(p.deployers)
	return h
}

// deploy starts deployers.
func (h *house) deploy(n int) {
	h.t.Helper()
	for i := range n {
		require.NoError(h.t, os.MkdirAll(h.signs(), 0o700))
		id := fmt.Sprintf("deployer-%d", i)
		args := []string{"--nats", h.url, "--id", id, "--listen", "", "--log-format", "json", "--ledger", h.ledger(), "--signs", h.signs(),
			"--project", h.project, "--partitions", fmt.Sprint(h.partitions), "--replicas", fmt.Sprint(h.replicas)}
		h.services = append(h.services, h.run(id, "deployer", append(args, h.key(bus.Runner)...)...))
	}
}

// folder is a test's own, gone with the test unless DROVER_E2E_KEEP says where to.
func folder(t *testing.T) string {
	keep := os.Getenv("DROVER_E2E_KEEP")
	if keep == "" {
		return t.TempDir()
	}
	dir := filepath.Join(keep, strings.ReplaceAll(t.Name(), "/", "_")+time.Now().Format("-150405"))
	require.NoError(t, os.MkdirAll(dir, 0o700))
	t.Log("kept:", dir)
	return dir
}

// serve starts NATS servers, which sync every write before they acknowledge it, unless unsynced.
func (h *house) serve(n int, unsynced bool) {
	h.t.Helper()
	sync := "always"
	if unsynced {
		sync = "2m"
	}
	clients, routes := ports(h.t, n), ports(h.t, n)
	var urls []string
	for i := range n {
		name := fmt.Sprintf("nats-%d", i)
		config := fmt.Sprintf("server_name: %s\nlisten: \"127.0.0.1:%d\"\nmax_payload: %d\njetstream {store_dir: %q, sync_interval: %q}\n",
			name, clients[i], 1<<20+64<<10, filepath.Join(h.dir, name), sync)
		if h.keys != nil {
			config += "authorization {include ./users.conf}\n"
		}
		if n > 1 {
			var peers []string
			for _, port := range routes {
				peers = append(peers, fmt.Sprintf("\"nats://127.0.0.1:%d\"", port))
			}
			config += fmt.Sprintf("cluster {name: drover, listen: \"127.0.0.1:%d\", routes: [%s]}\n", routes[i], strings.Join(peers, ", "))
		}
		file := filepath.Join(h.dir, name+".conf")
		require.NoError(h.t, os.WriteFile(file, []byte(config), 0o600))
		h.servers = append(h.servers, h.run(name, "nats-server", "-c", file))
		urls = append(urls, fmt.Sprintf("nats://127.0.0.1:%d", clients[i]))
	}
	h.url = strings.Join(urls, ",")
	h.ready()
}

// ready waits until JetStream answers.
func (h *house) ready() {
	h.t.Helper()
	nc := h.connect()
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(h.t, err)
	require.Eventually(h.t, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := js.AccountInfo(ctx)
		return err == nil
	}, time.Minute, 50*time.Millisecond, "JetStream does not answer")
}

func (h *house) run(name, program string, args ...string) *process {
	h.t.Helper()
	p := &process{
		name: name, path: filepath.Join(bin, program), args: args,
		log: filepath.Join(h.dir, name+".log"), temp: filepath.Join(h.dir, "tmp"),
	}
	require.NoError(h.t, os.MkdirAll(p.temp, 0o700))
	require.NoError(h.t, p.start())
	return p
}

// connect returns a user's connection, which comes back whenever a server does.
func (h *house) connect(opts ...nats.Option) *nats.Conn {
	h.t.Helper()
	return h.connectAs(bus.User, opts...)
}

func (h *house) connectAs(role bus.Service, opts ...nats.Option) *nats.Conn {
	h.t.Helper()
	if file := h.keys[role]; file != "" {
		key, err := nats.NkeyOptionFromSeed(file)
		require.NoError(h.t, err)
		opts = append(opts, key, nats.CustomInboxPrefix(bus.InboxPrefix(role)))
	}
	if h.tls != "" {
		own := func(name string) string { return filepath.Join(h.tls, string(role), name) }
		opts = append(opts, nats.RootCAs(own("ca.pem")), nats.ClientCert(own("tls.pem"), own("tls.key")))
	}
	nc, err := nats.Connect(h.url, append([]nats.Option{
		nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond),
		nats.ReconnectJitter(10*time.Millisecond, 10*time.Millisecond), nats.ReconnectBufSize(-1),
		nats.PingInterval(2 * time.Second), nats.MaxPingsOutstanding(2), // as the services, or a cut would be the test's own
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
	}, opts...)...)
	require.NoError(h.t, err)
	return nc
}

// door opens the doors to the house's project.
func (h *house) door(nc *nats.Conn) *door {
	h.t.Helper()
	d, err := openDoor(nc)
	require.NoError(h.t, err)
	d.project, d.shared, d.limit = h.project, h.cluster != nil, h.patience(emptyTime)
	operator := h.connectAs(bus.Operator)
	h.t.Cleanup(operator.Close)
	d.looks, err = jetstream.New(operator)
	require.NoError(h.t, err)
	return d
}

// serveHTTP answers what the services ask of somebody outside, until the test ends. They reach it by the URL that it returns.
func (h *house) serveHTTP(handler http.Handler) (url string) {
	h.t.Helper()
	s := httptest.NewUnstartedServer(handler)
	if h.cluster != nil {
		require.NoError(h.t, s.Listener.Close())
		s.Listener = h.cluster.listen()
	}
	s.Start()
	h.t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s.URL
}

// client calls the gateways, whose certificate is of the house's authority where they have one.
func (h *house) client(timeout time.Duration) *http.Client {
	h.t.Helper()
	transport := &http.Transport{}
	if h.tls != "" {
		pem, err := os.ReadFile(filepath.Join(h.tls, string(bus.User), "ca.pem"))
		require.NoError(h.t, err)
		roots := x509.NewCertPool()
		require.True(h.t, roots.AppendCertsFromPEM(pem))
		transport.TLSClientConfig = &tls.Config{RootCAs: roots}
	}
	h.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Timeout: timeout, Transport: transport}
}

// services of a name, as in "runner".
func (h *house) service(name string) []*process {
	var all []*process
	for _, p := range h.services {
		if strings.HasPrefix(p.name, name+"-") {
			all = append(all, p)
		}
	}
	return all
}

// patience is how long to wait for what takes so long in a house of bare processes: a container takes a second to be killed
// and started where a process takes none, and waits for the kills of other threads.
func (h *house) patience(d time.Duration) time.Duration {
	if h.cluster != nil {
		return 2 * d
	}
	return d
}

// ledger is the file that the deployers write, signs the folder that they look into.
func (h *house) ledger() string { return filepath.Join(h.dir, "ledger") }
func (h *house) signs() string  { return filepath.Join(h.dir, "signs") }

// stop ends everything: the services first, so that none waits for its server.
func (h *house) stop() {
	for _, all := range [][]*process{h.services, h.servers} {
		var wg sync.WaitGroup
		for _, p := range all {
			wg.Go(func() { p.stop(false) })
		}
		wg.Wait()
	}
}

// idle marks lines of logs that tell nothing of a failure.
var idle = []string{`"level":"info"`, "[INF]", "a crash point is armed", "is outdated; attempting to recover"}

// tell prints what the services had to say last, for a test that has failed.
func (h *house) tell() {
	for _, p := range append(h.services, h.servers...) {
		body, err := os.ReadFile(p.log)
		if err != nil {
			continue
		}
		var lines [][]byte
		for line := range bytes.Lines(body) {
			if !slices.ContainsFunc(idle, func(text string) bool { return bytes.Contains(line, []byte(text)) }) {
				lines = append(lines, bytes.TrimSpace(line))
			}
		}
		h.t.Logf("%s, what it warned of last:\n%s", p.name, bytes.Join(lines[max(0, len(lines)-12):], []byte("\n")))
	}
}

// ports finds some that nobody listens on, below those that the system gives to clients: a client that tries again and
// again to reach a dead server from such a port would now and then reach itself. It finds none twice: who was given one
// listens there later, and again after it was killed.
func ports(t *testing.T, n int) []int {
	t.Helper()
	const from, to = 20_000, 32_000
	var found []int
	for len(found) < n {
		port := from + rand.IntN(to-from)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		require.NoError(t, l.Close())
		if _, given := givenPorts.LoadOrStore(port, true); !given {
			found = append(found, port)
		}
	}
	return found
}

var givenPorts sync.Map

// empty waits until nothing is left in these streams but what the bus keeps there itself.
func empty(t *testing.T, js jetstream.JetStream, streams ...string) {
	t.Helper()
	(&door{js: js, looks: js}).empty(t, streams...)
}

// empty waits until nothing is left in these streams but what the bus keeps there itself, and what is foreign.
func (d *door) empty(t *testing.T, streams ...string) {
	t.Helper()
	limit := cmp.Or(d.limit, emptyTime)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for _, name := range streams {
		for {
			try, stop := context.WithTimeout(ctx, onceTimeout) // an answer is lost with the server that owed it
			s, err := d.js.Stream(try, name)
			done := err == nil && d.left(try, s) == 0
			stop()
			if done {
				break
			}
			if !pause(ctx, 20*time.Millisecond) {
				tellLeft(t, d.looks, name)
				t.Fatalf("stream %s is not empty after %s", name, limit)
			}
		}
	}
}

// foreign reports whether a message is of another house that shares these streams. What is of no project is not.
func (d *door) foreign(subject string) bool {
	of := strings.Split(subject, ".")
	at := map[string]int{"cmd": 2, "work": 2, "result": 3}[of[1]]
	return d.shared && at > 0 && of[at] != d.project && of[at] != "-"
}

// left counts the messages of a stream.
func left(ctx context.Context, s jetstream.Stream) int { return (&door{}).left(ctx, s) }

// left counts the messages of a stream that are not foreign; the stream cannot be told when it cannot be read.
func (d *door) left(ctx context.Context, s jetstream.Stream) int {
	info, err := s.Info(ctx, jetstream.WithSubjectFilter(">"))
	if err != nil {
		return -1
	}
	n := int(info.State.Msgs)
	for subject, count := range info.State.Subjects {
		if subject == bus.KeepResults || subject == bus.KeepWork || d.foreign(subject) {
			n -= int(count)
		}
	}
	return n
}

// emptyTime is longer than the time after which work that a killed worker held comes again.
const emptyTime = time.Minute

// tellLeft prints what a stream still holds, and what its consumers wait for.
func tellLeft(t *testing.T, js jetstream.JetStream, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	s, err := js.Stream(ctx, name)
	if err != nil {
		return
	}
	state := s.CachedInfo().State
	t.Logf("%s holds %d messages, %d to %d", name, state.Msgs, state.FirstSeq, state.LastSeq)
	if info, err := s.Info(ctx, jetstream.WithSubjectFilter(">")); err == nil {
		t.Logf("messages by subject: %v", info.State.Subjects)
	}
	for seq, n := state.FirstSeq, 0; seq <= state.LastSeq && n < 10; seq++ {
		if m, err := s.GetMsg(ctx, seq); err == nil {
			t.Logf("%d at %s: %s %v", seq, m.Time.Format(time.StampMicro), m.Subject, m.Header)
			n++
		}
	}
	consumers := s.ListConsumers(ctx)
	for c := range consumers.Info() {
		t.Logf("consumer %s: delivered up to %d, acknowledged up to %d, %d out, %d to come",
			c.Name, c.Delivered.Stream, c.AckFloor.Stream, c.NumAckPending, c.NumPending)
	}
}
