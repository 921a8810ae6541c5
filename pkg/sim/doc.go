// Package sim runs the whole house on one thread from one seed: orchestrators, intakes, workers, the sweeper and users,
// over the bus in memory, in simulated time. Everything that is left to chance (who is served first, delays, losses,
// deaths, clocks, what users ask, what workers answer) is drawn from one generator, so a seed is a whole history: the
// same seed gives the same trace, and a seed that fails is its own reproduction.
//
//	world.go      time, chance, the order of events, the trace
//	task.go       what blocks: coroutines that the world resumes, one at a time
//	link.go       a process's way to the server, with its faults
//	house.go      processes: start, death, pause, clocks, who serves which partition
//	owner.go      an orchestrator's partition: pkg/partition, the code that the service runs
//	intake.go     commands, captured and asked: pkg/check, then the owner
//	worker.go     workers, who answer late, twice, wrongly or never
//	hold.go       workers that hold the phases that they call
//	grip.go       when they ask for them, and what they say
//	tree.go       kinds whose resources have children, and their items
//	scenario.go   blueprints, commands and faults of a seed
//	check.go      what must hold after every event, and at the end
//	family.go     the same, of parents and children
//	record.go     the same, of phases that are held, and their records
//	run.go        one seed, from its faults through calm to what must be forgotten
//
// # What is simulated
//
// Requests, replies, polls and ticks that are lost, doubled or late; appends and batches whose answer is lost, stored or not, and
// appends that arrive after their sender gave up or died; processes killed between any two of their messages, paused
// and believed dead, and started again; two owners of a partition at once; owners whose clocks are minutes apart; input
// streams that are full; buckets and WORK that trail the log; reads from a follower that is behind; workers that are cut
// off from all others and work on. Each seed draws which of these it has: a seed without a fault is held to more. In some
// seeds workers hold the phases that they call, in the others they carry out each hand-out by itself.
//
// # What runs
//
// pkg/drive, pkg/engine, pkg/partition, pkg/catalog, pkg/check, pkg/wire, pkg/manifest and pkg/constraint are what the
// services run. The goroutines and channels around them (services/orchestrator/internal/partition, services/intake) are
// modelled in owner.go and intake.go, the plugin SDK and the runner in worker.go, hold.go and grip.go, the sweeper in
// house.go. The store is pkg/bus/memory, which pkg/bus/bustest holds to what JetStream does.
//
// # Absent on purpose
//
// No clock but the world's, no goroutine that runs beside another, no order of a map. No lost stored message: JetStream
// does not lose what it acknowledged, and a server that does is not survived by any client of it. No notifier, gateway
// or CLI: they decide nothing. No selector commands yet: its owners are given no way to ask others
// (partition.Config.Others). In the long wait until jobs are forgotten sweeps are thinned out to those that find
// something; a fleet at rest is asked nothing else.
package sim
