package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
)

// compose is a project of docker-compose.yml, of its own name, networks, volumes and ports. It is gone when the test has
// ended.
type compose struct {
	t       *testing.T
	ctx     context.Context
	project string
	command []string // docker-compose, or docker compose, and its flags
	env     []string
	up      []string // flags of its start
	runner  string   // image
}

const (
	composeTime = 5 * time.Minute // of one command; a machine may be slow
	healthyTime = 3 * time.Minute // for all containers to be healthy
)

// containersVariable holds the tag of the images to test; without it what needs containers is skipped.
const containersVariable = "DROVER_CONTAINERS"

// inContainers is for how long a test may have containers, and the tag of their images. What interrupts the test ends it too: it
// must not leave containers behind.
func inContainers(t *testing.T, most time.Duration) (ctx context.Context, tag string) {
	t.Helper()
	tag = os.Getenv(containersVariable)
	if tag == "" {
		t.Skip("make e2e runs it")
	}
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, most)
	t.Cleanup(func() {
		cancel()
		stop()
	})
	return ctx, tag
}

// newCompose starts it, and returns when all of it is healthy. more is what a test adds to it.
func newCompose(ctx context.Context, t *testing.T, tag string, more ...func(*compose)) (*compose, *house) {
	t.Helper()
	command := strings.Fields(os.Getenv("DROVER_COMPOSE"))
	if len(command) == 0 {
		command = []string{"docker-compose"}
	}
	p := &compose{t: t, ctx: ctx, project: fmt.Sprintf("drover-e2e-%d", os.Getpid())}
	p.runner = p.project + "/runner:" + tag
	p.command = append(command, "-p", p.project, "-f", "../../docker-compose.yml", "-f", "testdata/containers.yml")
	found := ports(t, 3)
	p.env = append(os.Environ(), "DROVER_TAG="+tag, "DROVER_E2E_RUNNER="+p.runner)
	for i, port := range found {
		p.env = append(p.env, fmt.Sprintf("DROVER_E2E_PORT_%d=%d", i+1, port))
	}
	for _, add := range more {
		add(p)
	}
	t.Cleanup(func() {
		if t.Failed() {
			p.tell()
		}
		p.ctx = context.Background() // it may be the context's end that brought us here
		p.down()
		p.docker("rmi", "--force", p.runner)
	})
	p.buildRunner(tag)
	began := time.Now()
	p.compose(append([]string{"up", "-d"}, p.up...)...)
	p.healthy()
	t.Logf("from nothing to healthy in %s", time.Since(began).Round(100*time.Millisecond))

	h := &house{t: t, ctx: ctx, dir: folder(t), project: project, from: 1, keys: map[bus.Service]string{}}
	h.tls = filepath.Join(h.dir, "secrets")
	require.NoError(t, os.Mkdir(h.tls, 0o700))
	h.takeSecrets(p)
	for i, port := range found {
		if i > 0 {
			h.url += ","
		}
		h.url += fmt.Sprintf("tls://127.0.0.1:%d", port)
	}
	return p, h
}

// takeSecrets copies those of the roles that the test itself connects as out of their volumes.
func (h *house) takeSecrets(p *compose) {
	p.t.Helper()
	for _, role := range []bus.Service{bus.User, bus.Operator, bus.Runner} {
		p.docker("cp", p.containers("certs")[0]+":/secrets/"+string(role), h.tls)
		h.keys[role] = filepath.Join(h.tls, string(role), "nkey")
	}
}

// buildRunner makes an image of the runner that has the witness, and a folder for its journal.
func (p *compose) buildRunner(tag string) {
	p.t.Helper()
	images := os.Getenv("DROVER_IMAGES")
	if images == "" {
		images = "ghcr.io/droverproject/drover"
	}
	p.buildImage(p.runner, "FROM "+images+"/runner:"+tag+"\nCOPY witness /\nCOPY --chown=65532:65532 journal /journal\n", "witness")
}

// buildImage makes an image around a program of the tests, and an empty folder for a journal.
func (p *compose) buildImage(image, dockerfile, program string) {
	p.t.Helper()
	dir := p.t.TempDir()
	require.NoError(p.t, os.Mkdir(filepath.Join(dir, "journal"), 0o700))
	body, err := os.ReadFile(filepath.Join(bin, program))
	require.NoError(p.t, err)
	require.NoError(p.t, os.WriteFile(filepath.Join(dir, program), body, 0o755))
	require.NoError(p.t, os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(dockerfile), 0o600))
	p.docker("build", "--quiet", "--tag", image, dir)
}

func (p *compose) run(name string, args ...string) (stdout, stderr string, err error) {
	ctx, cancel := context.WithTimeout(p.ctx, composeTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = p.env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", "", fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, out.String(), errs.String())
	}
	return strings.TrimSpace(out.String()), strings.TrimSpace(errs.String()), nil
}

func (p *compose) docker(args ...string) string {
	p.t.Helper()
	out, _, err := p.run("docker", args...)
	require.NoError(p.t, err)
	return out
}

func (p *compose) compose(args ...string) string {
	p.t.Helper()
	out, _, err := p.run(p.command[0], append(slices.Clone(p.command[1:]), args...)...)
	require.NoError(p.t, err)
	return out
}

// down removes all of it. Docker (28.2.2) at times goes on counting a container that is gone among those of a network, and then
// keeps that network until it is restarted itself: that is told, and is no failure of what was tested.
func (p *compose) down() {
	p.t.Helper()
	_, _, err := p.run(p.command[0], append(slices.Clone(p.command[1:]), "down", "--volumes", "--remove-orphans", "--timeout", "1")...)
	if err == nil {
		return
	}
	require.ErrorContains(p.t, err, "has active endpoints")
	require.Empty(p.t, p.containers(""))
	p.t.Logf("a network stays: %v", err)
	volumes := strings.Fields(p.docker("volume", "ls", "--quiet", "--filter", "label=com.docker.compose.project="+p.project)) // which come after networks
	p.docker(append([]string{"volume", "rm"}, volumes...)...)
}

// containers are the ids of a service's, of all services where none is named.
func (p *compose) containers(service string) []string {
	p.t.Helper()
	args := []string{"ps", "--all", "--quiet", "--no-trunc", "--filter", "label=com.docker.compose.project=" + p.project}
	if service != "" {
		args = append(args, "--filter", "label=com.docker.compose.service="+service)
	}
	return strings.Fields(p.docker(args...))
}

// healthy waits until all containers are, but for those that were to end, which must have ended well.
func (p *compose) healthy() {
	p.t.Helper()
	end := time.Now().Add(healthyTime)
	for {
		var waits []string
		state := p.docker(append([]string{"inspect", "--format", "{{.Name}} {{.State.Status}} {{.State.ExitCode}} {{with .State.Health}}{{.Status}}{{end}}"},
			p.containers("")...)...)
		for line := range strings.Lines(state) {
			f := strings.Fields(line)
			if !(f[1] == "running" && f[len(f)-1] == "healthy" || f[1] == "exited" && f[2] == "0") {
				waits = append(waits, strings.TrimSpace(line))
			}
		}
		if len(waits) == 0 {
			return
		}
		require.True(p.t, time.Now().Before(end) && pause(p.ctx, 200*time.Millisecond), "not healthy after %s: %v", healthyTime, waits)
	}
}

// scale has a service run so many times.
func (p *compose) scale(service string, n int) {
	p.t.Helper()
	p.compose("up", "-d", "--no-deps", "--no-recreate", "--scale", fmt.Sprintf("%s=%d", service, n), service)
}

// kill ends containers at once, as kill -9 does; docker does not start again what it was told to kill.
func (p *compose) kill(ids []string) (heal func()) {
	p.t.Helper()
	p.docker(append([]string{"kill", "--signal", "KILL"}, ids...)...)
	return func() { p.docker(append([]string{"start"}, ids...)...) }
}

// cut takes containers of a service off their networks. They go on running, and hear of nobody.
func (p *compose) cut(service string, ids []string, networks ...string) (heal func()) {
	p.t.Helper()
	each := func(args ...string) {
		for _, id := range ids {
			for _, network := range networks {
				p.docker(append(append([]string{"network"}, args...), p.project+"_"+network, id)...)
			}
		}
	}
	each("disconnect")
	return func() { each("connect", "--alias", service) }
}

// tell prints what the containers had to say last, for a test that has failed.
func (p *compose) tell() {
	p.ctx = context.Background()
	for _, id := range p.containers("") {
		name, _, _ := p.run("docker", "inspect", "--format", "{{.Name}} {{.State.Status}}", id)
		out, errs, _ := p.run("docker", "logs", "--tail", "300", id) // what there is of it
		var lines []string
		for line := range strings.Lines(out + "\n" + errs) {
			if !slices.ContainsFunc(idle, func(text string) bool { return strings.Contains(line, text) }) {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
		p.t.Logf("%s, what it warned of last:\n%s", name, strings.Join(lines[max(0, len(lines)-8):], "\n"))
	}
}
