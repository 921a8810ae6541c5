//go:build unix

package phase_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/examples/fleet/internal/home"
	"github.com/droverproject/drover/examples/fleet/internal/node"
	"github.com/droverproject/drover/examples/fleet/internal/phase"
	"github.com/droverproject/drover/examples/fleet/internal/process"
	"github.com/droverproject/drover/examples/fleet/internal/site"
)

// TestMain is also `fleet node` and `fleet phase`: launch starts the program that it is part of.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "node" || len(os.Args) == 3 && os.Args[1] == "phase" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		var err error
		if os.Args[1] == "node" {
			err = node.Run(ctx, os.Args[3], os.Stderr)
		} else {
			err = phase.Run(ctx, os.Args[2], os.Getenv, os.Stdout)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// resource plays the runner for one node.
type resource struct {
	t          *testing.T
	site       *site.Site
	name       string
	spec       map[string]any
	attributes map[string]any
}

func newResource(t *testing.T, name string) *resource {
	t.Helper()
	s, err := site.Open(t.Context(), t.TempDir(), 2)
	require.NoError(t, err)
	r := &resource{t: t, site: s, name: name, attributes: map[string]any{}, spec: map[string]any{
		"home": string(s.Home), "registry": s.URL, "ports": s.Ports, "page": "welcome", "greeting": "Hello <&> {{ you }}.", "warmup": "1ms",
	}}
	t.Cleanup(func() {
		_, err := process.Stop(context.Background(), s.Home.Node(name), time.Second)
		require.NoError(t, err)
		require.NoError(t, s.Close())
	})
	return r
}

// environment is what the runner sets (services/runner, package script).
func (r *resource) environment() map[string]string {
	folder := r.t.TempDir()
	spec, err := json.Marshal(r.spec)
	require.NoError(r.t, err)
	path := filepath.Join(folder, "spec.json")
	require.NoError(r.t, os.WriteFile(path, spec, 0o600))
	attributes, err := json.Marshal(r.attributes)
	require.NoError(r.t, err)
	return map[string]string{
		"DROVER_NAME": r.name, "DROVER_SPEC_FILE": path, "DROVER_ATTRIBUTES": string(attributes),
		"DROVER_RESULT": filepath.Join(folder, "output.json"), "RACK": "a",
	}
}

// run runs a phase and keeps the attributes that it sets.
func (r *resource) run(name string) error {
	r.t.Helper()
	env := r.environment()
	if err := phase.Run(r.t.Context(), name, func(name string) string { return env[name] }, io.Discard); err != nil {
		return err
	}
	body, err := os.ReadFile(env["DROVER_RESULT"])
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(r.t, err)
	var out struct {
		Attributes map[string]any `json:"attributes"`
	}
	require.NoError(r.t, json.Unmarshal(body, &out))
	maps.Copy(r.attributes, out.Attributes)
	maps.DeleteFunc(r.attributes, func(_ string, v any) bool { return v == nil })
	return nil
}

// TestThereAndBack runs every phase twice, as a runner that was killed before its answer would.
func TestThereAndBack(t *testing.T) {
	t.Parallel()
	r := newResource(t, "web-01")
	r.spec["motd"] = "sweep"
	twice := func(names ...string) {
		t.Helper()
		for _, name := range names {
			require.NoError(t, r.run(name), name)
			before := maps.Clone(r.attributes)
			require.NoError(t, r.run(name), name)
			require.Equal(t, before, r.attributes, "%s again changes nothing", name)
		}
	}
	twice("allocate-folder", "allocate-port", "configure", "motd", "launch")
	folder, port := r.site.Home.Node("web-01"), int(r.attributes["port"].(float64))
	require.Equal(t, folder, r.attributes["folder"])
	pid, err := process.Running(folder)
	require.NoError(t, err)
	require.EqualValues(t, pid, r.attributes["pid"])
	require.NotEqual(t, os.Getpid(), pid)

	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for path, want := range map[string]string{
		"/":     fmt.Sprintf("Welcome to web-01 in rack a, on port %d.\nHello <&> {{ you }}.\n", port),
		"/motd": "sweep\n",
	} {
		res, err := client.Get("http://" + home.Address(port) + path)
		require.NoError(t, err)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		res.Body.Close()
		require.Equal(t, want, string(body))
	}
	require.ErrorContains(t, r.run("release-folder"), "runs in", "not under a node's feet")

	twice("stop", "release-port", "release-folder")
	require.Empty(t, r.attributes)
	folders, err := r.site.Home.Folders()
	require.NoError(t, err)
	require.Empty(t, folders)
	reserved, err := r.site.Home.Reserved()
	require.NoError(t, err)
	require.Empty(t, reserved)
	require.True(t, home.Free(port))
}

func TestOfAnEarlierSpecNothingStays(t *testing.T) {
	t.Parallel()
	r := newResource(t, "web-01")
	require.NoError(t, r.run("allocate-folder"))
	require.NoError(t, r.run("allocate-port"))
	r.spec["motd"] = "sweep"
	require.NoError(t, r.run("configure"))
	require.NoError(t, r.run("motd"))
	require.FileExists(t, filepath.Join(r.site.Home.Node("web-01"), node.MotdFile))
	delete(r.spec, "motd")
	require.NoError(t, r.run("configure"))
	require.NoFileExists(t, filepath.Join(r.site.Home.Node("web-01"), node.MotdFile))
}

func TestFailuresSayWhy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		phase  string
		change func(r *resource)
		reason string
	}{
		"the typo of the demo": {"configure", func(r *resource) { r.spec["page"] = "welcom" }, `spec.page: there is no page "welcom"; there are plain, welcome`},
		"unknown field":        {"configure", func(r *resource) { r.spec["colour"] = "red" }, `spec: json: unknown field "colour"`},
		"warm-up":              {"configure", func(r *resource) { r.spec["warmup"] = "soon" }, "spec.warmup: "},
		"long warm-up":         {"configure", func(r *resource) { r.spec["warmup"] = "1h" }, "a warm-up of 1h0m0s"},
		"no port yet":          {"configure", func(r *resource) { r.attributes = map[string]any{} }, "not a range of ports"},
		"a way out":            {"allocate-folder", func(r *resource) { r.name = "../../etc" }, "DROVER_NAME: "},
		"no home":              {"allocate-folder", func(r *resource) { r.spec["home"] = "/" }, "spec.home: / is no fleet's home"},
		"no ports":             {"allocate-port", func(r *resource) { delete(r.spec, "ports") }, "spec.ports: "},
		"no configuration":     {"launch", func(*resource) {}, "config.json"},
		"no phase":             {"dance", func(*resource) {}, `"dance": no phase of this name; there are allocate-folder, `},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newResource(t, "web-01")
			require.NoError(t, r.run("allocate-folder"))
			require.NoError(t, r.run("allocate-port"))
			was := r.name
			c.change(r)
			require.ErrorContains(t, r.run(c.phase), c.reason)
			r.name = was
		})
	}
}

func TestWithoutARunner(t *testing.T) {
	t.Parallel()
	none := func(string) string { return "" }
	require.ErrorContains(t, phase.Run(t.Context(), "stop", none, io.Discard), "DROVER_NAME")
	named := func(name string) string { return map[string]string{"DROVER_NAME": "a"}[name] }
	require.ErrorContains(t, phase.Run(t.Context(), "stop", named, io.Discard), "started by Drover's runner")
}

// TestFortyAtOnce allocates as the runner does: forty processes at the same time.
func TestFortyAtOnce(t *testing.T) {
	t.Parallel()
	const nodes = 40
	r := newResource(t, "web")
	self, err := os.Executable()
	require.NoError(t, err)
	spec := r.environment()["DROVER_SPEC_FILE"]
	var wg sync.WaitGroup
	for i := range nodes {
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), self, "phase", "allocate-port")
			cmd.Env = []string{
				fmt.Sprintf("DROVER_NAME=web-%02d", i), "DROVER_SPEC_FILE=" + spec,
				"DROVER_RESULT=" + filepath.Join(string(r.site.Home), fmt.Sprintf("out-%02d", i)),
			}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	reserved, err := r.site.Home.Reserved()
	require.NoError(t, err)
	require.Len(t, reserved, nodes)
	for port, name := range reserved {
		body, err := os.ReadFile(filepath.Join(string(r.site.Home), "out-"+strings.TrimPrefix(name, "web-")))
		require.NoError(t, err)
		require.JSONEq(t, fmt.Sprintf(`{"attributes": {"port": %d}}`, port), string(body))
	}
}
