package partition

import (
	"encoding/json"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/wire"
)

// errOtherID: body and subject of a callback name different ids.
var errOtherID = errors.New("the subject names another id than the body")

const (
	// strangerFor is how long a callback comes again whose id is not known: another owner may have handed its attempt out.
	strangerFor = 10 * time.Second
	// strangerRead is how often the log is read for such ids, at most.
	strangerRead = 2 * time.Second
	// goneFor is how long the ids of a resource that is gone are known: its last callback was its end, and who called reads
	// what became of it (ncae_sdk reads what it has written).
	goneFor = 5 * time.Minute
)

// callbacks finds the attempt that an id stands for (wire.PhaseInstanceID). Nothing in it is a place of truth: it is an index
// over the states that the Loop knows, of the phases alone whose answer comes by a callback, and of those the newest attempt:
// the id of an earlier one is known to nobody, so what is said under it has no effect.
type callbacks struct {
	o        *Owner
	attempts map[uint64][]attempt // by PhaseInstanceID; more than one where two have the same
	services map[uint64][]resource.Key
	of       map[resource.Key]*heldIDs
	readAt   time.Time // when the log was last read for an id that is not known
}

// attempt is one attempt of a phase.
type attempt struct {
	id  uint64
	key resource.Key
	run resource.PhaseRun
}

// heldIDs is what is known of a resource.
type heldIDs struct {
	seq     uint64
	uid     string
	service uint64
	ids     []uint64
	state   *resource.State
	goneAt  time.Time // zero: it is there
}

func newCallbacks(o *Owner) *callbacks {
	return &callbacks{o: o, attempts: map[uint64][]attempt{}, services: map[uint64][]resource.Key{}, of: map[resource.Key]*heldIDs{}}
}

// observe keeps the index (drive.Loop.Watch).
func (c *callbacks) observe(key resource.Key, s *resource.State, seq uint64) {
	h := c.of[key]
	if h == nil && !slices.ContainsFunc(s.Phases, func(p resource.PhaseRun) bool { return p.Callback }) {
		return // nearly all
	}
	switch {
	case h != nil && seq < h.seq:
		return
	case s.UID == "" && !h.goneAt.IsZero():
		return // its traces are removed; the sweep forgets it
	}
	c.drop(key)
	if s.UID == "" || s.Gone && c.o.c.Now().Sub(s.UpdatedAt) > goneFor || !slices.ContainsFunc(s.Phases, func(p resource.PhaseRun) bool { return p.Callback }) {
		return
	}
	state := *s // a State is a value, its parts are never written
	partition := c.o.c.Number
	h = &heldIDs{seq: seq, uid: s.UID, service: wire.ServiceInstanceID(partition, s.UID), state: &state}
	if s.Gone {
		h.goneAt = s.UpdatedAt
	}
	for i := range s.Phases {
		p := s.Phases[i]
		if !p.Callback || p.Attempt == 0 {
			continue
		}
		id := wire.PhaseInstanceID(partition, fenceOf(s.UID, &p))
		h.ids = append(h.ids, id)
		c.attempts[id] = append(c.attempts[id], attempt{id: id, key: key, run: p})
	}
	c.services[h.service] = append(c.services[h.service], key)
	c.of[key] = h
}

// fenceOf is the fence of an attempt: call 0.
func fenceOf(uid string, p *resource.PhaseRun) resource.Fence {
	return resource.Fence{UID: uid, JobID: p.JobID, Phase: p.Name, Attempt: p.Attempt}
}

func (c *callbacks) drop(key resource.Key) {
	h := c.of[key]
	if h == nil {
		return
	}
	delete(c.of, key)
	for _, id := range h.ids {
		left := slices.DeleteFunc(c.attempts[id], func(a attempt) bool { return a.key == key })
		if c.attempts[id] = left; len(left) == 0 {
			delete(c.attempts, id)
		}
	}
	left := slices.DeleteFunc(c.services[h.service], func(k resource.Key) bool { return k == key })
	if c.services[h.service] = left; len(left) == 0 {
		delete(c.services, h.service)
	}
}

// sweep implements door: it forgets what has been gone for long.
func (c *callbacks) sweep(now time.Time) {
	for key, h := range c.of {
		if !h.goneAt.IsZero() && now.Sub(h.goneAt) > goneFor {
			c.drop(key)
		}
	}
}

// awaited reports whether a callback still decides the attempt.
func awaited(p *resource.PhaseRun) bool {
	return p.Callback && (p.InFlight || p.Status == resource.Sleeping && !p.Retrying)
}

// find returns the attempt that is meant, or none: there is no such thing, or more than one and nothing says which.
func (c *callbacks) find(phase, service uint64, transaction string) (attempt, bool) {
	var found []attempt
	if phase != 0 {
		found = slices.Clone(c.attempts[phase])
	} else {
		for _, key := range c.services[service] {
			for _, id := range c.of[key].ids {
				for _, a := range c.attempts[id] {
					if a.key == key {
						found = append(found, a)
					}
				}
			}
		}
	}
	if transaction != "" {
		found = slices.DeleteFunc(found, func(a attempt) bool { return c.transaction(&a) != transaction })
	}
	if phase == 0 && len(found) > 1 {
		if waits := slices.DeleteFunc(slices.Clone(found), func(a attempt) bool { return !awaited(&a.run) }); len(waits) > 0 {
			found = waits
		} else if len(c.services[service]) == 1 {
			slices.SortFunc(found, func(a, b attempt) int { return b.run.Since.Compare(a.run.Since) })
			found = found[:1]
		}
	}
	if len(found) != 1 {
		return attempt{}, false
	}
	return found[0], true
}

func (c *callbacks) transaction(a *attempt) string {
	return wire.TransactionID(c.o.c.Number, fenceOf(c.of[a.key].uid, &a.run))
}

// learn reads the log where an id is not known: this owner's time may overlap with that of the one who handed it out.
func (c *callbacks) learn() {
	now := c.o.c.Now()
	if now.Sub(c.readAt) < strangerRead {
		return
	}
	c.readAt = now
	if _, err := c.o.read(c.o.loop.Learn); err != nil {
		_ = c.o.port.meet(err)
		c.o.c.Log.Warn("the log could not be read for a callback's id", zap.Error(err))
	}
}

// family implements door.
func (*callbacks) family() string { return "callback" }

// takeOver implements door: what the Loop adopts, it is told (observe).
func (*callbacks) takeOver() error { return nil }

func (*callbacks) tick(time.Time)     {}
func (*callbacks) nextDue() time.Time { return time.Time{} }

// ask answers a wire.PhaseInstanceQuery.
func (c *callbacks) ask(verb string, r bus.Request, reply Reply) {
	var q wire.PhaseInstanceQuery
	if "callback."+verb != wire.VerbPhaseInstance {
		c.o.refuse(reply, r.Header, resource.Invalid, "callbacks are asked for nothing but "+wire.VerbPhaseInstance)
		return
	}
	if err := json.Unmarshal(r.Body, &q); err != nil || (q.PhaseInstance == 0) == (q.ServiceInstance == 0) {
		c.o.refuse(reply, r.Header, resource.Invalid, "the query names no id")
		return
	}
	a, ok := c.find(q.PhaseInstance, q.ServiceInstance, q.Transaction)
	if !ok {
		c.learn()
		a, ok = c.find(q.PhaseInstance, q.ServiceInstance, q.Transaction)
	}
	if !ok && q.Transaction != "" {
		a, ok = c.find(q.PhaseInstance, q.ServiceInstance, "") // who asks sees that it is another
	}
	v := wire.PhaseInstance{Found: ok}
	if ok {
		h := c.of[a.key]
		v = wire.PhaseInstance{
			Found: true, Awaited: awaited(&a.run), ID: a.id, ServiceInstance: h.service, Transaction: c.transaction(&a),
			Project: a.key.Project, Kind: a.key.Kind, Name: a.key.Name, UID: h.uid, JobID: a.run.JobID, Phase: a.run.Name,
			Attempt: a.run.Attempt, Undo: a.run.Undo, Status: phaseStatus(&a.run), SpecDigest: h.state.SpecDigest,
			Created: h.state.CreatedAt, Updated: h.state.UpdatedAt,
		}
		if text := h.state.Attributes[wire.AttributeCallbackData]; text != "" {
			v.CallbackData = json.RawMessage(text)
		}
	}
	body, err := json.Marshal(v)
	if err != nil {
		c.o.c.Log.Error("an attempt could not be written", zap.Error(err))
		return
	}
	reply(map[string]string{bus.HeaderContentType: bus.ContentTypeJSON}, body)
}

// phaseStatus is NCAE's two letters (facts/ncae.md B1, and the map in facts/common-ground.md). Those of what runs tell an
// update from a deployment where the phase has a state of its own.
func phaseStatus(p *resource.PhaseRun) string {
	switch p.Status {
	case resource.Completed, resource.Skipped:
		return wire.CallbackDeployed
	case resource.Undone:
		return wire.CallbackRetired
	case resource.Failed, resource.Canceled:
		return wire.CallbackError
	case resource.NoStatus, resource.Blocked, resource.Gated:
		return "RA"
	case resource.Waiting, resource.Running, resource.Sleeping, resource.Canceling:
	}
	switch {
	case p.Undo:
		return "RI"
	case p.State == blueprint.Updating:
		return "UP"
	}
	return "OR"
}

// input makes a callback the result of the attempt that it is of; false where it is of none, or says what the attempt cannot
// become.
func (c *callbacks) input(cb *wire.Callback) (key resource.Key, r resource.Result, reason string) {
	a, ok := c.find(cb.PhaseInstance, cb.ServiceInstance, cb.Transaction)
	if !ok {
		return key, r, "no attempt has this id, or not with this transaction"
	}
	r = resource.Result{
		// Call 0: of the attempt, whichever call of it reached the caller.
		Fence:   fenceOf(c.of[a.key].uid, &a.run),
		Message: cb.Message, Attributes: cb.Attributes,
	}
	switch {
	case cb.Status == wire.CallbackError:
		r.Outcome = resource.OutcomeFailed
	case cb.Status == "" && a.run.Status == resource.Canceling:
		return key, r, "the attempt is being canceled, and only its end is awaited"
	case cb.Status == "":
		r.Outcome = resource.OutcomePending
	case (cb.Status == wire.CallbackRetired) == a.run.Undo:
		r.Outcome = resource.OutcomeCompleted
	default:
		return key, r, "the attempt cannot become " + cb.Status
	}
	return a.key, r, ""
}

// take applies a callback that was delivered, or lets it come again.
func (c *callbacks) take(d bus.Delivery) (in drive.Input, ok bool) {
	_, id, err := bus.ParseCallbackSubject(d.Subject())
	if err != nil {
		c.o.aside(d, err.Error())
		return in, false
	}
	cb, err := wire.DecodeCallback(d.Body())
	if err == nil && id != max(cb.PhaseInstance, cb.ServiceInstance) {
		err = errOtherID
	}
	if err != nil {
		c.o.aside(d, err.Error())
		return in, false
	}
	key, r, reason := c.input(&cb)
	if reason != "" {
		c.learn()
		key, r, reason = c.input(&cb)
	}
	if reason != "" {
		if c.o.c.Now().Sub(d.Time()) < strangerFor {
			_ = d.Retry(retryAfter)
			return in, false
		}
		c.o.c.Observer.Noted(resource.NoteFenced)
		c.o.c.Log.Info("a callback has no effect", host.Subject(d.Subject()), host.Reason(reason))
		if err := d.Ack(); err != nil {
			c.o.c.Log.Debug("a callback was not acknowledged; it comes again", zap.Error(err))
		}
		return in, false
	}
	return drive.Input{Key: key, Input: resource.Input{
		Kind: resource.OnResult, At: d.Time(), Result: &r, Traceparent: d.Header(bus.HeaderTraceparent),
	}}, true
}
