package bench

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/rebar/rebartest"
	"github.com/droverproject/drover/services/gateway"
)

// roleMachines is server, services and gateway in one process, with the machine-agent API.
const roleMachines = "machines"

// machinesProject is the one that the gateway serves.
const machinesProject = project

const (
	benchTasks    = 250 // entries of each machine's list; then it begins anew, which is not counted
	benchUser     = "rocketskates"
	benchPassword = "bench"
)

// MachineOptions of Machines. Zero values mean the defaults.
type MachineOptions struct {
	// Sync as in Options.
	Sync []string
	// Machines is how many go round at once. Default 32.
	Machines int
	// For is how long they do. Default 8 s.
	For time.Duration
	// Dir as in Options.
	Dir string
	// Progress as in Options.
	Progress func(line string)
}

// MachineReport is what was measured.
type MachineReport struct {
	Machine string          `json:"machine"`
	Version string          `json:"version"`
	Rows    []MachineFigure `json:"rows"`
}

// MachineFigure is one sync mode. A cycle is one task as an agent runs it: POST the job, PATCH it running, GET its actions, PUT
// its log, PATCH it finished, over TLS.
type MachineFigure struct {
	Sync     string             `json:"sync"`
	Machines int                `json:"machines"`
	Cycles   float64            `json:"cyclesPerSecond"`
	P50      Millis             `json:"p50Ms"`
	P99      Millis             `json:"p99Ms"`
	CPU      map[string]float64 `json:"cpuSecondsPer1000Cycles"`
}

// Machines measures task cycles of machine agents.
func Machines(ctx context.Context, o MachineOptions) (MachineReport, error) {
	if len(o.Sync) == 0 {
		o.Sync = []string{"default", "always"}
	}
	if o.Machines <= 0 {
		o.Machines = 32
	}
	if o.For <= 0 {
		o.For = 8 * time.Second
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	r := MachineReport{Machine: fmt.Sprintf("%d cores, %s/%s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())}
	for _, sync := range o.Sync {
		f, err := measureMachines(ctx, o, sync)
		if err != nil {
			return r, fmt.Errorf("sync %s: %w", sync, err)
		}
		r.Rows = append(r.Rows, f)
	}
	return r, nil
}

func measureMachines(ctx context.Context, o MachineOptions, sync string) (f MachineFigure, err error) {
	f = MachineFigure{Sync: sync, Machines: o.Machines, CPU: map[string]float64{}}
	dir, err := os.MkdirTemp(o.Dir, "drover-bench-")
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	o.Progress("sync " + sync + ": starting")
	all, addresses, err := startMachines(ctx, dir, sync)
	if err != nil {
		return f, err
	}
	defer all.stop()
	natsURL, agentURL, _ := strings.Cut(addresses, " ")
	b, err := jetstream.Connect(ctx, jetstream.Options{URL: natsURL, Name: "bench"})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	y := &yard{operator: rebartest.Client{URL: agentURL, HTTP: rebartest.NewHTTP()}}
	defer y.operator.HTTP.CloseIdleConnections()
	if err := y.prepare(ctx, b, o.Machines); err != nil {
		return f, err
	}
	o.Progress(fmt.Sprintf("sync %s: %d machines for %s", sync, o.Machines, o.For))
	before := all.cpu()
	times, took, err := y.cycle(ctx, o.For)
	if err != nil {
		return f, err
	}
	for name, seconds := range all.cpu() {
		f.CPU[name] = round((seconds - before[name]) / float64(len(times)) * 1000)
	}
	f.Cycles = round(float64(len(times)) / took.Seconds())
	f.P50, f.P99 = millis(quantile(times, 0.50)), millis(quantile(times, 0.99))
	return f, nil
}

func startMachines(ctx context.Context, dir, sync string) (*fleet, string, error) {
	f := newFleet()
	line, err := f.start(ctx, roleMachines, filepath.Join(dir, "data"), sync)
	if err != nil {
		f.stop()
		return nil, "", err
	}
	return f, line, nil
}

// yard is the machines that are driven.
type yard struct {
	operator rebartest.Client
	uuids    []string
	tokens   []string
}

func (y *yard) prepare(ctx context.Context, b bus.Bus, n int) error {
	l, err := newLoad(b)
	if err != nil {
		return err
	}
	defer l.stop()
	tasks := strings.TrimSuffix(strings.Repeat(`"hello",`, benchTasks), ",")
	for _, d := range []struct{ kind, name, spec string }{
		{"Task", "hello", `{"templates":[{"name":"script","contents":"#!/bin/sh\necho hello {{.Machine.Name}}\n"}]}`},
		{"Stage", "s", `{"tasks":[` + tasks + `]}`}, {"Workflow", "w", `{"stages":["s"]}`},
	} {
		if err := l.apply(ctx, d.kind, d.name, d.spec, "bench"); err != nil {
			return err
		}
	}
	if err := y.login(ctx); err != nil {
		return err
	}
	for i := range n {
		name := fmt.Sprint("m", i)
		if err := l.apply(ctx, "Machine", name, `{"workflow":"w"}`, "bench"); err != nil {
			return err
		}
		var m rebartest.Machine
		var given struct{ Token string }
		if _, err := y.operator.Do(ctx, "GET", "/machines/Name:"+name, nil, &m); err != nil {
			return err
		}
		if _, err := y.operator.Do(ctx, "GET", "/machines/"+m.Uuid+"/token", nil, &given); err != nil {
			return err
		}
		y.uuids, y.tokens = append(y.uuids, m.Uuid), append(y.tokens, given.Token)
	}
	return nil
}

func (y *yard) login(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, y.operator.URL+"/api/v3/users/"+benchUser+"/token", nil)
	if err != nil {
		return err
	}
	r.SetBasicAuth(benchUser, benchPassword)
	var given struct{ Token string }
	if err := y.operator.Send(r, &given); err != nil {
		return err
	}
	y.operator.Token = given.Token
	return nil
}

// cycle drives all of them, and returns how long each cycle took.
func (y *yard) cycle(ctx context.Context, lasts time.Duration) (times []time.Duration, took time.Duration, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began := time.Now()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range y.uuids {
		wg.Go(func() {
			agent := rebartest.Client{URL: y.operator.URL, HTTP: y.operator.HTTP, Token: y.tokens[i]}
			var mine []time.Duration
			for time.Since(began) < lasts {
				start := time.Now()
				ran, cycleErr := one(ctx, &agent, y.uuids[i])
				if cycleErr != nil {
					mu.Lock()
					if err == nil {
						err = cycleErr
					}
					mu.Unlock()
					cancel()
					return
				}
				if ran {
					mine = append(mine, time.Since(start))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			times = append(times, mine...)
		})
	}
	wg.Wait()
	if err == nil && len(times) == 0 {
		err = errors.New("no cycle came to its end")
	}
	return times, time.Since(began), err
}

// one is one cycle; false where the machine had none, or began its list anew.
func one(ctx context.Context, c *rebartest.Client, uuid string) (bool, error) {
	job, _, err := c.Next(ctx, uuid, "")
	if err != nil {
		return false, err
	}
	if job.State == "" {
		var m rebartest.Machine
		if _, err := c.Do(ctx, "GET", "/machines/"+uuid, nil, &m); err != nil || m.CurrentTask < len(m.Tasks) {
			return false, err
		}
		_, err := c.Do(ctx, "PATCH", "/machines/"+uuid, []rebartest.Op{{Op: "replace", Path: "/CurrentTask", Value: -1}}, nil)
		return false, err
	}
	if job, err = c.Report(ctx, job, "running", ""); err != nil {
		return false, err
	}
	var actions []rebartest.Action
	if _, err := c.Do(ctx, "GET", "/jobs/"+job.Uuid+"/actions?os=linux", nil, &actions); err != nil {
		return false, err
	}
	if _, err := c.Do(ctx, "PUT", "/jobs/"+job.Uuid+"/log", []byte("hello\n"), nil); err != nil {
		return false, err
	}
	_, err = c.Report(ctx, job, "finished", "complete")
	return err == nil, err
}

// childMachines is the process that is measured.
func childMachines(ctx context.Context, args []string) error {
	s, err := server(args)
	if err != nil {
		return err
	}
	options, err := agentAPI(filepath.Dir(args[0]))
	if err != nil {
		return errors.Join(err, s.Shutdown())
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return errors.Join(err, s.Shutdown())
	}
	options.Listener = listener
	run := gateway.RunOptions{HTTP: "127.0.0.1:0", Rebar: options}.Run
	err = runServices(ctx, jetstream.Options{InProcess: s, Partitions: partitions, Sync: args[1]}, s.ClientURL()+" https://"+listener.Addr().String(),
		named{"gateway", func(ctx context.Context, h *host.Host, b bus.Bus) error { return run(ctx, h, b) }})
	return errors.Join(err, s.Shutdown())
}

// agentAPI makes the files that the machine-agent API needs, with a certificate for this run.
func agentAPI(dir string) (o gateway.RebarOptions, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return o, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), DNSNames: []string{"localhost"}}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return o, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return o, err
	}
	o.Project = machinesProject
	for _, f := range []struct {
		to   *string
		name string
		body []byte
	}{
		{&o.Certificate, "agents.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})},
		{&o.CertificateKey, "agents-key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})},
		{&o.TokenKey, "token-key", []byte(rand.Text() + rand.Text())},
		{&o.Password, "password", []byte(benchPassword)},
	} {
		*f.to = filepath.Join(dir, f.name)
		if err := os.WriteFile(*f.to, f.body, 0o600); err != nil {
			return o, err
		}
	}
	return o, nil
}
