package sim

import (
	"slices"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/partition"
)

// stint is one process's turn at one partition: what services/orchestrator/internal/partition does with goroutines.
type stint struct {
	p         *process
	partition int
	owner     *partition.Owner
	inbox     bus.Inbox
	asks      []asked
	calls     []func()
	task      *task
	open      bool // requests reach it
	leaving   bool
	began     time.Time // its takeover
	ended     time.Time // zero: not yet
}

type asked struct {
	request bus.Request
	reply   partition.Reply
}

var _ partition.Shell = (*stint)(nil)

func newStint(p *process, n int) *stint {
	s := &stint{p: p, partition: n, began: p.w.now}
	p.w.check.served(s)
	s.task = p.begin(s.serve)
	return s
}

// Background implements partition.Shell.
func (s *stint) Background(f func()) {
	if !s.p.dead {
		s.p.begin(f)
	}
}

// Later implements partition.Shell.
func (s *stint) Later(f func()) {
	s.calls = append(s.calls, f)
	s.wake()
}

// Sleep implements partition.Shell.
func (s *stint) Sleep(d time.Duration) { s.p.w.pause(d) }

func (s *stint) wake() {
	if s.task.waiting {
		s.task.wake(0)
	}
}

func (s *stint) leave() {
	s.leaving = true
	s.wake()
}

func (s *stint) ask(r bus.Request, reply partition.Reply) {
	if s.p.dead || !s.open {
		return
	}
	if r.Verb == "command" {
		reply = s.p.w.check.replying(s, r, reply)
	}
	s.asks = append(s.asks, asked{r, reply})
	s.wake()
}

const (
	takeoverAgain = 2 * time.Second
	renewPause    = 700 * time.Millisecond
)

// renew reads what others wrote while its process and they did not hear each other.
func (s *stint) renew() {
	s.p.w.mark("renews", s.p.name, uint64(s.partition))
	s.owner.Renew()
}

func (s *stint) serve() {
	w, p := s.p.w, s.p
	for {
		s.calls = nil
		s.began = w.now
		s.owner = partition.New(p.ctx, partition.Config{
			Bus: p.link, Catalog: p.catalog, Now: p.clock.Now, Log: nobody, Observer: silent{}, Shell: s, Number: s.partition,
			Limits: drive.Limits{CachedStates: w.scenario.cachedStates},
		})
		_, err := s.owner.TakeOver()
		if err == nil {
			s.inbox, err = p.link.Results(p.ctx, s.partition)
		}
		if err == nil || p.dead {
			break
		}
		if w.pause(takeoverAgain); p.dead || s.leaving {
			s.end()
			return
		}
	}
	w.mark("serves", p.name, uint64(s.partition))
	s.open = !p.dead
	for !s.leaving && !p.dead {
		s.owner.Answered()
		if !s.receive() {
			s.sleep()
		} else if w.percent(20) {
			w.pause(w.latency()) // others have their turn between two of its own
		}
	}
	s.open = false
	for end := w.now.Add(2 * time.Second); !p.dead && s.owner.Out() > 0 && w.now.Before(end); {
		s.task.wake(end.Sub(w.now))
		s.task.wait()
		s.owner.Answered()
	}
	s.end()
}

// end leaves: what was delivered and not taken is put back.
func (s *stint) end() {
	w := s.p.w
	s.leaving, s.ended = true, w.now
	if s.inbox != nil && !s.p.dead {
		s.inbox.Close()
		w.poke = true
	}
	w.mark("leaves", s.p.name, uint64(s.partition))
	w.house.stints = slices.DeleteFunc(w.house.stints, func(x *stint) bool { return x == s })
}

// receive takes one of what is there, whichever: results, requests, answers of background work, times.
func (s *stint) receive() bool {
	var ready []func()
	if s.owner.Ready() && len(s.inbox.C()) > 0 {
		ready = append(ready, s.results)
	}
	if len(s.asks) > 0 {
		ready = append(ready, func() {
			a := s.asks[0]
			s.asks = s.asks[1:]
			s.owner.Ask(a.request, a.reply)
		})
	}
	if len(s.calls) > 0 {
		ready = append(ready, func() {
			f := s.calls[0]
			s.calls = s.calls[1:]
			f()
		})
	}
	if next := s.owner.NextDue(); !next.IsZero() && !s.p.clock.Now().Before(next) {
		ready = append(ready, s.owner.Tick)
	}
	if len(ready) == 0 {
		return false
	}
	pick(s.p.w, ready)()
	return true
}

// results takes what is there, or some of it.
func (s *stint) results() {
	w := s.p.w
	var ds []bus.Delivery
	for n := 1 + w.r.IntN(8); n > 0 && len(s.inbox.C()) > 0; n-- {
		d, ok := <-s.inbox.C()
		if !ok {
			break
		}
		w.mark("result", s.p.name, d.Seq())
		ds = append(ds, w.check.settling(s, &delivery{d, w}))
	}
	s.owner.Offer(ds)
}

// sleep waits until something is there or due.
func (s *stint) sleep() {
	if next := s.owner.NextDue(); !next.IsZero() {
		s.task.wake(next.Sub(s.p.clock.Now()))
	}
	s.task.wait()
}

// silent counts nothing.
type silent struct{}

func (silent) Appended(bus.Family)     {}
func (silent) Lost()                   {}
func (silent) Refused(resource.Code)   {}
func (silent) SetAside()               {}
func (silent) Noted(resource.NoteCode) {}
func (silent) Swept(int, drive.Stats)  {}
