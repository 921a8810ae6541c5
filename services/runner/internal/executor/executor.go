// Package executor is what the runner's executors have in common: what they are told of a call, and what they answer.
package executor

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/droverproject/drover/pkg/engine/resource"

	"github.com/droverproject/drover/services/runner/internal/render"
)

// Call is one resource in one call of a phase. Maps are read only; their values are JSON text.
type Call struct {
	Key         resource.Key
	Fence       resource.Fence
	Partition   int // of the resource's tree
	Phase       string
	State       string // lifecycle state that the phase runs for
	Target      string
	Cluster     string
	Undo        bool // the phase is undone
	WasDeployed bool
	Deadline    time.Time // of the attempt; zero: none
	Labels      map[string]string
	Attributes  map[string]string
	Data        map[string]string
	Spec        json.RawMessage
	// Log prints one line of output: stream is "stdout", "stderr" or "runner".
	Log func(stream string, at time.Time, line string)
}

// Outcome is an executor's answer.
type Outcome struct {
	Kind      resource.Outcome // Completed, Failed or Pending
	Message   string
	Retryable bool          // of Failed: it may pass by itself
	Delay     time.Duration // of Pending; 0 means the phase's interval
	Kept
}

// Kept is what a call sets, each value as JSON text; null removes.
type Kept struct {
	Attributes, Data, Outputs map[string]string
}

// Executor carries out calls, each with the configuration that the blueprint which the job pinned gives its phase.
// Run returns an error only where nothing was decided: when ctx ended.
type Executor interface {
	Run(ctx context.Context, c *Call) (Outcome, error)
}

// Completed is success.
func Completed() Outcome { return Outcome{Kind: resource.OutcomeCompleted} }

// Failed is a failure until a person retries.
func Failed(format string, args ...any) Outcome {
	return Outcome{Kind: resource.OutcomeFailed, Message: fmt.Sprintf(format, args...)}
}

// Retryable is a failure that may pass by itself.
func Retryable(format string, args ...any) Outcome {
	return Outcome{Kind: resource.OutcomeFailed, Message: fmt.Sprintf(format, args...), Retryable: true}
}

// Pending asks for another call after a delay; 0 means the phase's interval.
func Pending(delay time.Duration, format string, args ...any) Outcome {
	return Outcome{Kind: resource.OutcomePending, Message: fmt.Sprintf(format, args...), Delay: delay}
}

// Vars is what templates may name: resource, phase and job.
func (c *Call) Vars() (render.Vars, error) {
	spec, err := render.Value(c.Spec)
	if err != nil {
		return nil, fmt.Errorf("spec: %w", err)
	}
	attributes, err := values("attribute", c.Attributes)
	if err != nil {
		return nil, err
	}
	data, err := values("phase data", c.Data)
	if err != nil {
		return nil, err
	}
	labels := make(map[string]any, len(c.Labels))
	for name, value := range c.Labels {
		labels[name] = value
	}
	return render.Vars{
		"resource": map[string]any{
			"project": c.Key.Project, "kind": c.Key.Kind, "name": c.Key.Name, "uid": c.Fence.UID,
			"labels": labels, "cluster": c.Cluster, "spec": spec, "attributes": attributes,
			"state": c.State, "target": c.Target, "wasDeployed": c.WasDeployed,
		},
		"phase": map[string]any{"name": c.Phase, "attempt": int(c.Fence.Attempt), "undo": c.Undo, "data": data},
		"job":   map[string]any{"id": c.Fence.JobID},
	}, nil
}

func values(what string, m map[string]string) (map[string]any, error) {
	decoded := make(map[string]any, len(m))
	for name, text := range m {
		v, err := render.Value([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("%s %q: %w", what, name, err)
		}
		decoded[name] = v
	}
	return decoded, nil
}

// Object is the JSON object of values that are JSON text.
func Object(m map[string]string) json.RawMessage {
	raw := make(map[string]json.RawMessage, len(m))
	for name, text := range m {
		raw[name] = json.RawMessage(text)
	}
	body, err := json.Marshal(raw)
	if err != nil {
		return json.RawMessage("{}") // a value that is no JSON: the engine stores none
	}
	return body
}
