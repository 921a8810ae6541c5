package up

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus/memory"
	"github.com/droverproject/drover/pkg/host"
)

var update = flag.Bool("update", false, "write docs/metrics.md anew")

// reference is docs/metrics.md, which TestReference renders from what the services register.
var reference = filepath.Join("..", "..", "..", "..", "docs", "metrics.md")

// metric is one that a service has registered.
type metric struct{ service, name, help, labels string }

// described is how a prometheus.Desc writes itself; it has no other way to say what it holds.
var described = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: "((?:[^"\\]|\\.)*)"(?:, unit: "[^"]*")?, constLabels: \{service="([^"]+)"\}, variableLabels: \{([^}]*)\}\}$`)

// registered runs all services on a bus in memory, and returns what they have registered.
func registered(t *testing.T) []metric {
	t.Helper()
	system := memory.New(memory.Options{Partitions: 4})
	registry := prometheus.NewRegistry()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	for _, s := range services(Options{}, nil) {
		conn := system.Connect()
		config := host.DefaultConfig()
		config.Listen = ""
		h := host.New(host.Options{Name: s.name, Config: config, Registry: registry})
		running.Go(func() {
			if err := h.Run(ctx, func(ctx context.Context, h *host.Host) error { return s.run(ctx, h, conn) }); err != nil {
				t.Errorf("%s: %v", s.name, err)
			}
			if err := conn.Close(); err != nil {
				t.Errorf("%s: close: %v", s.name, err)
			}
		})
		require.Eventually(t, func() bool { return h.Ready(ctx) == nil }, 30*time.Second, 5*time.Millisecond, s.name)
	}
	descs := make(chan *prometheus.Desc)
	go func() {
		registry.Describe(descs)
		close(descs)
	}()
	var all []metric
	for d := range descs {
		m := described.FindStringSubmatch(d.String())
		require.NotNil(t, m, d.String())
		help := strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(m[2])
		all = append(all, metric{service: m[3], name: m[1], help: help, labels: m[4]})
	}
	slices.SortFunc(all, func(x, y metric) int { return strings.Compare(x.service+" "+x.name, y.service+" "+y.name) })
	return all
}

// TestReference holds docs/metrics.md to what the services register; `make generate-docs` writes it anew.
func TestReference(t *testing.T) {
	t.Parallel()
	all := registered(t)
	var b strings.Builder
	b.WriteString("# Metrics\n\n<!-- Generated from what the services register by `make generate-docs`; do not edit. -->\n\n" +
		"What each service has at `/metrics` on its own port (`--listen`), beside those of Go and of the process. Each has the label\n" +
		"`service` too. Which of them to watch, and what for, is in [operation.md](operation.md).\n")
	for i, m := range all {
		require.NotEmpty(t, m.help, m.name)
		require.True(t, strings.HasPrefix(m.name, "drover_"+m.service+"_") || m.service == "host", "%s of %s", m.name, m.service)
		if i == 0 || all[i-1].service != m.service {
			fmt.Fprintf(&b, "\n## %s\n\n| metric | labels | says |\n|---|---|---|\n", m.service)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", m.name, strings.ReplaceAll(m.labels, ",", ", "), strings.ReplaceAll(m.help, "|", `\|`))
	}
	if *update {
		require.NoError(t, os.WriteFile(reference, []byte(b.String()), 0o644))
		return
	}
	want, err := os.ReadFile(reference)
	require.NoError(t, err)
	require.Equal(t, string(want), b.String(), "docs/metrics.md is stale: run `make generate-docs`")
}
