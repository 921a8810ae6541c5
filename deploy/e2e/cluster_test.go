package e2e_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
)

// cluster is the compose file's cluster with the ports, the relay and the second orchestrator and notifier that threads
// need. Several houses stand on it, each with a project of its own; whoever kills one of its containers kills it for all.
type cluster struct {
	*compose
	secrets  string // folder with a folder for each role
	url      string
	http     string
	rebar    string
	password string // of the machine-agent API's operator
	control  string // address of the relay
	port     atomic.Int64
	members  map[string][]*member // by service
}

// clusterPartitions is what docker-compose.yml says.
const clusterPartitions = 16

// clusterServices are those whose containers are killed.
var clusterServices = []string{"orchestrator", "intake", "runner", "lifecycle", "notifier", "gateway", "nats-1", "nats-2", "nats-3"}

// member is one container of a cluster. Safe for concurrent use.
type member struct {
	cluster *cluster
	name    string // as bare processes are named
	id      string

	striking sync.Mutex // those who kill it wait for each other
	mu       sync.Mutex
	kills    int
	deaths   int
}

// newCluster starts it, and returns when all of it is healthy.
func newCluster(ctx context.Context, t *testing.T, tag string) *cluster {
	t.Helper()
	require.NoError(t, compile(bin, "", [][2]string{{".", "./cmd/relay"}, {".", "./cmd/deployer"}, {"../../services/drover", "./cmd/drover"}}))
	c := &cluster{members: map[string][]*member{}}
	c.port.Store(9000)
	found := ports(t, 3)
	var h *house
	c.compose, h = newCompose(ctx, t, tag, func(p *compose) {
		relay := p.project + "/relay:" + tag
		p.command = append(p.command, "-f", "testdata/threads.yml")
		p.up = []string{"--scale", "orchestrator=2", "--scale", "notifier=2"}
		p.env = append(p.env, "DROVER_E2E_RELAY="+relay, fmt.Sprintf("DROVER_E2E_PORT_HTTP=%d", found[0]),
			fmt.Sprintf("DROVER_E2E_PORT_REBAR=%d", found[1]), fmt.Sprintf("DROVER_E2E_PORT_RELAY=%d", found[2]))
		p.buildImage(relay, "FROM scratch\nCOPY relay /\nUSER 65532:65532\nENTRYPOINT [\"/relay\"]\n", "relay")
		t.Cleanup(func() { p.docker("rmi", "--force", relay) }) // after all containers are gone
	})
	c.url, c.secrets = h.url, h.tls
	c.http = fmt.Sprintf("https://127.0.0.1:%d", found[0])
	c.rebar = fmt.Sprintf("https://127.0.0.1:%d", found[1])
	c.control = fmt.Sprintf("127.0.0.1:%d", found[2])
	for _, role := range []bus.Service{bus.Lifecycle, bus.Runner, bus.Plugin} {
		c.docker("cp", c.containers("certs")[0]+":/secrets/"+string(role), c.secrets)
	}
	file := filepath.Join(t.TempDir(), "password")
	c.docker("cp", c.containers("certs")[0]+":/secrets/gateway/password", file)
	password, err := os.ReadFile(file)
	require.NoError(t, err)
	c.password = strings.TrimSpace(string(password))
	for _, service := range clusterServices {
		for i, id := range c.containers(service) {
			name := fmt.Sprintf("%s-%d", service, i)
			if strings.HasPrefix(service, "nats-") {
				name = service
			}
			c.members[service] = append(c.members[service], &member{cluster: c, name: name, id: id})
		}
	}
	c.watch()
	return c
}

// watch counts how often each container dies, until the test ends.
func (c *cluster) watch() {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "docker", "events", "--filter", "type=container", "--filter", "event=die",
		"--filter", "label=com.docker.compose.project="+c.project, "--format", "{{.ID}}")
	out, err := cmd.StdoutPipe()
	require.NoError(c.t, err)
	require.NoError(c.t, cmd.Start())
	var watching sync.WaitGroup
	watching.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			for _, all := range c.members {
				for _, m := range all {
					if m.id == lines.Text() {
						m.mu.Lock()
						m.deaths++
						m.mu.Unlock()
					}
				}
			}
		}
	})
	c.t.Cleanup(func() {
		cancel()
		watching.Wait()
		_ = cmd.Wait() // it was killed
	})
}

// kill ends the container as kill -9 does, and starts it again when it has been down for a while.
func (m *member) kill(down time.Duration) error {
	m.striking.Lock()
	defer m.striking.Unlock()
	if _, _, err := m.cluster.run("docker", "kill", "--signal", "KILL", m.id); err != nil {
		return err
	}
	m.mu.Lock()
	m.kills++
	m.mu.Unlock()
	pause(m.cluster.ctx, down)
	_, _, err := m.cluster.run("docker", "start", m.id)
	return err
}

// died holds that no container has died but by a kill, and tells how often each was killed.
func (c *cluster) died() {
	c.t.Helper()
	for _, service := range clusterServices {
		for _, m := range c.members[service] {
			count := func() (kills, deaths int) {
				m.mu.Lock()
				defer m.mu.Unlock()
				return m.kills, m.deaths
			}
			require.Eventually(c.t, func() bool { kills, deaths := count(); return deaths >= kills }, time.Minute, 20*time.Millisecond,
				"docker does not tell of all deaths of %s", m.name)
			kills, deaths := count()
			require.Equal(c.t, kills, deaths, "%s has died by itself", m.name)
			c.t.Logf("%-16s killed %3d times", m.name, kills)
		}
	}
}

// listen is a listener that the containers reach.
func (c *cluster) listen() *relayed { return listenAt(c.ctx, c.control, int(c.port.Add(1))) }

// house is one that has its project, its workers and its story for itself, and shares all else. Of each service that the
// plan names it has all that there are.
func (c *cluster) house(t *testing.T, project string, p plan) *house {
	t.Helper()
	h := &house{
		t: t, ctx: c.ctx, dir: folder(t), project: project, cluster: c, url: c.url, tls: c.secrets, keys: map[bus.Service]string{},
		http: []string{c.http}, rebar: []string{c.rebar}, password: c.password, partitions: clusterPartitions, replicas: 3,
	}
	t.Cleanup(func() {
		h.stop()
		if t.Failed() {
			h.tell()
		}
	})
	for _, role := range []bus.Service{bus.User, bus.Operator, bus.Lifecycle, bus.Runner, bus.Plugin} {
		h.keys[role] = filepath.Join(h.tls, string(role), "nkey")
	}
	for _, service := range clusterServices {
		n, named := map[string]int{
			"orchestrator": p.orchestrators, "intake": p.intakes, "runner": p.runners, "lifecycle": p.lifecycles,
			"notifier": p.notifiers, "gateway": p.gateways,
		}[service]
		for _, m := range c.members[service] {
			switch {
			case !named:
				h.servers = append(h.servers, &process{name: m.name, member: m})
			case n > 0:
				h.services = append(h.services, &process{name: m.name, member: m})
			}
		}
	}
	h.from = h.next("EVENTS")
	h.deploy(p.deployers)
	return h
}

// next is the sequence that the next message of a stream gets.
func (h *house) next(stream string) (sequence uint64) {
	h.t.Helper()
	nc := h.connectAs(bus.Operator)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(h.t, err)
	require.Eventually(h.t, func() bool {
		ctx, cancel := context.WithTimeout(h.ctx, 5*time.Second)
		defer cancel()
		s, err := js.Stream(ctx, stream)
		if err == nil {
			sequence = s.CachedInfo().State.LastSeq + 1
		}
		return err == nil
	}, time.Minute, 50*time.Millisecond, "stream %s does not answer", stream)
	return sequence
}
