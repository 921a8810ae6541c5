package plugin

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

// keep looks after what is out until idle is closed: it holds the deliveries, reports calls that last as Running, and
// ends those that are no longer wanted. What it starts has returned when it returns.
func (s *server) keep(idle <-chan struct{}) {
	ticker := time.NewTicker(keepEvery)
	defer ticker.Stop()
	var reports sync.WaitGroup
	defer reports.Wait()
	room := make(chan struct{}, AnswersInFlight)
	var checking sync.Mutex
	for {
		select {
		case <-idle:
			return
		case now := <-ticker.C:
			due := s.due(now, room)
			for _, r := range due.report {
				reports.Go(func() {
					defer func() { <-room }()
					s.report(r)
				})
			}
			if len(due.check) > 0 && checking.TryLock() {
				reports.Go(func() {
					defer checking.Unlock()
					s.recheck(due.check)
				})
			}
		}
	}
}

type due struct{ report, check []*Resource }

// due holds what must be held, and lists what must be reported (as far as there is room) and checked.
func (s *server) due(now time.Time, room chan struct{}) (d due) {
	paces := make(map[*line]time.Duration, len(s.lines))
	for _, l := range s.lines {
		paces[l] = cmp.Or(s.Lease, l.hold.callLease()) / leaseRenewalsEach
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.out {
		pace := paces[r.line]
		checkEvery := cmp.Or(s.CheckEvery, pace)
		r.mu.Lock()
		if wait := r.line.ackWait; wait > 0 && now.Sub(r.progressed) >= wait/leaseRenewalsEach {
			r.progressed = now
			for _, delivery := range append(slices.Clone(r.twins), r.d) {
				if err := delivery.Progress(); err != nil {
					s.log.Debug("work is not held", zap.Error(err))
				}
			}
		}
		called := !r.called.IsZero() && !r.settling
		if called && now.Sub(r.called) >= RunningAfter && now.Sub(r.reported) >= pace && r.reporting == nil {
			select {
			case room <- struct{}{}:
				r.reported, r.reporting = now, make(chan struct{})
				d.report = append(d.report, r)
			default: // at the next tick
			}
		}
		if called && !r.canceled && now.Sub(r.checked) >= checkEvery {
			d.check = append(d.check, r)
		}
		r.mu.Unlock()
	}
	return d
}

// report says that a call is running: for display, and to hold the lease of one that is being canceled.
func (s *server) report(r *Resource) {
	body, err := wire.EncodeResult("", r.result(answer{outcome: resource.OutcomeRunning}))
	if err == nil {
		err = s.publish(r, body)
	}
	if err != nil {
		s.log.Debug("a running call is not reported", zap.Stringer("resource", r.Key()), zap.Error(err))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.reporting)
	if !r.settling {
		r.reporting = nil
	}
}

// recheck ends the calls that are no longer wanted.
func (s *server) recheck(rs []*Resource) {
	for part := range slices.Chunk(rs, bus.LoadEntitiesMax) {
		wanted, err := s.wanted(s.working, part)
		if err != nil {
			s.log.Debug("the state of running calls cannot be read", zap.Error(err))
			return
		}
		now := time.Now()
		for i, r := range part {
			r.mu.Lock()
			r.checked = now
			if wanted[i] == no && !r.settling {
				r.canceled = true
				if r.cancel != nil {
					r.cancel(ErrCanceled)
				}
			}
			r.mu.Unlock()
		}
	}
}

// inCalls is how many resources of a kind are in calls, and how many of these are not wanted any more.
func (s *server) inCalls(l *line) (resources, canceling int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.out {
		if r.line != l {
			continue
		}
		r.mu.Lock()
		if !r.called.IsZero() && !r.settling {
			resources++
			if r.canceled {
				canceling++
			}
		}
		r.mu.Unlock()
	}
	return resources, canceling
}
