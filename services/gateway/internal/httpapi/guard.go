package httpapi

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strings"
	"time"

	"go.uber.org/zap"
)

// guard is what holds for every request, whatever its path.
func (s *Server) guard(next http.Handler) http.Handler {
	next = sameOrigin(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		a := &answerWriter{ResponseWriter: w}
		defer func() {
			if v := recover(); v != nil {
				s.panicked(a, r, v)
			}
			s.metrics.observe(a.route, r.Method, a.status, time.Since(began))
		}()
		h := a.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		if !s.calledBy(r.Host) {
			fail(a, http.StatusMisdirectedRequest, "misdirected", "this gateway is not called by this host name")
			return
		}
		select {
		case s.places <- struct{}{}:
			defer func() { <-s.places }()
		default:
			fail(a, http.StatusServiceUnavailable, "overloaded", "too many requests are under way; try again in a while")
			return
		}
		s.metrics.under.Inc()
		defer s.metrics.under.Dec()
		next.ServeHTTP(a, r)
	})
}

// sameOrigin refuses what a browser sends for a page of another origin. CrossOriginProtection lets reads through, whatever the
// page; but a list of SOMA's clears flags, so an image of some page would take from a monitoring system what it has not heard.
func sameOrigin(next http.Handler) http.Handler {
	denied := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fail(w, http.StatusForbidden, "forbidden", "requests of pages of another origin are refused")
	})
	origin := http.NewCrossOriginProtection()
	origin.SetDenyHandler(denied)
	next = origin.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("Sec-Fetch-Site") {
		case "", "same-origin", "none": // no browser, a page of this origin, or a person
			next.ServeHTTP(w, r)
		default:
			denied.ServeHTTP(w, r)
		}
	})
}

// calledBy reports whether the server goes by this name. On loopback a foreign name means that a name server sends the
// pages of some site here, whose scripts would then count as being of the same origin.
func (s *Server) calledBy(host string) bool {
	if !s.local && len(s.hosts) == 1 {
		return true
	}
	key := hostKey(host)
	if _, err := netip.ParseAddr(key); err == nil {
		return true
	}
	return s.hosts[key]
}

// hostKey is a host name without its port, in lower case.
func hostKey(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

func (s *Server) panicked(a *answerWriter, r *http.Request, v any) {
	if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(v) // net/http's own way to cut a connection off
	}
	s.log.Error("request panicked", zap.Any("panic", v), zap.String("route", a.route), zap.String("method", r.Method),
		zap.ByteString("stack", debug.Stack()))
	if a.status == 0 {
		fail(a, http.StatusInternalServerError, "internal", "an error of the gateway; it was logged")
	}
}

// answerWriter remembers what was answered, for the metrics.
type answerWriter struct {
	http.ResponseWriter
	route  string
	status int
}

func (a *answerWriter) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answerWriter) Write(b []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	return a.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (a *answerWriter) Unwrap() http.ResponseWriter { return a.ResponseWriter }
