// Package jetstream is the bus on NATS JetStream: it implements every port of package bus over one connection.
//
// # Streams
//
//	EVENTS      the log; 8 messages a subject, atomic batches, message TTLs; synced as the server is set
//	KV_drover_… one bucket a family, derived from EVENTS by the server; republished as the feed drover.evt.>
//	WORK        a work queue, derived from EVENTS (subjects with the mark "do") by the server; polls are published to it
//	COMMANDS    a work queue by partition (the server inserts it: drover.cmds.<partition>.…); full: refuses
//	RESULTS     a work queue by partition; full: refuses
//	TIMERS      schedules and the ticks that they fire
//	OUTPUT, REFUSED, POISON   limited by age and size; full: the oldest go
//
// All are on file. What is derived is unreplicated with persist_mode async on one server, and replicated on several.
// Commands are never async. Results are, on one server: what it forgets when it is killed is sent again (recent.go), and what goes
// down with the power runs its phase again.
//
// # What it promises, and what not
//
//   - An append that was acknowledged is stored, one of two writers wins, a batch is stored whole or not at all.
//   - bus.ErrLost is certain, but on several servers it may be unfounded: while an append to an entity is being
//     replicated the leader refuses others of that entity, and for a moment after it too. Both of two writers may lose;
//     both never win.
//   - bus.ErrUnknownOutcome says nothing: not even that the append will not be stored yet, for the client sends after a
//     reconnect what it could not send before. The expected sequence makes that harmless.
//   - Settling (Ack, Retry, …) is not acknowledged: what is lost on the way is delivered again.
//   - Deliveries that a killed process held come again after the ack wait, behind what came later. Two processes that
//     open one inbox share its deliveries.
//   - A request (Ask, Request) that meets a handover between servers may be left without an answer: give its context a
//     deadline.
//   - After a restart of a server, WORK and the buckets may stand still for 12 s, and longer if it repeats: that is the
//     server's own pause when it could not yet read EVENTS as it began (nats-server 2.15.2). The log does not wait.
//   - Outstanding cannot see up to which event WORK was derived, because the server does not say; see there for what it
//     goes by.
//   - The feed shows a deletion twice where Forget appends it again.
//
// # Connection
//
// A connection that breaks is restored for ever. What was asked of the old one is asked again; replies that were lost
// with it end in a timeout, never in silence: 5 s; 10 s of an append, which is sent again meanwhile (again.go). No call is
// repeated that the server may have carried out, unless repeating it changes nothing.
package jetstream
