package registry_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/examples/fleet/internal/registry"
)

func do(r *registry.Registry, method, path, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	return w
}

func TestAnnounceAndWithdraw(t *testing.T) {
	t.Parallel()
	var r registry.Registry
	require.JSONEq(t, `[]`, do(&r, http.MethodGet, "/nodes", "").Body.String())

	const b = `{"name": "web-2", "url": "http://127.0.0.1:20002", "rack": "b"}`
	w := do(&r, http.MethodPost, "/nodes", b)
	require.Equal(t, http.StatusCreated, w.Code)
	require.Regexp(t, `^{"announced":"20\d\d-.*Z"}\n$`, w.Body.String())
	require.Equal(t, http.StatusOK, do(&r, http.MethodPost, "/nodes", b).Code, "again is no failure")
	require.Equal(t, http.StatusCreated, do(&r, http.MethodPost, "/nodes", `{"name": "web-1", "url": "http://127.0.0.1:20001"}`).Code)

	entries := r.Entries()
	require.Len(t, entries, 2)
	require.Equal(t, "web-1", entries[0].Name)
	require.Equal(t, "http://127.0.0.1:20002", entries[1].URL)
	require.Equal(t, "b", entries[1].Rack)
	require.False(t, entries[1].Announced.IsZero())

	for range 2 { // again is no failure
		w = do(&r, http.MethodDelete, "/nodes/web-2", "")
		require.Equal(t, http.StatusOK, w.Code)
		require.JSONEq(t, `{"announced": null}`, w.Body.String())
	}
	require.Len(t, r.Entries(), 1)
}

func TestRefused(t *testing.T) {
	t.Parallel()
	var r registry.Registry
	for body, reason := range map[string]string{
		``:             "EOF",
		`[]`:           "cannot unmarshal",
		`{"nam": "x"}`: "unknown field",
		`{"name": ""}`: "name: ",
		`{"name": "` + strings.Repeat("x", 300) + `"}`:                                    "name: ",
		`{"name": "x", "url": "ftp://127.0.0.1"}`:                                         "url: ",
		`{"name": "x", "url": "http://192.0.2.1:80"}`:                                     "loopback",
		`{"name": "x", "url": "http://localhost:80"}`:                                     "loopback",
		`{"name": "x", "url": "http://127.0.0.1:1", "announced": "2020-01-01T00:00:00Z"}`: "announced: ",
	} {
		w := do(&r, http.MethodPost, "/nodes", body)
		require.Equal(t, http.StatusBadRequest, w.Code, body)
		require.Contains(t, w.Body.String(), reason, body)
	}
	w := do(&r, http.MethodPost, "/nodes", `{"name": "`+strings.Repeat("x", registry.BodyBytesMax)+`"}`)
	require.Equal(t, http.StatusRequestEntityTooLarge, w.Code)
	require.Equal(t, http.StatusNotFound, do(&r, http.MethodGet, "/", "").Code)
	require.Equal(t, http.StatusMethodNotAllowed, do(&r, http.MethodPut, "/nodes", "").Code)
	require.Empty(t, r.Entries())
}

func TestFull(t *testing.T) {
	t.Parallel()
	var r registry.Registry
	for i := range registry.EntriesMax {
		require.Equal(t, http.StatusCreated, do(&r, http.MethodPost, "/nodes", fmt.Sprintf(`{"name": "n%d", "url": "http://127.0.0.1:1"}`, i)).Code)
	}
	require.Equal(t, http.StatusInsufficientStorage, do(&r, http.MethodPost, "/nodes", `{"name": "x", "url": "http://127.0.0.1:1"}`).Code)
	require.Equal(t, http.StatusOK, do(&r, http.MethodPost, "/nodes", `{"name": "n1", "url": "http://127.0.0.1:1"}`).Code)
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	var r registry.Registry
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			do(&r, http.MethodPost, "/nodes", fmt.Sprintf(`{"name": "n%d", "url": "http://127.0.0.1:1"}`, i))
			if i%2 == 0 {
				do(&r, http.MethodDelete, fmt.Sprintf("/nodes/n%d", i), "")
			}
			r.Entries()
		})
	}
	wg.Wait()
	require.Len(t, r.Entries(), 25)
}
