package ncae

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"

	"github.com/droverproject/drover/services/gateway/internal/httpapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const partitions = 64

// owner is the bus behind the door, with one resource in one attempt.
type owner struct {
	mu       sync.Mutex
	v        wire.PhaseInstance
	away     error // of asks
	refuses  error // of what is published
	deaf     bool  // it applies nothing
	said     []wire.Callback
	subjects []string
	lines    []wire.OutputLine
	asked    int
}

const partition = 5

var fence = resource.Fence{UID: "u", JobID: "j", Phase: "vlan", Attempt: 1}

func newOwner() *owner {
	return &owner{v: wire.PhaseInstance{
		Found: true, Awaited: true, ID: wire.PhaseInstanceID(partition, fence), ServiceInstance: wire.ServiceInstanceID(partition, "u"),
		Transaction: wire.TransactionID(partition, fence), Project: "p", Kind: "vpn", Name: "a", UID: "u", JobID: "j", Phase: "vlan", Attempt: 1,
		Status: "OR", SpecDigest: "d", Created: time.Unix(1, 0).UTC(), Updated: time.Unix(2, 0).UTC(),
	}}
}

func (*owner) Partitions() int { return partitions }

func (o *owner) AskDoor(_ context.Context, n int, r bus.Request) (bus.Request, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked++
	var q wire.PhaseInstanceQuery
	switch err := json.Unmarshal(r.Body, &q); {
	case o.away != nil:
		return bus.Request{}, o.away
	case err != nil || n != partition || r.Verb != wire.VerbPhaseInstance:
		return bus.Request{Body: []byte(`{"found": false}`)}, nil
	case q.PhaseInstance != o.v.ID && q.ServiceInstance != o.v.ServiceInstance:
		return bus.Request{Body: []byte(`{"found": false}`)}, nil
	}
	body, err := json.Marshal(o.v)
	return bus.Request{Body: body}, err
}

func (o *owner) PublishResult(_ context.Context, subject string, _ map[string]string, body []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.refuses != nil {
		return o.refuses
	}
	c, err := wire.DecodeCallback(body)
	if err != nil {
		return err
	}
	o.said, o.subjects = append(o.said, c), append(o.subjects, subject)
	if o.deaf {
		return nil
	}
	if c.Status != "" {
		o.v.Status, o.v.Awaited = c.Status, false
	}
	if data, ok := c.Attributes[wire.AttributeCallbackData]; ok {
		o.v.CallbackData = json.RawMessage(data)
	}
	return nil
}

func (o *owner) PublishOutput(_, _, _ string, body []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	l, err := wire.DecodeOutputLine(body)
	o.lines = append(o.lines, l)
	return err
}

func (o *owner) Version(_ context.Context, e bus.Entity, version string) (bus.Stored, error) {
	if e.Family != bus.Spec || e.Partition != partition || version != "d" {
		return bus.Stored{}, bus.ErrNotFound
	}
	body, err := wire.EncodeSpec(wire.SpecEvent{Key: resource.Key{Project: "p", Kind: "vpn", Name: "a"}, Digest: "d", JSON: `{"vlan":7}`, At: time.Unix(1, 0)})
	return bus.Stored{Body: body}, err
}

func (o *owner) List(context.Context, bus.Family, string, string, func(bus.Stored) error) error {
	return nil
}
func (o *owner) Get(context.Context, bus.Entity) (bus.Stored, error) {
	return bus.Stored{}, bus.ErrNotFound
}

func (o *owner) Request(context.Context, string, map[string]string, []byte) (bus.Request, error) {
	return bus.Request{}, bus.ErrNoOwner
}

func open(t testing.TB, o *owner) http.Handler {
	t.Helper()
	s, err := httpapi.New(httpapi.Options{
		Bus: o, Log: zap.NewNop(), Metrics: prometheus.NewRegistry(), Version: "1", Local: true, Routes: New(o, zap.NewNop()).Routes(),
	})
	require.NoError(t, err)
	return s
}

func do(t testing.TB, h http.Handler, method, path, body string, header ...string) (int, map[string]any) {
	t.Helper()
	r := httptest.NewRequest(method, "/api/"+path, strings.NewReader(body))
	r.Host = "127.0.0.1"
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	var answer map[string]any
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer), "%s", w.Body)
	return w.Code, answer
}

func (o *owner) phasePath() string {
	return "automation/v1/phase-instance/" + strconv.FormatUint(o.v.ID, 10)
}
func (o *owner) entryPath() string {
	return "automation/v1/cmdb-entry/" + strconv.FormatUint(o.v.ServiceInstance, 10)
}

// TestPhaseInstance: what ncae_sdk reads before and after it says what became of its work.
func TestPhaseInstance(t *testing.T) {
	t.Parallel()
	o := newOwner()
	h := open(t, o)
	status, answer := do(t, h, "GET", o.phasePath(), "")
	require.Equal(t, 200, status)
	require.Equal(t, map[string]any{
		"id": float64(o.v.ID), "status": "OR", "is_running": true, "can_run_manually": false, "service_instance": float64(o.v.ServiceInstance),
		"phase": map[string]any{"id": "p/vpn/vlan", "name": "vlan"}, "transaction": o.v.Transaction,
	}, answer)
	status, answer = do(t, h, "PATCH", o.phasePath(), `{"status": "DE"}`, "X-Transaction-Id", o.v.Transaction)
	require.Equal(t, 200, status, "%v", answer)
	require.Equal(t, "DE", answer["status"])
	require.Equal(t, false, answer["is_running"])
	require.Equal(t, []wire.Callback{{PhaseInstance: o.v.ID, Status: "DE", Transaction: o.v.Transaction}}, o.said)
	require.Equal(t, []string{bus.CallbackSubject(partition, o.v.ID)}, o.subjects)
	// Twice is once, and the other word is too late.
	status, _ = do(t, h, "PATCH", o.phasePath(), `{"status": "DE"}`)
	require.Equal(t, 200, status)
	status, answer = do(t, h, "PATCH", o.phasePath(), `{"status": "ER"}`)
	require.Equal(t, 409, status)
	require.Equal(t, "conflict", answer["code"])
	require.Len(t, o.said, 1)
}

// TestPhaseInstanceRefusals: what is refused is not stored.
func TestPhaseInstanceRefusals(t *testing.T) {
	t.Parallel()
	o := newOwner()
	h := open(t, o)
	for _, c := range []struct {
		body   string
		header []string
		status int
		field  string
	}{
		{`{}`, nil, 400, "status"}, {`{"status": "XX"}`, nil, 400, "status"}, {`{"status": 1}`, nil, 400, "status"},
		{`[]`, nil, 400, "body"}, {`null`, nil, 400, "body"}, {``, nil, 400, "body"}, {`{"status": "DE"} x`, nil, 400, "body"},
		{`{"status": "RE"}`, nil, 409, ""}, {`{"status": "RI"}`, nil, 409, ""}, {`{"status": "RA"}`, nil, 409, ""}, {`{"status": "PU"}`, nil, 409, ""},
		{`{"status": "DE"}`, []string{"Content-Type", "text/plain"}, 415, ""},
		{`{"status": "DE"}`, []string{"X-Transaction-Id", "another"}, 409, ""},
		{`{"status": "DE"}`, []string{"X-Transaction-Id", strings.Repeat("x", 65)}, 400, "header.X-Transaction-Id"},
		{`{"status": "DE", "x": "` + strings.Repeat("x", BodyBytesMax) + `"}`, nil, 413, ""},
	} {
		status, answer := do(t, h, "PATCH", o.phasePath(), c.body, c.header...)
		require.Equal(t, c.status, status, "%.40s: %v", c.body, answer)
		if c.field != "" {
			require.Equal(t, c.field, answer["violations"].([]any)[0].(map[string]any)["field"])
		}
	}
	status, _ := do(t, h, "PATCH", o.phasePath(), `{"status": "OR"}`)
	require.Equal(t, 200, status, "it is so already")
	for _, path := range []string{"0", "01", "-1", "x", "9007199254740992", "18446744073709551615", "1e3", strconv.FormatUint(1<<43*partitions, 10)} {
		for _, method := range []string{"GET", "PATCH"} {
			status, _ := do(t, h, method, "automation/v1/phase-instance/"+path, `{"status": "DE"}`)
			require.Equal(t, 404, status, path)
			status, _ = do(t, h, method, "automation/v1/cmdb-entry/"+path, `{"callback_data": {}}`)
			require.Equal(t, 404, status, path)
		}
	}
	status, _ = do(t, h, "DELETE", o.phasePath(), "")
	require.Equal(t, 405, status)
	require.Empty(t, o.said)
}

// TestNobodyThere: a word is stored where no owner answers, and the answer says that it is not decided yet; what only asks is
// told to come again. An id that the owner does not know is asked again for a while.
func TestNobodyThere(t *testing.T) {
	t.Parallel()
	t.Run("stored", func(t *testing.T) {
		t.Parallel()
		o := newOwner()
		o.away = bus.ErrNoOwner
		status, answer := do(t, open(t, o), "PATCH", o.phasePath(), `{"status": "ER", "message": "`+strings.Repeat("ä", 600)+`"}`)
		require.Equal(t, 202, status, "%v", answer)
		require.Equal(t, []any{float64(o.v.ID), "ER"}, []any{answer["id"], answer["status"]})
		require.Len(t, o.said, 1)
		require.LessOrEqual(t, len(o.said[0].Message), wire.CallbackMessageBytesMax)
	})
	t.Run("asked", func(t *testing.T) {
		t.Parallel()
		o := newOwner()
		o.away = errors.New("no connection")
		h := open(t, o)
		var wg sync.WaitGroup
		for path, body := range map[string]string{o.phasePath(): "", o.entryPath(): `{"callback_data": {}}`, "logger/v1/service-instance-log": fmt.Sprintf(`{"service_instance_id": %d}`, o.v.ServiceInstance)} {
			wg.Go(func() {
				method := map[bool]string{true: "GET", false: "PATCH"}[body == ""]
				if strings.HasPrefix(path, "logger") {
					method = "POST"
				}
				status, _ := do(t, h, method, path, body)
				if status != 503 {
					t.Errorf("%s %s: %d", method, path, status)
				}
			})
		}
		wg.Wait()
		require.Empty(t, o.said)
	})
	t.Run("not applied", func(t *testing.T) {
		t.Parallel()
		o := newOwner()
		o.deaf = true
		status, answer := do(t, open(t, o), "PATCH", o.phasePath(), `{"status": "DE"}`)
		require.Equal(t, 202, status, "%v", answer)
		require.Len(t, o.said, 1)
	})
	t.Run("not stored", func(t *testing.T) {
		t.Parallel()
		for err, want := range map[error]int{bus.ErrDenied: 500, errors.New("no answer"): 503} {
			o := newOwner()
			o.refuses = err
			status, _ := do(t, open(t, o), "PATCH", o.phasePath(), `{"status": "DE"}`)
			require.Equal(t, want, status)
		}
	})
	t.Run("unknown", func(t *testing.T) {
		t.Parallel()
		o := newOwner()
		other := fence
		other.Attempt = 2
		path := "automation/v1/phase-instance/" + strconv.FormatUint(wire.PhaseInstanceID(partition, other), 10)
		status, _ := do(t, open(t, o), "PATCH", path, `{"status": "DE"}`)
		require.Equal(t, 404, status)
		require.Greater(t, o.asked, 2, "an owner that has just taken over may have to read it")
		require.Empty(t, o.said)
	})
}

// TestCmdbEntry: callback_data is the attempt's that is under way.
func TestCmdbEntry(t *testing.T) {
	t.Parallel()
	o := newOwner()
	h := open(t, o)
	want := map[string]any{
		"id": float64(o.v.ServiceInstance), "created": "1970-01-01T00:00:01Z", "modified": "1970-01-01T00:00:02Z",
		"data": map[string]any{"vlan": 7.0}, "callback_data": map[string]any{},
	}
	status, answer := do(t, h, "GET", o.entryPath(), "")
	require.Equal(t, 200, status)
	require.Equal(t, want, answer)
	status, answer = do(t, h, "PATCH", o.entryPath(), `{"callback_data": {"b": 1, "a": [2]}}`)
	require.Equal(t, 200, status, "%v", answer)
	want["callback_data"] = map[string]any{"b": 1.0, "a": []any{2.0}}
	require.Equal(t, want, answer)
	require.Equal(t, []wire.Callback{{
		ServiceInstance: o.v.ServiceInstance, Transaction: o.v.Transaction, Attributes: map[string]string{"callback_data": `{"a":[2],"b":1}`},
	}}, o.said)
	for body, status := range map[string]int{
		`{}`: 400, `{"callback_data": 1}`: 400, `{"callback_data": [1]}`: 400, `{"callback_data": {}, "data": {}}`: 400,
		`{"callback_data": {"x": "` + strings.Repeat("x", 40<<10) + `"}}`: 413,
	} {
		got, answer := do(t, h, "PATCH", o.entryPath(), body)
		require.Equal(t, status, got, "%.40s: %v", body, answer)
	}
	got, _ := do(t, h, "PATCH", o.entryPath(), `{"callback_data": {}}`, "X-Transaction-Id", "another")
	require.Equal(t, 409, got)
	o.v.Awaited = false
	got, _ = do(t, h, "PATCH", o.entryPath(), `{"callback_data": {}}`)
	require.Equal(t, 409, got, "nobody's word")
	require.Len(t, o.said, 1)
}

// TestLog: a line goes to the output of the phase that is under way, and can be read again.
func TestLog(t *testing.T) {
	t.Parallel()
	o := newOwner()
	h := open(t, o)
	const path = "logger/v1/service-instance-log"
	status, answer := do(t, h, "POST", path, fmt.Sprintf(`{"status": "ER", "log_title": "a  b", "log_hostname": "sw1", "log_text": "one\ntwo\r\n", "service_instance_id": %d}`, o.v.ServiceInstance))
	require.Equal(t, 201, status, "%v", answer)
	require.Equal(t, float64(o.v.ID), answer["phase_instance_id"])
	require.Equal(t, o.v.Transaction, answer["transaction"])
	require.Len(t, o.lines, 2)
	require.Equal(t, []string{"ER sw1 a b: one", "ER sw1 a b: two", "module", "vlan"}, []string{o.lines[0].Text, o.lines[1].Text, o.lines[0].Stream, o.lines[0].Fence.Phase})
	status, again := do(t, h, "GET", path+"/"+strconv.FormatUint(uint64(answer["id"].(float64)), 10), "")
	require.Equal(t, 200, status)
	require.Equal(t, answer, again)
	status, _ = do(t, h, "GET", path+"/1", "")
	require.Equal(t, 404, status)
	for body, status := range map[string]int{
		`{}`: 400, `{"service_instance_id": 1.5}`: 400, `{"service_instance_id": "x"}`: 400, `{"service_instance_id": 9007199254740991}`: 404,
		fmt.Sprintf(`{"service_instance_id": %d, "status": "XX"}`, o.v.ServiceInstance):                                    400,
		fmt.Sprintf(`{"service_instance_id": %d, "log_title": %q}`, o.v.ServiceInstance, strings.Repeat("x", 2000)):        400,
		fmt.Sprintf(`{"phase_instance_id": %d, "log_text": %q}`, o.v.ID, strings.Repeat("x\n", 200)):                       201,
		fmt.Sprintf(`{"phase_instance_id": %d, "transaction": "an earlier one", "log_text": "as true as it was"}`, o.v.ID): 201,
	} {
		got, answer := do(t, h, "POST", path, body)
		require.Equal(t, status, got, "%.60s: %v", body, answer)
	}
	most := 0
	for _, l := range o.lines {
		if strings.Contains(l.Text, "lines more") {
			most++
		}
	}
	require.Equal(t, 1, most)
	require.Less(t, len(o.lines), 2+LogLinesMax+3)
}

// FuzzCallback: whatever comes from outside, the answer is JSON with one of the statuses that there are, and what is stored
// can be read.
func FuzzCallback(f *testing.F) {
	id, service := strconv.FormatUint(newOwner().v.ID, 10), strconv.FormatUint(newOwner().v.ServiceInstance, 10)
	for _, s := range []struct{ method, path, body, transaction string }{
		{"PATCH", "automation/v1/phase-instance/" + id, `{"status": "DE"}`, newOwner().v.Transaction},
		{"GET", "automation/v1/phase-instance/" + id, ``, ""},
		{"PATCH", "automation/v1/cmdb-entry/" + service, `{"callback_data": {"a": 1}}`, ""},
		{"POST", "logger/v1/service-instance-log", `{"service_instance_id": ` + service + `, "log_text": "x"}`, ""},
		{"PATCH", "automation/v1/phase-instance/%2F..", `{"status": "DE", "status": "ER"}`, "\x00"},
		{"GET", "logger/v1/service-instance-log/18446744073709551615", ``, ""},
	} {
		f.Add(s.method, s.path, s.body, s.transaction)
	}
	f.Fuzz(func(t *testing.T, method, path, body, transaction string) {
		if method != "GET" && method != "PATCH" && method != "POST" {
			return
		}
		r, err := http.NewRequest(method, "http://127.0.0.1/api/"+path, strings.NewReader(body))
		if err != nil || strings.Contains(path, "v1/") && !strings.Contains(path, id) && !strings.Contains(path, service) && !strings.Contains(body, service) && !strings.Contains(body, id) {
			return // an id that the owner does not know takes seconds
		}
		r.RequestURI, r.Host = r.URL.RequestURI(), "127.0.0.1"
		r.Header.Set("Content-Type", "application/json")
		r.Header["X-Transaction-Id"] = []string{transaction}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		o := newOwner()
		w := httptest.NewRecorder()
		open(t, o).ServeHTTP(w, r.WithContext(ctx))
		switch w.Code {
		case 200, 201, 202, 301, 307, 400, 404, 405, 409, 413, 503:
		default:
			t.Fatalf("%s %q %q: %d %s", method, path, body, w.Code, w.Body)
		}
		if w.Code != 301 && w.Code != 307 && !json.Valid(w.Body.Bytes()) {
			t.Fatalf("%q is no JSON", w.Body)
		}
		for _, c := range o.said {
			if _, err := wire.EncodeCallback(c); err != nil {
				t.Fatal(err)
			}
		}
	})
}
