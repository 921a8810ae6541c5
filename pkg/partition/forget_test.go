package partition_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/memory"
	"github.com/droverproject/drover/pkg/catalog"
	"github.com/droverproject/drover/pkg/constraint"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/partition"
	"github.com/droverproject/drover/pkg/wire"
)

// shell runs background work at once, and keeps what comes later.
type shell struct {
	calls []func()
	sleep func(time.Duration) // nil: it takes no time
}

func (s *shell) Background(f func()) { f() }
func (s *shell) Later(f func())      { s.calls = append(s.calls, f) }
func (s *shell) Sleep(d time.Duration) {
	if s.sleep != nil {
		s.sleep(d)
	}
}
func (*shell) Appended(bus.Family)     {}
func (*shell) Lost()                   {}
func (*shell) Refused(resource.Code)   {}
func (*shell) SetAside()               {}
func (*shell) Noted(resource.NoteCode) {}
func (*shell) Swept(int, drive.Stats)  {}
func (s *shell) run(o *partition.Owner) {
	for o.Answered(); len(s.calls) > 0 || o.Out() > 0; o.Answered() {
		calls := s.calls
		s.calls = nil
		for _, f := range calls {
			f()
		}
	}
}

// link is a connection that sometimes does not do what it is asked.
type link struct {
	*memory.Conn
	// dies is asked before and after what changes something.
	dies   func()
	last   func(entities []bus.Entity, out []bus.Stored)
	forget func(e bus.Entity) error
	poll   func() error
	// unheard says that the answer to what was stored is lost; mute, that the log cannot be asked about it, either.
	unheard func() bool
	mute    bool
	silent  func() bool             // the answer to a lone append is lost, whatever it was
	asks    int                     // that nobody answers
	scan    func(family bus.Family) // before the log is read
}

func (l *link) Last(ctx context.Context, entities []bus.Entity) ([]bus.Stored, error) {
	if l.asks > 0 {
		l.asks--
		return nil, context.DeadlineExceeded
	}
	out, err := l.Conn.Last(ctx, entities)
	if l.last != nil {
		l.last(entities, out)
	}
	return out, err
}

func (l *link) Scan(ctx context.Context, partition int, family bus.Family, each func(bus.Stored) error) error {
	if l.scan != nil {
		l.scan(family)
	}
	return l.Conn.Scan(ctx, partition, family, each)
}

func (l *link) PublishPoll(ctx context.Context, p bus.Phase, key string, body []byte) error {
	if l.poll != nil {
		if err := l.poll(); err != nil {
			return err
		}
	}
	return l.Conn.PublishPoll(ctx, p, key, body)
}

func (l *link) change() func() {
	if l.dies == nil {
		return func() {}
	}
	l.dies()
	return l.dies
}

func (l *link) Append(a bus.Append) bus.Pending {
	defer l.change()()
	return l.answer(l.Conn.Append(a))
}

func (l *link) AppendBatch(ctx context.Context, batch []bus.Append) (uint64, error) {
	defer l.change()()
	seq, err := l.Conn.AppendBatch(ctx, batch)
	if err == nil && l.loses() {
		return 0, bus.ErrUnknownOutcome
	}
	return seq, err
}

func (l *link) loses() bool {
	if l.unheard == nil || !l.unheard() {
		return false
	}
	if l.mute {
		l.asks = 2 // a follower, and the leader
	}
	return true
}

// answer is what is heard of the answer to an append.
func (l *link) answer(p bus.Pending) bus.Pending {
	if _, err := p.Result(); err == nil && l.loses() || l.silent != nil && l.silent() {
		return unanswered{p}
	}
	return p
}

// unanswered is an append whose answer is lost.
type unanswered struct{ bus.Pending }

func (unanswered) Result() (uint64, error) { return 0, bus.ErrUnknownOutcome }

func (l *link) Current(ctx context.Context, entities []bus.Entity) ([]bus.Stored, error) {
	if l.asks > 0 {
		l.asks--
		return nil, context.DeadlineExceeded
	}
	return l.Conn.Current(ctx, entities)
}

func (l *link) Bury(a bus.Append) bus.Pending {
	defer l.change()()
	return l.answer(l.Conn.Bury(a))
}

func (l *link) RemovePhase(ctx context.Context, p bus.Phase) error {
	defer l.change()()
	return l.Conn.RemovePhase(ctx, p)
}

func (l *link) Drop(ctx context.Context, e bus.Entity, version string, upTo uint64) error {
	defer l.change()()
	return l.Conn.Drop(ctx, e, version, upTo)
}

func (l *link) Forget(ctx context.Context, e bus.Entity, seq uint64) error {
	if l.forget != nil {
		if err := l.forget(e); err != nil {
			return err
		}
	}
	defer l.change()()
	return l.Conn.Forget(ctx, e, seq)
}

// fixture is an owner over the bus in memory.
type fixture struct {
	t     *testing.T
	link  *link
	shell *shell
	owner *partition.Owner
}

func start(t *testing.T) *fixture {
	t.Helper()
	return serve(t, memory.New(memory.Options{Partitions: 1}), time.Now)
}

// serve makes one of the owners of a system.
func serve(t *testing.T, sys *memory.System, now func() time.Time) *fixture {
	t.Helper()
	return serveOne(t, sys, now, 0)
}

func serveOne(t *testing.T, sys *memory.System, now func() time.Time, number int) *fixture {
	t.Helper()
	f := dormant(t, sys, now, number)
	_, err := f.owner.TakeOver()
	require.NoError(t, err)
	f.shell.run(f.owner)
	return f
}

// dormant makes an owner that has not taken over yet.
func dormant(t *testing.T, sys *memory.System, now func() time.Time, number int) *fixture {
	t.Helper()
	f := &fixture{t: t, link: &link{Conn: sys.Connect()}, shell: &shell{}}
	t.Cleanup(func() { require.NoError(t, f.link.Close()) })
	books, err := catalog.New(f.link, now, constraint.NewEvaluator())
	require.NoError(t, err)
	f.owner = partition.New(t.Context(), partition.Config{
		Bus: f.link, Catalog: books, Now: now, Log: zap.NewNop(), Observer: f.shell, Shell: f.shell, Number: number,
	})
	return f
}

// send sends a command that must be accepted.
func (f *fixture) send(verb, id string, c wire.Command) {
	f.t.Helper()
	reply := f.ask("a", verb, id, c)
	require.Nil(f.t, reply.Refused)
	require.NotEmpty(f.t, reply.JobID)
}

var listeners = bus.Entity{Family: bus.Spec, Project: "p", Kind: resource.ListenerKind, Name: "a"}

// remains reports whether anything is left of the specs that has no end.
func (f *fixture) remains() bool {
	f.t.Helper()
	last, err := f.link.Conn.Last(f.t.Context(), []bus.Entity{listeners})
	require.NoError(f.t, err)
	if last[0].Seq != 0 && !last[0].Deleted {
		return true
	}
	history, err := f.link.History(f.t.Context(), listeners)
	require.NoError(f.t, err)
	again := f.link.Conn.Forget(f.t.Context(), listeners, last[0].Seq) // nil and without effect where it was done
	require.NoError(f.t, again)
	after, err := f.link.Conn.Last(f.t.Context(), []bus.Entity{listeners})
	require.NoError(f.t, err)
	return len(history) > 1 || after[0].Seq != last[0].Seq
}

func (f *fixture) sweep() {
	f.owner.Ask(bus.Request{Verb: "sweep"}, func(map[string]string, []byte) {})
	f.shell.run(f.owner)
}

// TestSpecsAreForgottenAtLast (simulator, seeds 17 and 273): the specs of what was deleted go, whatever came between:
// a forgetting that ended after their burial, a follower that is behind and shows none of them, or old ones.
func TestSpecsAreForgottenAtLast(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]func(f *fixture){
		"ends after the burial": func(f *fixture) {
			f.link.forget = func(e bus.Entity) error {
				if e.Family == bus.Spec {
					return context.DeadlineExceeded
				}
				return nil
			}
		},
		"a follower shows none": func(f *fixture) {
			f.link.last = func(entities []bus.Entity, out []bus.Stored) {
				for i, e := range entities {
					if e.Family == bus.Spec {
						out[i] = bus.Stored{Entity: e}
					}
				}
			}
		},
		"a follower shows old ones": func(f *fixture) {
			f.link.last = func(entities []bus.Entity, out []bus.Stored) {
				for i, e := range entities {
					if e.Family == bus.Spec && out[i].Seq > 0 {
						out[i].Seq--
					}
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := start(t)
			for id, spec := range map[string]string{"1": `{"x":1}`, "2": `{"x":2}`} {
				f.send("apply", id, wire.Command{Manifest: &wire.Manifest{APIVersion: "drover/v1", Kind: resource.ListenerKind, Name: "a", Spec: []byte(spec)}})
			}
			trouble(f)
			f.send("delete", "3", wire.Command{})
			f.link.forget, f.link.last = nil, nil
			f.sweep()
			require.False(t, f.remains())
		})
	}
}

// TestSpecsAreFoundByTheirResource (simulator, seed 62841703357956): an owner that dies before it has forgotten the specs of
// what was deleted leaves the trace by which the next one finds them, however much later that comes.
func TestSpecsAreFoundByTheirResource(t *testing.T) {
	t.Parallel()
	stopped := &stoppedClock{now: time.Now(), due: map[*time.Time]func(){}}
	sys := memory.New(memory.Options{Partitions: 1, Clock: stopped})
	f := serve(t, sys, stopped.Now)
	f.send("apply", "1", wire.Command{Manifest: &wire.Manifest{APIVersion: "drover/v1", Kind: resource.ListenerKind, Name: "a", Spec: []byte(`{"x":1}`)}})
	f.link.forget = func(e bus.Entity) error {
		if e.Family == bus.Spec {
			return context.DeadlineExceeded
		}
		return nil
	}
	f.send("delete", "2", wire.Command{})
	stopped.pass(2 * time.Hour) // longer than a last trace is kept
	next := serve(t, sys, stopped.Now)
	require.False(t, next.remains())
	stopped.pass(2 * time.Hour)
	last, err := next.link.Conn.Last(t.Context(), []bus.Entity{listeners})
	require.NoError(t, err)
	require.Zero(t, last[0].Seq, "nothing is left")
}

// stoppedClock is a memory.Clock that a test turns.
type stoppedClock struct {
	now time.Time
	due map[*time.Time]func()
}

func (c *stoppedClock) Now() time.Time { return c.now }

func (c *stoppedClock) AfterFunc(d time.Duration, call func()) (stop func()) {
	at := c.now.Add(d)
	c.due[&at] = call
	return func() { delete(c.due, &at) }
}

func (c *stoppedClock) pass(d time.Duration) {
	c.now = c.now.Add(d)
	for at, call := range c.due {
		if !at.After(c.now) {
			delete(c.due, at)
			call()
		}
	}
}

// TestAnOwnerLooksAgain (simulator, seed 71396356018800): what another owner began and did not end, after this one's
// takeover, is ended by this one.
func TestAnOwnerLooksAgain(t *testing.T) {
	t.Parallel()
	sys, now := memory.New(memory.Options{Partitions: 1}), time.Now()
	clock := func() time.Time { return now }
	f := serve(t, sys, clock)
	other := serve(t, sys, clock)
	other.send("apply", "1", wire.Command{Manifest: &wire.Manifest{APIVersion: "drover/v1", Kind: resource.ListenerKind, Name: "a", Spec: []byte(`{"x":1}`)}})
	other.link.forget = func(bus.Entity) error { return context.DeadlineExceeded } // it dies before it has forgotten it
	other.send("delete", "2", wire.Command{})
	f.sweep()
	require.True(t, f.remains(), "it does not look at every sweep")
	now = now.Add(31 * time.Second)
	f.sweep()
	require.False(t, f.remains())
}

// TestAnOwnerWhoseClockIsSetBackLooks (simulator, seed 231387424387521): it does not wait for the time that its clock showed before.
func TestAnOwnerWhoseClockIsSetBackLooks(t *testing.T) {
	t.Parallel()
	sys, now := memory.New(memory.Options{Partitions: 1}), time.Now()
	clock := func() time.Time { return now }
	f := serve(t, sys, clock)
	now = now.Add(-24 * time.Hour)
	other := serve(t, sys, clock)
	other.send("apply", "1", wire.Command{Manifest: &wire.Manifest{APIVersion: "drover/v1", Kind: resource.ListenerKind, Name: "a", Spec: []byte(`{"x":1}`)}})
	other.link.forget = func(bus.Entity) error { return context.DeadlineExceeded } // it dies before it has forgotten it
	other.send("delete", "2", wire.Command{})
	f.sweep()
	now = now.Add(31 * time.Second)
	f.sweep()
	require.False(t, f.remains())
}

// TestAnOwnerThatIsMetAgainAndAgainLooks: of two owners that are in each other's way between any two sweeps, each still looks at
// what the other one has written.
func TestAnOwnerThatIsMetAgainAndAgainLooks(t *testing.T) {
	t.Parallel()
	sys, now := memory.New(memory.Options{Partitions: 1}), time.Now()
	clock := func() time.Time { return now }
	f := serve(t, sys, clock)
	other := serve(t, sys, clock)
	apply := func(f *fixture, name string, n int) {
		f.ask(name, "apply", fmt.Sprint(n), wire.Command{Manifest: &wire.Manifest{
			APIVersion: "drover/v1", Kind: resource.ListenerKind, Name: name, Spec: fmt.Appendf(nil, `{"x":%d}`, n),
		}})
	}
	apply(f, "b", 0)
	apply(other, "a", 1)
	other.link.forget = func(bus.Entity) error { return context.DeadlineExceeded } // it never comes to it
	other.ask("a", "delete", "2", wire.Command{})
	for i := range 4 {
		apply(other, "b", 10+2*i)
		apply(f, "b", 11+2*i) // its append is lost
		now = now.Add(20 * time.Second)
		f.sweep()
	}
	require.False(t, f.remains())
}
