package rebar

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/droverproject/drover/pkg/wire"
)

// Limits of tokens.
const (
	KeyBytesMin     = 32                       // bytes of the key that signs them
	MachineTokenFor = 3 * 365 * 24 * time.Hour // an agent does not renew its own (facts, 2.1)
	UserTokenFor    = 8 * time.Hour
	tokenBytesMax   = 1024
	tokenPrefix     = "drover1."
)

// Operator is the one user: the name that agents and the drpcli use where nobody sets another.
const Operator = "rocketskates"

// caller is who a request speaks for.
type caller struct {
	machine string // uuid of a machine; empty: an operator
}

// principal is its name in events.
func (c caller) principal() string {
	if c.machine != "" {
		return "runner:" + c.machine
	}
	return "user:" + Operator
}

// claims are what a token says. It is signed, not secret in itself; whoever holds it has the rights.
type claims struct {
	Machine string `json:"m,omitempty"`
	Until   int64  `json:"e"` // Unix seconds
}

// token makes one.
func (s *Server) token(machineUUID string, lasts time.Duration) (string, error) {
	body, err := json.Marshal(claims{Machine: machineUUID, Until: s.Now().Add(lasts).Unix()})
	if err != nil {
		return "", err
	}
	payload := tokenPrefix + base64.RawURLEncoding.EncodeToString(body)
	return payload + "." + base64.RawURLEncoding.EncodeToString(s.sign(payload)), nil
}

func (s *Server) sign(payload string) []byte {
	mac := hmac.New(sha256.New, s.Key)
	_, _ = mac.Write([]byte(payload)) // a hash never fails
	return mac.Sum(nil)
}

// check reads a token.
func (s *Server) check(token string) (caller, bool) {
	cut := strings.LastIndexByte(token, '.')
	if len(token) > tokenBytesMax || !strings.HasPrefix(token, tokenPrefix) || cut < len(tokenPrefix) {
		return caller{}, false
	}
	sum, err := base64.RawURLEncoding.DecodeString(token[cut+1:])
	if err != nil || !hmac.Equal(sum, s.sign(token[:cut])) {
		return caller{}, false
	}
	body, err := base64.RawURLEncoding.DecodeString(token[len(tokenPrefix):cut])
	if err != nil {
		return caller{}, false
	}
	var c claims
	if json.Unmarshal(body, &c) != nil || s.Now().Unix() >= c.Until {
		return caller{}, false
	}
	return caller{machine: c.Machine}, true
}

// authenticate finds out who calls; where it cannot it answers: 401 without credentials, 403 with bad ones (facts, 2.1).
func (s *Server) authenticate(w http.ResponseWriter, r *http.Request) (caller, bool) {
	scheme, value, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") {
		if c, ok := s.check(strings.TrimSpace(value)); ok {
			return c, true
		}
		fail(w, forbidden(r, "the token is not valid, or no longer"))
		return caller{}, false
	}
	if name, password, ok := r.BasicAuth(); ok {
		if subtle.ConstantTimeCompare([]byte(name), []byte(Operator))&subtle.ConstantTimeCompare([]byte(password), []byte(s.Password)) == 1 {
			return caller{}, true
		}
		fail(w, forbidden(r, "the user or the password is wrong"))
		return caller{}, false
	}
	w.Header().Set("WWW-Authenticate", "dr-provision")
	send(w, http.StatusUnauthorized, nil)
	return caller{}, false
}

type tokenAnswer struct {
	Token string `json:"Token"`
	Info  any    `json:"Info"`
}

// userToken answers GET /users/<name>/token.
func (s *Server) userToken(w http.ResponseWriter, r *http.Request) {
	c, ok := s.authenticate(w, r)
	switch {
	case !ok:
		return
	case c.machine != "":
		fail(w, forbidden(r, "a machine's token is for that machine alone"))
		return
	case r.PathValue("name") != Operator:
		fail(w, problem{Model: "users", Key: r.PathValue("name"), Type: r.Method, Code: http.StatusNotFound, Messages: []string{"Not Found"}})
		return
	}
	s.giveToken(w, r, "", UserTokenFor, UserTokenFor)
}

// machineToken answers GET /machines/<uuid>/token.
func (s *Server) machineToken(w http.ResponseWriter, r *http.Request, c caller) {
	m, ok := s.readMachine(w, r, c)
	if ok {
		s.giveToken(w, r, m.State.UUID, MachineTokenFor, MachineTokenFor)
	}
}

func (s *Server) giveToken(w http.ResponseWriter, r *http.Request, machineUUID string, otherwise, most time.Duration) {
	lasts, ok := lifetime(r.URL.Query().Get("ttl"), otherwise, most)
	if !ok {
		fail(w, problem{Type: r.Method, Key: r.URL.Path, Code: http.StatusBadRequest, Messages: []string{"ttl must be seconds, or a number with s, m, h, d, w or y"}})
		return
	}
	token, err := s.token(machineUUID, lasts)
	if err != nil {
		fail(w, problem{Type: r.Method, Key: r.URL.Path, Code: http.StatusInternalServerError, Messages: []string{"no token could be made"}})
		return
	}
	respond(w, http.StatusOK, tokenAnswer{Token: token, Info: s.about()})
}

// lifetime reads a ttl: seconds, or a number with a unit, at most so long.
func lifetime(text string, otherwise, most time.Duration) (time.Duration, bool) {
	if text == "" {
		return otherwise, true
	}
	unit := time.Second
	if last := text[len(text)-1]; last < '0' || last > '9' {
		day := 24 * time.Hour
		u, ok := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': day, 'w': 7 * day, 'y': 365 * day}[last]
		if !ok {
			return 0, false
		}
		unit, text = u, text[:len(text)-1]
	}
	n, err := strconv.Atoi(text)
	if err != nil || n <= 0 {
		return 0, false
	}
	if n > int(most/unit) {
		return most, true
	}
	return time.Duration(n) * unit, true
}

// ask begins a request of a caller. Its id makes it safe to ask the owner again.
func (s *Server) ask(c caller) wire.MachineAsk {
	return wire.MachineAsk{Project: s.Project, Caller: c.machine, RequestID: rand.Text()}
}
