// Package resource is one resource: a node, a service instance, a deploy item. Its state, what it may be told, and Step,
// which decides what follows.
//
//	Step(state, input, env) → (state, effects)
//
// A resource has a lifecycle state and, in it, phases. A flow of its blueprint leads it along a path of states to a
// target; a job is one such walk. A state is left when all its phases are completed; within a state phases run side by
// side, as their dependencies allow. Each resource is looked at by itself: that plugins are given many at once is not
// seen here.
//
// # One step
//
//	command ─┐                                       ┌─ event: the state after it, at most one hand-out
//	result ──┤   ┌──────────── advance ────────────┐ ├─ reply to a command
//	due ─────┼─► │ begin the job · enter the state  │─┼─ polls to send, and when the next is due
//	lost ────┤   │ unblock phases · hand out one    │ ├─ more: call again with OnContinue
//	continue ┘   └──────────────────────────────────┘ └─ notes: why nothing, or no more, happened
//
// One event shows at most one change of the lifecycle state and one hand-out; what is left over is the next step's
// (Effects.More), and a sweep's, should that one be lost.
//
// # A phase
//
//	          Unblock          HandOut        Report
//	Blocked ──────────► Waiting ──────► (out) ──────► Running ──┬─ Complete ─► Completed
//	   │ Skip              ▲              │                     ├─ Fail, Expire ─► Failed
//	   ▼                   ├── Lose ──────┘                     ├─ Sleep ─► Sleeping ⟲ polls
//	Skipped                └── Wake ── Sleeping ◄─── Forgive ───┤
//	                                                            └─ Cancel ─► Canceling ─ End ─► Canceled
//
// Waiting, Running, Sleeping and Canceling are active: something will still happen to them without a person. "Out" is no
// status but PhaseRun.InFlight: a call may be out in Waiting (a fast one never shows Running), in Running and in Canceling.
// Completed and Skipped are done: they count for dependants and for leaving the state.
//
// # Phase table
//
// Every edge that there is. Anything else is refused, with NoteIllegal, and changes nothing. A test renders phaseTable and
// compares.
//
//	from       event → to
//	(none)     Enter → Blocked
//	Blocked    Enter → Blocked · Unblock → Waiting · Skip → Skipped · Fail → Failed
//	           Drop → Canceled · Gate → Gated
//	Waiting    HandOut → Waiting · Report → Running · Sleep → Sleeping · Complete → Completed
//	           Fail → Failed · Forgive → Sleeping · Expire → Failed · Lose → Waiting
//	           Cancel → Canceling · Drop → Canceled · Undo → Undone
//	Running    Sleep → Sleeping · Complete → Completed · Fail → Failed · Forgive → Sleeping
//	           Expire → Failed · Lose → Waiting · Cancel → Canceling · Drop → Canceled
//	           Undo → Undone
//	Sleeping   Sleep → Sleeping · Wake → Waiting · Complete → Completed · Fail → Failed
//	           Forgive → Sleeping · Expire → Failed · Cancel → Canceling · Drop → Canceled
//	           Undo → Undone
//	Completed  Enter → Blocked · Retry → Blocked
//	Failed     Enter → Blocked · Retry → Blocked
//	Canceling  Report → Canceling · Complete → Completed · End → Canceled · Drop → Canceled
//	           Undo → Undone
//	Gated      Approve → Waiting · Drop → Canceled · Enter → Blocked · Retry → Blocked
//	Skipped    Enter → Blocked · Retry → Blocked
//	Undone     Enter → Blocked · Retry → Blocked
//	Canceled   Enter → Blocked · Retry → Blocked
//
// Gated waits for a person (auto_deploy false); Undone is what Completed is in a flow that undoes.
//
// # Who walks
//
// By the lifecycle's walk, either the resource walks the path of states, and in each state its phases run side by side
// (seeds 001 and 003); or each phase walks it by itself, has a state of its own (PhaseRun.State), and the resource's is
// computed from theirs (State.Separate; seed 000, each.go).
//
// # Invariants
//
// Package audit checks them after every step of every test.
//   - Without an event the state is what it was; with one, the revision is one higher. Time never runs backwards.
//   - A fence (uid, job, phase, attempt, call) is handed out once. An answer counts if its fence is that of the call that is
//     out; attempts of a phase never go back, not even when it is entered again.
//   - The same command, result, timer or loss again has no second effect. Two answers to polls of one call share a fence:
//     which of them came first cannot be told, so an old "pending" that comes after a newer one counts as the newest.
//   - No phase begins before what it depends on is done, in the states that both have.
//   - One job is driven at a time, the oldest; work is out only while there is one. A job whose place another takes is canceled at
//     once; the other begins when the calls of the first have ended.
//   - A running job has something that will end: an active phase, or a next step of the orchestrator's own.
//   - A job that ended is in the state of that event, so that its record can follow (job.Derive).
//   - The resource says why it stands where it stands (Why); and without a job, nothing says that it moves.
//
// # Policies
//
// A new flow while a job runs, by OnTargetChange: "cancel" makes calls that are out Canceling, drops the rest, and begins
// when the last has answered or its lease is over; the same target again goes on, without canceling. "reject" refuses.
// "wait" puts it behind the running one, at most QueuedJobsMax.
//
// A failed phase, by OnFailure: "continue" lets its siblings go on; "drain" lets only those end that are out, and holds back
// the others until a retry. The job fails when nothing else will happen. Where its flow names a state for failures, the
// resource (or the phase that walks by itself) is there then, and whatever comes next begins at its beginning.
//
// auto_deploy: a phase that has it false is Gated when its turn comes, until approve; where the first phase of a flow has it
// true, apply starts the flow that the lifecycle names for a creation or a change.
//
// A retry is a job of its own that ends the one it retries, pins the blueprint of that moment, and begins what failed or
// was canceled anew, its data cleared; what runs goes on under it. Scope all begins every phase of the state.
//
// Deletion is a mark and the walk of the lifecycle's flow for it. It is over when the resource is Gone. Canceled, the mark
// is removed; failed, it stays, and retry or delete go on.
//
// # Children
//
// A phase on children is carried out by the step itself (children.go): nothing of it is in WORK. The parent's state counts
// them; which of them may begin is told by the owner's index (package children), which Env.Children hands in. A child is made
// and marked deleted in one batch with its parent's event (Effects.Batch); it is given the tree's job by an ask that may come
// again, late or never (Effects.Tell): the job id says that it was given already, the parent's revision that the ask is out of
// date, the next look that it was lost.
//
// # Callbacks
//
// Who carries a phase out may be no worker, but somebody whom the worker only asks, and who says later what became of it, or
// sooner than the worker (seed 000, ExtApiPhase; facts/ncae.md B3): PhaseRun.Callback. He knows the attempt, and not which call of it
// reached him: a result of call 0 is of the attempt. While he is awaited the phase is Sleeping without a due time, and counts as
// out where it is canceled. An attempt is a Transaction of a resource whose phases walk by themselves.
//
// # Where seed 000 is found
//
//	Default workflows, and from errors when idempotent                  blueprint.Service (one row each); mayNotEach
//	"PhaseInstances define a relation ... together with its status"     PhaseRun.State; State.Separate, settle
//	Phase 2 while phase 1 is Ordered (design.md)                        blueprint.Before, unblock
//	was_deployed Flag                                                   blueprint.WasDeployed, tellOfThePast; SucceededOnce
//	"if the transaction history contains one Transaction"               SucceededOnce
//	auto_deploy                                                         autoFlow (apply starts it); Gated, approve
//	idempotency                                                         Flow.Idempotent, mayNot, mayNotEach
//	isDecommissionable ("a Partial Decom is currently not supported")   mayNotEach: every phase needs its undo
//	ExtApiPhase (who is asked calls back)                               PhaseRun.Callback; ofAttempt
//	ServiceManagementPhase (the parent continues after the child)       children.go, DoAll; triggerChildren
//	Polling ("Phase Timeout has been reached")                          due, Expire; blueprint.Phase.Timeout
//	Transactions                                                        transaction.go
//
// # Where seed 001 is found
//
//	Execution Phases (two flows, an error's state)                      blueprint.Execution
//	Creation ("it waits for a job ID")                                  adopt, trigger; Why: for_parent
//	Phase "Init" (created or updated; orphaned ones cleaned up)         applyChildren; children.Family.Orphans
//	Phase "Progressing", classes A to E                                 children.Class; sweepChildren
//	"If there exists a deploy item in class B"                          sweepChildren: nothing more is told, the end waits for C
//	"there is a check to detect if the algorithm is stuck"              sweepChildren: Waiting and nothing else
//	Phase "Completing"                                                  a state of the path; its phases are the blueprint's
//	Errors (normal: retry; fatal: Failed)                               Result.Retryable, Forgive; Flow.Failure, endJob
//	Starting Another Reconcile Flow ("only when ... finished")          OnTargetChange wait: queue; RerunAll
//	"a spec update alone does not trigger"                              apply
//	"a new job ID triggers ... whether or not ... modified"             blueprint.RerunAll
//	Deleting an Execution ("has started with the deletion of the root") command: a child's jobs start at the root; ByMark
//	Phase "InitDelete"                                                  markChildren
//	Phase "Deleting" (only after all its successors are gone)           deleteChildren; children.Family, marked ones
//
// # Where seed 003 is found
//
//	Phase Plugins, "If the operation succeeds" (the state is left)      advance, allDone, enter
//	Phase Plugins, "If the operation fails" (the others go on; retry)   result, failedAndIdle, retry
//	Phase Plugins, "If the operation is still pending" (15 seconds)     pending; blueprint.IntervalDefault
//	Phase Plugins, "Each resource has a separate status"                Status, phaseTable
//	Phase Plugins, "The status is stored" (PhaseMap, phase data)        PhaseRun; keep
//	Example, "In this case, we rely on the fact" (an exception)         the worker's SDK: a Failed for each
//	Example, "Note that in this example" (neither: called again)        OutcomePending
//	Asynchronous Example, "Similarly, if this command fails"            retry, anew
//	Conditional Phases                                                  unblock, Skipped; Env.When
//	Dependencies                                                        dependenciesDone, Blocked
//	State Listeners (every state, also those that are passed)           one event for each state: Effects.More
//	Phase Records (what the server is doing)                            not here: an entity of its own
//
// The seed does not say what canceling is in detail (facts/cyclecloud.md, "Target change"): that a call which succeeds all
// the same is Completed, and that what it brings is kept, is ours.
//
// # Absent on purpose
//
// No clock, randomness, logging, goroutine or I/O: time is Input.At, ids are the shell's (Command.JobID, NewUID). No CEL and
// no spec: Env.When and Env.Items are handed in. No list of children in a state, no phase record, no timer: NextDue says when
// to call. What a worker is given together is the shell's. No memory of polls: that one is out is Input.Polling, and losing
// it costs a poll.
package resource
