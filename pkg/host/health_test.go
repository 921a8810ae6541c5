package host_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/host"
)

func TestHealthFollowsTheServicesLife(t *testing.T) {
	t.Parallel()
	h := host.New(host.Options{Name: "t", Config: host.Config{Listen: host.ListenDefault}})
	ctx, cancel := context.WithCancel(t.Context())
	inRun, goOn, stopping, release := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	connected := make(chan error, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- h.Run(ctx, func(ctx context.Context, h *host.Host) error {
			h.ReadyWhen("bus", func(context.Context) error { return errBroken })
			h.ReadyWhen("bus", func(ctx context.Context) error { // replaces the first
				select {
				case err := <-connected:
					connected <- err
					return err
				case <-ctx.Done():
					return ctx.Err()
				}
			})
			h.OnStop("slow", func(context.Context) error { close(stopping); <-release; return nil })
			close(inRun)
			<-goOn
			return h.Wait(ctx)
		})
	}()

	<-inRun
	connected <- nil
	status, body := get(t, h, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Equal(t, "not ready: started: the service is starting\nok: bus\n", body)
	require.ErrorContains(t, h.Ready(t.Context()), "starting")
	status, _ = get(t, h, "/livez")
	require.Equal(t, http.StatusOK, status, "alive while it starts")

	close(goOn)
	require.Eventually(t, func() bool { return h.Ready(t.Context()) == nil }, 30*time.Second, time.Millisecond)
	status, body = get(t, h, "/readyz")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "ok: started\nok: bus\n", body)

	<-connected
	connected <- errBroken
	status, body = get(t, h, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, body, "not ready: bus: broken\n")

	<-connected // now the check hangs, until its time is over
	status, body = get(t, h, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, body, "not ready: bus: context deadline exceeded\n")

	connected <- nil
	cancel()
	<-stopping
	status, body = get(t, h, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, body, "the service is stopping")
	status, _ = get(t, h, "/livez")
	require.Equal(t, http.StatusOK, status, "alive while it stops")

	close(release)
	require.NoError(t, <-ended)
	_, err := http.Get("http://" + h.Addr() + "/livez")
	require.Error(t, err, "nothing listens any more")
}

// within runs f against a host that serves HTTP.
func within(t *testing.T, o host.Options, f func(h *host.Host)) {
	t.Helper()
	o.Config.Listen = host.ListenDefault
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, host.New(o).Run(ctx, func(_ context.Context, h *host.Host) error {
		defer cancel()
		f(h)
		return nil
	}))
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	within(t, host.Options{Name: "intake"}, func(h *host.Host) {
		counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "drover_test_total", Help: "Of the test."})
		h.Metrics().MustRegister(counter)
		counter.Add(3)
		status, body := get(t, h, "/metrics")
		require.Equal(t, http.StatusOK, status)
		require.Contains(t, body, `drover_test_total{service="intake"} 3`)
		require.Contains(t, body, "\ngo_goroutines ")
		require.Contains(t, body, "\nprocess_start_time_seconds ")

		found, err := prometheus.DefaultGatherer.Gather() //nolint:forbidigo // to see that nothing is in it
		require.NoError(t, err)
		for _, family := range found {
			require.False(t, strings.HasPrefix(family.GetName(), "drover_"), "nothing is registered globally")
		}
	})
}

func TestServicesShareARegistry(t *testing.T) {
	t.Parallel()
	shared := prometheus.NewRegistry()
	for _, name := range []string{"intake", "runner"} {
		h := host.New(host.Options{Name: name, Registry: shared})
		h.Metrics().MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "drover_test", Help: "Of the test."}))
	}
	families, err := shared.Gather()
	require.NoError(t, err)
	require.Len(t, families, 1)
	require.Len(t, families[0].GetMetric(), 2)
}

func TestOnlyKnownPathsAnswer(t *testing.T) {
	t.Parallel()
	within(t, host.Options{Name: "t"}, func(h *host.Host) {
		for _, path := range []string{"/", "/debug/pprof/", "/livez/deeper"} {
			status, _ := get(t, h, path)
			require.Equal(t, http.StatusNotFound, status, path)
		}
		response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Post("http://"+h.Addr()+"/metrics", "text/plain", nil)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusMethodNotAllowed, response.StatusCode)
	})
}

func TestWithoutHTTP(t *testing.T) {
	t.Parallel()
	h := host.New(host.Options{Name: "t"})
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, h.Run(ctx, func(context.Context, *host.Host) error { cancel(); return nil }))
	require.Empty(t, h.Addr())
}
