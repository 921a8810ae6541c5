package deployment

// Status is where one configuration of a check instance stands.
type Status uint8

// The thirteen statuses of seed 002; None is a next status only, and that of a configuration which does not exist.
const (
	None Status = iota
	AwaitingComputation
	Computed
	AwaitingRollout
	RolloutInProgress
	RolloutFailed
	Active
	AwaitingDeprovision
	DeprovisionInProgress
	DeprovisionFailed
	Deprovisioned
	AwaitingDeletion
	Blocked
)

var statusNames = [...]string{
	"none", "awaiting_computation", "computed", "awaiting_rollout", "rollout_in_progress", "rollout_failed", "active",
	"awaiting_deprovision", "deprovision_in_progress", "deprovision_failed", "deprovisioned", "awaiting_deletion", "blocked",
}

// String is the name that monitoring systems and users see.
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return "unknown"
}

// Statuses lists all of them.
func Statuses() []Status {
	all := make([]Status, len(statusNames))
	for i := range all {
		all[i] = Status(i)
	}
	return all
}

// Event is what moves a configuration.
type Event uint8

// The events.
const (
	Create      Event = iota // a check instance gets a configuration
	Compute                  // its deployment details are assembled
	OrderFirst               // there is no configuration before it
	OrderBehind              // it differs from the one before it
	Supersede                // another configuration is blocked on it
	Unblock                  // what it was blocked on is deprovisioned
	Fetch                    // the monitoring system reads it
	Succeed                  // feedback: success
	Fail                     // feedback: failed
	Discard                  // its instance is deleted, and nothing is left to take back
	Withdraw                 // its instance is deleted, and it must be taken back
	Retry                    // an operator asks for another try
)

var eventNames = [...]string{
	"create", "compute", "order first", "order behind", "supersede", "unblock", "fetch", "succeed", "fail", "discard", "withdraw", "retry",
}

// String is the event's name in the table.
func (e Event) String() string {
	if int(e) < len(eventNames) {
		return eventNames[e]
	}
	return "unknown"
}

// Events lists all of them.
func Events() []Event {
	all := make([]Event, len(eventNames))
	for i := range all {
		all[i] = Event(i)
	}
	return all
}

// edge is one line of the table.
type edge struct {
	from  Status
	event Event
	to    Status
	next  Status // what feedback will make of it, or what follows its being unblocked
	// flags says that the instance's update_available is set.
	flags bool
}

// edges is the table. What it does not list is refused.
var edges = []edge{
	{None, Create, AwaitingComputation, None, false},
	{AwaitingComputation, Compute, Computed, None, false},
	{Computed, OrderFirst, AwaitingRollout, RolloutInProgress, true},
	{Computed, OrderBehind, Blocked, AwaitingRollout, true},
	{Blocked, Unblock, AwaitingRollout, RolloutInProgress, true},
	{Blocked, Discard, AwaitingDeletion, None, false},
	{AwaitingRollout, Fetch, RolloutInProgress, Active, false},
	{AwaitingRollout, Supersede, AwaitingDeprovision, DeprovisionInProgress, true},
	{AwaitingRollout, Discard, AwaitingDeletion, None, false},
	{RolloutInProgress, Fetch, RolloutInProgress, Active, false},
	{RolloutInProgress, Succeed, Active, None, false},
	{RolloutInProgress, Fail, RolloutFailed, None, false},
	{RolloutInProgress, Supersede, AwaitingDeprovision, DeprovisionInProgress, true},
	{RolloutFailed, Fetch, RolloutInProgress, Active, false},
	{RolloutFailed, Retry, AwaitingRollout, RolloutInProgress, true},
	{RolloutFailed, Supersede, AwaitingDeprovision, DeprovisionInProgress, true},
	{RolloutFailed, Discard, AwaitingDeletion, None, false},
	{Active, Fetch, Active, None, false},
	{Active, Supersede, AwaitingDeprovision, DeprovisionInProgress, true},
	{Active, Withdraw, AwaitingDeprovision, DeprovisionInProgress, true},
	{AwaitingDeprovision, Fetch, DeprovisionInProgress, Deprovisioned, false},
	{DeprovisionInProgress, Fetch, DeprovisionInProgress, Deprovisioned, false},
	{DeprovisionInProgress, Succeed, Deprovisioned, None, false},
	{DeprovisionInProgress, Fail, DeprovisionFailed, None, false},
	{DeprovisionFailed, Fetch, DeprovisionInProgress, Deprovisioned, false},
	{DeprovisionFailed, Retry, AwaitingDeprovision, DeprovisionInProgress, true},
	{Deprovisioned, Discard, AwaitingDeletion, None, false},
}

// lookup is the edge of an event in a status; false where there is none.
func lookup(from Status, event Event) (edge, bool) {
	for _, e := range edges {
		if e.from == from && e.event == event {
			return e, true
		}
	}
	return edge{}, false
}

// May reports whether some event leads from one status to another.
func May(from, to Status) bool {
	for _, e := range edges {
		if e.from == from && e.to == to {
			return true
		}
	}
	return false
}

// Unique reports whether at most one configuration of an instance may have the status (facts/soma.md section 1, the partial
// unique index).
func (s Status) Unique() bool {
	switch s {
	case Active, AwaitingDeprovision, DeprovisionInProgress, DeprovisionFailed, RolloutInProgress:
		return true
	default:
		return false
	}
}

// rollsOut reports whether a monitoring system that fetches it is to roll it out.
func (s Status) rollsOut() bool {
	switch s {
	case AwaitingRollout, RolloutInProgress, RolloutFailed, Active:
		return true
	default:
		return false
	}
}
