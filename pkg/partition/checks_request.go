package partition

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/check"
	"github.com/droverproject/drover/pkg/engine/deployment"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/monitoring"
	"github.com/droverproject/drover/pkg/wire"
)

// gate lets commands on one repository proceed side by side, but for deletions, which have it to themselves: whether
// something stands on an object is judged on what was stored.
type gate struct {
	running   int
	exclusive bool
	waiting   []func(done func())
	alone     []bool // of each that waits
}

func (g *gate) enter(alone bool, f func(done func())) {
	g.waiting, g.alone = append(g.waiting, f), append(g.alone, alone)
	g.next()
}

func (g *gate) next() {
	for len(g.waiting) > 0 && !g.exclusive && (!g.alone[0] || g.running == 0) {
		f := g.waiting[0]
		g.exclusive = g.alone[0]
		g.waiting, g.alone = g.waiting[1:], g.alone[1:]
		g.running++
		f(func() {
			g.running--
			g.exclusive = false
			g.next()
		})
	}
}

func (c *checks) takes(kind string) bool { return check.IsKind(kind) }

// command takes an apply or a delete of a user.
func (c *checks) command(d doorCommand, reply func(resource.Reply)) {
	root, _, _ := strings.Cut(d.Name, "/")
	e := c.estate(d.Project)
	g := e.roots[root]
	if g == nil {
		g = &gate{}
		e.roots[root] = g
	}
	g.enter(d.verb == resource.VerbDelete, func(done func()) {
		c.decide(e, d, func(r resource.Reply) {
			reply(r)
			done()
		})
	})
}

func (c *checks) decide(e *estate, d doorCommand, reply func(resource.Reply)) {
	at := c.o.c.Now()
	cmd := &check.Command{
		Project: d.Project, Kind: d.Kind, Name: d.Name, Verb: d.verb, JobID: wire.JobID(d.Key, d.requestID), RequestID: d.requestID,
		Digest: wire.BodyDigest(d.verb, d.body), RequestedBy: d.body.RequestedBy, NewUID: wire.UID(d.Key, d.requestID, at),
	}
	c.orderOf = append(c.orderOf, drive.JobKey{Project: d.Project, ID: cmd.JobID})
	c.orders = append(c.orders, func(known []drive.LoadedJob, i int, err error) (in drive.AggregateInput[check.Input, check.Effects], ok bool) {
		if err != nil {
			reply(refused(resource.Overloaded, "the log could not be read; send the command again: "+err.Error()))
			return in, false
		}
		return c.judge(e, d, cmd, known[i], reply)
	})
	c.soon(c.gathered)
}

// gathered decides on the commands that have come meanwhile: the records of their jobs are read together, and so are their
// objects.
func (c *checks) gathered() {
	if len(c.orders) == 0 {
		return
	}
	orders, keys := c.orders, c.orderOf
	c.orders, c.orderOf = nil, nil
	_, jobs, err := c.o.port.Load(nil, keys, false)
	var inputs []drive.AggregateInput[check.Input, check.Effects]
	for i, order := range orders {
		if in, ok := order(jobs, i, err); ok {
			inputs = append(inputs, in)
		}
	}
	c.objects.Offer(inputs...)
}

// judge makes a command the input of its object, or answers it.
func (c *checks) judge(e *estate, d doorCommand, cmd *check.Command, known drive.LoadedJob, reply func(resource.Reply)) (in drive.AggregateInput[check.Input, check.Effects], ok bool) {
	if record := present(known); record.State != job.None {
		cmd.Known = &record
	}
	if d.verb == resource.VerbApply && cmd.Known == nil {
		if r := c.prepare(e, d, cmd); r != nil {
			reply(resource.Reply{Refused: r})
			return in, false
		}
	}
	if d.verb == resource.VerbDelete {
		cmd.Below = e.below(d.Kind, d.Name)
	}
	return drive.AggregateInput[check.Input, check.Effects]{
		Key: drive.AggregateKey{Project: d.Project, ID: check.ID(d.Kind, d.Name)}, Input: check.Input{At: c.o.c.Now(), Command: cmd},
		Reply: func(fx check.Effects) { reply(c.own(cmd, d, *fx.Reply)) },
		Back: func(err error) {
			r := refused(resource.Overloaded, "the command could not be decided now; try again: "+err.Error())
			if errors.Is(err, drive.ErrOvertaken) { // by itself, where the record of its job is there
				r = c.own(cmd, d, r)
			}
			reply(r)
		},
		Aside: func(reason string) { reply(refused(resource.TooLarge, reason)) },
	}, true
}

// own answers a command that is in its own way: it was stored, its answer was lost, the leader could not be asked about that
// (inquiry), and it was decided again on what it had changed. Its job, if that has ended, only the log knows of.
func (c *checks) own(cmd *check.Command, d doorCommand, r resource.Reply) resource.Reply {
	if r.Refused == nil || r.Refused.Code == resource.Invalid {
		return r
	}
	_, jobs, err := c.o.port.Load(nil, []drive.JobKey{{Project: d.Project, ID: cmd.JobID}}, true)
	if err != nil {
		return refused(resource.Overloaded, "the log could not be read; send the command again: "+err.Error())
	}
	if record := present(jobs[0]); record.State != job.None && record.Digest == cmd.Digest {
		return resource.Reply{JobID: cmd.JobID}
	}
	return r
}

// below is something that stands on an object; empty: nothing does.
func (e *estate) below(kind, name string) string {
	if len(check.Parents(kind)) == 0 && kind != check.Repository {
		return ""
	}
	if below := e.tree.Below(name); below != "" {
		return below
	}
	for config, f := range e.configs {
		if f.place.On == name {
			return check.CheckConfiguration + " " + config
		}
	}
	return ""
}

// prepare judges what an apply needs beside the object itself.
func (c *checks) prepare(e *estate, d doorCommand, cmd *check.Command) *resource.Refusal {
	if m := d.body.Manifest; m != nil {
		if found := monitoring.Check(d.Kind, d.Name, m.Spec); len(found) > 0 {
			return refusal(resource.Invalid, found[0].Field, found[0].Reason)
		}
	}
	spec, _, r := appliedSpec(d.body)
	if r != nil {
		return r
	}
	cmd.Spec = string(spec)
	cmd.Full = e.tree.Len() >= check.ObjectsMax
	switch d.Kind {
	case check.MonitoringSystem, check.Capability, check.Repository:
	case check.CheckConfiguration:
		return c.pin(e, d, cmd)
	default:
		cmd.Missing = e.tree.Missing(d.Kind, d.Name)
	}
	return nil
}

// pin reads the capability and the monitoring system of a check configuration. They belong to partitions of their own.
func (c *checks) pin(e *estate, d doorCommand, cmd *check.Command) *resource.Refusal {
	capability, place, err := monitoring.CapabilityOf([]byte(cmd.Spec))
	if err != nil {
		return refusal(resource.Invalid, "spec", err.Error())
	}
	if on := e.tree.Get(place.On); on == nil || on.Deleted {
		cmd.Missing = "there is no " + place.On + " for it to be placed on"
		return nil
	}
	capabilitySpec, err := c.elsewhere(d.Project, check.Capability, capability)
	if err != nil {
		return refusal(resource.Overloaded, "", "the log could not be read; send the command again: "+err.Error())
	}
	if capabilitySpec == nil {
		return refusal(resource.Invalid, "spec.capability", "there is no Capability "+capability)
	}
	system, err := monitoring.SystemOf(capabilitySpec)
	if err != nil {
		return refusal(resource.Invalid, "spec.capability", err.Error())
	}
	systemSpec, err := c.elsewhere(d.Project, check.MonitoringSystem, system)
	if err != nil {
		return refusal(resource.Overloaded, "", "the log could not be read; send the command again: "+err.Error())
	}
	if systemSpec == nil {
		return refusal(resource.Invalid, "spec.capability", "is one of a MonitoringSystem that is not there: "+system)
	}
	if cmd.Pins, err = monitoring.Pin(capability, capabilitySpec, system, systemSpec); err != nil {
		return refusal(resource.Invalid, "spec.capability", err.Error())
	}
	return nil
}

// elsewhere is the spec of an object that may belong to another partition, as the log's leader has it; nil: there is none.
func (c *checks) elsewhere(project, kind, name string) ([]byte, error) {
	b := c.o.c.Bus
	stored, err := c.o.port.read([]bus.Entity{{
		Partition: bus.PartitionOf(project, kind, name, b.Partitions()), Family: bus.Check, Project: project, Name: check.ID(kind, name),
	}}, true)
	if err != nil || stored[0].Seq == 0 || stored[0].Deleted {
		return nil, err
	}
	e, err := wire.DecodeCheck(stored[0].Body)
	if err != nil || e.Gone || e.State.Deleted() {
		return nil, err
	}
	return []byte(e.State.Spec), nil
}

// ask takes a request of the gateway or the notifier.
func (c *checks) ask(verb string, r bus.Request, reply Reply) {
	answer := func(a wire.CheckAnswer) {
		body, err := json.Marshal(a)
		if err != nil {
			body = []byte(`{"code":"overloaded","message":"the answer could not be written"}`)
		}
		reply(map[string]string{bus.HeaderContentType: bus.ContentTypeJSON}, body)
	}
	q, err := wire.DecodeCheckRequest(r.Body)
	if err != nil {
		answer(wire.CheckAnswer{Code: resource.Invalid, Message: err.Error()})
		return
	}
	switch verb {
	case "fetch":
		c.deal(q, deployment.OnFetch, answer)
	case "success":
		c.deal(q, deployment.OnSuccess, answer)
	case "failed":
		c.deal(q, deployment.OnFailed, answer)
	case "retry":
		c.deal(q, deployment.OnRetry, answer)
	case "list":
		c.list(q, deployment.OnList, c.pending, answer)
	case "listall":
		c.list(q, deployment.OnListAll, c.outstanding, answer)
	case "pokes":
		c.pokes(answer)
	case "poked":
		c.poked(q, answer)
	default:
		answer(wire.CheckAnswer{Code: resource.Invalid, Message: "the checks' door does not know this request"})
	}
}

func overloaded(err error) wire.CheckAnswer {
	return wire.CheckAnswer{Code: resource.Overloaded, Message: "it could not be decided now; ask again: " + err.Error()}
}

// offer tells an instance something for a front door.
func (c *checks) offer(key drive.AggregateKey, in deployment.Input, reply func(deployment.Effects), back func(error)) {
	c.front = append(c.front, feedItem{
		key: key, input: func() (deployment.Input, bool) { return in, true },
		done: func(fx deployment.Effects, ok bool) {
			if !ok {
				back(errors.New("the log did not take it, or could not be read"))
				return
			}
			reply(fx)
		},
	})
	c.soon(func() {}) // those that come meanwhile are read together
}

// deal answers what is asked of one instance.
func (c *checks) deal(q wire.CheckRequest, kind deployment.Kind, answer func(wire.CheckAnswer)) {
	if p, ok := wire.RoutedPartition(q.ID, c.o.c.Bus.Partitions()); !ok || p != c.o.c.Number {
		answer(wire.CheckAnswer{Code: resource.NotFound, Message: "there is no such check instance"})
		return
	}
	c.offer(drive.AggregateKey{Project: q.Project, ID: q.ID}, deployment.Input{Kind: kind}, func(fx deployment.Effects) {
		a := wire.CheckAnswer{Task: string(fx.Task)}
		if f := fx.Fetched; f != nil {
			a.Status, a.Version, a.Configuration = f.Status.String(), f.Version, f.ID
			if kind == deployment.OnFetch {
				a.Details = wire.Fetched(f, fx.Task)
			}
		}
		switch fx.Note {
		case deployment.NoteAbsent:
			a.Code, a.Message = resource.NotFound, "there is no deployment of this check instance to deal with"
		case deployment.NoteIllegal:
			a.Code, a.Message = resource.Conflict, "Illegal current state "+a.Status
		case deployment.NoteDuplicate, deployment.NoteFull, deployment.NoteNothing, deployment.NoteStale:
		}
		answer(a)
	}, func(err error) { answer(overloaded(err)) })
}

// list answers which instances a monitoring system has to hear of, and clears their flags before it does.
func (c *checks) list(q wire.CheckRequest, kind deployment.Kind, sets map[systemKey]map[drive.AggregateKey]struct{}, answer func(wire.CheckAnswer)) {
	var keys []drive.AggregateKey
	for key := range sets[systemKey{q.Project, q.System}] {
		if key.ID > q.After {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, compareAggregates)
	a := wire.CheckAnswer{IDs: []string{}, More: len(keys) > ListMax}
	keys = keys[:min(len(keys), ListMax)]
	left := len(keys)
	if left == 0 {
		answer(a)
		return
	}
	listed := make([]bool, len(keys))
	for i, key := range keys {
		c.front = append(c.front, feedItem{
			key:   key,
			input: func() (deployment.Input, bool) { return deployment.Input{Kind: kind}, true },
			done: func(fx deployment.Effects, ok bool) {
				listed[i] = ok && fx.Listed
				if !ok { // it keeps its flag; what was cleared is told
					a.Missed++
				}
				if left--; left > 0 {
					return
				}
				for i, key := range keys {
					if listed[i] {
						a.IDs = append(a.IDs, key.ID)
					}
				}
				answer(a)
			},
		})
	}
	c.feed()
}

// pokes answers which instances are pending, some of each monitoring system.
func (c *checks) pokes(answer func(wire.CheckAnswer)) {
	var a wire.CheckAnswer
	systems := make([]systemKey, 0, len(c.pending))
	for s := range c.pending {
		systems = append(systems, s)
	}
	slices.SortFunc(systems, func(a, b systemKey) int { return strings.Compare(a.project+"/"+a.system, b.project+"/"+b.system) })
	for _, s := range systems {
		p := wire.CheckPokes{Project: s.project, System: s.system, More: len(c.pending[s]) > PokesMax}
		for key := range c.pending[s] {
			if len(p.Pokes) == PokesMax {
				break
			}
			p.Pokes = append(p.Pokes, wire.CheckPoke{ID: key.ID, Updates: c.known[key].updates})
		}
		slices.SortFunc(p.Pokes, func(a, b wire.CheckPoke) int { return strings.Compare(a.ID, b.ID) })
		a.Pokes = append(a.Pokes, p)
	}
	answer(a)
}

// poked clears the flags of what a monitoring system has taken.
func (c *checks) poked(q wire.CheckRequest, answer func(wire.CheckAnswer)) {
	left := len(q.Poked)
	var a wire.CheckAnswer
	if left == 0 {
		answer(a)
		return
	}
	for _, p := range q.Poked {
		c.front = append(c.front, feedItem{
			key: drive.AggregateKey{Project: q.Project, ID: p.ID},
			input: func() (deployment.Input, bool) {
				return deployment.Input{Kind: deployment.OnPoked, Updates: p.Updates}, true
			},
			done: func(_ deployment.Effects, ok bool) {
				if !ok {
					a.Missed++
				}
				if left--; left == 0 {
					answer(a)
				}
			},
		})
	}
	c.feed()
}
