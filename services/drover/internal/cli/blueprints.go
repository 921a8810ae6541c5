package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/wire"
)

// blueprintEntry is one blueprint as its bucket holds it.
type blueprintEntry struct {
	wire.BlueprintEvent
	*blueprint.Blueprint // nil where this version cannot read it; the rest is shown all the same
	stored               bus.Stored
}

// lifecycle is the preset's name, or "custom".
func (b *blueprintEntry) lifecycle() string {
	if b.Blueprint == nil {
		return "unreadable"
	}
	return b.Lifecycle.Name
}

// verbs are the flows that the blueprint can be asked for.
func (b *blueprintEntry) verbs() []string {
	if b.Blueprint == nil {
		return nil
	}
	verbs := make([]string, 0, len(b.Lifecycle.Flows))
	for _, f := range b.Lifecycle.Flows {
		if !slices.Contains(verbs, f.Verb) { // rows may share a verb
			verbs = append(verbs, f.Verb)
		}
	}
	return verbs
}

// phases are those of the blueprint.
func (b *blueprintEntry) phases() []blueprint.Phase {
	if b.Blueprint == nil {
		return nil
	}
	return b.Blueprint.Phases
}

func (b *blueprintEntry) kind() string { return b.BlueprintEvent.Kind }

func blueprintItem(b *blueprintEntry) item {
	return item{
		name: "blueprint/" + b.kind(),
		json: func() ([]byte, error) { return wire.EventJSON(b.stored.Body) },
	}
}

// listBlueprints reads the blueprints of a project, sorted by kind.
func listBlueprints(ctx context.Context, b bus.Readers, project string) ([]blueprintEntry, error) {
	var prints []blueprintEntry
	err := b.List(ctx, bus.Blueprint, project, "", func(s bus.Stored) error {
		if s.Deleted {
			return nil
		}
		e, err := decodeBlueprint(s)
		if err == nil && !e.Gone {
			prints = append(prints, e)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list bucket %s: %w", bus.Blueprint.Bucket(), err)
	}
	slices.SortFunc(prints, func(x, y blueprintEntry) int { return cmp.Compare(x.kind(), y.kind()) })
	return prints, nil
}

func decodeBlueprint(s bus.Stored) (blueprintEntry, error) {
	event, err := wire.DecodeBlueprint(s.Body)
	if err != nil {
		return blueprintEntry{}, fmt.Errorf("decode %s in bucket %s: %w", s.Entity.Key(), bus.Blueprint.Bucket(), err)
	}
	e := blueprintEntry{BlueprintEvent: event, stored: s}
	if read, violations := manifest.Blueprint(event.Project, event.Kind, []byte(event.JSON)); len(violations) == 0 {
		e.Blueprint = read
	}
	return e, nil
}
