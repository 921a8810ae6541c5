package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
)

// line is the work of one kind.
type line struct {
	phase bus.Phase
	hold  *hold
	log   *zap.Logger
	asks  chan ask // one at a time

	// Of the one that calls gathering.fetch:
	tried bool // whether there is a consumer is known
	idle  bool // it has a puller that nothing was asked of

	// server.mu guards these.
	ackWait time.Duration // of the puller; 0 before the first
	boundAt time.Time     // when that was got
}

// ask is one fetch of a line.
type ask struct {
	most, bytes int
	wait        time.Duration
}

// taken is work of one kind.
type taken struct {
	line *line
	bus.Delivery
}

// news is what becomes of a line: it may be asked (idle), it has answered, both, or it has no consumer.
type news struct {
	line       *line
	idle       bool
	answered   bool
	deliveries []bus.Delivery
}

// gathering puts the work of several kinds together. Each line has a goroutine that binds and fetches; what is asked of
// them, and when, is decided by the one that calls fetch.
type gathering struct {
	s     *server
	news  chan news
	stop  context.CancelFunc
	lines sync.WaitGroup
	first int // the line that is asked first, in turn

	mu  sync.Mutex
	err error // why a line has ended for good
}

// gather binds to the phase of each kind until ctx ends. stop ends it: who cannot go on calls it. Fetches that are under way
// end with fetching.
func (s *server) gather(ctx, fetching context.Context, stop context.CancelFunc) *gathering {
	g := &gathering{s: s, stop: stop, news: make(chan news, 3*len(s.lines))} // a line has at most so many that are not read yet
	for _, l := range s.lines {
		g.lines.Go(func() {
			if err := g.pull(ctx, fetching, l); err != nil {
				g.mu.Lock()
				g.err = errors.Join(g.err, err)
				g.mu.Unlock()
				stop()
			}
		})
	}
	return g
}

// pull binds a line, and answers what is asked of it, until ctx ends. An error says that it cannot go on.
func (g *gathering) pull(ctx, fetching context.Context, l *line) error {
	for ctx.Err() == nil {
		puller, err := g.s.bind(ctx, l, func() { g.news <- news{line: l} })
		if err != nil || puller == nil {
			return err
		}
		err = g.answer(ctx, fetching, l, puller)
		puller.Close()
		if err != nil && !errors.Is(err, bus.ErrNotFound) {
			return fmt.Errorf("plugin: fetch work of %s: %w", l.phase.WorkSubject(), err)
		}
	}
	return nil
}

// answer fetches what is asked for until ctx ends, or the puller is of no more use: the error says why.
func (g *gathering) answer(ctx, fetching context.Context, l *line, puller bus.Puller) error {
	g.news <- news{line: l, idle: true}
	for failures := 0; ; {
		var a ask
		select {
		case a = <-l.asks:
		case <-ctx.Done():
			return nil
		}
		deliveries, err := puller.Fetch(fetching, a.most, a.bytes, a.wait)
		g.s.mu.Lock()
		l.ackWait = puller.AckWait() // another orchestrator may have changed it
		g.s.mu.Unlock()
		g.news <- news{line: l, idle: err == nil, answered: true, deliveries: deliveries}
		switch {
		case err == nil:
			failures = 0
			continue
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the error says that ctx ended, which is no failure
		case errors.Is(err, bus.ErrNotFound), errors.Is(err, bus.ErrClosed), errors.Is(err, bus.ErrDenied):
			return err
		}
		if failures++; failures == 1 {
			l.log.Warn("work cannot be fetched; trying on", zap.Error(err))
		}
		if !sleep(ctx, backoff(failures)) {
			return nil
		}
		g.news <- news{line: l, idle: true}
	}
}

// fetch waits up to wait for a first piece of work of a kind that is held, then returns what there is of all these, at most
// most, and of no more than bytes but for the last of each kind. The error is ctx's.
//
// A line that waits is left waiting when another one has work: what it brings meanwhile is in the next fetch.
func (g *gathering) fetch(ctx context.Context, most, bytes int, wait time.Duration) (all []taken, err error) {
	room, left, lines := most, bytes, g.s.lines
	hear := func(n news) {
		n.line.tried, n.line.idle = true, n.idle
		for _, d := range n.deliveries {
			if room <= 0 && len(lines) > 1 || !n.line.hold.held() {
				g.s.putBack(d, 0)
				continue
			}
			room--
			left -= len(d.Body())
			all = append(all, taken{n.line, d})
		}
	}
	heard := func() {
		for err == nil {
			select {
			case n := <-g.news:
				hear(n)
			default:
				return
			}
		}
	}
	await := func(until func(news) bool, changed <-chan struct{}) {
		for err == nil {
			select {
			case n := <-g.news:
				if hear(n); until(n) {
					return
				}
			case <-changed:
				return
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
	}
	// take takes what is there already, of each kind in turn.
	take := func() {
		if len(lines) == 1 {
			return // its one fetch does that, and waits
		}
		g.first = (g.first + 1) % len(lines)
		for i := range lines {
			l := lines[(g.first+i)%len(lines)]
			if err == nil && room > 0 && left > 0 && l.idle && l.hold.held() {
				l.idle = false
				l.asks <- ask{most: room, bytes: max(left, BatchBytesMin)}
				await(func(n news) bool { return n.line == l && n.answered }, nil)
			}
		}
	}
	changed := g.s.holds.bell.heard() // another kind may be held, or none
	heard()
	for slices.ContainsFunc(lines, func(l *line) bool { return !l.tried }) && err == nil {
		await(func(news) bool { return true }, nil)
	}
	take()
	if len(all) > 0 || err != nil {
		return all, err
	}
	for _, l := range lines {
		if l.idle && l.hold.held() {
			l.idle = false
			l.asks <- ask{most: max(most/len(lines), 1), bytes: max(bytes/len(lines), BatchBytesMin), wait: wait}
		}
	}
	await(func(news) bool { return true }, changed)
	if len(all) > 0 {
		heard()
		take()
	}
	return all, err
}

// wait waits until the phase may be called, and says whether only one call at a time is allowed. What comes before that is
// put back: it is another worker's now.
func (g *gathering) wait(ctx context.Context) (alone bool, err error) {
	hs := &g.s.holds
	for {
		changed := hs.bell.heard()
		if hs.ready() {
			return hs.alone(), nil
		}
		select {
		case <-changed:
		case n := <-g.news:
			g.putBack(n)
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

func (g *gathering) putBack(n news) {
	n.line.tried, n.line.idle = true, n.idle
	for _, d := range n.deliveries {
		g.s.putBack(d, 0)
	}
}

// close ends all lines, waits for them, and gives back what they still bring. The error is that of a line that cannot go on.
func (g *gathering) close() error {
	g.stop()
	g.lines.Wait()
	for len(g.news) > 0 {
		g.putBack(<-g.news)
	}
	return g.err
}
