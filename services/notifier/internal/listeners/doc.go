// Package listeners knows which listeners there are, and tells them what they listen to.
//
//	watch.go    follows the buckets of resources and specs and keeps the roster
//	roster.go   who listens to which state of which kind
//	worker.go   one listener: its bounded queue, and the delivery of what is in it
//
// # Rules
//
//   - Nothing here can hold anything up: an offer never blocks. A full queue drops its oldest event and counts it.
//   - A listener has one message under way at a time, so that it is told in order; a slow one delays nobody else.
//   - A failure that may pass is tried again a few times, then the message is dropped and counted.
//   - A resource's listener changes when its spec's event has arrived too; until then the earlier spec holds.
//
// # Absent on purpose
//
// Nothing is tracked (seed 003, "State Listeners": "the state of the listener is not tracked anywhere, nor is the
// success or failure of past listeners"). The feed is at most once: what happens while no notifier runs, or in the
// moment in which a partition changes hands, is told by nobody, or twice. Who must know everything reads the log.
package listeners
