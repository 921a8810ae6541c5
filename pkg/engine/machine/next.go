package machine

import (
	"strings"
	"time"
)

// next answers who asks for its next run: seed 004, "Retrieving the next Job", whose steps the comments name.
func next(s State, n *Next, at time.Time) (State, Effects) {
	switch {
	case !s.Exists():
		return s, refuse(Unprocessable, "Machine", "there is no such machine")
	case s.Run != nil && s.Run.ID == n.RunID: // the same request: its answer was lost on the way
		if s.Run.State == Created {
			return s, Effects{Outcome: NewRun, Run: s.Run, Again: true}
		}
		return s, Effects{Outcome: Nothing, Again: true}
	case !s.Runnable || !s.Available: // 1
		return s, refuse(Conflict, "", "the machine is not runnable and available: "+reasonNotRunnable(&s))
	case s.CurrentTask >= len(s.Tasks), n.Context != s.Context:
		return s, Effects{Outcome: Nothing}
	}
	place := s.CurrentTask
	current := NoRun
	var closed *Run
	switch {
	case s.Run == nil: // 2
	case place < 0 || isSetting(s.Tasks[place]) || s.Run.Index != place: // 4
		if !s.Run.State.Final() {
			r := *s.Run
			end(&r, Failed, at)
			r.ExitState, r.Message = "failed", messageSuperseded
			closed = &r
		}
	default:
		current = s.Run.State
	}
	switch answers[current] { // 7
	case sameRun:
		return s, Effects{Outcome: NewRun, Run: s.Run, Again: true}
	case refuseBusy:
		return s, refuse(Conflict, "State", "the machine already has a running job: "+s.Run.ID)
	case goOn:
		return s, Effects{Outcome: RunGoesOn, Run: s.Run}
	case beginNext:
		place++ // 3
	case beginHere, beginAnew:
		place = max(place, 0) // 5
	}
	return begin(s, n, place, closed, at)
}

func isSetting(entry string) bool {
	_, _, ok := setting(entry)
	return ok
}

// begin makes the run of the entry at a place, or takes on the settings that stand there.
func begin(s State, n *Next, place int, closed *Run, at time.Time) (State, Effects) {
	after := s
	var fx Effects
	fx.Cause = "next"
	entry := ""
	for ; place < len(s.Tasks); place++ { // 6
		what, value, ok := setting(s.Tasks[place])
		if !ok {
			break
		}
		if after.take(what, value) && entry == "" {
			entry = s.Tasks[place]
		}
	}
	changes := changesOf(&s, &after)
	run := Run{
		ID: n.RunID, Previous: s.CurrentJob, Machine: s.Key, MachineUUID: s.UUID, Index: place, State: Created,
		CreatedAt: later(s.UpdatedAt, at), Revision: 1, MinReader: ReaderVersion,
	}
	switch {
	case len(changes) > 0:
		run.Task, run.Index, run.State, run.ExitState = entry, place-1, Finished, "complete"
		run.StartedAt, run.EndedAt = run.CreatedAt, run.CreatedAt
		run.Message = cut("Machine " + s.Name + " changing from " + strings.Join(changes, ", from "))
	case place >= len(s.Tasks):
		if after.CurrentTask != place || closed != nil {
			after.CurrentTask = place
			return commit(after, closed, nil, at, fx)
		}
		return s, Effects{Outcome: Nothing}
	case strings.HasPrefix(s.Tasks[place], prefixAction): // 9
		run.Task, run.State, run.ExitState = s.Tasks[place], Failed, "failed"
		run.StartedAt, run.EndedAt = run.CreatedAt, run.CreatedAt
		run.Message = messageNoPluginText
		after.Runnable = false
	default: // 8
		run.Task = s.Tasks[place]
		fx.Outcome = NewRun
	}
	run.Stage, run.BootEnv, run.Workflow, run.Context = after.Stage, after.BootEnv, after.Workflow, after.Context
	after.CurrentTask, after.CurrentJob = run.Index, run.ID
	return commit(after, closed, &run, at, fx)
}

// take takes a setting on, and reports whether it was not so already.
func (s *State) take(what, value string) bool {
	field := &s.Stage
	switch what {
	case prefixBootEnv:
		field = &s.BootEnv
	case prefixContext:
		field = &s.Context
	}
	changed := *field != value
	*field = value
	return changed
}

// changesOf says what became of a machine that took settings on; what is as it was before them all is no change.
func changesOf(before, after *State) (changes []string) {
	for _, f := range []struct{ name, from, to string }{
		{"stage", before.Stage, after.Stage}, {"bootenv", before.BootEnv, after.BootEnv}, {"context", before.Context, after.Context},
	} {
		if f.from != f.to {
			changes = append(changes, f.name+" "+named(f.from)+" to "+named(f.to))
		}
	}
	if before.BootEnv != after.BootEnv {
		after.Runnable = false // until it has booted into it (facts, section 6, step 6)
	}
	return changes
}

func named(value string) string {
	if value == "" {
		return `""`
	}
	return value
}

// commit makes what a machine has become its next revision, with the runs that changed.
func commit(after State, closed, run *Run, at time.Time, fx Effects) (State, Effects) {
	after = stamp(after, at)
	fx.Machine = true
	if closed != nil {
		fx.Runs = append(fx.Runs, *closed)
		if run == nil {
			after.Run = closed
		}
	}
	if run != nil {
		fx.Runs = append(fx.Runs, *run)
		after.Run = run
		if fx.Outcome == NewRun {
			fx.Run = run
		}
	}
	return after, fx
}

func stamp(s State, at time.Time) State {
	s.Revision++
	s.UpdatedAt = later(s.UpdatedAt, at)
	s.MinReader = ReaderVersion
	return s
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// end makes a run's next revision in a state.
func end(r *Run, to RunState, at time.Time) {
	r.Revision++
	r.State = to
	at = later(later(r.CreatedAt, r.StartedAt), at)
	switch to {
	case Running:
		r.StartedAt = at
	case Finished, Failed:
		r.EndedAt = at
	default:
	}
}

func refuse(code Code, field, message string) Effects {
	return Effects{Refused: &Refusal{Code: code, Field: field, Message: message}}
}

func cut(message string) string {
	if len(message) <= TextBytesMax {
		return message
	}
	return strings.ToValidUTF8(message[:TextBytesMax-3], "") + "..."
}
