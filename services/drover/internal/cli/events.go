package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/drover/internal/render"
)

// Limits of `events`.
const (
	// feedBuffer is how many events may wait for a slow terminal; past it events are dropped, and said to be.
	feedBuffer = 64 << 10
	// tailDefault is how many of the present events -f shows before it follows.
	tailDefault = 10
)

func newEvents(a *App) *cobra.Command {
	var followFeed bool
	var families []string
	tail := 0
	cmd := &cobra.Command{
		Use:   "events [KIND | KIND/NAME]",
		Short: "Show the last event of each resource, or follow all events live",
		Long: `Show the last event of every resource, of those of a kind, or of one (its history); with -f follow the live feed.

The feed is at most once and ordered per resource. Revisions are contiguous, so what was missed shows as a gap, which is
told on stderr; the bucket still has the state, and ` + "`drover history`" + ` what the log has kept.`,
		Example: `  drover events -f
  drover events -f node
  drover events -f node/web-1 -o jsonl | jq -c '[.revision, .to]'
  drover events --family job -f`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeGet,
		RunE: a.runner(func(ctx context.Context, args []string) error {
			f := feed{app: a, tail: tail, follow: followFeed, last: map[bus.Entity]life{}}
			if len(args) == 1 {
				var isName bool
				if f.kind, f.name, isName = strings.Cut(args[0], "/"); isName {
					if _, err := parseTarget(args[0]); err != nil {
						return err
					}
				} else if err := checkName("kind", f.kind); err != nil {
					return err
				}
			}
			for _, name := range families {
				family := bus.Family(name)
				if !slices.Contains(eventFamilies, family) {
					return usage("--family: %q is none of %s", name, strings.Join(familyNames(), ", "))
				}
				f.families = append(f.families, family)
			}
			if tail < -1 {
				return usage("--tail: %d is neither a number of events nor -1", tail)
			}
			return f.run(ctx)
		}),
	}
	cmd.Flags().BoolVarP(&followFeed, "follow", "f", false, "go on with what happens from now")
	cmd.Flags().StringSliceVar(&families, "family", []string{"resource"}, strings.Join(familyNames(), ", ")+"; several by commas")
	cmd.Flags().IntVar(&tail, "tail", -1, fmt.Sprintf("only the newest so many of what there is; -1: all (default %d with -f)", tailDefault))
	_ = cmd.RegisterFlagCompletionFunc("family", cobra.FixedCompletions(familyNames(), cobra.ShellCompDirectiveNoFileComp))
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if followFeed && !cmd.Flags().Changed("tail") {
			tail = tailDefault
		}
		return nil
	}
	return cmd
}

// eventFamilies are what `events` shows; specs are data, not transitions.
var eventFamilies = []bus.Family{bus.Resource, bus.Job, bus.Blueprint, bus.PhaseRecord, bus.Machine, bus.TaskRun, bus.Check, bus.Instance, bus.Deployment}

// familyNames are those on the command line.
func familyNames() []string {
	names := make([]string, len(eventFamilies))
	for i, f := range eventFamilies {
		names[i] = string(f)
	}
	return names
}

// life is what was last seen of an entity: revisions are contiguous within one uid.
type life struct {
	uid      string
	revision uint64
}

// feed prints events.
type feed struct {
	app        *App
	kind, name string
	families   []bus.Family
	tail       int
	follow     bool

	last    map[bus.Entity]life
	printed int
}

func (f *feed) run(ctx context.Context) error {
	b, err := f.app.bus(ctx)
	if err != nil {
		return err
	}
	arrived := make(chan bus.Stored, feedBuffer)
	lost := make(chan struct{}, 1)
	if f.follow { // before the present ones are read, so that nothing falls between
		for _, family := range f.families {
			kind, name := f.kind, f.name
			if !family.HasKind() {
				kind, name = "", "" // the feed's subject has only the entity's own id
			}
			if !family.HasName() {
				name = ""
			}
			stop, err := b.Follow(family, f.app.project, kind, name, func(s bus.Stored) {
				select {
				case arrived <- s:
				default:
					select {
					case lost <- struct{}{}:
					default:
					}
				}
			})
			if err != nil {
				return fmt.Errorf("follow drover.evt.%s: %w", family, err)
			}
			defer stop()
		}
	}
	if err := f.present(ctx); err != nil {
		return err
	}
	if !f.follow {
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return exitWith(ExitTimeout)
			}
			return nil // Ctrl-C is how one stops following
		case <-lost:
			f.app.tell("%s this terminal is slower than the feed; events were dropped", f.app.errPaint.Warn("gap:"))
		case s := <-arrived:
			if err := f.show(s); err != nil {
				return err
			}
		}
	}
}

// present prints what the buckets, or the log for one resource, hold now.
func (f *feed) present(ctx context.Context) error {
	if f.follow && f.tail == 0 {
		return nil
	}
	ctx, b, cancel, err := f.app.patiently(ctx)
	defer cancel()
	if err != nil {
		return err
	}
	var events []bus.Stored
	for _, family := range f.families {
		if family == bus.Resource && f.name != "" {
			t := target{kind: f.kind, name: f.name}
			stored, err := logged(ctx, b, f.app.project, t)
			if err != nil {
				return err
			}
			if len(stored) == 0 && !f.follow { // with -f it may come
				return notFoundHint(fmt.Errorf("%s in project %s: %w", t, f.app.project, bus.ErrNotFound), t)
			}
			events = append(events, stored...)
			continue
		}
		kind := f.kind
		if !family.HasKind() {
			kind = ""
		}
		err := b.List(ctx, family, f.app.project, kind, func(s bus.Stored) error {
			events = append(events, s)
			return nil
		})
		if err != nil {
			return fmt.Errorf("list bucket %s: %w", family.Bucket(), err)
		}
	}
	slices.SortStableFunc(events, func(x, y bus.Stored) int {
		return cmp.Or(x.Time.Compare(y.Time), cmp.Compare(x.Seq, y.Seq))
	})
	hidden := 0
	if f.tail >= 0 {
		hidden = max(0, len(events)-f.tail)
	}
	for i, s := range events {
		if i < hidden {
			if line, err := f.decode(s); err == nil && line != nil {
				f.last[identity(s.Entity)] = line.life
			}
			continue
		}
		if err := f.show(s); err != nil {
			return err
		}
	}
	return nil
}

// identity is the entity without its partition, which the feed does not say.
func identity(e bus.Entity) bus.Entity {
	e.Partition = 0
	return e
}

// eventLine is one event for people.
type eventLine struct {
	at         time.Time
	what       string // KIND/NAME, job/ID, blueprint/KIND
	transition string
	cause      string
	job        string
	life       life
}

// decode reads an event; nil means that it is none of what was asked for.
func (f *feed) decode(s bus.Stored) (*eventLine, error) {
	switch s.Entity.Family {
	case bus.Resource:
		e, err := decodeEntry(s)
		if err != nil {
			return nil, err
		}
		line := &eventLine{
			at: e.At, what: e.target().String(), transition: transition(e.Event.From, e.Event.To), cause: causeText(e.Event.Cause),
			job: e.Event.JobID, life: life{uid: e.State.UID, revision: e.State.Revision},
		}
		if d := e.Event.Dispatch; d != nil {
			line.cause += ", hands out " + render.Text(d.Fence.Phase)
		}
		if s.Deleted || e.State.Gone {
			line.transition = render.Text(e.Event.From) + " → gone"
		}
		return line, nil
	case bus.Job:
		e, err := wire.DecodeJob(s.Body)
		if err != nil {
			return nil, fmt.Errorf("decode job %s: %w", s.Entity.Name, err)
		}
		r := &e.Record
		if f.kind != "" && r.Kind != f.kind || f.name != "" && r.Name != f.name {
			return nil, nil
		}
		cause := r.Verb + " " + r.Kind + "/" + r.Name
		if r.Message != "" {
			cause += ": " + r.Message
		}
		return &eventLine{
			at: e.At, what: "job/" + r.ID, transition: transition(e.From.String(), r.State.String()), cause: render.Text(cause),
			job: r.ID, life: life{uid: r.ID, revision: r.Revision},
		}, nil
	case bus.Blueprint:
		e, err := wire.DecodeBlueprint(s.Body)
		if err != nil {
			return nil, fmt.Errorf("decode blueprint %s: %w", s.Entity.Kind, err)
		}
		to := fmt.Sprintf("generation %d", e.Generation)
		if e.Gone || s.Deleted {
			to = "gone"
		}
		return &eventLine{
			at: e.At, what: "blueprint/" + e.Kind, transition: "→ " + to, cause: "digest " + render.Text(e.Digest),
			life: life{uid: e.Kind, revision: e.Generation},
		}, nil
	case bus.Machine:
		e, err := wire.DecodeMachine(s.Body)
		if err != nil {
			return nil, fmt.Errorf("decode machine %s: %w", s.Entity.Name, err)
		}
		if f.kind != "" && !isMachine(f.kind) || f.name != "" && e.State.Name != f.name {
			return nil, nil
		}
		cause := e.Cause + ", at " + fmt.Sprint(e.State.CurrentTask)
		if task := taskOf(&e.State); task != "" {
			cause += " (" + task + ")"
		}
		return &eventLine{
			at: e.At, what: "machine/" + e.State.Name, transition: transition(e.From, e.State.Condition().String()), cause: render.Text(cause),
			job: e.State.CurrentJob, life: life{uid: e.State.UUID, revision: e.State.Revision},
		}, nil
	case bus.TaskRun:
		e, err := wire.DecodeTaskRun(s.Body)
		if err != nil {
			return nil, fmt.Errorf("decode task run %s: %w", s.Entity.Name, err)
		}
		if f.kind != "" && !isMachine(f.kind) || f.name != "" && e.Run.Machine.Name != f.name {
			return nil, nil
		}
		cause := e.Run.Task + " on machine/" + e.Run.Machine.Name
		if e.Run.Message != "" {
			cause += ": " + e.Run.Message
		}
		return &eventLine{
			at: e.At, what: "taskrun/" + e.Run.ID, transition: transition(e.From.String(), e.Run.State.String()), cause: render.Text(cause),
			life: life{uid: e.Run.ID, revision: e.Run.Revision},
		}, nil
	case bus.PhaseRecord:
		e, err := wire.DecodePhase(s.Body)
		if err != nil {
			return nil, fmt.Errorf("decode the record of phase %s: %w", s.Entity.Name, err)
		}
		if f.name != "" && e.State.Phase != f.name {
			return nil, nil
		}
		cause := "held by nobody"
		if p := (phaseEntry{record: e.State}); len(p.holders()) > 0 {
			cause = "held by " + render.Text(strings.Join(p.holders(), ","))
		}
		return &eventLine{
			at: e.At, what: "phase/" + e.State.Kind + "/" + e.State.Phase, transition: transition(e.From.String(), e.State.Activity.String()),
			cause: cause, life: life{uid: e.State.Phase, revision: e.State.Revision},
		}, nil
	case bus.Check, bus.Instance, bus.Deployment:
		return checkEvent(s)
	default: // a spec is data, not a transition
	}
	return nil, nil
}

// show prints one event, unless it is older than what was printed, and says what was missed before it.
func (f *feed) show(s bus.Stored) error {
	line, err := f.decode(s)
	if err != nil {
		f.app.tell("%s %s", f.app.errPaint.Bad("unreadable event:"), render.Text(err.Error()))
		return nil
	}
	if line == nil {
		return nil
	}
	id := identity(s.Entity)
	before, known := f.last[id]
	if known && before.uid == line.life.uid {
		switch {
		case line.life.revision <= before.revision:
			return nil
		case line.life.revision > before.revision+1:
			f.gap(line, before.revision)
		}
	}
	f.last[id] = line.life
	it := item{name: line.what, json: func() ([]byte, error) { return wire.EventJSON(s.Body) }}
	err = f.app.printStreamed(it, f.printed == 0, func() error {
		return f.app.printf("%s  %s  %s  %s%s\n", f.app.paint.Dim(render.Time(line.at)), render.Text(line.what),
			f.app.paint.Busy(line.transition), line.cause, f.job(line.job))
	})
	f.printed++
	return err
}

func (f *feed) job(id string) string {
	if id == "" {
		return ""
	}
	return f.app.paint.Dim("  job " + render.Text(id))
}

func (f *feed) gap(line *eventLine, before uint64) {
	missed := fmt.Sprintf("revision %d", before+1)
	if line.life.revision > before+2 {
		missed = fmt.Sprintf("revisions %d to %d", before+1, line.life.revision-1)
	}
	f.app.tell("%s %s: %s not seen", f.app.errPaint.Warn("gap:"), render.Text(line.what), missed)
}
