package machine

import "time"

// Reason is why a machine does not move: what it waits for, and since when.
type Reason struct {
	Text  string
	Since time.Time
	// Person says that it stays so until somebody does something.
	Person bool
}

// Why says why a machine stands where it does, from its state alone.
func Why(s *State) Reason {
	r := s.Run
	since := s.UpdatedAt
	at := r != nil && s.CurrentTask >= 0 && r.Index == s.CurrentTask // the run stands at the place
	switch s.Condition() {
	case NoMachine:
		return Reason{Text: "there is no such machine", Since: since}
	case Unavailable:
		return Reason{Text: "it was taken out of service (available: false)", Since: since, Person: true}
	case Parked:
		if at && r.State == Running {
			return Reason{Text: "its agent carries out " + r.Task + " (job " + r.ID + "); it is not runnable, so nothing follows", Since: r.StartedAt, Person: true}
		}
		return Reason{Text: "not runnable: " + reasonNotRunnable(s), Since: since, Person: true}
	case Idle:
		return Reason{Text: "it has no workflow and no tasks", Since: since}
	case Done:
		return Reason{Text: "its tasks are done", Since: since}
	default:
	}
	switch {
	case at && r.State == Created:
		return Reason{Text: "waits for its agent to begin " + r.Task + " (job " + r.ID + ")", Since: r.CreatedAt}
	case at && r.State == Running:
		return Reason{Text: "its agent carries out " + r.Task + " (job " + r.ID + ")", Since: r.StartedAt}
	case at && r.State == Incomplete:
		return Reason{Text: "waits for its agent to go on with " + r.Task + " (job " + r.ID + ")", Since: since}
	}
	who := "its agent"
	if s.Context != "" {
		who = "the agent of context " + s.Context
	}
	return Reason{Text: "waits for " + who + " to ask for the next task", Since: since}
}

// reasonNotRunnable says what made a machine stop, as far as its run tells.
func reasonNotRunnable(s *State) string {
	r := s.Run
	switch {
	case !s.Available:
		return "it was taken out of service"
	case s.Runnable:
		return "it is runnable"
	case r == nil || r.Index != s.CurrentTask:
		return "set so by a person or its agent; set Runnable to go on"
	case r.State == Failed:
		said := ""
		if r.Message != "" {
			said = ": " + r.Message
		}
		return r.Task + " failed (job " + r.ID + ")" + said + "; set Runnable to run it again"
	case r.State == Incomplete:
		return r.Task + " is incomplete (job " + r.ID + "); set Runnable to go on with it"
	case r.State == Finished && r.BootEnv != "" && isSetting(r.Task):
		return "its boot environment became " + r.BootEnv + "; it goes on when its agent has started there"
	case r.State == Finished && (r.ExitState == "reboot" || r.ExitState == "poweroff" || r.ExitState == "stop"):
		return r.Task + " ended with " + r.ExitState + "; it goes on when its agent has started again"
	default:
		return "set so by a person or its agent; set Runnable to go on"
	}
}
