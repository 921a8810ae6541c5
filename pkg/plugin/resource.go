package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

// Resource is one resource in one call of the phase. Maps and strings that it returns are shared and must not be
// changed. Safe for concurrent use.
type Resource struct {
	s     *server
	line  *line
	work  wire.Work
	begun time.Time // when it was admitted
	batch *Batch    // nil until the call begins, and after it returned

	mu       sync.Mutex
	d        bus.Delivery
	twins    []bus.Delivery // duplicates that came while this one was out; settled with it
	answer   answer
	set      [3]map[string]string // attributes, data, outputs
	ctx      context.Context
	cancel   context.CancelCauseFunc
	canceled bool // the call is no longer wanted

	called     time.Time     // when the call began; zero before
	progressed time.Time     // when the delivery was last held
	reported   time.Time     // when Running was last reported
	checked    time.Time     // when the present state was last looked at
	reporting  chan struct{} // closed when a Running report is through; nil: none is out
	settling   bool          // no more reports
}

const (
	setAttributes = iota
	setData
	setOutputs
)

// Key names the resource for people.
func (r *Resource) Key() resource.Key { return r.work.State.Key }

// UID is the resource's identity.
func (r *Resource) UID() string { return r.work.Fence.UID }

// Fence names this hand-out: it is the same for every delivery of it, and for every poll of the same call.
func (r *Resource) Fence() resource.Fence { return r.work.Fence }

// Phase is the name of the phase.
func (r *Resource) Phase() string { return r.work.Fence.Phase }

// Job is the id of the job under which the phase was handed out.
func (r *Resource) Job() string { return r.work.Fence.JobID }

// Attempt counts the attempts of this phase for its state and job, from 1.
func (r *Resource) Attempt() int { return int(r.work.Fence.Attempt) }

// Polled reports whether this is a further call of a pending phase.
func (r *Resource) Polled() bool { return r.work.Poll }

// Deadline is when the attempt times out by the server's clock; zero means never.
func (r *Resource) Deadline() time.Time { return r.work.Deadline }

// Undo reports whether the phase is to be undone: what it has done for this resource is to be taken back. Only phases
// whose blueprint has an undo executor are asked to.
func (r *Resource) Undo() bool {
	run := r.work.State.Phase(r.work.Fence.Phase)
	return run != nil && run.Undo
}

// State is the lifecycle state that the phase runs for, as in Ordered, Updating or Retiring.
func (r *Resource) State() string { return r.work.LifecycleState }

// Target is the lifecycle state that was asked for.
func (r *Resource) Target() string { return r.work.State.Target }

// WasDeployed is what the flow says of earlier deployments (blueprint.WasDeployed): in a service false for a first
// deployment and true for a later one; without a rule, whether a job has reached its target before.
func (r *Resource) WasDeployed() bool { return r.work.WasDeployed }

// Cluster is the resource's cluster, or empty.
func (r *Resource) Cluster() string { return r.work.State.Cluster }

// Labels are the manifest's labels.
func (r *Resource) Labels() map[string]string { return r.work.State.Labels }

// BlueprintDigest is the blueprint that the job pinned.
func (r *Resource) BlueprintDigest() string { return r.work.BlueprintDigest }

// Partition is the partition of the resource's tree.
func (r *Resource) Partition() int { return r.work.Partition }

// Attributes are what plugins wrote on the resource, each value as JSON text, as they were at the hand-out.
func (r *Resource) Attributes() map[string]string { return r.work.State.Attributes }

// Data is what earlier calls of this phase kept, each value as JSON text.
func (r *Resource) Data() map[string]string {
	if run := r.work.State.Phase(r.work.Fence.Phase); run != nil {
		return run.Data
	}
	return nil
}

// Attribute decodes an attribute into v, as set in this call or before it. False: there is none.
func (r *Resource) Attribute(name string, v any) (bool, error) {
	return r.get("attribute", setAttributes, r.Attributes(), name, v)
}

// PhaseData decodes what this or an earlier call of this phase kept into v. False: there is none.
func (r *Resource) PhaseData(name string, v any) (bool, error) {
	return r.get("phase data", setData, r.Data(), name, v)
}

// SetAttribute sets an attribute, stored with the answer; nil removes it. v is encoded as JSON; a json.RawMessage is
// taken as it is.
func (r *Resource) SetAttribute(name string, v any) error {
	return r.put("attribute", setAttributes, name, v)
}

// SetPhaseData keeps a value for later calls of this phase, stored with the answer; nil removes it. A retry clears it.
func (r *Resource) SetPhaseData(name string, v any) error {
	return r.put("phase data", setData, name, v)
}

// SetOutput sets what the phase produced, stored with the answer.
func (r *Resource) SetOutput(name string, v any) error {
	return r.put("output", setOutputs, name, v)
}

func (r *Resource) get(what string, which int, stored map[string]string, name string, v any) (bool, error) {
	r.mu.Lock()
	text, ok := r.set[which][name]
	r.mu.Unlock()
	if !ok {
		text, ok = stored[name]
	}
	if !ok || text == "null" {
		return false, nil
	}
	if err := json.Unmarshal([]byte(text), v); err != nil {
		return false, fmt.Errorf("%s %q of %s: %w", what, name, r.Key(), err)
	}
	return true, nil
}

func (r *Resource) put(what string, which int, name string, v any) error {
	if name == "" {
		return fmt.Errorf("%s of %s: the name is empty", what, r.Key())
	}
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%s %q of %s: %w", what, name, r.Key(), err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.settling {
		return nil
	}
	if r.set[which] == nil {
		r.set[which] = map[string]string{}
	}
	r.set[which][name] = string(text)
	return nil
}

// Spec is the spec that this hand-out is for, as JSON ("{}" where there is none). It is loaded from the log once and
// kept. The error is ErrUnavailable where the bus does not answer.
func (r *Resource) Spec(ctx context.Context) (json.RawMessage, error) {
	if r.work.SpecDigest == "" {
		return json.RawMessage("{}"), nil
	}
	spec, err := r.s.spec(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("spec %s of %s: %w", r.work.SpecDigest, r.Key(), err)
	}
	return spec, nil
}

// Context ends with the call's own context, and earlier, with the cause ErrCanceled, when the call is no longer wanted:
// the phase is being canceled, or was handed out again. A call that sees this should stop its work for this resource
// and leave it unanswered.
func (r *Resource) Context() context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx == nil {
		r.ctx, r.cancel = context.WithCancelCause(r.s.working)
		if r.canceled {
			r.cancel(ErrCanceled)
		}
		if r.settling {
			r.cancel(nil)
		}
	}
	return r.ctx
}

// Log prints text to the resource's output (drover logs), a line for each of its lines, each cut at
// wire.OutputTextBytesMax bytes. It does not wait, and lines may be lost in a crash.
func (r *Resource) Log(text string) error { return r.LogStream("stdout", time.Now(), text) }

// LogStream is Log for one of the streams "stdout", "stderr" and "runner", with the time at which the line was read.
func (r *Resource) LogStream(stream string, at time.Time, text string) error {
	key := r.Key()
	var errs error
	for line := range strings.Lines(text) {
		body, err := wire.EncodeOutputLine(wire.OutputLine{
			Fence: r.work.Fence, Time: at, Stream: stream, Text: strings.TrimRight(line, "\r\n"),
		})
		if err == nil {
			err = r.s.bus.PublishOutput(key.Project, key.Kind, key.Name, body)
		}
		errs = errors.Join(errs, err)
	}
	return errs
}

// decide notes an answer while the call of this batch runs.
func (r *Resource) decide(b *Batch, a answer) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.batch == b && !r.settling {
		r.answer = a
	}
}

// entity is the resource in the log.
func (r *Resource) entity(f bus.Family) bus.Entity {
	key := r.Key()
	return bus.Entity{Partition: r.work.Partition, Family: f, Project: key.Project, Kind: key.Kind, Name: key.Name}
}

// result is what is said of the hand-out. It takes the maps: nothing may be set after it.
func (r *Resource) result(a answer) resource.Result {
	res := resource.Result{
		Fence: r.work.Fence, Outcome: a.outcome, Message: cut(a.message, resource.MessageBytesMax),
		Retryable: a.retryable, Delay: a.delay,
	}
	if a.outcome != resource.OutcomeRunning && a.outcome != resource.OutcomeNotStarted {
		res.Attributes, res.Data, res.Outputs = r.set[setAttributes], r.set[setData], r.set[setOutputs]
	}
	return res
}

// outstanding reports whether this hand-out is still the one that an answer is wanted for, as the given state says.
func outstanding(w *wire.Work, now *resource.State) bool {
	if now.UID != w.Fence.UID || now.Gone {
		return false
	}
	run := now.Phase(w.Fence.Phase)
	if run == nil || run.JobID != w.Fence.JobID || run.Attempt != w.Fence.Attempt || run.Call != w.Fence.Call {
		return false
	}
	// A poll costs no event: its phase is Sleeping while it is out.
	polled := w.Poll && run.Status == resource.Sleeping && !run.Retrying
	return run.Status != resource.Canceling && (run.InFlight || polled)
}

// cut shortens text to at most most bytes, at the border of a character, and marks the cut.
func cut(text string, most int) string {
	const mark = " [cut]"
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-len(mark)], "") + mark
}
