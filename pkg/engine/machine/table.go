package machine

import "slices"

// runEdges is the table of runs: what may follow what. What is not listed is refused.
var runEdges = map[RunState][]RunState{
	NoRun:      {Created, Finished, Failed},
	Created:    {Running, Incomplete, Finished, Failed},
	Running:    {Incomplete, Finished, Failed},
	Incomplete: {Running, Finished, Failed},
}

// May reports whether a run may go from one state to another.
func May(from, to RunState) bool { return slices.Contains(runEdges[from], to) }

// answer is what who asks for the next run is told.
type answer uint8

const (
	beginHere  answer = iota + 1 // a new run of the entry at the place
	sameRun                      // the run that was created, again
	refuseBusy                   // conflict
	goOn                         // the run that is incomplete
	beginNext                    // a new run of the entry after the place
	beginAnew                    // a new run of the same entry
)

// answers is the table of what the current run's state leads to. It is total.
var answers = map[RunState]answer{
	NoRun:      beginHere,
	Created:    sameRun,
	Running:    refuseBusy,
	Incomplete: goOn,
	Finished:   beginNext,
	Failed:     beginAnew,
}

var answerTexts = map[answer]string{
	beginHere:  "begin the entry at the place",
	sameRun:    "the same run again",
	refuseBusy: "conflict",
	goOn:       "the same run, which goes on",
	beginNext:  "begin the entry after it",
	beginAnew:  "begin the same entry anew",
}
