package resource

// PhaseEvent is what can happen to one phase of one resource.
type PhaseEvent uint8

// The events of the phase table.
const (
	Enter    PhaseEvent = iota // the resource enters a state of this phase
	Unblock                    // all it depends on is completed and its constraint holds
	Skip                       // all it depends on is completed and its constraint does not hold
	HandOut                    // work goes out
	Report                     // a worker says that it is at it
	Sleep                      // a worker says: not done yet
	Wake                       // the wait before an automatic retry is over
	Complete                   // it succeeded
	Fail                       // it failed for good
	Forgive                    // it failed, and the retry policy allows another attempt
	Expire                     // the attempt's deadline has passed
	Lose                       // the hand-out came back undone, or is nowhere to be found
	Cancel                     // it is to stop, and a call is out
	Drop                       // it is to stop, and no call is out
	End                        // the canceled call has ended, or is given up
	Retry                      // a person wants it again
	Gate                       // its turn has come, and a person must approve
	Approve                    // a person approved
	Undo                       // it was undone
)

var phaseEventNames = [...]string{
	"Enter", "Unblock", "Skip", "HandOut", "Report", "Sleep", "Wake", "Complete", "Fail", "Forgive", "Expire", "Lose",
	"Cancel", "Drop", "End", "Retry", "Gate", "Approve", "Undo",
}

// String is the name in the table of the package doc.
func (e PhaseEvent) String() string {
	if int(e) < len(phaseEventNames) {
		return phaseEventNames[e]
	}
	return "Unknown"
}

// PhaseEvents lists them.
func PhaseEvents() []PhaseEvent {
	events := make([]PhaseEvent, len(phaseEventNames))
	for i := range events {
		events[i] = PhaseEvent(i)
	}
	return events
}

type edge struct {
	from  Status
	event PhaseEvent
	to    Status
}

// phaseTable is every edge that there is. What is not listed cannot happen: the step refuses it with NoteIllegal. The
// package doc shows it; a test holds the two together.
var phaseTable = []edge{
	{NoStatus, Enter, Blocked},

	{Blocked, Enter, Blocked},
	{Blocked, Unblock, Waiting},
	{Blocked, Skip, Skipped},
	{Blocked, Fail, Failed}, // the constraint could not be evaluated
	{Blocked, Drop, Canceled},
	{Blocked, Gate, Gated},

	{Gated, Approve, Waiting},
	{Gated, Drop, Canceled},
	{Gated, Enter, Blocked},
	{Gated, Retry, Blocked}, // scope all

	{Waiting, HandOut, Waiting},
	{Waiting, Report, Running},
	{Waiting, Sleep, Sleeping},
	{Waiting, Complete, Completed},
	{Waiting, Fail, Failed},
	{Waiting, Forgive, Sleeping},
	{Waiting, Expire, Failed},
	{Waiting, Lose, Waiting},
	{Waiting, Cancel, Canceling},
	{Waiting, Drop, Canceled},
	{Waiting, Undo, Undone},

	{Running, Sleep, Sleeping},
	{Running, Complete, Completed},
	{Running, Fail, Failed},
	{Running, Forgive, Sleeping},
	{Running, Expire, Failed},
	{Running, Lose, Waiting},
	{Running, Cancel, Canceling},
	{Running, Drop, Canceled}, // interrupt: the call is given up
	{Running, Undo, Undone},

	{Sleeping, Sleep, Sleeping},
	{Sleeping, Wake, Waiting},
	{Sleeping, Complete, Completed},
	{Sleeping, Fail, Failed},
	{Sleeping, Forgive, Sleeping},
	{Sleeping, Expire, Failed},
	{Sleeping, Cancel, Canceling}, // a poll is out
	{Sleeping, Drop, Canceled},
	{Sleeping, Undo, Undone},

	{Canceling, Report, Canceling}, // holds the lease
	{Canceling, Complete, Completed},
	{Canceling, End, Canceled},
	{Canceling, Drop, Canceled}, // interrupt
	{Canceling, Undo, Undone},

	{Completed, Enter, Blocked},
	{Skipped, Enter, Blocked},
	{Skipped, Retry, Blocked}, // scope all
	{Completed, Retry, Blocked},
	{Failed, Enter, Blocked},
	{Failed, Retry, Blocked},
	{Canceled, Enter, Blocked},
	{Canceled, Retry, Blocked},
	{Undone, Enter, Blocked},
	{Undone, Retry, Blocked},
}

// nextStatus looks an edge up.
func nextStatus(from Status, event PhaseEvent) (Status, bool) {
	for _, e := range phaseTable {
		if e.from == from && e.event == event {
			return e.to, true
		}
	}
	return from, false
}

// Next is what the table says of an event in a status: the status that it leads to. False: it cannot happen.
func Next(from Status, event PhaseEvent) (Status, bool) { return nextStatus(from, event) }
