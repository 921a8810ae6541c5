// Package captured applies the commands that were published and captured by the stream COMMANDS.
//
//	intake.go      which partitions this process serves
//	partition.go   one partition: lanes, and what is settled when
//	command.go     one command, from the check to its settlement
//	backlog.go     how much waits, and since when
//
// # Rules
//
//   - The commands of one resource are applied in the order in which they were stored: a resource has one lane, and a
//     lane has one command under way. Different resources do not wait for each other. This holds while partitions are
//     handed over in good order (HandoverWait); it does not hold for what a killed process had in hand, which comes
//     again only when the server has waited for its acknowledgement, while the next process goes on with what is new.
//   - A command is acknowledged when its owner has accepted it, or when the refusal is stored where its sender can find
//     it (drover.refused.<project>.<request id>); not before.
//   - While nobody serves the partition, or the owner is overloaded, commands are kept and tried again, so that their
//     order stays. They are put back only when this process gives the partition up, in their order.
//   - An owner that hangs holds up the commands for its own partition. Only when as many of them wait as one inbox may
//     hold (WaitingMax) do those behind them wait too.
//   - What cannot be read at all is set aside with its reason. It blocks nothing behind it.
//
// # Absent on purpose
//
// No reply to Drover-Reply-To: the bus has no way to publish to any subject, which is a safety of its own; who wants the
// answer sends the command as a request (drover.api), or reads the job and the refusal. No memory of what was applied:
// a command that comes twice is answered with the same job by its owner.
package captured
