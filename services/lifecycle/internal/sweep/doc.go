// Package sweep asks the owner of every partition to look over what it holds: work that was handed out and is nowhere
// to be found, due times that passed, resources that are gone but not forgotten, jobs whose record is missing (design.md
// sections 1 and 2, promise 8; seed 002, "ghost removal": every 20 seconds).
//
// The sweeper shares the partitions with the other lifecycle processes by membership and asks for its own share. The
// owner finds out and decides; the sweeper only asks, counts and says who did not answer. A partition that did not
// answer is asked first the next time.
//
// # Absent on purpose
//
// No state: a sweep is asked from scratch every time, and nothing breaks if two processes ask one partition. No clock of
// its own: the server's tick is the clock. No repair: what a sweep finds is put right by the owner, through the log.
package sweep
