package api_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/intake/internal/api"
	"github.com/droverproject/drover/services/intake/internal/forward"
	"github.com/droverproject/drover/services/intake/internal/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const jsonType = "application/json"

type owner func(ctx context.Context, partition int, r bus.Request) (bus.Request, error)

func (o owner) Ask(ctx context.Context, partition int, r bus.Request) (bus.Request, error) {
	return o(ctx, partition, r)
}

func accepts(_ context.Context, _ int, r bus.Request) (bus.Request, error) {
	form := r.Header["Content-Type"]
	body, err := wire.EncodeReply(form, wire.Reply{JobID: "job", Resource: "p/k/n"})
	return bus.Request{Header: map[string]string{"Content-Type": form}, Body: body}, err
}

func serve(t *testing.T, o owner) (*api.Server, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewRegistry()
	m, err := metrics.New(registry)
	require.NoError(t, err)
	s := api.New(o, 64, zap.NewNop(), m)
	t.Cleanup(s.Stop)
	return s, registry
}

type answer struct {
	wire.Reply
	header map[string]string
}

// ask sends one request; the answer comes on the channel.
func ask(t *testing.T, s *api.Server, subject string, r bus.Request) <-chan answer {
	t.Helper()
	answers := make(chan answer, 2) // a second answer would be seen
	s.Handle(subject, r, func(header map[string]string, body []byte) {
		reply, err := wire.DecodeReply(header["Content-Type"], body)
		if err != nil {
			t.Error(err)
		}
		answers <- answer{reply, header}
	})
	return answers
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	for name, form := range map[string]string{"JSON": jsonType, "JSON with a charset": "application/json; charset=utf-8", "protobuf": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, registry := serve(t, func(ctx context.Context, p int, r bus.Request) (bus.Request, error) {
				require.Equal(t, bus.PartitionOf("default", "node", "web1.example.com", 64), p)
				require.Equal(t, "drover.cmd.default.node.web1=2Eexample=2Ecom.start", r.Header["Drover-Subject"])
				require.Equal(t, "mine", r.Header["Drover-Request-Id"])
				return accepts(ctx, p, r)
			})
			header := map[string]string{"Content-Type": form, "Drover-Request-Id": "mine"}
			got := <-ask(t, s, "drover.api.default.node.web1=2Eexample=2Ecom.start", bus.Request{Header: header})
			require.Equal(t, wire.Reply{JobID: "job", Resource: "p/k/n"}, got.Reply)
			require.Equal(t, "mine", got.header["Drover-Request-Id"])

			got = <-ask(t, s, "drover.api.default.node.web1=2Eexample=2Ecom.start", bus.Request{Header: header, Body: []byte("\xff")})
			require.Equal(t, resource.Invalid, got.Refused.Code)
			require.Equal(t, "mine", got.RequestID)
			want := "application/protobuf"
			if strings.HasPrefix(form, jsonType) {
				want = jsonType
			}
			require.Equal(t, want, got.header["Content-Type"])

			s.Stop()
			n, err := testutil.GatherAndCount(registry, "drover_intake_commands_total")
			require.NoError(t, err)
			require.Equal(t, 2, n)
		})
	}
}

func TestAMissingRequestIDIsMade(t *testing.T) {
	t.Parallel()
	s, _ := serve(t, accepts)
	a := <-ask(t, s, "drover.api.p.k.n.start", bus.Request{})
	b := <-ask(t, s, "drover.api.p.k.n.start", bus.Request{})
	require.Len(t, a.header["Drover-Request-Id"], 26)
	require.NotEqual(t, a.header["Drover-Request-Id"], b.header["Drover-Request-Id"])
}

func TestABrokenRequestIDIsNotRepeated(t *testing.T) {
	t.Parallel()
	s, _ := serve(t, accepts)
	got := <-ask(t, s, "drover.api.p.k.n.start", bus.Request{Header: map[string]string{"Drover-Request-Id": "a\r\nb"}})
	require.Equal(t, "header.Drover-Request-Id", got.Refused.Violations[0].Field)
	require.NotContains(t, got.header, "Drover-Request-Id")
	require.Empty(t, got.RequestID)
}

func TestABrokenSubject(t *testing.T) {
	t.Parallel()
	s, _ := serve(t, accepts)
	got := <-ask(t, s, "drover.api.p.k", bus.Request{Header: map[string]string{"Content-Type": jsonType}})
	require.Equal(t, resource.Invalid, got.Refused.Code)
	require.Equal(t, "subject", got.Refused.Violations[0].Field)
}

func TestNoOwnerIsOverload(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, _ := serve(t, func(context.Context, int, bus.Request) (bus.Request, error) { return bus.Request{}, bus.ErrNoOwner })
		began := time.Now()
		got := <-ask(t, s, "drover.api.p.k.n.start", bus.Request{})
		require.Equal(t, resource.Overloaded, got.Refused.Code)
		require.Contains(t, got.Refused.Message, "no orchestrator serves partition")
		require.Equal(t, forward.Patience, time.Since(began))
	})
}

func TestAnOwnersReplyThatCannotBeRead(t *testing.T) {
	t.Parallel()
	s, _ := serve(t, func(context.Context, int, bus.Request) (bus.Request, error) {
		return bus.Request{Body: []byte("\xff")}, nil
	})
	got := <-ask(t, s, "drover.api.p.k.n.start", bus.Request{})
	require.Equal(t, resource.Overloaded, got.Refused.Code)
}

func TestLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s, _ := serve(t, func(ctx context.Context, p int, r bus.Request) (bus.Request, error) {
			select {
			case <-release:
			case <-ctx.Done():
				return bus.Request{}, ctx.Err()
			}
			return accepts(ctx, p, r)
		})
		var held []<-chan answer
		for range api.PartitionRequestsMax {
			held = append(held, ask(t, s, "drover.api.p.k.n.start", bus.Request{}))
		}
		got := <-ask(t, s, "drover.api.p.k.n.start", bus.Request{})
		require.Equal(t, resource.Overloaded, got.Refused.Code, "the partition is full")
		elsewhere := ask(t, s, "drover.api.p.k.another.start", bus.Request{})
		close(release)
		require.Nil(t, (<-elsewhere).Refused, "another is not")
		for _, h := range held {
			require.Nil(t, (<-h).Refused)
		}
		synctest.Wait()
		require.Nil(t, (<-ask(t, s, "drover.api.p.k.n.start", bus.Request{})).Refused)
	})
}

func TestBytesLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s, _ := serve(t, func(ctx context.Context, p int, r bus.Request) (bus.Request, error) {
			<-release
			return accepts(ctx, p, r)
		})
		s.LimitBytes(1000)
		body := []byte(`{` + strings.Repeat(" ", 248) + `}`)
		header := map[string]string{"Content-Type": jsonType}
		var held []<-chan answer
		for range 4 {
			held = append(held, ask(t, s, "drover.api.p.k.n.start", bus.Request{Header: header, Body: body}))
		}
		got := <-ask(t, s, "drover.api.p.k.n.start", bus.Request{Body: []byte("x")})
		require.Equal(t, resource.Overloaded, got.Refused.Code)
		close(release)
		for _, h := range held {
			require.Nil(t, (<-h).Refused)
		}
	})
}

func TestStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		hang := false
		s, _ := serve(t, func(ctx context.Context, p int, r bus.Request) (bus.Request, error) {
			mu.Lock()
			hangs := hang
			mu.Unlock()
			if hangs {
				<-ctx.Done()
				return bus.Request{}, ctx.Err()
			}
			time.Sleep(time.Second)
			return accepts(ctx, p, r)
		})
		under := ask(t, s, "drover.api.p.k.n.start", bus.Request{})
		synctest.Wait()
		began := time.Now()
		s.Stop()
		require.Equal(t, time.Second, time.Since(began))
		require.Nil(t, (<-under).Refused, "what is under way is answered")
		late := <-ask(t, s, "drover.api.p.k.n.start", bus.Request{})
		require.Equal(t, resource.Overloaded, late.Refused.Code)
		require.Contains(t, late.Refused.Message, "stopping")
	})
}
