package program

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/droverproject/drover/pkg/engine/resource"
)

// Event is what a state listener is told (seed 003, "State Listeners": StateEvent).
type Event struct {
	Project string
	Type    string // kind of the resources
	State   string // that they reached; they may have left it by now
	Cluster string
	// Resources are those that reached it, as they are now.
	Resources []EventResource
}

// EventResource is a resource that reached a state.
type EventResource struct {
	Name, UID     string
	Cluster       string
	State, Target string // where it is now, and where it should be
	WasDeployed   bool
	Labels        map[string]string
	Attributes    map[string]string // each value as JSON text
	Spec          json.RawMessage   // empty: {}
}

// OnStateTransition calls the program with an event. The error is the exception: nobody is told of it but the caller.
func (p *Program) OnStateTransition(ctx context.Context, e *Event) error {
	c := callLine{
		Function: FunctionOnStateTransition, Project: e.Project, Type: e.Type, State: e.State, Cluster: &e.Cluster,
		Resources: make([]json.RawMessage, len(e.Resources)),
	}
	keys := make([]resource.Key, len(e.Resources))
	for i := range e.Resources {
		r := &e.Resources[i]
		line := resourceLine{
			Name: r.Name, Kind: e.Type, UID: r.UID, Cluster: r.Cluster, State: r.State, Target: r.Target, WasDeployed: r.WasDeployed,
			Labels: r.Labels, Spec: r.Spec, Attributes: jsonOf(r.Attributes),
		}
		if line.Labels == nil {
			line.Labels = map[string]string{}
		}
		if line.Spec == nil {
			line.Spec = json.RawMessage("{}")
		}
		body, err := json.Marshal(line)
		if err != nil {
			return fmt.Errorf("encode %s: %w", r.Name, err)
		}
		c.Resources[i], keys[i] = body, resource.Key{Project: e.Project, Kind: e.Type, Name: r.Name}
	}
	request, err := c.line()
	if err != nil {
		return err
	}
	vars := []string{"DROVER_PROJECT=" + e.Project, "DROVER_KIND=" + e.Type, "DROVER_STATE=" + e.State, "DROVER_CLUSTER=" + e.Cluster}
	return p.call(ctx, request, keys, vars, nil, func(a *Answer) error {
		switch {
		case a.Outcome != "" || a.Attributes != nil || a.Data != nil || a.Outputs != nil:
			return fmt.Errorf("%w: a listener decides nothing and changes nothing: it may log", ErrAnswer)
		case a.Log != "":
			p.o.Stderr(a.Log)
		}
		return nil
	})
}
