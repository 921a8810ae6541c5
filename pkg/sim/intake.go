package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/check"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

// As services/intake has them.
const (
	askPatience = 4 * time.Second
	askTry      = 2 * time.Second
	askBackoff  = 50 * time.Millisecond
	askBackoffs = 2 * time.Second
)

// command is a command on its way to its owner.
type command struct {
	target check.Target
	id     string
	body   []byte
}

func (c *command) request() bus.Request {
	return bus.Request{Verb: "command", Header: map[string]string{
		"Drover-Subject": c.target.Subject(), bus.HeaderRequestID: c.id,
	}, Body: c.body}
}

// intakePartition is an intake that serves a partition of COMMANDS: one command of a resource after another.
type intakePartition struct {
	p         *process
	partition int
	inbox     bus.Inbox
	task      *task
	lanes     map[string][]*delivery
	leaving   bool
}

func newIntakePartition(p *process, n int) *intakePartition {
	i := &intakePartition{p: p, partition: n, lanes: map[string][]*delivery{}}
	i.task = p.begin(i.serve)
	return i
}

func (i *intakePartition) wake() {
	if i.task.waiting {
		i.task.wake(0)
	}
}

func (i *intakePartition) leave() {
	i.leaving = true
	i.wake()
}

func (i *intakePartition) serve() {
	w := i.p.w
	var err error
	if i.inbox, err = i.p.link.Commands(i.p.ctx, i.partition); err != nil {
		return
	}
	for !i.leaving && !i.p.dead {
		if len(i.inbox.C()) == 0 {
			i.task.wait()
			continue
		}
		d, ok := <-i.inbox.C()
		if !ok {
			break
		}
		lane := laneOf(d.Subject())
		i.lanes[lane] = append(i.lanes[lane], &delivery{d, w})
		if len(i.lanes[lane]) == 1 {
			i.p.begin(func() { i.drain(lane) })
		}
	}
	if !i.p.dead {
		i.inbox.Close()
		w.poke = true
	}
	w.house.intakes = slices.DeleteFunc(w.house.intakes, func(x *intakePartition) bool { return x == i })
}

func laneOf(subject string) string {
	for i := len(subject) - 1; i >= 0; i-- {
		if subject[i] == '.' {
			return subject[:i]
		}
	}
	return subject
}

// drain applies the commands of a lane in order. One whose partition is given up is put back.
func (i *intakePartition) drain(lane string) {
	for len(i.lanes[lane]) > 0 && !i.p.dead {
		d := i.lanes[lane][0]
		if i.leaving {
			_ = d.Retry(0)
		} else {
			i.apply(d)
		}
		i.lanes[lane] = i.lanes[lane][1:]
	}
}

// apply takes a captured command to its end.
func (i *intakePartition) apply(d *delivery) {
	w, p := i.p.w, i.p
	target, err := check.ParseSubject(d.Subject())
	if err != nil {
		w.violate("a user's command has no subject: %v", err)
	}
	id := d.Header(bus.HeaderRequestID)
	if id == "" {
		id = madeID(d.Seq())
	}
	refuse := func(r resource.Refusal) {
		body, err := wire.EncodeReply("", wire.Reply{RequestID: id, Refused: &r})
		if err != nil {
			w.violate("a refusal cannot be encoded: %v", err)
		}
		for p.link.PublishRefusal(p.ctx, target.Project, id, nil, body) != nil {
			if !w.pause(askBackoffs) {
				return
			}
		}
		_ = d.Ack()
	}
	if r := check.Command(check.Message{Target: target, RequestID: id, Body: d.Body()}); r != nil {
		refuse(*r)
		return
	}
	c := &command{target, id, d.Body()}
	for wait := askBackoff; ; wait = min(2*wait, askBackoffs) {
		reply, err := p.link.ask(target.Partition(p.link.Partitions()), c.request(), askTry)
		if err == nil {
			decoded := w.reply(reply)
			switch {
			case decoded.Refused == nil:
				w.check.accepted(decoded.JobID, target)
				_ = d.Ack()
				return
			case decoded.Refused.Code != resource.Overloaded:
				refuse(*decoded.Refused)
				return
			}
		}
		if p.dead || i.leaving {
			_ = d.Retry(0)
			return
		}
		_ = d.Progress()
		if !w.pause(wait) {
			return
		}
	}
}

// madeID is the request id of a captured command that came without one.
func madeID(seq uint64) string { return fmt.Sprint("c", seq) }

func (w *World) reply(r bus.Request) wire.Reply {
	decoded, err := wire.DecodeReply(r.Header[bus.HeaderContentType], r.Body)
	if err != nil {
		w.violate("an owner's reply cannot be read: %v", err)
	}
	return decoded
}

// api answers a request on drover.api, as an intake does; nil: it did not.
func api(p *process, c *command) *wire.Reply {
	w := p.w
	if r := check.Command(check.Message{Target: c.target, RequestID: c.id, Body: c.body}); r != nil {
		return &wire.Reply{RequestID: c.id, Refused: r}
	}
	end := w.now.Add(askPatience)
	for wait := askBackoff; w.now.Before(end); wait = min(2*wait, askBackoffs) {
		reply, err := p.link.ask(c.target.Partition(p.link.Partitions()), c.request(), min(askTry, end.Sub(w.now)))
		if err == nil {
			decoded := w.reply(reply)
			return &decoded
		}
		if !w.pause(wait) {
			return nil
		}
	}
	return &wire.Reply{RequestID: c.id, Refused: &resource.Refusal{Code: resource.Overloaded}}
}

// request sends a command on drover.api and waits for an intake's answer; nil: none came.
func (l *link) request(c *command, patience time.Duration) *wire.Reply {
	w := l.p.w
	if !w.pause(w.latency()) {
		return nil
	}
	t := w.running
	var got *wire.Reply
	over := false
	defer func() { over = true }()
	for range w.copies() {
		intakes := w.house.of(intake)
		if len(intakes) == 0 {
			break
		}
		i := pick(w, intakes)
		i.begin(func() {
			reply := api(i, c)
			if reply == nil || w.fault(w.faults.lost, 4) {
				return
			}
			w.after(w.latency(), func() {
				if got == nil && !over {
					got = reply
					t.wake(0)
				}
			})
		})
	}
	for end := w.now.Add(patience); got == nil && w.now.Before(end); {
		t.wake(end.Sub(w.now))
		if !t.wait() {
			return nil
		}
	}
	return got
}
