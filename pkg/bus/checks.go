package bus

import (
	"errors"
	"fmt"
)

// ErrEntity is for an append whose fields do not fit its family. It is a mistake of the caller; nothing was sent.
var ErrEntity = errors.New("no valid entity")

// Check says why an append cannot be sent: its fields must fit its family, and its partition must be one of n. An
// append that buries brings no version and hands out nothing.
func (a Append) Check(partitions int, bury bool) error {
	e := a.Entity
	bad := func(why string) error { return fmt.Errorf("%w: %s %s: %s", ErrEntity, e.Family, e.Key(), why) }
	switch {
	case e.Partition < 0 || e.Partition >= partitions:
		return bad(fmt.Sprintf("partition %d is not one of %d", e.Partition, partitions))
	case bury && (a.Dispatch != "" || a.Version != ""):
		return bad("a deletion hands out no phase and brings no version")
	case a.Dispatch != "" && e.Family != Resource:
		return bad("only a resource hands out a phase")
	}
	switch {
	case !e.Family.Known():
		return bad("no such family")
	case !e.Family.HasKind() && e.Kind != "":
		return bad("this family has no kinds")
	case !e.Family.HasName() && e.Name != "":
		return bad("a blueprint has no name but its kind")
	case e.Family.versioned() && a.Version == "" && !bury:
		return bad("a version is required")
	case !e.Family.versioned() && a.Version != "":
		return bad("this family has no versions")
	}
	return nil
}

// CheckBatch says why a batch cannot be sent: it holds 1 to BatchMessagesMax messages, at most one an entity. Two of
// one entity would both be stored, whatever they expect.
func CheckBatch(batch []Append) error {
	if len(batch) == 0 || len(batch) > BatchMessagesMax {
		return fmt.Errorf("%w: %d messages, must be 1 to %d", ErrBatch, len(batch), BatchMessagesMax)
	}
	seen := make(map[Entity]struct{}, len(batch))
	for _, a := range batch {
		if _, ok := seen[a.Entity]; ok {
			return fmt.Errorf("%w: two messages of %s %s", ErrBatch, a.Entity.Family, a.Entity.Key())
		}
		seen[a.Entity] = struct{}{}
	}
	return nil
}
