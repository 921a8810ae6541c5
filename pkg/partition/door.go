package partition

import (
	"context"
	"errors"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/resource"
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
