package partition

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/wire"
)

const forgetRunsMax = 64 // runs that one sweep begins to forget

// sweep implements door: runs beyond RunsKept and RunsKeptFor are forgotten. Nothing is decided here that an append would not
// prove: a run that is not the current one of its machine is final, and never changes again.
func (m *machines) sweep(now time.Time) {
	type old struct {
		id string
		keptRun
	}
	of := map[drive.AggregateKey][]old{}
	for id, r := range m.runs {
		if m.live[r.key].run != id && !m.begun[id] {
			of[r.key] = append(of[r.key], old{id, r})
		}
	}
	for _, runs := range of {
		slices.SortFunc(runs, func(a, b old) int { return cmp.Compare(b.seq, a.seq) }) // newest first
		for i, r := range runs {
			if _, lives := m.live[r.key]; lives && i < RunsKept && now.Before(r.at.Add(RunsKeptFor)) {
				continue
			}
			if len(m.begun) >= forgetRunsMax {
				return
			}
			m.forgetRun(r.id, r.keptRun)
		}
	}
}

func (m *machines) forgetRun(id string, r keptRun) {
	m.begun[id] = true
	p, entity := m.o.port, m.entity(bus.TaskRun, r.key.Project, id)
	p.forget(func(ctx context.Context) error {
		last, err := p.c.Bus.Current(ctx, []bus.Entity{entity})
		if err != nil || last[0].Seq == 0 {
			return err
		}
		at := last[0].Seq
		if !last[0].Deleted {
			e, err := wire.DecodeTaskRun(last[0].Body)
			if err != nil {
				return err
			}
			if !e.Run.State.Final() {
				return errors.New("task run " + id + " is not the current one of its machine, and not final")
			}
			e.From, e.At = e.Run.State, p.c.Now()
			e.Run.Gone, e.Run.Revision = true, e.Run.Revision+1
			a := bus.Append{Entity: entity, Expect: at, Header: bus.Header{
				From: e.From.String(), To: e.Run.State.String(), Job: id, Revision: e.Run.Revision,
			}}
			if a.Body, err = wire.EncodeTaskRun(e); err != nil {
				return err
			}
			if at, err = p.c.Bus.Bury(a).Result(); err != nil {
				return err
			}
		}
		return p.c.Bus.Forget(ctx, entity, at)
	}, func(err error) {
		delete(m.begun, id)
		if err == nil {
			delete(m.runs, id)
		}
	})
}
