package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/drover/internal/render"
)

func newLogs(a *App) *cobra.Command {
	f := logFilter{}
	var followLines, times, raw bool
	tail := -1
	var since time.Duration
	cmd := &cobra.Command{
		Use:     "logs KIND/NAME",
		Aliases: []string{"log"},
		Short:   "Show what the phases of a resource printed",
		Long: `Show the output of a resource's phases: stdout and stderr of scripts, and what the runner has to say of them. Output
is limited by age and size; the oldest goes first.

Control characters are shown as escapes, so that output cannot change the terminal; --raw passes them through.`,
		Example: `  drover logs node/web-1
  drover logs -f node/web-1 --phase launch
  drover logs node/web-1 --job ltdjfdhvwgcxsmn4ssdm5jrsuu --timestamps
  drover logs node/web-1 -o jsonl | jq -r .text`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.completeTargets,
		RunE: a.runner(func(ctx context.Context, args []string) error {
			targets, err := namedTargets(args)
			if err != nil {
				return err
			}
			if len(targets) != 1 {
				return usage("name one resource: KIND/NAME")
			}
			if tail < -1 {
				return usage("--tail: %d is neither a number of lines nor -1", tail)
			}
			if since > 0 {
				f.since = a.Now().Add(-since)
			}
			l := logPrinter{app: a, target: targets[0], filter: f, times: times, raw: raw, tail: tail, follow: followLines}
			return l.run(ctx)
		}),
	}
	cmd.Flags().BoolVarP(&followLines, "follow", "f", false, "go on with what is printed from now")
	cmd.Flags().StringVar(&f.phase, "phase", "", "only of this phase")
	cmd.Flags().StringVar(&f.job, "job", "", "only of this job")
	cmd.Flags().DurationVar(&since, "since", 0, "only what is not older, as in 10m")
	cmd.Flags().IntVar(&tail, "tail", -1, "only the last so many lines of what there is; -1: all")
	cmd.Flags().BoolVarP(&times, "timestamps", "t", false, "begin each line with its time")
	cmd.Flags().BoolVar(&raw, "raw", false, "pass control characters through")
	return cmd
}

type logFilter struct {
	phase, job string
	since      time.Time
}

func (f *logFilter) match(l *wire.OutputLine) bool {
	return (f.phase == "" || l.Fence.Phase == f.phase) && (f.job == "" || l.Fence.JobID == f.job) && !l.Time.Before(f.since)
}

// logLine is a line in JSON.
type logLine struct {
	Time    time.Time `json:"time"`
	Phase   string    `json:"phase"`
	Attempt uint32    `json:"attempt"`
	Call    uint32    `json:"call"`
	JobID   string    `json:"jobId"`
	UID     string    `json:"uid"`
	Stream  string    `json:"stream"`
	Text    string    `json:"text"`
}

type logPrinter struct {
	app    *App
	target target
	filter logFilter
	times  bool
	raw    bool
	tail   int
	follow bool

	printed int
}

// run prints what is stored, and then follows. With --tail what is stored is read to its end first.
func (l *logPrinter) run(ctx context.Context) error {
	b, err := l.app.bus(ctx)
	if err != nil {
		return err
	}
	t := l.target
	var after uint64 // the last stored line that was dealt with
	if l.tail >= 0 {
		var last []wire.OutputLine
		err := b.ReadOutput(ctx, l.app.project, t.kind, t.name, false, func(stored bus.OutputLine) error {
			line, err := wire.DecodeOutputLine(stored.Body)
			if err != nil {
				return l.unreadable(err)
			}
			after = stored.Seq
			if l.filter.match(&line) && l.tail > 0 {
				if len(last) == l.tail {
					last = last[1:]
				}
				last = append(last, line)
			}
			return nil
		})
		if err != nil {
			return l.end(ctx, err)
		}
		for i := range last {
			if err := l.print(&last[i]); err != nil {
				return err
			}
		}
		if !l.follow {
			return nil
		}
	}
	err = b.ReadOutput(ctx, l.app.project, t.kind, t.name, l.follow, func(stored bus.OutputLine) error {
		if stored.Seq <= after {
			return nil
		}
		line, err := wire.DecodeOutputLine(stored.Body)
		if err != nil {
			return l.unreadable(err)
		}
		if !l.filter.match(&line) {
			return nil
		}
		return l.print(&line)
	})
	if err = l.end(ctx, err); err == nil && l.printed == 0 && !l.follow {
		if _, err := getResource(ctx, b, l.app.project, t); errors.Is(err, bus.ErrNotFound) {
			return notFoundHint(err, t)
		}
		l.app.tell("no output of %s in project %s", t.safe(), render.Text(l.app.project))
	}
	return err
}

func (l *logPrinter) unreadable(err error) error {
	l.app.tell("%s %s", l.app.errPaint.Bad("unreadable line:"), render.Text(err.Error()))
	return nil
}

// end is how reading ended: Ctrl-C is how one stops following.
func (l *logPrinter) end(ctx context.Context, err error) error {
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return nil
	case l.follow && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return exitWith(ExitTimeout)
	case err != nil:
		return fmt.Errorf("output of %s: %w", l.target, err)
	}
	return nil
}

func (l *logPrinter) print(line *wire.OutputLine) error {
	it := item{name: line.Fence.Phase, json: jsonOf(logLine{
		Time: line.Time, Phase: line.Fence.Phase, Attempt: line.Fence.Attempt, Call: line.Fence.Call, JobID: line.Fence.JobID,
		UID: line.Fence.UID, Stream: line.Stream, Text: line.Text,
	})}
	err := l.app.printStreamed(it, l.printed == 0, func() error {
		prefix := ""
		if l.times {
			prefix = l.app.paint.Dim(render.Time(line.Time)) + " "
		}
		if l.filter.phase == "" {
			prefix += l.app.paint.Busy(phaseLabel(line)) + " "
		}
		text := line.Text
		if !l.raw {
			text = render.Line(text)
		}
		switch line.Stream {
		case "stderr":
			text = l.app.paint.Warn(text)
		case "runner":
			text = l.app.paint.Dim(text)
		}
		return l.app.printf("%s%s\n", prefix, text)
	})
	l.printed++
	return err
}

func phaseLabel(line *wire.OutputLine) string {
	label := "[" + render.Text(line.Fence.Phase)
	if line.Fence.Attempt > 1 {
		label += fmt.Sprintf("#%d", line.Fence.Attempt)
	}
	return label + "]"
}
