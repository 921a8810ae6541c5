package deployment

import (
	"strconv"
	"time"
)

// Code names a reason for which an instance stands where it stands.
type Code string

// The reasons. Those marked "dead end" are left only by a person or by the monitoring system's own accord.
const (
	WaitsForPoke       Code = "waits_for_poke"        // the monitoring system has not heard of it
	WaitsForFetch      Code = "waits_for_fetch"       // it has heard, and not fetched
	WaitsForFeedback   Code = "waits_for_feedback"    // it has fetched, and not said how it went
	BlockedOn          Code = "blocked_on"            // another configuration must be deprovisioned first
	WaitsForSweep      Code = "waits_for_sweep"       // the next sweep moves it
	RolloutHasFailed   Code = "rollout_failed"        // dead end: until it is fetched again, retried or deleted
	BehindFailed       Code = "behind_rollout_failed" // dead end (policy Queued): blocked on a configuration whose rollout failed
	TakingBackFailed   Code = "deprovision_failed"    // dead end: until it is fetched again or retried
	DeletedUnreachable Code = "deleted_not_taken_back"
	DeletedAfterPoke   Code = "deleted_after_poke" // deleted when it had been announced: rolled out once, and then taken back
	KeptUntil          Code = "kept_until"         // deleted to the end
)

// Reason is one reason, in words.
type Reason struct {
	Code  Code
	Of    string // configuration or monitoring system that it is about
	Since time.Time
	Until time.Time // when it ends by itself; zero: not by time
	Text  string
}

// Why says, from the state alone, why an instance is where it is. None: its present configuration is active, and nothing is
// asked of it.
func Why(s *State) []Reason {
	c := s.Present()
	if s.ID == "" || c == nil {
		return nil
	}
	if s.Ended() {
		return []Reason{{Code: KeptUntil, Of: s.ID, Since: s.UpdatedAt, Until: s.Due(),
			Text: "it is deleted to the end; its record is kept for a while"}}
	}
	var all []Reason
	add := func(code Code, of string, since time.Time, text string) {
		all = append(all, Reason{Code: code, Of: of, Since: since, Text: text})
	}
	if s.Sweepable() {
		add(WaitsForSweep, s.ID, s.UpdatedAt, "the next sweep moves it on")
	}
	version := "version " + number(c.Version) + " "
	switch c.Status {
	case AwaitingRollout, AwaitingDeprovision:
		switch {
		case s.UpdateAvailable:
			add(WaitsForPoke, s.System, c.Since, version+"is "+c.Status.String()+"; monitoring system "+s.System+" has not been told yet: a poke or a list tells it")
		case s.Deleted && c.Status == AwaitingRollout:
			add(DeletedAfterPoke, s.System, s.NotifiedAt, version+"was announced to monitoring system "+s.System+
				" before the deletion: it is rolled out once when that fetches it, and taken back after that")
		default:
			add(WaitsForFetch, s.System, s.NotifiedAt, version+"is "+c.Status.String()+"; monitoring system "+s.System+" was told and has not fetched it; list all tells it again")
		}
	case RolloutInProgress, DeprovisionInProgress:
		text := version + "is " + c.Status.String() + "; monitoring system " + s.System + " has not said whether it worked"
		if s.UpdateAvailable {
			text += "; it is told again: by a poke with the next sweep, or a list"
		} else {
			text += "; list all tells it again"
		}
		add(WaitsForFeedback, s.System, c.Since, text)
	case RolloutFailed:
		if !s.Deleted && (s.Policy.Queued || s.behind(c.ID) == nil) {
			add(RolloutHasFailed, s.System, c.Since, version+"could not be rolled out by monitoring system "+s.System+": until it fetches it again, a retry or a deletion")
		}
	case DeprovisionFailed:
		code := TakingBackFailed
		if s.Deleted {
			code = DeletedUnreachable
		}
		add(code, s.System, c.Since, version+"could not be taken back by monitoring system "+s.System+": until it fetches it again, or a retry")
	case Active, Deprovisioned, AwaitingDeletion, Blocked, Computed, AwaitingComputation, None:
	}
	for i := range s.Configurations {
		b := &s.Configurations[i]
		if b.Status != Blocked {
			continue
		}
		on := s.find(b.BlockedOn)
		switch {
		case on == nil:
		case on.Status == RolloutFailed && s.Policy.Queued:
			add(BehindFailed, on.ID, b.Since, "version "+number(b.Version)+" waits for version "+number(on.Version)+
				" to be deprovisioned, whose rollout has failed: nothing takes it back until it is fetched again, retried or deleted")
		default:
			add(BlockedOn, on.ID, b.Since, "version "+number(b.Version)+" waits for version "+number(on.Version)+" to be deprovisioned, which is "+on.Status.String())
		}
	}
	return all
}

func number(n uint64) string { return strconv.FormatUint(n, 10) }
