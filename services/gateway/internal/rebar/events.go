package rebar

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/machine"
	"github.com/droverproject/drover/pkg/wire"
)

// event is what a websocket hears.
type event struct {
	Time      time.Time
	Type      string
	Action    string
	Key       string
	Principal string
	Object    any
	Original  any
}

// happening is an event of a machine or a run on its way to the sockets.
type happening struct {
	what, action, key string
	machine           string        // uuid, whose agent may hear it
	body              func() []byte // the event's JSON, made once somebody wants it
}

// exchange hands events to the sockets that registered for them.
type exchange struct {
	log     *zap.Logger
	sockets sync.WaitGroup

	mu   sync.Mutex
	open map[*socket]struct{}
}

func newExchange(log *zap.Logger) *exchange {
	return &exchange{log: log, open: map[*socket]struct{}{}}
}

// add takes a socket in, unless there are too many.
func (x *exchange) add(s *socket) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.open) >= SocketsMax {
		return false
	}
	x.open[s] = struct{}{}
	return true
}

func (x *exchange) remove(s *socket) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.open, s)
}

// quiet reports whether nobody listens. Who comes next reads the machine after it was acknowledged.
func (x *exchange) quiet() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.open) == 0
}

func (x *exchange) tell(h happening) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for s := range x.open {
		s.hear(h)
	}
}

// follow begins to follow the machines and task runs of the project. It watches the buckets, and not the feed: the feed is at
// most once, and an event that an agent misses costs it an hour (facts, 2.4). The function that it returns hands the events on
// until ctx ends; an error says that what is watched was lost.
func (s *Server) follow(ctx context.Context) (func() error, error) {
	var watches []bus.Watch
	for _, f := range []bus.Family{bus.Machine, bus.TaskRun} {
		w, err := s.Bus.WatchBucket(ctx, f, s.Project, "", "")
		if err != nil {
			for _, w := range watches {
				w.Close()
			}
			return nil, err
		}
		watches = append(watches, w)
	}
	return func() error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var all sync.WaitGroup
		lost := make(chan error, len(watches))
		for _, w := range watches {
			all.Go(func() {
				defer cancel()
				defer w.Close()
				present := true
				for {
					select {
					case <-ctx.Done():
						return
					case stored, ok := <-w.C():
						switch {
						case !ok:
							if ctx.Err() == nil {
								lost <- errors.New("a bucket is no longer watched")
							}
							return
						case stored.Entity.Family == "":
							present = false // what was there before the first request is no news
						case !present:
							s.happened(stored)
						}
					}
				}
			})
		}
		all.Wait()
		select {
		case err := <-lost:
			return err
		default:
			return nil
		}
	}, nil
}

// happened turns an event of the log into one of Digital Rebar's.
func (s *Server) happened(stored bus.Stored) {
	if stored.Deleted || s.exchange.quiet() {
		return
	}
	e := event{Time: stored.Time}
	h := happening{action: "save"}
	switch stored.Entity.Family {
	case bus.Machine:
		m, err := wire.DecodeMachine(stored.Body)
		if err != nil {
			s.Log.Error("a machine's event cannot be read", zap.Error(err))
			return
		}
		h.what, h.key, h.machine = modelMachines, m.State.UUID, m.State.UUID
		switch {
		case m.State.Revision == 1:
			h.action = "create"
		case m.Cause == "patch":
			h.action = "update"
		}
		e.Time, e.Object = m.At, objectOf(&m.State)
	default:
		r, err := wire.DecodeTaskRun(stored.Body)
		if err != nil {
			s.Log.Error("a task run's event cannot be read", zap.Error(err))
			return
		}
		h.what, h.key, h.machine = modelJobs, r.Run.ID, r.Run.MachineUUID
		if r.From == machine.NoRun {
			h.action = "create"
		} else {
			h.action = "update"
		}
		e.Time, e.Object = r.At, jobOf(&r.Run, false)
	}
	e.Type, e.Action, e.Key = h.what, h.action, h.key
	h.body = sync.OnceValue(func() []byte {
		body, err := json.Marshal(e)
		if err != nil {
			panic("rebar: an event that is no JSON: " + err.Error()) // our own types
		}
		return body
	})
	s.exchange.tell(h)
}

// pattern is what a socket registers for: type, action and key, each "*", a text, or texts with commas between (facts, 2.4).
type pattern [3]string

func parsePattern(text string) (pattern, bool) {
	parts := strings.SplitN(text, ".", 3)
	if len(parts) != 3 {
		return pattern{}, false
	}
	return pattern(parts), true
}

// unescape is how a key holds what the pattern's grammar uses.
var unescape = strings.NewReplacer(`\1`, ".", `\2`, "=", `\3`, "*")

func (p pattern) matches(h *happening) bool {
	for i, value := range []string{h.what, h.action, h.key} {
		if p[i] == "*" {
			continue
		}
		found := false
		for one := range strings.SplitSeq(p[i], ",") {
			found = found || unescape.Replace(one) == value
		}
		if !found {
			return false
		}
	}
	return true
}
