package plugin

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

// run takes deliveries from admission to settlement.
func (s *server) run(deliveries []taken) {
	rs, doubtful := s.admit(deliveries)
	if len(rs) == 0 {
		return
	}
	if err := s.Limit.acquire(s.stopping, len(rs)); err != nil || s.stopping.Err() != nil {
		if err == nil {
			s.Limit.release(len(rs))
		}
		s.settle(rs, answer{release: true})
		return
	}
	defer s.Limit.release(len(rs))
	rs = s.check(rs, doubtful)
	if len(rs) == 0 {
		return
	}
	batch := &Batch{resources: rs}
	now := time.Now()
	for _, r := range rs {
		r.mu.Lock()
		r.batch, r.called, r.checked = batch, now, now
		r.mu.Unlock()
	}
	s.holds.began(rs)
	rest := s.rest(s.call(batch))
	if batch.exceeded.Load() {
		s.holds.exceeded(rs)
	}
	s.settle(rs, rest)
}

// admit decodes deliveries and drops those that must not be called: the malformed, and duplicates of what is out
// already. doubtful are those whose hand-out may be over by now.
func (s *server) admit(deliveries []taken) (rs, doubtful []*Resource) {
	now := time.Now()
	s.mu.Lock()
	bound := make(map[*line]time.Time, len(s.lines))
	for _, l := range s.lines {
		bound[l] = l.boundAt
	}
	s.mu.Unlock()
	rs = make([]*Resource, 0, len(deliveries))
	for _, d := range deliveries {
		poll := ""
		if d.Header(bus.HeaderPoll) != "" {
			poll = d.line.phase.Phase
		}
		work, err := wire.DecodeWork(d.Body(), poll)
		if err == nil {
			err = d.line.mine(&work)
		}
		if errors.Is(err, wire.ErrUnknown) && d.Delivered() <= bus.WorkDeliveriesMax {
			d.line.log.Info("work of a newer version is left to a newer worker", zap.Uint64("sequence", d.Seq()), zap.Error(err))
			s.putBack(d, newerAfter)
			continue
		}
		if err != nil {
			s.reject(d, err)
			continue
		}
		r := &Resource{s: s, line: d.line, work: work, d: d.Delivery, begun: now, progressed: now}
		if !s.enter(r) {
			continue
		}
		rs = append(rs, r)
		// A server that was killed may have lost count of its deliveries, and have derived work anew: then the event's own
		// time tells, or it happened so lately that this worker has bound to the phase since.
		if d.Delivered() > 1 || now.Sub(d.Time()) > StaleAfter || now.Sub(work.State.UpdatedAt) > StaleAfter || now.Sub(bound[d.line]) < StaleAfter {
			doubtful = append(doubtful, r)
		}
	}
	return rs, doubtful
}

// mine is nil for work of this phase and kind.
func (l *line) mine(w *wire.Work) error {
	if w.Fence.Phase != l.phase.Phase || w.State.Kind != l.phase.Kind || w.State.Project != l.phase.Project {
		return fmt.Errorf("work of %s/%s/%s came to %s/%s/%s", w.State.Project, w.State.Kind, w.Fence.Phase,
			l.phase.Project, l.phase.Kind, l.phase.Phase)
	}
	return nil
}

func (s *server) reject(d taken, reason error) {
	d.line.log.Warn("malformed work is set aside", zap.Uint64("sequence", d.Seq()), zap.Error(reason))
	if err := d.Reject(s.answering, cut(reason.Error(), resource.MessageBytesMax)); err != nil {
		d.line.log.Warn("malformed work cannot be set aside; it will come again", zap.Uint64("sequence", d.Seq()), zap.Error(err))
	}
	s.Observe(Answer{Phase: d.line.phase})
}

// enter registers a hand-out, unless it is out already (then the delivery is settled with that one) or this very
// message was answered before.
func (s *server) enter(r *Resource) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if first := s.out[r.work.Fence]; first != nil {
		first.mu.Lock()
		defer first.mu.Unlock()
		first.twins = append(first.twins, r.d)
		return false
	}
	if r.d.Delivered() > 1 && s.answered.has(r.d.Seq(), r.work.Fence) {
		s.acknowledge(r.d)
		return false
	}
	s.out[r.work.Fence] = r
	return true
}

// check drops those whose hand-out is over: the resource has moved on, or the phase is being canceled; and those that
// came too often.
func (s *server) check(rs, doubtful []*Resource) []*Resource {
	if len(doubtful) == 0 {
		return rs
	}
	var over, unknown, worn []*Resource
	for part := range slices.Chunk(doubtful, bus.LoadEntitiesMax) {
		wanted, err := s.wanted(s.stopping, part)
		if err != nil {
			s.log.Warn("the state of resources cannot be read; their work is put back", zap.Error(err))
			unknown = append(unknown, part...)
			continue
		}
		for i, r := range part {
			switch {
			case wanted[i] == no:
				over = append(over, r)
			case wanted[i] == unreadable:
				unknown = append(unknown, r)
			case r.d.Delivered() > bus.WorkDeliveriesMax:
				worn = append(worn, r)
			}
		}
	}
	s.settle(over, answer{outcome: resource.OutcomeNotStarted, message: "the hand-out is out of date"})
	s.settle(unknown, answer{release: true, delay: releaseAfter})
	s.settle(worn, answer{
		outcome: resource.OutcomeFailed,
		message: fmt.Sprintf("handed out %d times without an answer", bus.WorkDeliveriesMax),
	})
	gone := len(over) + len(unknown) + len(worn)
	if gone == 0 {
		return rs
	}
	rest := make([]*Resource, 0, len(rs)-gone)
	for _, r := range rs {
		r.mu.Lock()
		if !r.settling {
			rest = append(rest, r)
		}
		r.mu.Unlock()
	}
	return rest
}

// verdict says whether a hand-out is still the outstanding one.
type verdict uint8

const (
	no verdict = iota
	yes
	unreadable // the resource's state is none that this version can read
)

// wanted looks at the present state of at most bus.LoadEntitiesMax resources.
func (s *server) wanted(ctx context.Context, rs []*Resource) ([]verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	entities := make([]bus.Entity, len(rs))
	for i, r := range rs {
		entities[i] = r.entity(bus.Resource)
	}
	stored, err := s.bus.Last(ctx, entities)
	if err != nil {
		return nil, err
	}
	verdicts := make([]verdict, len(rs))
	for i, r := range rs {
		if stored[i].Seq == 0 || stored[i].Deleted {
			continue // there is no such resource
		}
		event, err := wire.DecodeResource(stored[i].Body)
		if err != nil {
			verdicts[i] = unreadable
			s.log.Warn("the state of a resource cannot be read", zap.Stringer("resource", r.Key()), zap.Error(err))
			continue
		}
		// Where a follower that is behind has answered, the work itself is the newest word.
		behind := event.State.UpdatedAt.Before(r.work.State.UpdatedAt)
		if event.State.UID == r.work.State.UID {
			behind = event.State.Revision < r.work.State.Revision
		}
		if behind || outstanding(&r.work, &event.State) {
			verdicts[i] = yes
		}
	}
	return verdicts, nil
}

// call runs the handler. A panic becomes an error.
func (s *server) call(b *Batch) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("a phase plugin panicked", zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			err = &panicError{value: p}
		}
	}()
	return s.handle(s.working, b)
}

// panicError is a panic of a handler. It is never mistaken for a lost connection, whatever its value wraps.
type panicError struct{ value any }

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// rest is the answer for what a call left open.
func (s *server) rest(err error) answer {
	var panicked *panicError
	switch {
	case errors.As(err, &panicked):
		return answer{outcome: resource.OutcomeFailed, message: err.Error()}
	case s.working.Err() != nil, s.ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)):
		return answer{release: true}
	case errors.Is(err, ErrUnavailable), errors.Is(err, bus.ErrClosed):
		return answer{release: true, delay: releaseAfter}
	case err != nil:
		return answer{outcome: resource.OutcomeFailed, message: err.Error()}
	default:
		return answer{outcome: resource.OutcomePending}
	}
}

// settle answers for resources: with what was decided for each, else with rest. Results are stored several at a time.
func (s *server) settle(rs []*Resource, rest answer) {
	if len(rs) == 0 {
		return
	}
	for _, r := range rs {
		r.close(rest)
	}
	if len(rs) == 1 {
		s.finish(rs[0])
		return
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(len(rs), AnswersInFlight) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(rs); i = int(next.Add(1)) - 1 {
				s.finish(rs[i])
			}
		})
	}
	wg.Wait()
}

// close ends the time in which answers are taken, and fixes the answer.
func (r *Resource) close(rest answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settling, r.batch = true, nil
	failing := rest.outcome == resource.OutcomeFailed
	switch {
	case r.answer.outcome == resource.OutcomeCompleted, r.answer.outcome == resource.OutcomeFailed:
	case failing:
		r.answer = rest
	case r.answer.given():
	case r.canceled:
		r.answer = answer{outcome: resource.OutcomeNotStarted, message: ErrCanceled.Error()}
	default:
		r.answer = rest
	}
	if r.cancel != nil {
		r.cancel(nil)
	}
}

// finish stores the answer, and only then acknowledges the work.
func (s *server) finish(r *Resource) {
	if r.reporting != nil {
		<-r.reporting // so that Running cannot be stored after the answer
	}
	a := r.answer
	if !a.release {
		if err := s.store(r, a); err != nil {
			s.log.Error("a result cannot be stored; the work will come again", zap.Stringer("resource", r.Key()),
				zap.Stringer("outcome", a.outcome), zap.Error(err))
			a = answer{release: true, delay: releaseAfter}
		}
	}
	s.leave(r, a)
	r.line.hold.answered(a)
	s.Observe(Answer{Phase: r.line.phase, Outcome: a.outcome, Took: time.Since(r.begun)})
}

// store publishes the result until the server has it, or answering ends. A result that can never be stored becomes a
// failure that says so: without one the phase would be run again and again.
func (s *server) store(r *Resource, a answer) error {
	body, err := wire.EncodeResult("", r.result(a))
	if err == nil {
		err = s.insist(r, body)
	} else {
		err = fmt.Errorf("%w: %w", errResult, err)
	}
	if !errors.Is(err, errResult) && !errors.Is(err, bus.ErrTooLarge) {
		return err
	}
	body, encodeErr := wire.EncodeResult("", resource.Result{
		Fence: r.work.Fence, Outcome: resource.OutcomeFailed,
		Message: cut(fmt.Sprintf("the phase was %s, but its result cannot be stored: %v", a.outcome, err), resource.MessageBytesMax),
	})
	if encodeErr != nil {
		return encodeErr
	}
	return s.insist(r, body)
}

var errResult = errors.New("not a valid result")

// insist publishes a result until it is stored, or it is plain that it cannot be.
func (s *server) insist(r *Resource, body []byte) error {
	for tries := 1; ; tries++ {
		err := s.publish(r, body)
		if err == nil || errors.Is(err, bus.ErrClosed) || errors.Is(err, bus.ErrDenied) || errors.Is(err, bus.ErrTooLarge) {
			return err
		}
		if tries == 1 {
			s.log.Warn("a result is not stored yet; trying on", zap.Stringer("resource", r.Key()), zap.Error(err))
		}
		if !sleep(s.answering, backoff(tries)) {
			return err
		}
	}
}

func (s *server) publish(r *Resource, body []byte) error {
	ctx, cancel := context.WithTimeout(s.answering, publishTimeout)
	defer cancel()
	return s.bus.PublishResult(ctx, r.work.ResultSubject, nil, body)
}

// leave settles the deliveries of a hand-out and takes it off the list, in one go: a duplicate is either among its
// twins or sees that it was answered.
func (s *server) leave(r *Resource, a answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range append(r.twins, r.d) {
		if a.release {
			s.putBack(d, a.delay)
			continue
		}
		s.acknowledge(d)
		s.answered.add(d.Seq(), r.work.Fence)
	}
	delete(s.out, r.work.Fence)
}

// putBack has a delivery come again. An error is of little weight: it comes again when its time is up.
func (s *server) putBack(d bus.Delivery, delay time.Duration) {
	if err := d.Retry(delay); err != nil {
		s.log.Debug("work is not put back", zap.Error(err))
	}
}

// acknowledge settles a delivery for good. An error is of little weight: the work comes again, and is found answered.
func (s *server) acknowledge(d bus.Delivery) {
	if err := d.Ack(); err != nil {
		s.log.Debug("work is not acknowledged", zap.Error(err))
	}
}
