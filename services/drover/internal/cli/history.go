package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/services/drover/internal/render"
)

func newHistory(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "history KIND/NAME",
		Short: "Show what the log still holds of a resource",
		Long: `Show the events that the log still holds of a resource, oldest first. The log keeps the last few of each; what it has
dropped is told on stderr, by revision. A stream that sources EVENTS can keep them longer.`,
		Example: `  drover history node/web-1
  drover history node/web-1 -o jsonl | jq -c '[.time, .from, .to, .cause]'`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.completeTargets,
		RunE: a.runner(func(ctx context.Context, args []string) error {
			ctx, cancel := a.bounded(ctx, RequestTimeout)
			defer cancel()
			targets, err := namedTargets(args)
			if err != nil {
				return err
			}
			if len(targets) != 1 {
				return usage("name one resource: KIND/NAME")
			}
			b, err := a.bus(ctx)
			if err != nil {
				return err
			}
			events, err := readHistory(ctx, b, a.project, targets[0])
			if err != nil {
				return err
			}
			if len(events) == 0 {
				return notFoundHint(fmt.Errorf("%s in project %s: %w", targets[0], a.project, bus.ErrNotFound), targets[0])
			}
			items := make([]item, len(events))
			for i := range events {
				items[i] = resourceItem(&events[i])
			}
			if text := droppedText(events); text != "" {
				a.tell("%s", text)
			}
			return a.printItems(items, false, func() error { return a.historyTable(events, true).Write(a.Out, "") })
		}),
	}
}

// readHistory reads what the log holds of a resource, that is gone or is there. The bucket knows the partition, by which
// the log is addressed; what is not in it was the root of its own tree, whose partition follows from its name.
func readHistory(ctx context.Context, b Bus, project string, t target) ([]entry, error) {
	stored, err := logged(ctx, b, project, t)
	if err != nil {
		return nil, err
	}
	events := make([]entry, 0, len(stored))
	for _, s := range stored {
		e, err := decodeEntry(s)
		if err != nil {
			return nil, err
		}
		events = append(events, e)
	}
	return events, nil
}

func logged(ctx context.Context, b Bus, project string, t target) ([]bus.Stored, error) {
	entity := t.entity(project)
	entity.Partition = bus.PartitionOf(project, t.kind, t.name, b.Partitions())
	present, err := b.Get(ctx, entity)
	switch {
	case err == nil:
		entity.Partition = present.Entity.Partition
	case !errors.Is(err, bus.ErrNotFound):
		return nil, fmt.Errorf("%s in project %s: %w", t, project, err)
	}
	stored, err := b.History(ctx, entity)
	if err != nil && !errors.Is(err, bus.ErrNotFound) {
		return nil, fmt.Errorf("history of %s: %w", t, err)
	}
	return stored, nil
}

// droppedText says which revisions of one resource's events the log no longer holds; empty: it holds all. Revisions are
// contiguous within one uid, and begin with 1.
func droppedText(events []entry) string {
	var dropped []string
	next, uid := uint64(1), ""
	for i := range events {
		s := &events[i].State
		if s.UID != uid {
			uid, next = s.UID, 1
		}
		switch {
		case s.Revision == next+1:
			dropped = append(dropped, fmt.Sprint(next))
		case s.Revision > next:
			dropped = append(dropped, fmt.Sprintf("%d to %d", next, s.Revision-1))
		}
		next = max(next, s.Revision+1)
	}
	if len(dropped) == 0 {
		return ""
	}
	return "the log no longer holds revision " + strings.Join(dropped, ", ")
}

// historyTable shows events of one resource.
func (a *App) historyTable(events []entry, absolute bool) *render.Table {
	first := "AGO"
	if absolute {
		first = "TIME"
	}
	t := render.NewTable(first, "REVISION", "TRANSITION", "CAUSE", "HANDS OUT", "JOB")
	for i := range events {
		e := &events[i]
		when := render.Age(a.Now(), e.At)
		if absolute {
			when = render.Time(e.At)
		}
		out := ""
		if d := e.Event.Dispatch; d != nil {
			out = render.Text(d.Fence.Phase)
			if d.Fence.Attempt > 1 {
				out += fmt.Sprintf(" (attempt %d)", d.Fence.Attempt)
			}
		}
		t.Row(when, fmt.Sprint(e.State.Revision), transition(e.Event.From, e.Event.To), causeText(e.Event.Cause), out,
			render.Text(e.Event.JobID))
	}
	return t
}

// transition is "Allocation → Configuration", or the one state where it stayed.
func transition(from, to string) string {
	if from == to {
		return render.Text(to)
	}
	if from == "" {
		from = "-"
	}
	if to == "" {
		to = "-"
	}
	return render.Text(from) + " → " + render.Text(to)
}

// causeText is what made an event happen, in a few words: "start by ann", "launch failed: exit status 3".
func causeText(c resource.Cause) string {
	var parts []string
	switch {
	case c.Verb != "":
		parts = append(parts, c.Verb)
	case c.Phase != "":
		parts = append(parts, c.Phase)
	default:
		parts = append(parts, c.Kind)
	}
	if c.Outcome != "" {
		parts = append(parts, c.Outcome)
	}
	if c.RequestedBy != "" {
		parts = append(parts, "by "+c.RequestedBy)
	}
	text := strings.Join(parts, " ")
	if c.Message != "" {
		text += ": " + c.Message
	}
	return render.Text(text)
}
