// Package follow keeps an eye on jobs and resources until what was waited for has come.
//
// # Robustness
//
// A watch may be lost, or silently miss what happened while its connection was down. So everything here also reads the
// bucket again, every Recheck and whenever a watch ends, and opens a new one. What is reported is therefore at least
// once in spirit and once in effect: an entry that is not newer than the one before is dropped.
package follow
