package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"
)

// launch is a request that a module was sent, as NCAE sends it (facts/ncae.md B3).
type launch struct {
	At   time.Time
	Path string
	Vars struct {
		Decommission    bool            `json:"decommission"`
		Data            json.RawMessage `json:"data"`
		CallbackData    map[string]any  `json:"callback_data"`
		BaseURL         string          `json:"ncae_base_url"`
		ServiceInstance uint64          `json:"service_instance_id"`
		PhaseInstance   uint64          `json:"phase_instance_id"`
		CmdbEntry       uint64          `json:"ncae_cmdb_entry_id"`
		TenantID        int             `json:"ncae_tenant_id"`
		TenantSlug      string          `json:"ncae_tenant_slug"`
		Transaction     string          `json:"transaction_id"`
		WasDeployed     bool            `json:"was_deployed"`
	}
	Header http.Header
	Times  int // that this attempt was asked for, this one included
}

// module is a module of NCAE: an HTTP server that is asked for pieces of work, and says later, or before it answers, what
// became of them. It keeps a ledger of what it was asked for: the side effects that were begun. Safe for concurrent use.
type module struct {
	t      *testing.T
	url    string
	client *http.Client
	limit  time.Duration                               // for a call to be answered
	work   map[string]func(m *module, a launch) string // by path: the answer, where it is one; in the request's goroutine

	after sync.WaitGroup // what work does when its request is answered

	mu     sync.Mutex
	ledger []launch
}

func newModule(t *testing.T, h *house, work map[string]func(*module, launch) string) *module {
	t.Helper()
	m := &module{t: t, work: work, client: h.client(15 * time.Second), limit: h.patience(30 * time.Second)}
	t.Cleanup(m.after.Wait) // when nobody asks any more, and the gateway is still there
	m.url = h.serveHTTP(m)
	return m
}

// ServeHTTP implements http.Handler.
func (m *module) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Vars json.RawMessage `json:"extra_vars"`
	}
	a := launch{At: time.Now(), Path: r.URL.Path, Header: r.Header}
	text, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(text, &body)
	}
	if err == nil {
		err = json.Unmarshal(body.Vars, &a.Vars)
	}
	work := m.work[r.URL.Path]
	if err != nil || r.Method != http.MethodPost || work == nil {
		http.Error(w, "not what NCAE sends", http.StatusUnprocessableEntity)
		return
	}
	m.mu.Lock()
	a.Times = 1
	for _, b := range m.ledger {
		if b.Vars.PhaseInstance == a.Vars.PhaseInstance {
			a.Times++
		}
	}
	m.ledger = append(m.ledger, a)
	m.mu.Unlock()
	if answer := work(m, a); answer != "" {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answer)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// asked is the ledger so far.
func (m *module) asked() []launch {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]launch(nil), m.ledger...)
}

// call calls Drover once. The error is that of the connection.
func (m *module) call(ctx context.Context, a launch, method, path string, body any) (status int, answer map[string]any, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		return 0, nil, err
	}
	r, err := http.NewRequestWithContext(ctx, method, a.Vars.BaseURL+"api/"+path, bytes.NewReader(text))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Transaction-Id", a.Vars.Transaction)
	response, err := m.client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	_ = json.NewDecoder(response.Body).Decode(&answer) // an answer without a body has none
	return response.StatusCode, answer, nil
}

// insist calls until it is answered with other than a 5xx: a gateway may be dead for a moment.
func (m *module) insist(a launch, method, path string, body any) (status int, answer map[string]any) {
	ctx, cancel := context.WithTimeout(context.Background(), m.limit)
	defer cancel()
	for {
		status, answer, err := m.call(ctx, a, method, path, body)
		if err == nil && status < 500 || !pause(ctx, 50*time.Millisecond) {
			return status, answer
		}
	}
}
