// Package job is what a user asked for: its states, its table, and the record that follows from its root resource.
//
// A job lives in the state of its root resource (Ref), and moves with it, in the same event. The record in family "job"
// (Record) is derived from it by Derive, appended after the resource's event, keyed by job id and safe to repeat (design.md,
// promise 1): when a crash comes between the two, whoever looks next derives it again.
//
// # States
//
//	(none) ──► pending ──► running ──► succeeded │ failed │ canceled
//	             └───────────────────────▲
//
// Pending is accepted, and behind calls of an earlier job. Succeeded, failed and canceled are final. A job that is not a
// flow (apply, cancel, a deletion with nothing to walk) is made in its final state.
//
// # Table
//
//	from       to
//	none       pending, running, succeeded, failed, canceled
//	pending    running, succeeded, failed, canceled
//	running    succeeded, failed, canceled
//	succeeded  - (final)
//	failed     - (final)
//	canceled   - (final)
//
// A record may skip what came between two looks at the resource, so it begins in any state.
//
// # Invariants
//
//   - A record only climbs: it never leaves a final state, nor goes back.
//   - The state of a record is one that its resource showed. The resource remembers a job at least until the event in which
//     it ended (package resource, trimJobs), so the last record is always to be had from that event.
//   - The same request id is the same job: the id is derived from it. The body's digest tells another command under it.
//
// # Absent on purpose
//
// No progress, no phases: those are the resource's. No retry here: a retry is another job. No clock: times are the
// resource's.
package job
