package rebar_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/rebar/rebartest"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/gateway/internal/rebar"
)

// asked is a bus behind which an owner answers every partition.
type asked struct {
	rebar.Bus
	answer func(ctx context.Context) (wire.MachineAnswer, error)
}

func (*asked) Partitions() int { return partitions }

func (a *asked) AskDoor(ctx context.Context, _ int, _ bus.Request) (bus.Request, error) {
	answer, err := a.answer(ctx)
	if err != nil {
		return bus.Request{}, err
	}
	body, err := wire.EncodeMachineAnswer(answer)
	return bus.Request{Body: body}, err
}

// behind is a gateway before such a bus, without a listener.
func behind(t *testing.T, answer func(ctx context.Context) (wire.MachineAnswer, error)) *rebar.Server {
	t.Helper()
	s, err := rebar.New(rebar.Options{
		Bus: &asked{answer: answer}, Log: zap.NewNop(), Project: project, Key: []byte(strings.Repeat("k", rebar.KeyBytesMin)), Password: password, Now: time.Now,
	})
	require.NoError(t, err)
	return s
}

func send(t *testing.T, s *rebar.Server, method, path, contentType, body string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, rebar.Base+path, strings.NewReader(body))
	r.SetBasicAuth(rebar.Operator, password)
	r.Header.Set("Content-Type", contentType)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

var uuid = wire.RoutedUUID(1, "m")

// TestSocketsTakeNoPlace: a websocket that is open leaves its place to requests.
func TestSocketsTakeNoPlace(t *testing.T) {
	t.Parallel()
	h := newHouse(t, func(s *rebar.Server) { s.SetRequests(1) })
	operator := h.operator()
	for range 3 {
		e, err := rebartest.Dial(t.Context(), h.url, operator.Token)
		require.NoError(t, err)
		defer e.Close()
		require.NoError(t, e.Register(t.Context(), "machines.*.*")) // it is open on both sides
		_, err = operator.Do(t.Context(), "GET", "/info", nil, nil)
		require.NoError(t, err)
	}
}

// TestABodyThatNeverComes: who announces a body and sends none is answered, and loses his connection, whoever he is.
func TestABodyThatNeverComes(t *testing.T) {
	t.Parallel()
	h := newHouse(t, func(s *rebar.Server) { s.SetLimits(rebar.ConnectionsMax, 50*time.Millisecond) })
	for _, authorization := range []string{"Accept: *", "Authorization: Bearer " + h.operator().Token} {
		for _, path := range []string{"/jobs", "/nothing"} {
			c := h.dial()
			_, err := fmt.Fprintf(c, "POST %s%s HTTP/1.1\r\nHost: x\r\n%s\r\nContent-Length: 9\r\n\r\n{", rebar.Base, path, authorization)
			require.NoError(t, err)
			answer, err := io.ReadAll(c)
			require.NoError(t, err, "the connection stays")
			require.Contains(t, string(answer), "HTTP/1.1 4")
		}
	}
}

// dial is a connection of HTTP/1.1 that its server ends, or nobody does.
func (h *house) dial() net.Conn {
	h.t.Helper()
	c, err := tls.Dial("tcp", strings.TrimPrefix(h.url, "https://"), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // as the agents do
	require.NoError(h.t, err)
	h.t.Cleanup(func() { _ = c.Close() })
	require.NoError(h.t, c.SetDeadline(time.Now().Add(20*time.Second)))
	return c
}

// TestHeldForLongerThanABodyMayTake: the time for a body is none for the request, with a body and without.
func TestHeldForLongerThanABodyMayTake(t *testing.T) {
	t.Parallel()
	const read = 20 * time.Millisecond
	s := behind(t, func(ctx context.Context) (wire.MachineAnswer, error) {
		select {
		case <-ctx.Done():
			return wire.MachineAnswer{}, ctx.Err()
		case <-time.After(10 * read):
			return wire.MachineAnswer{Code: "not_found", Outcome: wire.OutcomeNothing}, nil
		}
	})
	s.SetLimits(rebar.ConnectionsMax, read)
	server := httptest.NewServer(s)
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, c := range []struct{ method, path, body string }{
		{"GET", "/machines/" + uuid, ""}, {"POST", "/jobs", `{"Machine":"` + uuid + `"}`}, {"PUT", "/jobs/" + uuid + "/log", "x"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), c.method, server.URL+rebar.Base+c.path, strings.NewReader(c.body))
		require.NoError(t, err)
		r.SetBasicAuth(rebar.Operator, password)
		r.Header.Set("Content-Type", "application/octet-stream")
		answer, err := client.Do(r)
		require.NoError(t, err, c.method)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, http.StatusNotFound, answer.StatusCode, c.method)
	}
}

// TestConnectionsAreLimited: one over the limit waits until another is closed.
func TestConnectionsAreLimited(t *testing.T) {
	t.Parallel()
	h := newHouse(t, func(s *rebar.Server) { s.SetLimits(1, time.Minute) })
	first := h.dial()
	second, err := net.Dial("tcp", strings.TrimPrefix(h.url, "https://"))
	require.NoError(t, err)
	shaken := tls.Client(second, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // as the agents do
	within, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, shaken.HandshakeContext(within), context.DeadlineExceeded, "it was taken while the first is open")
	_ = second.Close() // the handshake has closed it
	require.NoError(t, first.Close())
	h.dial()
}

// TestALogIsNeverRefused: where nobody can say whose run it is, what came of its log is read, dropped, and thanked for. Who reads
// it is told.
func TestALogIsNeverRefused(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]func(context.Context) (wire.MachineAnswer, error){
		"nobody may be asked": func(context.Context) (wire.MachineAnswer, error) { return wire.MachineAnswer{}, bus.ErrDenied },
		"what is no run":      func(context.Context) (wire.MachineAnswer, error) { return wire.MachineAnswer{Run: []byte{0xff}}, nil },
	} {
		s := behind(t, broken)
		put := send(t, s, "PUT", "/jobs/"+uuid+"/log", "application/octet-stream", strings.Repeat("x", rebar.LogBytesMax+1))
		require.Equal(t, http.StatusNoContent, put.Code, name)
		require.Equal(t, "application/json", put.Header().Get("Content-Type"), name)
		require.Equal(t, http.StatusServiceUnavailable, send(t, s, "GET", "/jobs/"+uuid+"/log", "", "").Code, name)
	}
	denied := behind(t, func(context.Context) (wire.MachineAnswer, error) { return wire.MachineAnswer{Code: "forbidden"}, nil })
	require.Equal(t, http.StatusForbidden, send(t, denied, "PUT", "/jobs/"+uuid+"/log", "application/octet-stream", "x").Code)
}

// TestWhatStopsGetsItsAnswer: an owner who is asked when the service stops is heard; one who does not answer is not asked again.
func TestWhatStopsGetsItsAnswer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		err    error
		status int
	}{
		{"an answer", nil, http.StatusNoContent}, {"none", errors.New("nobody"), http.StatusServiceUnavailable},
	} {
		synctest.Test(t, func(t *testing.T) {
			asked, release := 0, make(chan struct{})
			s := behind(t, func(ctx context.Context) (wire.MachineAnswer, error) {
				asked++
				select {
				case <-ctx.Done():
					return wire.MachineAnswer{}, ctx.Err()
				case <-release:
					return wire.MachineAnswer{Outcome: wire.OutcomeNothing}, c.err
				}
			})
			answered := make(chan int)
			go func() { answered <- send(t, s, "POST", "/jobs", "application/json", `{"Machine":"`+uuid+`"}`).Code }()
			synctest.Wait()
			s.Stop()
			synctest.Wait()
			stopped := time.Now()
			close(release)
			require.Equal(t, c.status, <-answered, c.name)
			require.Equal(t, 1, asked, c.name)
			require.Zero(t, time.Since(stopped), c.name)
		})
	}
}

// TestWhatIsHeldStopsAtOnce: between two tries there is nothing to wait for.
func TestWhatIsHeldStopsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := behind(t, func(context.Context) (wire.MachineAnswer, error) { return wire.MachineAnswer{}, bus.ErrNoOwner })
		answered := make(chan int)
		go func() { answered <- send(t, s, "POST", "/jobs", "application/json", `{"Machine":"`+uuid+`"}`).Code }()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		stopped := time.Now()
		s.Stop()
		require.Equal(t, http.StatusServiceUnavailable, <-answered)
		require.Zero(t, time.Since(stopped))
	})
}
