// Package check is what check instances are made of (seed 002, "User step, check configuration" to "check instance creation"):
// the objects of a repository's tree, the check configurations that are placed on them, and the monitoring systems and
// capabilities that these name. Each is an entity of family check: its manifest, and the jobs that changed it.
//
// # The tree
//
// A repository's objects are named by their way from it: bucket prod/live, group prod/live/web, node prod/live/web/web-1. So
// a name says whose child an object is, and where its partition is (that of the first part), without a look-up; an object
// is not moved, it is deleted and made anew. Parents lists who may stand below whom.
//
// A check configuration is placed on one object, and, where it is inherited, on all objects below (seed: "the check creation
// request is passed down and every child object creates a check as well"). Groups, clusters and nodes have instances; a
// repository and a bucket only pass down.
//
// # Which instances there should be
//
// follows from the tree and the configurations alone: one for each configuration and object that it reaches (Tree.Reach).
// Whoever serves the partition compares that with the instances that there are, and orders or deletes what differs, at
// every change, at a takeover and with each sweep. How far an order has come is said by the instances themselves, each of
// which holds the generation of its configuration and the revision of its object; so there is no cursor to be lost.
//
// # Table
//
//	there is       input     leads to
//	nothing        apply     an object of generation 1; the job ends at once, that of a check configuration when all is ordered
//	object         apply     the next generation, if anything differs
//	object         delete    marked; refused while objects or configurations stand on it
//	object         walked    jobs up to this generation end
//	marked         walked    the deletion's job ends; what is left is buried when no instance of it is left
//	marked         apply     refused
//
// # Invariants (Audit)
//
// Revisions are contiguous; generations never go back; a deletion is not taken back; a job ends once; Observed is never
// ahead of Generation; no job is open once everything is observed.
package check
