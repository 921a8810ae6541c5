package soma_test

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/deployment"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/gateway/internal/retry"
	"github.com/droverproject/drover/services/gateway/internal/soma"
)

// owners answers as the owners of partitions would.
type owners struct {
	mu         sync.Mutex
	asked      []string
	answer     func(partition int, verb string, q wire.CheckRequest) (wire.CheckAnswer, error)
	partitions int           // 0: 4
	takes      time.Duration // that an answer takes
}

func (o *owners) Partitions() int { return cmp.Or(o.partitions, 4) }

func (o *owners) AskDoor(ctx context.Context, partition int, r bus.Request) (bus.Request, error) {
	select {
	case <-ctx.Done():
		return bus.Request{}, ctx.Err()
	case <-time.After(o.takes):
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	q, err := wire.DecodeCheckRequest(r.Body)
	if err != nil {
		return bus.Request{}, err
	}
	o.asked = append(o.asked, r.Verb)
	a, err := o.answer(partition, strings.TrimPrefix(r.Verb, "check."), q)
	if err != nil {
		return bus.Request{}, err
	}
	body, err := json.Marshal(a)
	return bus.Request{Body: body}, err
}

func do(t *testing.T, o *owners, method, path string) (status int, body map[string]any, text string) {
	t.Helper()
	h := soma.New(o, "default", "1.2.3", zap.NewNop())
	r := httptest.NewRequestWithContext(t.Context(), method, "http://x/", nil)
	r.URL.Path = path
	_, ok := h.Serves(r)
	require.True(t, ok, path)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") {
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &body))
	}
	return w.Code, body, w.Body.String()
}

var id = wire.RoutedUUID(2, "i")

func fetched() wire.CheckAnswer {
	return wire.CheckAnswer{Task: "rollout", Details: &deployment.Details{
		Task: "rollout", Node: &deployment.Node{Name: "n", AssetID: 7},
		CheckConfig: deployment.CheckConfig{Interval: 60, Thresholds: []deployment.Threshold{{Predicate: deployment.Predicate{Symbol: ">="}, Value: 95}}},
	}}
}

func TestPathsOfBothGenerations(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ method, path, verb string }{
		{"GET", "/deployments/id/" + id, "fetch"}, {"GET", "/deployment/id/" + id, "fetch"},
		{"GET", "/monitoringsystem/eye/deployment/id/" + id, "fetch"}, {"PATCH", "/deployments/id/" + id + "/success", "success"},
		{"PATCH", "//deployment/id/" + id + "/failed", "failed"}, {"PATCH", "/monitoringsystem/eye/deployment/id/" + id + "/success", "success"},
	} {
		o := &owners{answer: func(p int, verb string, q wire.CheckRequest) (wire.CheckAnswer, error) {
			require.Equal(t, 2, p)
			require.Equal(t, c.verb, verb)
			require.Equal(t, wire.CheckRequest{Project: "default", ID: id}, q)
			if verb == "fetch" {
				return fetched(), nil
			}
			return wire.CheckAnswer{Task: "deprovision"}, nil
		}}
		status, body, text := do(t, o, c.method, c.path)
		require.Equal(t, http.StatusOK, status, c.path)
		require.EqualValues(t, 200, body["statusCode"], c.path)
		require.Equal(t, "OK", body["statusText"])
		deployments, ok := body["deployments"].([]any)
		require.True(t, ok, text)
		require.Len(t, deployments, 1)
		old := strings.HasPrefix(c.path, "/deployments")
		_, has := body["requestID"]
		require.Equal(t, !old, has, c.path)
		if c.verb == "fetch" {
			require.Contains(t, text, `"thresholds":[{"Predicate":{"symbol":"\u003e="},"Level":{"name":"","shortName":"","numeric":0},"Value":95}]`)
			require.Contains(t, text, `"assetId":7`)
		} else {
			one, ok := deployments[0].(map[string]any)
			require.True(t, ok)
			require.Equal(t, "deprovision", one["task"])
			_, has = one["id"]
			require.Equal(t, !old, has)
		}
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	code := resource.NotFound
	o := &owners{answer: func(int, string, wire.CheckRequest) (wire.CheckAnswer, error) {
		return wire.CheckAnswer{Code: code, Message: "Illegal current state active", Status: "active"}, nil
	}}
	for _, c := range []struct {
		method, path   string
		http, envelope int
		text           string
	}{
		{"GET", "/deployments/id/" + id, 200, 404, "Not found"},
		{"GET", "/deployments/id/" + wire.RoutedUUID(9, "i"), 200, 404, "Not found"},
		{"GET", "/deployments/id/x", 400, 0, "not a UUID"},
		{"GET", "/deployment/id/x", 200, 400, "not a UUID"},
		{"PATCH", "/deployments/id/" + id + "/maybe", 400, 0, "unknown result"},
		{"PATCH", "/deployments/id/" + id, 405, 0, ""},
		{"GET", "/deployments/id/" + id + "/success", 405, 0, ""},
		{"POST", "/deployments/monitoring/eye", 405, 0, ""},
		{"GET", "/deployments", 404, 0, ""},
		{"GET", "/monitoringsystem/eye", 404, 0, ""},
		{"GET", "/monitoringsystem/eye/deployment/state/active", 200, 501, ""},
	} {
		status, body, text := do(t, o, c.method, c.path)
		require.Equal(t, c.http, status, c.path)
		if c.envelope != 0 {
			require.EqualValues(t, c.envelope, body["statusCode"], c.path)
		}
		require.Contains(t, text, c.text)
	}
	code = resource.Conflict
	status, body, text := do(t, o, "PATCH", "/deployments/id/"+id+"/success")
	require.Equal(t, http.StatusOK, status)
	require.EqualValues(t, 500, body["statusCode"])
	require.Contains(t, text, "Illegal current state active")
	status, _, _ = do(t, o, "HEAD", "/")
	require.Equal(t, http.StatusNoContent, status)
}

// TestFeedbackIsSentAgainForTheClient: real clients send it once. What the lost answer was to is no error.
func TestFeedbackIsSentAgainForTheClient(t *testing.T) {
	t.Parallel()
	n := 0
	o := &owners{answer: func(int, string, wire.CheckRequest) (wire.CheckAnswer, error) {
		switch n++; n {
		case 1:
			return wire.CheckAnswer{}, bus.ErrNoOwner
		case 2:
			return wire.CheckAnswer{}, context.DeadlineExceeded // it was carried out
		case 3:
			return wire.CheckAnswer{Code: resource.Overloaded}, nil
		default:
			return wire.CheckAnswer{Code: resource.Conflict, Task: "rollout", Status: "active"}, nil
		}
	}}
	status, body, _ := do(t, o, "PATCH", "/deployments/id/"+id+"/success")
	require.Equal(t, http.StatusOK, status)
	require.EqualValues(t, 200, body["statusCode"])
}

func TestNobodyAnswers(t *testing.T) {
	t.Parallel()
	o := &owners{answer: func(int, string, wire.CheckRequest) (wire.CheckAnswer, error) {
		return wire.CheckAnswer{}, bus.ErrNoOwner
	}}
	h := soma.New(o, "default", "", zap.NewNop())
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/deployments/id/"+id, nil))
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
}

func TestLists(t *testing.T) {
	t.Parallel()
	full := true
	o := &owners{answer: func(p int, _ string, q wire.CheckRequest) (wire.CheckAnswer, error) {
		require.Equal(t, "eye", q.System)
		switch {
		case !full:
			return wire.CheckAnswer{}, nil
		case p == 1 && q.After == "":
			return wire.CheckAnswer{IDs: []string{"b", "c"}, More: true}, nil
		case p == 1:
			require.Equal(t, "c", q.After)
			return wire.CheckAnswer{IDs: []string{"d"}}, nil
		case p == 0:
			return wire.CheckAnswer{IDs: []string{"a"}}, nil
		}
		return wire.CheckAnswer{}, nil
	}}
	_, body, _ := do(t, o, "GET", "/deployments/monitoring/eye")
	require.Equal(t, []any{"a", "b", "c", "d"}, body["deploymentsList"])
	require.Empty(t, body["deployments"])
	require.False(t, slices.Contains(o.asked, "check.listall"))
	o.asked = nil
	_, body, _ = do(t, o, "GET", "/monitoringsystem/eye/deployment/")
	require.Len(t, body["deployments"], 4)
	require.False(t, slices.Contains(o.asked, "check.list"))
	full = false
	_, body, _ = do(t, o, "GET", "/deployments/monitoring/eye/all")
	require.EqualValues(t, 404, body["statusCode"])
	_, body, text := do(t, o, "GET", "/monitoringsystem/eye/deployment/state/")
	require.EqualValues(t, 200, body["statusCode"])
	require.Contains(t, text, `"deployments":[]`)
}

// TestAListThatIsLostIsMadeUpFor: an owner clears flags before it answers. Where its answer is lost, what it has cleared is in no
// second list: list all is asked, to the partition's end, and by nobody else.
func TestAListThatIsLostIsMadeUpFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		o := &owners{answer: func(p int, verb string, q wire.CheckRequest) (wire.CheckAnswer, error) {
			if p != 1 {
				require.Equal(t, "list", verb)
				return wire.CheckAnswer{}, nil
			}
			switch tries++; {
			case tries == 1:
				return wire.CheckAnswer{}, bus.ErrNoOwner
			case q.After == "":
				require.Equal(t, "list", verb, "nobody had seen it before")
				return wire.CheckAnswer{IDs: []string{"a"}, More: true}, nil
			case tries == 3:
				require.Equal(t, "list", verb)
				return wire.CheckAnswer{}, context.DeadlineExceeded // b and c were cleared
			case verb == "list":
				return wire.CheckAnswer{}, nil
			case q.After == "a":
				return wire.CheckAnswer{IDs: []string{"b"}, More: true}, nil
			default:
				require.Equal(t, "b", q.After)
				return wire.CheckAnswer{IDs: []string{"c"}}, nil
			}
		}}
		_, body, _ := do(t, o, "GET", "/deployments/monitoring/eye")
		require.EqualValues(t, 200, body["statusCode"])
		require.Equal(t, []any{"a", "b", "c"}, body["deploymentsList"])
	})
}

// TestALongListIsWaitedFor: the answer follows the commits of all that it clears.
func TestALongListIsWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := &owners{answer: func(p int, verb string, _ wire.CheckRequest) (wire.CheckAnswer, error) {
			require.Equal(t, "list", verb)
			if p == 0 {
				return wire.CheckAnswer{IDs: []string{"a"}}, nil
			}
			return wire.CheckAnswer{}, nil
		}, takes: 18 * time.Second}
		_, body, _ := do(t, o, "GET", "/deployments/monitoring/eye")
		require.Equal(t, []any{"a"}, body["deploymentsList"])
		require.Len(t, o.asked, 4)
	})
}

// TestAListIsBounded: however many partitions do not answer, Patience where nobody is there, and ListPatience where somebody is.
func TestAListIsBounded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		takes time.Duration
		most  time.Duration
	}{{"nobody", 0, soma.Patience + retry.PauseMax}, {"they hang", time.Hour, soma.ListPatience}} {
		synctest.Test(t, func(t *testing.T) {
			o := &owners{partitions: 4 * soma.AsksMax, takes: c.takes, answer: func(int, string, wire.CheckRequest) (wire.CheckAnswer, error) {
				return wire.CheckAnswer{}, bus.ErrNoOwner
			}}
			began := time.Now()
			status, _, _ := do(t, o, "GET", "/monitoringsystem/eye/deployment/state")
			require.Equal(t, http.StatusServiceUnavailable, status, c.name)
			require.LessOrEqual(t, time.Since(began), c.most, c.name)
		})
	}
}

// TestTheLivingAreListed: those whose owner is there are asked, however many others have none.
func TestTheLivingAreListed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		last := 2*soma.AsksMax - 1
		o := &owners{partitions: last + 1, answer: func(p int, _ string, _ wire.CheckRequest) (wire.CheckAnswer, error) {
			if p < last {
				return wire.CheckAnswer{}, bus.ErrNoOwner
			}
			return wire.CheckAnswer{IDs: []string{"z"}}, nil
		}}
		_, body, text := do(t, o, "GET", "/deployments/monitoring/eye")
		require.EqualValues(t, 206, body["statusCode"])
		require.Equal(t, []any{"z"}, body["deploymentsList"])
		require.Contains(t, text, "list all")
	})
}

// TestWhatIsMissedIsSaid: on whichever page.
func TestWhatIsMissedIsSaid(t *testing.T) {
	t.Parallel()
	o := &owners{answer: func(p int, _ string, q wire.CheckRequest) (wire.CheckAnswer, error) {
		if p == 0 && q.After == "" {
			return wire.CheckAnswer{IDs: []string{"a"}, More: true, Missed: 1}, nil
		}
		return wire.CheckAnswer{}, nil
	}}
	_, body, _ := do(t, o, "GET", "/deployments/monitoring/eye")
	require.EqualValues(t, 206, body["statusCode"])
}

func FuzzPaths(f *testing.F) {
	f.Add("GET", "/deployments/id/"+id)
	f.Add("PATCH", "//deployment/id/"+id+"/success")
	f.Fuzz(func(t *testing.T, method, path string) {
		o := &owners{answer: func(int, string, wire.CheckRequest) (wire.CheckAnswer, error) { return fetched(), nil }}
		h := soma.New(o, "default", "", zap.NewNop())
		r := httptest.NewRequestWithContext(t.Context(), "GET", "http://x/", nil)
		r.Method, r.URL.Path = method, path
		if _, ok := h.Serves(r); !ok {
			return
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") && !json.Valid(w.Body.Bytes()) {
			t.Fatalf("%s %q: %s", method, path, w.Body)
		}
	})
}
