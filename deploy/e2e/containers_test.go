package e2e_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// fleetServices run threefold, and are killed, restarted and scaled.
var fleetServices = []string{"intake", "orchestrator", "lifecycle", "notifier", "gateway", "runner"}

const (
	containersTime  = 25 * time.Minute       // of all of it, on the slowest machine; a quiet one needs 10
	fleetClients    = 6                      // that drive resources at the same time
	fleetPause      = 150 * time.Millisecond // between two resources of one client
	fleetReplicas   = 3                      // of each service
	faultTime       = 3 * time.Second        // that a fault lasts
	lossTime        = 7 * time.Second        // that one of three is away: longer than it takes the others to go on without it
	serverLossTime  = 12 * time.Second       // the same of NATS servers
	cutTime         = 14 * time.Second       // that a cut lasts: longer than it takes to be noticed
	slowCommandTime = 10 * time.Second       // above which a command's story is told
	slowTime        = 30 * time.Second       // after the fault, before it is told what has not ended
	convergeTime    = 3 * time.Minute        // for all that was accepted to end, after the fault
)

// TestContainers has clients drive a fleet on the cluster of the compose file, with three of each service, while one and all of each
// service are killed, restarted and scaled, each NATS server is killed, the networks of one of each are cut, the log's leader is
// moved, all certificates are replaced, and everything is stopped and started. Whatever was accepted must succeed; the log, the
// buckets and the ledger of the witnesses must agree; and it is told what each fault cost: how long the slowest command took, and
// how long after its end all was well.
func TestContainers(t *testing.T) {
	kills, _ := strconv.Atoi(os.Getenv("DROVER_KILLS"))
	ctx, tag := inContainers(t, containersTime+time.Duration(kills)*3*time.Minute)

	began := time.Now()
	p, h := newCompose(ctx, t, tag)
	nc := h.connect()
	t.Cleanup(nc.Close)
	d, err := openDoor(nc)
	require.NoError(t, err)
	c := chronicleAfter(t, ctx, h, d, command{
		Kind: "Blueprint", Name: "node", Verb: "apply", ID: "node", Body: apply("Blueprint", "node", fleetBlueprint(), nil),
	})
	looks, err := jetstream.New(nc)
	require.NoError(t, err)
	f := &fleet{t: t, ctx: ctx, project: p, looks: looks, work: &workload{door: d, chronicle: c}}

	for _, service := range fleetServices {
		p.scale(service, fleetReplicas)
	}
	p.healthy()
	f.fault("none", faultTime, func() func() { return nil })
	for _, service := range fleetServices {
		f.fault("one "+service+" of three killed", lossTime, func() func() { return p.kill(p.containers(service)[:1]) })
		f.fault("every "+service+" killed", faultTime, func() func() { return p.kill(p.containers(service)) })
		f.fault(service+" restarted", 0, func() func() {
			p.docker(append([]string{"restart", "--time", "25"}, p.containers(service)...)...)
			return nil
		})
		f.fault(service+" scaled to 1 and back", faultTime, func() func() {
			p.scale(service, 1)
			return func() { p.scale(service, fleetReplicas) }
		})
	}
	for range max(kills, 1) {
		for _, server := range []string{"nats-1", "nats-2", "nats-3"} {
			f.fault(server+" killed", serverLossTime, func() func() { return p.kill(p.containers(server)) })
		}
	}
	for _, service := range []string{"runner", "orchestrator"} {
		f.fault("one "+service+" of three cut off", cutTime, func() func() { return p.cut(service, p.containers(service)[:1], "bus") })
	}
	for n := range max(kills, 1) {
		server := []string{"nats-2", "nats-3", "nats-1"}[n%3]
		f.fault(server+" cut off", cutTime, func() func() { return p.cut(server, p.containers(server), "bus", "routes") })
	}
	f.fault("leader of EVENTS moved", faultTime, func() func() {
		h.moveLeader(ctx, "EVENTS")
		return nil
	})
	f.fault("certificates replaced", 0, func() func() {
		h.replaceCertificates(p)
		return nil
	})
	f.fault("all stopped and started", 0, func() func() {
		p.compose("stop", "--timeout", "25")
		return func() { p.compose("start") }
	})

	file := filepath.Join(h.dir, "journal")
	p.docker("cp", p.containers("runner")[0]+":/journal/journal", file)
	v := &verdict{t: t, house: h, door: d, chronicle: c, work: f.work, journal: file, least: 3 * fleetClients * f.rounds}
	v.settled(time.Now().Add(convergeTime))
	v.pass()
	for _, e := range c.all() {
		if e.Job != nil && e.Job.Record.State.Final() {
			r := e.Job.Record
			require.Equal(t, job.Succeeded, r.State, "job %s: %s of %s: %s", r.ID, r.Verb, r.Name, r.Message)
		}
	}
	require.Empty(t, p.leaks(c.all()), "secrets in events, logs, command lines or images")
	t.Logf("with %d of each service:\n%s", fleetReplicas, h.measure(ctx)) // the last, since its jobs are none of the ledger's
	t.Logf("%d faults in %s. The slowest command while it lasted, and of those that ended later; and after the fault's end: all jobs had ended, "+
		"all buckets were as the log, all containers healthy:\n%s",
		len(f.took), time.Since(began).Round(time.Second), strings.Join(f.took, "\n"))
}

// fleetBlueprint has a phase that takes a moment, one that is pending once, one that fails at first, and a way back.
func fleetBlueprint() object {
	script := func(more ...any) object {
		return object{"script": object{"command": append(list{"/witness", "-journal", "/journal/journal"}, more...), "retryableExits": list{9}}}
	}
	return object{
		"lifecycle": "node", "states": list{"Allocation", "Configuration"}, "paths": object{"Terminated": list{"Release"}},
		"phases": list{
			object{"name": "volume", "states": list{"Allocation"}, "executor": script("-hold", "40ms")},
			object{"name": "instance", "states": list{"Allocation"}, "executor": script("-pending", "1"), "interval": "200ms"},
			object{"name": "configure", "states": list{"Configuration"}, "executor": script("-fail-first"),
				"retry": object{"attempts": 5, "delay": "100ms"}},
			object{"name": "release", "states": list{"Release"}, "executor": script()},
		},
	}
}

// fleet drives resources while faults are made.
type fleet struct {
	t       *testing.T
	ctx     context.Context
	project *compose
	looks   jetstream.JetStream // into the buckets
	work    *workload
	rounds  int
	took    []string
	// Of this round, in nanoseconds from its request to its job's end: the slowest command that ended while the fault lasted, and the
	// slowest one after that.
	slowest, after atomic.Int64
	healing        atomic.Bool // the fault's end has come

	mu   sync.Mutex
	slow []slowCommand // of this round
}

// slowCommand took longer than slowCommandTime.
type slowCommand struct {
	verb, name   string
	asked, known time.Time // known: the job's id was
	ended        time.Time
}

// fault drives a fleet, makes the fault, heals it after a while, and waits until all that was asked for has ended and all
// containers are healthy. Each is a subtest, so that one can be run by itself.
func (f *fleet) fault(name string, lasts time.Duration, inject func() (heal func())) {
	parent := f.t
	defer func() { f.t, f.project.t = parent, parent }()
	if !parent.Run(name, func(t *testing.T) {
		f.t, f.project.t = t, t
		f.rounds++
		f.round(name, lasts, inject)
	}) {
		parent.FailNow() // what comes after it would only tell of it again
	}
}

func (f *fleet) round(name string, lasts time.Duration, inject func() (heal func())) {
	var clients sync.WaitGroup
	ctx, cancel := context.WithCancel(f.ctx)
	defer func() {
		cancel()
		clients.Wait()
	}()
	living, stop := context.WithCancel(ctx)
	for i := range fleetClients {
		clients.Go(func() {
			f.client(ctx, living, fmt.Sprintf("r%d-%d", f.rounds, i), rand.New(rand.NewPCG(uint64(f.rounds), uint64(i))))
		})
	}
	f.slowest.Store(0)
	f.after.Store(0)
	f.healing.Store(false)
	f.slow = nil
	before := len(f.work.all())
	require.Eventually(f.t, func() bool { return len(f.work.all()) >= before+2*fleetClients }, convergeTime, 10*time.Millisecond,
		"the fleet does not get under way")
	injected := time.Now()
	heal := inject()
	require.True(f.t, pause(f.ctx, lasts), "interrupted")
	f.healing.Store(true)
	if heal != nil {
		heal()
	}
	healed := time.Now()
	stop()
	ended := make(chan struct{})
	go func() {
		clients.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(slowTime):
		f.t.Log(f.waiting())
		<-ended
	}
	jobs := time.Since(healed)
	f.derived()
	buckets := time.Since(healed)
	f.project.healthy()
	f.took = append(f.took, fmt.Sprintf("  %-36s%8.1f s%8.1f s%8.1f s%8.1f s%8.1f s", name, time.Duration(f.slowest.Load()).Seconds(),
		time.Duration(f.after.Load()).Seconds(), jobs.Seconds(), buckets.Seconds(), time.Since(healed).Seconds()))
	f.t.Log(f.took[len(f.took)-1])
	for _, s := range f.slow {
		f.t.Log(f.story(s, injected))
	}
	require.Less(f.t, jobs, convergeTime)
}

// waiting is what has not ended, and how the log shows it.
func (f *fleet) waiting() string {
	c := f.work.chronicle
	c.mu.Lock()
	defer c.mu.Unlock()
	text := strings.Builder{}
	for id, r := range c.jobs {
		if !r.State.Final() {
			s := c.resources[resource.Key{Project: r.Project, Kind: r.Kind, Name: r.Name}]
			fmt.Fprintf(&text, "job %s, %s of %s, is %s since %s: %s revision %d, %+v\n", id, r.Verb, r.Name, r.State, r.AcceptedAt.Format(time.StampMilli),
				s.State, s.Revision, s.Phases)
		}
	}
	return text.String()
}

// story is when a slow command was asked and known, and what was stored of its resource, in seconds after the fault began.
func (f *fleet) story(s slowCommand, fault time.Time) string {
	text := strings.Builder{}
	at := func(t time.Time) float64 { return t.Sub(fault).Seconds() }
	fmt.Fprintf(&text, "%s of %s asked %.2f, known %.2f, ended %.2f; the log:", s.verb, s.name, at(s.asked), at(s.known), at(s.ended))
	for _, e := range f.work.chronicle.all() {
		if (e.Resource != nil && e.Entity.Name == s.name || e.Job != nil && e.Job.Record.Name == s.name) && e.At.After(s.asked.Add(-time.Second)) {
			fmt.Fprintf(&text, "\n  %7.2f %d %s", at(e.At), e.Seq, strings.TrimPrefix(e.Subject, "drover.log."))
			if e.Job != nil {
				fmt.Fprintf(&text, " %s", e.Job.Record.State)
			} else {
				fmt.Fprintf(&text, " %s", e.Resource.State.State)
				for _, ph := range e.Resource.State.Phases {
					fmt.Fprintf(&text, ", %s %s since %.2f", ph.Name, ph.Status, at(ph.Since))
				}
			}
		}
	}
	return text.String()
}

// derived waits until the buckets are what the log says: they trail it, and after the loss of a server for a while.
func (f *fleet) derived() {
	f.t.Helper()
	wrong, err := []string{}, error(nil)
	require.Eventually(f.t, func() bool {
		ctx, cancel := context.WithTimeout(f.ctx, 20*time.Second)
		defer cancel()
		wrong, err = f.work.chronicle.unlikeBuckets(ctx, f.looks)
		return err == nil && len(wrong) == 0
	}, convergeTime, 100*time.Millisecond, "the buckets do not come after the log")
	require.NoError(f.t, err)
	require.Empty(f.t, wrong)
}

// client drives one resource after another until living ends; the last one to its end, unless ctx ends.
func (f *fleet) client(ctx, living context.Context, name string, random *rand.Rand) {
	for n := 0; living.Err() == nil; n++ {
		resource := fmt.Sprintf("%s-%d", name, n)
		do := func(verb string, body any) {
			asked := time.Now()
			id := f.work.ask(ctx, command{Kind: "node", Name: resource, Verb: verb, ID: resource + "-" + verb, Body: body}, random.IntN(2) == 0)
			if id != "" {
				known := time.Now()
				f.work.chronicle.waitJob(ctx, id)
				took := time.Since(asked)
				if f.healing.Load() {
					storeMost(&f.after, int64(took))
				} else {
					storeMost(&f.slowest, int64(took))
				}
				if took > slowCommandTime && ctx.Err() == nil {
					f.mu.Lock()
					f.slow = append(f.slow, slowCommand{verb, resource, asked, known, time.Now()})
					f.mu.Unlock()
				}
			} else if ctx.Err() == nil {
				f.t.Errorf("%s of %s was refused", verb, resource)
			}
		}
		do("apply", apply("node", resource, object{}, nil))
		do("start", nil)
		if random.IntN(2) == 0 {
			do("terminate", nil)
		}
		pause(living, fleetPause)
	}
}

// storeMost makes v what it is or n, whichever is more.
func storeMost(v *atomic.Int64, n int64) {
	for was := v.Load(); was < n && !v.CompareAndSwap(was, n); was = v.Load() {
	}
}

// all is what was asked so far.
func (w *workload) all() []asked {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked[:len(w.asked):len(w.asked)]
}

// measure is what `drover bench system` says of the cluster, with a worker of its own.
func (h *house) measure(ctx context.Context) string {
	h.t.Helper()
	own := func(name string) string { return filepath.Join(h.tls, string(bus.Operator), name) }
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "drover"), "bench", "system", "--server", h.url, "--for", "5s", "--idle", "50",
		"--nkey", h.keys[bus.Operator], "--worker-nkey", h.keys[bus.Runner],
		"--tlsca", own("ca.pem"), "--tlscert", own("tls.pem"), "--tlskey", own("tls.key"))
	cmd.Env = environment()
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(h.t, err, errs.String())
	require.NotContains(h.t, string(out), "not measured")
	return string(out)
}

// moveLeader has another server lead a stream, as an operator does it.
func (h *house) moveLeader(ctx context.Context, stream string) {
	h.t.Helper()
	nc := h.connectAs(bus.Operator)
	defer nc.Close()
	require.Eventually(h.t, func() bool {
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		m, err := nc.RequestWithContext(try, "$JS.API.STREAM.LEADER.STEPDOWN."+stream, nil)
		if err != nil {
			return false
		}
		var answer struct {
			Success bool `json:"success"`
		}
		return json.Unmarshal(m.Data, &answer) == nil && answer.Success
	}, time.Minute, 100*time.Millisecond, "the leader of %s does not step down", stream)
}

// replaceCertificates has everybody trust another authority, without a restart of a server: they read their files on
// SIGHUP, and show new certificates to the services, which connect anew.
func (h *house) replaceCertificates(p *compose) {
	p.t.Helper()
	urls := strings.Split(h.url, ",")
	before := map[string]string{}
	for _, url := range urls {
		before[url] = shown(p.ctx, url)
		require.NotEmpty(p.t, before[url])
	}
	var args []string
	require.NoError(p.t, json.Unmarshal([]byte(p.docker("inspect", "--format", "{{json .Args}}", p.containers("certs")[0])), &args))
	require.Contains(p.t, args, "--keep")
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "--keep", "--overwrite")
	}
	p.compose(append([]string{"run", "--rm", "--no-deps", "certs"}, args...)...)
	h.takeSecrets(p)
	for _, server := range []string{"nats-1", "nats-2", "nats-3"} {
		p.docker("kill", "--signal", "HUP", p.containers(server)[0])
	}
	for _, url := range urls {
		require.Eventually(p.t, func() bool {
			now := shown(p.ctx, url)
			return now != "" && now != before[url]
		}, time.Minute, 100*time.Millisecond, "%s shows the certificate that it had", url)
	}
	var all []string
	for _, service := range fleetServices {
		all = append(all, p.containers(service)...)
	}
	p.docker(append([]string{"restart", "--time", "25"}, all...)...)
}

// shown is the serial number of the certificate that a server shows; empty where it does not answer.
func shown(ctx context.Context, url string) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", strings.TrimPrefix(url, "tls://"))
	if err != nil {
		return ""
	}
	defer conn.Close()
	// A server says INFO before it is asked for TLS.
	for b := make([]byte, 1); b[0] != '\n'; {
		if _, err := conn.Read(b); err != nil {
			return ""
		}
	}
	secured := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) // it is only looked at
	if err := secured.HandshakeContext(ctx); err != nil {
		return ""
	}
	return secured.ConnectionState().PeerCertificates[0].SerialNumber.String()
}

// leaks are the places outside of the volumes where a secret of this project is seen: events, logs, and what docker knows
// of containers and images.
func (p *compose) leaks(events []entry) (found []string) {
	p.t.Helper()
	dir := p.t.TempDir()
	p.docker("cp", p.containers("certs")[0]+":/secrets", dir)
	secrets := map[string]string{}
	for _, pattern := range []string{"*/nkey", "*/*.key", "gateway/password"} {
		files, err := filepath.Glob(filepath.Join(dir, "secrets", pattern))
		require.NoError(p.t, err)
		require.NotEmpty(p.t, files, pattern)
		for _, file := range files {
			body, err := os.ReadFile(file)
			require.NoError(p.t, err)
			lines := strings.Split(strings.TrimSpace(string(body)), "\n")
			secrets[file] = lines[min(1, len(lines)-1)] // of a PEM, the first line of its body
		}
	}
	look := func(where, text string) {
		for file, secret := range secrets {
			if strings.Contains(text, secret) {
				found = append(found, fmt.Sprintf("%s in %s", file, where))
			}
		}
	}
	for _, id := range p.containers("") {
		look("container "+id, p.docker("inspect", id))
		look("image of "+id, p.docker("history", "--no-trunc", p.docker("inspect", "--format", "{{.Image}}", id)))
		out, errs, err := p.run("docker", "logs", id)
		require.NoError(p.t, err)
		require.NotEmpty(p.t, out+errs, "%s has logged nothing", id)
		look("logs of "+id, out+errs)
	}
	for _, e := range events {
		look(fmt.Sprintf("event %d", e.Seq), string(e.Body))
	}
	return found
}
