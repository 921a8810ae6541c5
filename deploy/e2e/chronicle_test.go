package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/wire"
)

// stored is a message of a stream.
type stored struct {
	Seq     uint64
	At      time.Time // when the server stored it
	Subject string
	Header  nats.Header
	Body    []byte
}

// read follows a stream until ctx ends, by direct gets of what is there: EVENTS keeps 8 messages a subject and purges
// what is gone, so whoever wants the whole of it must read along. It goes on where it was after any loss of the server.
func read(ctx context.Context, nc *nats.Conn, stream, filter string, each func([]stored)) {
	readFrom(ctx, nc, stream, filter, 1, each)
}

// readFrom is read from a sequence on.
func readFrom(ctx context.Context, nc *nats.Conn, stream, filter string, next uint64, each func([]stored)) {
	for ctx.Err() == nil {
		got, err := batch(ctx, nc, stream, filter, next)
		if len(got) > 0 {
			each(got)
			next = got[len(got)-1].Seq + 1
		}
		if err != nil {
			pause(ctx, 20*time.Millisecond)
		} else if len(got) == 0 {
			pause(ctx, 4*time.Millisecond)
		}
	}
}

// batch returns stored messages from a sequence on; none where there is none.
func batch(ctx context.Context, nc *nats.Conn, stream, filter string, from uint64) ([]stored, error) {
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	request := fmt.Sprintf(`{"seq":%d,"batch":512,"next_by_subj":%q}`, from, filter)
	if err := nc.PublishRequest("$JS.API.DIRECT.GET."+stream, inbox, []byte(request)); err != nil {
		return nil, err
	}
	var got []stored
	for {
		try, cancel := context.WithTimeout(ctx, time.Second)
		m, err := sub.NextMsgWithContext(try)
		cancel()
		if err != nil {
			return got, err
		}
		switch m.Header.Get("Status") {
		case "":
		case "204", "404":
			return got, nil
		default:
			return got, errors.New(m.Header.Get("Status") + " " + m.Header.Get("Description"))
		}
		seq, err := strconv.ParseUint(m.Header.Get("Nats-Sequence"), 10, 64)
		if err != nil {
			return got, err
		}
		at, err := time.Parse(time.RFC3339Nano, m.Header.Get("Nats-Time-Stamp"))
		if err != nil {
			return got, err
		}
		got = append(got, stored{Seq: seq, At: at, Subject: m.Header.Get("Nats-Subject"), Header: m.Header, Body: m.Data})
	}
}

// entry is one event, read. Of another project than the chronicle's there is the sequence alone, which counts events.
type entry struct {
	stored
	Entity   bus.Entity
	Deleted  bool
	Resource *wire.ResourceEvent
	Job      *wire.JobEvent
}

// chronicle is the whole of EVENTS since the house began, and what it says now of the house's project. Safe for
// concurrent use.
type chronicle struct {
	project string

	mu         sync.Mutex
	entries    []entry
	resources  map[resource.Key]resource.State
	jobs       map[string]job.Record
	specs      map[string]string // JSON by digest
	blueprints map[string]*blueprint.Blueprint
	refusals   map[string][]byte // by subject
	problems   []string
	changed    chan struct{} // closed at each change, and replaced
}

// chronicleOf reads along from now until the test ends.
func chronicleOf(t *testing.T, h *house) *chronicle {
	t.Helper()
	c := &chronicle{
		project: h.project, resources: map[resource.Key]resource.State{}, jobs: map[string]job.Record{}, specs: map[string]string{},
		blueprints: map[string]*blueprint.Blueprint{}, refusals: map[string][]byte{}, changed: make(chan struct{}),
	}
	nc := h.connectAs(bus.Operator) // users read what was refused to them, not all of it
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { readFrom(ctx, nc, "EVENTS", "drover.log.>", h.from, c.append) })
	wg.Go(func() { read(ctx, nc, "REFUSED", "drover.refused.>", c.refused) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		nc.Close()
	})
	return c
}

func (c *chronicle) refused(got []stored) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range got {
		c.refusals[m.Subject] = m.Body
	}
	c.tell()
}

func (c *chronicle) tell() {
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *chronicle) append(got []stored) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range got {
		c.add(m)
	}
	c.tell()
}

// add reads one event. The lock must be held.
func (c *chronicle) add(m stored) {
	e := entry{stored: m, Deleted: m.Header.Get("KV-Operation") == "DEL"}
	entity, _, version, err := bus.ParseLogSubject(m.Subject)
	e.Entity = entity
	switch {
	case err != nil:
	case entity.Project != c.project:
		e = entry{stored: stored{Seq: m.Seq, At: m.At}}
	case entity.Family == bus.Resource:
		var r wire.ResourceEvent
		if r, err = wire.DecodeResource(m.Body); err == nil {
			e.Resource = &r
			c.resources[r.State.Key] = r.State
		}
	case entity.Family == bus.Job:
		var j wire.JobEvent
		if j, err = wire.DecodeJob(m.Body); err == nil {
			e.Job = &j
			c.jobs[j.Record.ID] = j.Record
		}
	case entity.Family == bus.Spec:
		var s wire.SpecEvent
		if s, err = wire.DecodeSpec(m.Body); err == nil && !e.Deleted {
			c.specs[version] = s.JSON
		}
	case entity.Family == bus.Blueprint:
		var b wire.BlueprintEvent
		if b, err = wire.DecodeBlueprint(m.Body); err == nil {
			bp, violations := manifest.Blueprint(b.Project, b.Kind, []byte(b.JSON))
			if len(violations) > 0 {
				err = fmt.Errorf("blueprint: %v", violations)
			} else {
				c.blueprints[bp.Digest] = bp
			}
		}
	}
	if err != nil {
		c.problems = append(c.problems, fmt.Sprintf("event %d on %s: %v", m.Seq, m.Subject, err))
	}
	c.entries = append(c.entries, e)
}

// wait waits until holds does, which is asked under the lock after each change. It returns false if ctx ends before.
func (c *chronicle) wait(ctx context.Context, holds func() bool) bool {
	for {
		c.mu.Lock()
		done, changed := holds(), c.changed
		c.mu.Unlock()
		if done {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		}
	}
}

// waitJob waits until a job is final.
func (c *chronicle) waitJob(ctx context.Context, id string) (r job.Record, ok bool) {
	ok = c.wait(ctx, func() bool {
		r = c.jobs[id]
		return r.State.Final()
	})
	return r, ok
}

// state is a resource as the log last showed it.
func (c *chronicle) state(kind, name string) resource.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.resources[resource.Key{Project: c.project, Kind: kind, Name: name}]
}

// all is what was read so far.
func (c *chronicle) all() []entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entries[:len(c.entries):len(c.entries)]
}
