// Package machine is one machine of Digital Rebar's kind (seed 004): a task list, the place in it, and the run of the task
// that stands there, which a machine agent carries out. An agent asks for its next run, reports how the run goes, and waits
// until the machine is runnable again.
//
// The aggregate is the machine and its current run. Both are entities of their own; what one step changes of them is stored
// together or not at all.
//
// # The task list
//
// An entry is the name of a task; or a setting, "stage:x", "bootenv:x" or "context:x", which the machine takes on by itself;
// or "action:x", which a plugin would carry out. CurrentTask is the place: -1 before the list begins, its length when it is
// done.
//
// # Runs
//
// What may follow what (runEdges):
//
//	from        to
//	none        created, finished, failed
//	created     running, incomplete, finished, failed
//	running     incomplete, finished, failed
//	incomplete  running, finished, failed
//	finished    - (final)
//	failed      - (final)
//
// A run that is none becomes finished or failed where it is the machine's own: a setting that was taken on, an action.
//
// What an agent that asks for its next run is told, by the state of the current one (answers; seed 004, "Retrieving the next
// Job", step 7):
//
//	current run  answer
//	none         begin the entry at the place
//	created      the same run again
//	running      conflict
//	incomplete   the same run, which goes on
//	finished     begin the entry after it
//	failed       begin the same entry anew
//
// The seed is silent on created and running; the server of 2019 refused both (facts, section 6). A run that is created was
// never begun, so that it is handed out again to who asks again: an answer that was lost costs nothing then, and no task runs
// twice for it. Of two who hold it one begins: their patch tests the state.
//
// Where the place was moved away under a run (another workflow, a reset) that run counts as failed, and is recorded so in
// the commit that makes the next one, without parking the machine: whoever moved the place wants it to go on. The seed leaves
// a created one as it is; here none stays behind unended.
//
// # Machines
//
// A machine is (Condition, from its own fields alone):
//
//	unavailable  it is taken out of service
//	parked       it is not runnable: a run failed or is incomplete, its boot environment changed, or somebody said so
//	idle         it has no task list
//	done         its list is done
//	ready        its agent may ask for the next run
//
// Any may follow any: a list and its place can be set at every time.
//
// # Invariants (Audit)
//
//   - The place is within the list; revisions are contiguous; time never runs backwards.
//   - A run follows its table. A run that becomes failed parks its machine in the same commit, but for one whose place was
//     moved away.
//   - At most one run of a machine is not final, and it is the current one.
//   - A new run is for the place, and the one before it is final.
//   - A changed boot environment parks the machine.
//
// # Absent on purpose
//
// No definitions: those of workflows and stages come with the input that needs them, looked up by the shell. No templates:
// what a task does is rendered for the agent when it asks. No plugins: an action fails, and says so. No clock, no ids.
// No deletion yet: a machine that is not wanted any more is made unavailable. No retry, error handlers, single step (facts, section 6, "4.2+ extras").
package machine
