package partition

import (
	"context"
	"errors"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/wire"
)

// door is what an Owner serves beside resources: one family of aggregates (drive.Aggregates), with the requests that its
// front door asks. Its methods are called on the Owner's goroutine.
type door interface {
	// family is the first part of the verbs of its requests ("machine.next").
	family() string
	// takeOver reads what the log holds and tells the loop, at a takeover and when another owner may have written.
	takeOver() error
	// ask takes a request; verb is the part behind the dot. The reply follows the commit.
	ask(verb string, r bus.Request, reply Reply)
	// sweep is called with every sweep (20 s).
	sweep(now time.Time)
	tick(now time.Time)
	nextDue() time.Time
}

// commander is a door whose aggregates users command as they command resources: drover.api, with jobs.
type commander interface {
	takes(kind string) bool
	command(c doorCommand, reply func(resource.Reply))
}

// doorCommand is a command whose form intake has checked.
type doorCommand struct {
	resource.Key
	verb, requestID string
	body            wire.Command
}

// refusal says why a command is turned away; field may be empty.
func refusal(code resource.Code, field, reason string) *resource.Refusal {
	r := &resource.Refusal{Code: code, Message: reason}
	if field != "" {
		r.Message = field + ": " + reason
		r.Violations = []resource.Violation{{Field: field, Reason: reason}}
	}
	return r
}

// refused is the reply to a command that is turned away for what is no field's fault.
func refused(code resource.Code, reason string) resource.Reply {
	return resource.Reply{Refused: refusal(code, "", reason)}
}

// appliedSpec is the spec of the resource that an apply brings, in its canonical form, and its digest.
func appliedSpec(body wire.Command) (spec []byte, digest string, r *resource.Refusal) {
	if body.Manifest == nil {
		return nil, "", refusal(resource.Invalid, "resource", "apply needs a resource")
	}
	if spec = body.Manifest.Spec; len(spec) == 0 {
		spec = []byte("{}")
	}
	spec, digest, err := manifest.Canonical(spec)
	if err != nil {
		return nil, "", refusal(resource.Invalid, "resource.spec", err.Error())
	}
	return spec, digest, nil
}

// readTimeout is how long one read of a family may take.
const readTimeout = time.Minute

// reading is how far a door has read the log: of each family the sequence of the last event that the door was told. Each
// family has its own mark: while one is read, events of another that was read already are written below what is read now.
type reading map[bus.Family]uint64

// news calls each with what was written of a family since the last time, in the order of the log: at first the last event of
// every entity, later every event, each once. A read that fails is made again, as a whole, the next time.
func (r reading) news(o *Owner, f bus.Family, each func(bus.Stored) error) (err error) {
	ctx, cancel := context.WithTimeout(o.ctx, readTimeout)
	defer cancel()
	last := r[f]
	see := func(m bus.Stored) error {
		if m.Seq <= last {
			return nil // it comes twice
		}
		last = m.Seq
		return each(m)
	}
	if last == 0 {
		err = o.c.Bus.Scan(ctx, o.c.Number, f, see)
	} else {
		err = o.c.Bus.ScanAfter(ctx, o.c.Number, f, last, see)
	}
	if err == nil {
		r[f] = last
	}
	return err
}

// store is what drive.AggregatePort's Store does, on this partition: encode makes a document's event into a body.
func (p *port) store(docs []drive.Expected, encode func(drive.Document) ([]byte, error), done func(uint64, error)) {
	records := make([]drive.Record, len(docs))
	for i := range docs {
		d := &docs[i]
		body, err := encode(d.Document)
		if err != nil {
			p.c.Shell.Later(func() { done(0, errors.Join(drive.ErrRefused, err)) })
			return
		}
		records[i] = drive.Record{Expect: d.Expect, Document: &drive.DocumentRecord{Document: d.Document, Body: body}}
	}
	if len(records) == 1 {
		p.Append(records[0], done)
		return
	}
	p.AppendBatch(records, done)
}

// forgetEntity is what drive.AggregatePort's Forget does, on this partition.
func (p *port) forgetEntity(project string, e drive.EntityKey, seq uint64) {
	entity := p.entity(bus.Family(e.Family), project, e.Kind, e.ID)
	p.forget(func(ctx context.Context) error { return p.c.Bus.Forget(ctx, entity, seq) }, func(error) {})
}
