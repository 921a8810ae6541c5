// Package program is a phase plugin, or a state listener, that is a program in any language: calls go to it as lines of
// JSON on stdin, and its answers come as lines of JSON on stdout. `drover plugin exec` stands on it; docs/plugins.md
// tells authors of plugins what is here.
//
//	message.go    what a program is told, and what it may answer
//	program.go    its processes, and one call
//	phase.go      a call of a phase: the batch of pkg/plugin
//	event.go      a call of a listener
//
// # A call
//
// One line in, the call: a JSON object with "function" ("handle" or "onStateTransition") and its "resources". Then lines
// out, until the call has ended: each a JSON object with a "resource" (or several "resources") by name, and any of
// "outcome", "attributes", "data", "outputs" and "log". A program that serves one call ends it by exiting; a resident
// one by the line {"end": true}, after which it waits for the next line on stdin, and exits when that is closed.
//
// # What it means (seed 003, "Phase Plugins")
//
//   - What is neither completed nor failed is pending, and is called again after the phase's interval.
//   - An exception fails all resources of the call but those that were completed before, and those that were failed,
//     which keep their own message. An exception is a line {"error": "…"}, an exit status other than 0, an end by a
//     signal, a resident program's exit within a call, a line that is not understood, and the passing of a limit.
//   - Attributes and phase data are saved when the call has ended, whatever it was that ended it.
//   - A call that lasts longer than its limit is ended with its whole process group, and is an exception: a plugin must
//     not wait for anything.
//   - If the process that calls is killed, or told to stop, nothing fails: what was not answered is handed out again.
//
// # Trust
//
// What a program writes is bytes from outside: it is limited in the length of a line, the number of lines and of bytes of
// a call, decoded strictly, and it can speak of the resources of its call only. The program itself runs as the user who
// started it, with that user's environment but for the variables DROVER_… and NATS_….
package program
