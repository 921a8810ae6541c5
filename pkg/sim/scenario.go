package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/check"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/wire"
)

const project = "p"

// faults are what a seed has of them.
type faults struct {
	lost    bool // requests, replies, answers, acknowledgements, ticks
	doubled bool // requests, results
	slow    bool // messages that take seconds
	late    bool // answers of workers that come again minutes later, or never
	kills   bool
	pauses  bool
	overlap bool // owners learn late that they are none any more, or believe that they are alone
	skew    bool
	full    bool // input streams with little room, appends that find EVENTS full
	trail   bool // buckets and WORK
	stale   bool // followers that are behind
	cuts    bool // workers that nothing reaches for a while, and who reach nobody
}

// scenario is what a seed asks of the house.
type scenario struct {
	w            *World
	kinds        []kind
	phases       []bus.Phase // of all blueprints
	active       time.Duration
	cachedStates int
	partitions   int
	ackWait      time.Duration // of work
	applies      bool          // users apply a lot
	held         bool          // workers hold the phases that they call
	sent         []*command
	requests     int
}

// kind is a kind with what its blueprints have in common.
type kind struct {
	name  string
	table string // the lifecycle's fields, JSON
	flows []string
	ways  []string // states that are walked
	names []string // of its resources
	role  role
}

func newScenario(w *World) *scenario {
	s := &scenario{w: w, partitions: 1 + w.r.IntN(3), active: time.Minute + w.upTo(12*time.Minute)}
	s.applies = w.percent(10)
	s.held = w.percent(heldPercent)
	s.ackWait = []time.Duration{bus.WorkAckWaitDefault, 5 * bus.WorkAckWaitDefault}[w.r.IntN(2)]
	s.cachedStates = []int{0, 1, 2}[w.r.IntN(3)]
	names := []string{"a", "b", "c", "web-1.example.com", "e", "f"}[:2+w.r.IntN(5)]
	alone := 1 + w.r.IntN(2)
	if w.percent(45) {
		s.forest(names)
		alone = w.r.IntN(2)
	}
	for i := range alone {
		k := s.kind(fmt.Sprint("kind", i))
		k.names = names
		if i == 1 {
			k.names = names[:1+w.r.IntN(2)] // the same name of another kind is another resource
		}
		s.kinds = append(s.kinds, k)
		for f := range phasesMax {
			s.phases = append(s.phases, bus.Phase{Project: project, Kind: k.name, Phase: phaseName(f)})
		}
	}
	if !w.percent(12) {
		one := func() bool { return w.percent(55) }
		w.faults = faults{one(), one(), one(), one(), one(), one(), one(), one(), one(), one(), one(), one()}
	}
	return s
}

const (
	phasesMax    = 5
	progressEach = 3  // a worker that says that it is at work says it so often before its work comes again
	heldPercent  = 30 // of the seeds: a lease that is renewed is many messages
)

func phaseName(i int) string { return fmt.Sprint("f", i) }

// kind draws a lifecycle.
func (s *scenario) kind(name string) kind {
	w := s.w
	up := []string{"A", "B", "C"}[:1+w.r.IntN(3)]
	down := [][]string{{"D"}, {"D", up[0]}, {}}[w.r.IntN(3)]
	if w.percent(25) {
		table, _ := json.Marshal(map[string]any{"lifecycle": "node", "states": up, "paths": map[string]any{"Terminated": down}})
		return kind{name: name, table: string(table), flows: []string{"start", "terminate", "shutdown"}, ways: union(up, down)}
	}
	flows := []any{
		map[string]any{"verb": "start", "path": up, "target": "Started"},
		map[string]any{"verb": "stop", "path": down, "target": "Off"},
	}
	k := kind{name: name, flows: []string{"start", "start", "stop"}, ways: union(up, down)}
	if w.percent(40) {
		flows = append(flows, map[string]any{"verb": "update", "from": []string{"Started"}, "path": []string{"U"}, "target": "Started"})
		k.flows, k.ways = append(k.flows, "update"), append(k.ways, "U")
	}
	lifecycle := map[string]any{
		"flows": flows, "onTargetChange": []string{"cancel", "cancel", "reject"}[w.r.IntN(3)],
		"onFailure": []string{"continue", "drain"}[w.r.IntN(2)],
	}
	if w.percent(70) {
		lifecycle["delete"] = "stop"
	}
	table, _ := json.Marshal(map[string]any{"lifecycle": lifecycle})
	k.table = string(table)
	return k
}

func union(a, b []string) []string {
	all := slices.Clone(a)
	for _, x := range b {
		if !slices.Contains(all, x) {
			all = append(all, x)
		}
	}
	return all
}

var constraintsOf = []string{
	"resource.spec.n > 2", "has(resource.labels.x)", "resource.wasDeployed", "has(resource.attributes.a)", "resource.spec.none == 1",
}

// blueprint draws a blueprint of a kind, as its manifest's spec.
func (s *scenario) blueprint(k *kind) []byte {
	w := s.w
	var spec map[string]any
	if err := json.Unmarshal([]byte(k.table), &spec); err != nil {
		panic(err)
	}
	if k.role == execution || k.role == serviceKind {
		spec["phases"] = s.treePhases(k)
	} else {
		spec["phases"] = s.plugins(k, phasesMax)
	}
	text, _ := json.Marshal(spec)
	bp, violations := manifest.Blueprint(project, k.name, text)
	if len(violations) > 0 {
		panic(fmt.Sprintf("the simulator's blueprint is not valid: %+v\n%s", violations, text))
	}
	canonical, digest, _ := manifest.Canonical(text)
	bp.Digest = digest
	w.check.blueprints[digest] = bp
	return canonical
}

// plugins draws phases of workers, up to a number.
func (s *scenario) plugins(k *kind, most int) []map[string]any {
	w := s.w
	phases := []map[string]any{}
	for i := range w.r.IntN(most + 1) {
		states := []string{pick(w, k.ways)}
		if more := pick(w, k.ways); w.percent(30) && more != states[0] {
			states = append(states, more)
		}
		p := map[string]any{"name": phaseName(i), "states": states, "executor": map[string]any{"plugin": map[string]any{}}}
		var on []string
		for _, before := range phases {
			shares := slices.ContainsFunc(before["states"].([]string), func(x string) bool { return slices.Contains(states, x) })
			if shares && w.percent(45) {
				on = append(on, before["name"].(string))
			}
		}
		if on != nil {
			p["dependsOn"] = on
		}
		if s.held && i%2 == 1 {
			p["calls"] = 2 // of a phase always the same: who holds one whose limit is lowered goes on
		}
		if w.percent(20) && (k.role == "" || w.percent(20)) {
			p["when"] = pick(w, constraintsOf)
		}
		if w.percent(30) {
			p["timeout"] = pick(w, []string{"5s", "30s", "90s", "5m"})
		}
		if w.percent(60) {
			p["interval"] = pick(w, []string{"1s", "5s", "20s"})
		}
		if w.percent(30) {
			p["lease"] = pick(w, []string{"1s", "10s"})
		}
		if w.percent(50) {
			p["retry"] = map[string]any{"attempts": 1 + w.r.IntN(3), "delay": pick(w, []string{"1s", "5s", "10s"})}
		}
		phases = append(phases, p)
	}
	return phases
}

// start sends the blueprints, and has the commands and faults of the seed happen.
func (s *scenario) start() {
	w := s.w
	user := w.house.start(users)
	for range 1 + w.r.IntN(3) {
		w.house.start(orchestrator)
	}
	for range 1 + w.r.IntN(2) {
		w.house.start(intake)
	}
	for range 1 + w.r.IntN(3) {
		w.house.start(workers)
	}
	w.house.start(sweeper)
	for i := range s.kinds {
		k := &s.kinds[i]
		w.after(w.upTo(2*time.Second), func() { s.ask(user, s.applyBlueprint(k), true) })
	}
	for range 12 + w.r.IntN(40) {
		w.after(3*time.Second+w.upTo(s.active), func() { s.ask(user, s.command(), false) })
	}
	s.trouble()
}

// trouble has processes die, stop and come again.
func (s *scenario) trouble() {
	w, h := s.w, s.w.house
	often := func(has bool, mean time.Duration, f func()) {
		var again func()
		again = func() {
			if w.calm {
				return
			}
			f()
			w.after(w.upTo(2*mean), again)
		}
		if has {
			w.after(w.upTo(2*mean), again)
		}
	}
	strike := func(how func(*process)) func() {
		return func() {
			all := slices.DeleteFunc(slices.Clone(h.processes), func(p *process) bool { return p.service == users })
			if len(all) > 0 {
				how(pick(w, all))
			}
		}
	}
	often(w.faults.kills, 40*time.Second, strike(func(p *process) {
		h.kill(p)
		w.after(w.upTo(20*time.Second), func() { h.start(p.service) })
	}))
	often(w.faults.pauses, 60*time.Second, strike(func(p *process) { h.pause(p, w.upTo(12*time.Second)) }))
	often(w.faults.cuts && s.held, 40*time.Second, func() {
		if of := h.of(workers); len(of) > 0 {
			p := pick(w, of)
			p.cutUntil = w.now.Add(w.upTo(15 * time.Second))
			w.mark("cut", p.name, uint64(p.cutUntil.Sub(w.now)))
		}
	})
	often(w.faults.overlap, 60*time.Second, func() {
		if of := h.of(orchestrator); len(of) > 0 {
			p := pick(w, of)
			p.alone = true
			h.changed(orchestrator)
			w.after(w.upTo(40*time.Second), func() { p.alone = false; h.changed(orchestrator); h.heardAgain(orchestrator) })
		}
	})
}

func (s *scenario) id() string {
	s.requests++
	return fmt.Sprint("r", s.requests)
}

func (s *scenario) applyBlueprint(k *kind) *command {
	return s.apply(resource.Key{Project: project, Kind: drive.BlueprintKind, Name: k.name}, s.blueprint(k), nil)
}

func (s *scenario) apply(key resource.Key, spec []byte, labels map[string]string) *command {
	body, err := wire.EncodeCommand("", wire.Command{Manifest: &wire.Manifest{
		APIVersion: "drover/v1", Kind: key.Kind, Name: key.Name, Spec: spec, Labels: labels,
	}})
	if err != nil {
		panic(err)
	}
	return &command{check.Target{Key: key, Verb: resource.VerbApply}, s.id(), body}
}

// command draws what a user asks: most often something new, now and then what was asked before, with its id.
func (s *scenario) command() *command {
	w := s.w
	if len(s.sent) > 0 && w.percent(12) {
		again := *pick(w, s.sent)
		if w.percent(15) {
			again.target.Verb = "cancel" // another command under a used id
			again.body = nil
		}
		return &again
	}
	k := &s.kinds[w.r.IntN(len(s.kinds))]
	for k.names == nil && !w.percent(10) {
		k = &s.kinds[w.r.IntN(len(s.kinds))]
	}
	if k.names == nil {
		return s.applyBlueprint(k) // of what only parents make
	}
	key := resource.Key{Project: project, Kind: k.name, Name: pick(w, k.names)}
	flows, spec := k.flows, s.spec
	if k.role != "" && w.percent(6) {
		key, flows = s.child(k), []string{"reconcile", "start"} // refused
	}
	other := func(verb string, args map[string]string) *command {
		body, err := wire.EncodeCommand("", wire.Command{Args: args})
		if err != nil {
			panic(err)
		}
		return &command{check.Target{Key: key, Verb: verb}, s.id(), body}
	}
	n := w.r.IntN(100)
	if s.applies {
		n /= 2
	}
	switch {
	case n < 24:
		var labels map[string]string
		if w.percent(30) {
			labels = map[string]string{"x": "y"}
		}
		return s.apply(key, spec(k), labels)
	case n < 60:
		return other(pick(w, flows), nil)
	case n < 70:
		return other(resource.VerbDelete, nil)
	case n < 82:
		var args map[string]string
		if w.percent(40) {
			args = map[string]string{"scope": pick(w, []string{"failed", "all", "none"})}
		}
		return other(resource.VerbRetry, args)
	case n < 87:
		return other(resource.VerbCancel, nil)
	case n < 91:
		return other(resource.VerbInterrupt, nil)
	case n < 92:
		return other(resource.VerbApprove, nil)
	case n < 93:
		return other("fly", nil)
	default:
		return s.applyBlueprint(k)
	}
}

// ask has a user send a command, once or until it is answered.
func (s *scenario) ask(user *process, c *command, surely bool) {
	w := s.w
	s.sent = append(s.sent, c)
	w.check.asking++
	user.begin(func() {
		defer func() { w.check.asking-- }()
		w.say("%s %s %s asked", c.target.Key, c.target.Verb, c.id)
		if !surely && w.percent(40) {
			for range 1 + w.r.IntN(3) {
				_, err := user.link.PublishCommand(user.ctx, c.target.Subject(), map[string]string{bus.HeaderRequestID: c.id}, c.body)
				if err == nil {
					return
				}
				if !errors.Is(err, bus.ErrFull) && !errors.Is(err, errNoAnswer) {
					w.violate("a command could not be published: %v", err)
				}
				w.pause(w.upTo(3 * time.Second))
			}
			return
		}
		for tries := 1 + w.r.IntN(4); tries > 0 || surely; tries-- {
			reply := user.link.request(c, 5*time.Second)
			switch {
			case reply == nil:
			case reply.Refused == nil:
				w.check.accepted(reply.JobID, c.target)
				return
			case reply.Refused.Code != resource.Overloaded:
				w.say("%s %s %s refused: %s", c.target.Key, c.target.Verb, c.id, reply.Refused.Message)
				return
			}
			w.pause(w.upTo(3 * time.Second))
		}
	})
}
