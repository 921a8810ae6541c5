// Package selection is the job of a selector command: one job that asks every resource of a kind that matches a label
// selector, in the order of their names, and waits for the jobs that they made of it.
//
// Its state is the job's record (job.Record with a Selection): a cursor and counts, no list of names. The shell reads the
// names and asks the resources' owners; what it finds comes in as a Page (what became of at most PageNamesMax names) and
// as a Tally (how the jobs stand that it started). Next says from the state alone what the shell has to do, so whoever
// takes the partition over goes on where the record stands.
//
// # Table
//
//	from       to
//	none       accepted
//	accepted   walking, waiting, canceling, ended
//	walking    walking, waiting, canceling, ended
//	waiting    waiting, canceling, ended
//	canceling  canceling, ended
//	ended      - (final)
//
// As a job it is pending while accepted, and running until it has ended: succeeded where every resource that matched
// accepted and every job succeeded, canceled after an accepted cancel, and failed otherwise.
//
// # Invariants (Audit)
//
//   - A record only climbs: the cursor, the counts and the revision never go back, time never runs backwards.
//   - Matched is Accepted and Refused together. No more jobs have ended than resources accepted.
//   - An ended selection stays as it is. A succeeded one has no refusal, and no job that ended otherwise.
//
// # Applied once
//
// A page begins at a cursor; one that begins elsewhere was read before another owner's append, and is dropped. A page that
// was asked and not recorded is asked again: each resource knows the request, whose id is the selection's own
// (RequestID), and answers with the job that it made. Resources that have vanished meanwhile, as a deletion makes them,
// are known by their jobs' records: a Tally that counts more jobs than were accepted is believed once the walk is over.
//
// # Absent on purpose
//
// No names, no partitions, no clock. No retry of what was refused: another selector command does that. No order among
// the jobs that it starts.
package selection
