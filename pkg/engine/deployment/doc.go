// Package deployment is the check instance of seed 002 (SOMA): versions of a configuration that a monitoring system pulls,
// rolls out, takes back, and reports on. Sources: seed 002; facts/soma.md section 2 for what it leaves open, by row number.
//
// An instance and its configurations are one State: they are decided on together, and a change of the configuration is one
// atomic batch of the old version, the new one and the instance.
//
// # Table
//
//	status                   event         to                       next                     update available
//	none                     create        awaiting_computation     none                     -
//	awaiting_computation     compute       computed                 none                     -
//	computed                 order first   awaiting_rollout         rollout_in_progress      set
//	computed                 order behind  blocked                  awaiting_rollout         set
//	blocked                  unblock       awaiting_rollout         rollout_in_progress      set
//	blocked                  discard       awaiting_deletion        none                     -
//	awaiting_rollout         fetch         rollout_in_progress      active                   -
//	awaiting_rollout         supersede     awaiting_deprovision     deprovision_in_progress  set
//	awaiting_rollout         discard       awaiting_deletion        none                     -
//	rollout_in_progress      fetch         rollout_in_progress      active                   -
//	rollout_in_progress      succeed       active                   none                     -
//	rollout_in_progress      fail          rollout_failed           none                     -
//	rollout_in_progress      supersede     awaiting_deprovision     deprovision_in_progress  set
//	rollout_failed           fetch         rollout_in_progress      active                   -
//	rollout_failed           retry         awaiting_rollout         rollout_in_progress      set
//	rollout_failed           supersede     awaiting_deprovision     deprovision_in_progress  set
//	rollout_failed           discard       awaiting_deletion        none                     -
//	active                   fetch         active                   none                     -
//	active                   supersede     awaiting_deprovision     deprovision_in_progress  set
//	active                   withdraw      awaiting_deprovision     deprovision_in_progress  set
//	awaiting_deprovision     fetch         deprovision_in_progress  deprovisioned            -
//	deprovision_in_progress  fetch         deprovision_in_progress  deprovisioned            -
//	deprovision_in_progress  succeed       deprovisioned            none                     -
//	deprovision_in_progress  fail          deprovision_failed       none                     -
//	deprovision_failed       fetch         deprovision_in_progress  deprovisioned            -
//	deprovision_failed       retry         awaiting_deprovision     deprovision_in_progress  set
//	deprovisioned            discard       awaiting_deletion        none                     -
//
// What is not listed is refused. Creation, computation and ordering are one commit, so awaiting_computation and computed are
// never stored: what they need is at hand (the tree is in the owner's memory), and nobody could do anything in between.
//
// # Ordering
//
// The first version is rolled out. A later one that says the same (Same) is discarded. One that differs is blocked until the
// version before it is deprovisioned, and that is taken back at once, whatever the monitoring system has made of it; one that
// is itself blocked has its turn first. So an update never reaches a monitoring system: it is told to take back what it has,
// with the details that it got, and then to roll out what is new.
//
// Policy.Queued is what both generations' code does instead (facts section 8.1): the version before is left alone, and the
// sweep takes it back once it is active. A version whose rollout failed then holds up its successor for ever, which Why names.
//
// # Sweep
//
// In this order (seed 002; facts section 2.1): ghosts, blocked ones of deleted instances, unblocking, present ones that
// another is blocked on, active ones of deleted instances. It ends with the burial of what is done: all but DoneKept
// deprovisioned versions, and a deleted instance after DeletedKept.
//
// # Invariants (Audit)
//
//   - At most one configuration of an instance is active, awaiting_deprovision, deprovision_in_progress, deprovision_failed
//     or rollout_in_progress, each; only the present one is anything but blocked, deprovisioned and awaiting_deletion.
//   - Versions grow by one. What is blocked is blocked on an earlier version, and on each at most one.
//   - Details never change once they are stored; time, revisions and orders never go back; a deletion is not taken back.
//
// # Applied once
//
// An order is fenced by the generation of its check configuration and the revision of its object. A poke clears the flag
// that it was derived from (State.Updates) and no later one. Feedback has no fence on the wire: a "success" for a rollout
// that arrives when the same configuration is being taken back is taken for that. Both sources have this; a client that
// answers each fetch before the next does not meet it. A fetch does not clear the flag: where its answer is lost, the poke that
// was not taken for that comes again (State.Pending).
//
// # Absent on purpose
//
// No `workflow set --force` (facts, row 23): it goes past the table. No poke: who is to be poked is Pending's to say. No
// constraints: one check makes one instance on an object.
package deployment
