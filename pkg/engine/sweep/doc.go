// Package sweep decides what a sweep asks of one resource: what is outstanding, and found nowhere (design.md, promise 8:
// after any crash, what is outstanding follows from the state). Every ask is an input like any other: Step looks again,
// and one that is out of date does nothing. To ask once too often costs a step; never to ask costs a night.
//
//	the state says                                      the sweep asks
//	a call is out, for longer than the grace, and
//	nothing of its phase is under way anywhere          OnLost, with its fence: it goes out again
//	a deadline, a lease or the wait of a retry is over  OnDue
//	a poll is due, for longer than the grace, and
//	nothing of its phase is under way anywhere          OnDue
//	a job could go on: nothing is active, or a phase
//	waits and is not handed out, or it is the job's
//	turn to begin, or a phase is at work on children    OnContinue
//	the resource is gone                                Forget: its traces are to be removed
//
// # Invariants
//
//   - A resource that is at rest is asked nothing.
//   - A call that is being canceled is never called lost: its lease ends it.
//   - With answers and sweeps alone, without one timer or OnContinue of the shell's own, every job ends (tested).
//
// # Absent on purpose
//
// No clock: Observation.At is the server's. No knowledge of streams: whether work is under way is Observation.Drained. No
// blueprint: where a failure drains, a phase that is held back is asked to continue at every sweep, and Step says no.
package sweep
