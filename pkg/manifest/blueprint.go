package manifest

import (
	"encoding/json"
	"time"

	"github.com/droverproject/drover/pkg/constraint"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/strictjson"
)

// The spec of a Blueprint as users write it. Schema is made from these types, so that both say the same.
type (
	blueprintSpec struct {
		Lifecycle json.RawMessage `json:"lifecycle" need:"true" schema:"lifecycle" doc:"A preset (node), or a table of flows."`
		States    []string        `json:"states" doc:"Preset node: the states that lead to Started, in order."`
		Paths     pathsSpec       `json:"paths" doc:"Preset node: the states that lead to the other targets. A target without a path is reached at once."`
		Phases    []phaseSpec     `json:"phases" doc:"What is done in the states."`
	}
	pathsSpec struct {
		Terminated  []string `json:"Terminated" doc:"States on the way to Terminated."`
		Off         []string `json:"Off" doc:"States on the way to Off."`
		Deallocated []string `json:"Deallocated" doc:"States on the way to Deallocated."`
	}
	tableSpec struct {
		Flows          []flowSpec `json:"flows" need:"true" doc:"One for each verb."`
		Delete         string     `json:"delete" doc:"Verb of the flow that deletion walks first. Default: none."`
		OnTargetChange string     `json:"onTargetChange" doc:"What a new flow does to one that runs: cancel (default) or reject."`
		OnFailure      string     `json:"onFailure" doc:"What a failed phase means for the others of its state: continue (default) or drain."`
	}
	flowSpec struct {
		Verb   string   `json:"verb" need:"true" doc:"Command that starts the flow."`
		From   []string `json:"from" doc:"States that it may start from. Default: any."`
		Path   []string `json:"path" doc:"States that it walks, in order."`
		Target string   `json:"target" need:"true" doc:"State that it ends in."`
	}
	phaseSpec struct {
		Name        string        `json:"name" need:"true" doc:"Name, once in the blueprint."`
		Description string        `json:"description" doc:"What the phase does, for people."`
		Text        string        `json:"text" doc:"What to show while it runs."`
		States      []string      `json:"states" need:"true" doc:"States during which the phase is called."`
		DependsOn   []string      `json:"dependsOn" alias:"depends_on" doc:"Phases of the same state that must be completed first."`
		When        string        `json:"when" doc:"CEL expression over the resource; where it is false, the phase is skipped."`
		Provider    string        `json:"provider" doc:"Provider whose resources the phase is for."`
		Executor    executorSpec  `json:"executor" need:"true" doc:"Who carries the phase out: exactly one."`
		Timeout     time.Duration `json:"timeout" doc:"Time for an attempt. Default: none."`
		Interval    time.Duration `json:"interval" doc:"Delay until a pending phase is called again. Default: 15s."`
		Lease       time.Duration `json:"lease" doc:"Silence after which a canceled call is given up. Default: 30s."`
		Retry       retrySpec     `json:"retry" doc:"Policy for failures that may pass. Default: none."`
		Idempotent  bool          `json:"idempotent" doc:"True where the phase may run again after it was completed."`
		AutoDeploy  *bool         `json:"autoDeploy" alias:"auto_deploy" doc:"Not supported by this version."`
	}
	retrySpec struct {
		Attempts int           `json:"attempts" doc:"Failures that are forgiven."`
		Delay    time.Duration `json:"delay" doc:"Wait before each new attempt. Default: 1s."`
	}
	executorSpec struct {
		Plugin json.RawMessage `json:"plugin" schema:"plugin" doc:"A worker of your own."`
		HTTP   json.RawMessage `json:"http" schema:"http" doc:"An HTTP request."`
		Poll   json.RawMessage `json:"poll" schema:"poll" doc:"HTTP requests until the answer is as expected."`
		Script json.RawMessage `json:"script" schema:"script" doc:"A process on the runner's machine."`
	}
)

// unsupported are presets of design.md that a later version brings.
var unsupported = []string{"service", "installation", "execution", "deployitem"}

const notYet = "not supported by this version"

// Blueprint reads the spec of a Blueprint manifest, whose name is the kind that it defines. It returns the blueprint,
// or what is wrong with it, in the order of the fields; never both.
func Blueprint(project, kind string, specJSON []byte) (*blueprint.Blueprint, []resource.Violation) {
	var c checks
	if kind == KindBlueprint {
		c.fail("metadata.name", "is the kind of blueprints themselves")
	}
	if len(specJSON) > resource.SpecBytesMax {
		c.fail("spec", "is larger than %d bytes", resource.SpecBytesMax)
		return nil, c.found
	}
	if len(specJSON) == 0 {
		c.fail("spec", "is missing")
		return nil, c.found
	}
	canonical, digest, _ := Canonical(specJSON) // Unmarshal reports the error, with its place
	var spec blueprintSpec
	if c.read("spec", specJSON, &spec); len(c.found) > 0 {
		return nil, c.found
	}
	b := &blueprint.Blueprint{Project: project, Kind: kind, Digest: digest, Lifecycle: c.lifecycle(&spec)}
	if len(spec.Phases) > blueprint.PhasesMax { // before work is done for each
		c.fail("spec.phases", "has more than %d phases", blueprint.PhasesMax)
		return nil, c.found
	}
	for i := range spec.Phases {
		b.Phases = append(b.Phases, c.phase(strictjson.Item("spec.phases", i), &spec.Phases[i]))
	}
	if len(c.found) == 0 {
		for _, v := range blueprint.Validate(b) {
			c.found = append(c.found, resource.Violation(v))
		}
	}
	if len(c.found) == 0 && len(canonical) == 0 {
		c.fail("spec", "is not JSON")
	}
	if len(c.found) > 0 {
		return nil, c.found[:min(len(c.found), blueprint.ViolationsMax)]
	}
	return b, nil
}

// read fills v from JSON text that stands at path. It reports whether that went well.
func (c *checks) read(path string, data []byte, v any) bool {
	errs := strictjson.Unmarshal(path, data, v)
	for _, e := range errs {
		c.found = append(c.found, resource.Violation{Field: e.Field, Reason: e.Reason})
	}
	return errs == nil
}

func (c *checks) lifecycle(spec *blueprintSpec) blueprint.Lifecycle {
	const field = "spec.lifecycle"
	if len(spec.Lifecycle) == 0 {
		c.fail(field, "is missing: %s, or a table of flows", blueprint.PresetNode)
		return blueprint.Lifecycle{}
	}
	if spec.Lifecycle[0] == '{' {
		if spec.States != nil {
			c.fail("spec.states", "is for the preset %s: a table of flows has its own paths", blueprint.PresetNode)
		}
		if spec.Paths.Terminated != nil || spec.Paths.Off != nil || spec.Paths.Deallocated != nil {
			c.fail("spec.paths", "is for the preset %s: a table of flows has its own paths", blueprint.PresetNode)
		}
		return c.table(field, spec.Lifecycle)
	}
	var preset string
	if !c.read(field, spec.Lifecycle, &preset) {
		return blueprint.Lifecycle{}
	}
	for _, name := range unsupported {
		if preset == name {
			c.fail(field, "the preset %s is %s", name, notYet)
			return blueprint.Lifecycle{}
		}
	}
	if preset != blueprint.PresetNode {
		c.fail(field, "is no preset: %s, or a table of flows", blueprint.PresetNode)
		return blueprint.Lifecycle{}
	}
	return blueprint.Node(blueprint.NodePaths{
		Started: spec.States, Off: spec.Paths.Off, Deallocated: spec.Paths.Deallocated,
		Terminated: spec.Paths.Terminated,
	})
}

func (c *checks) table(field string, text []byte) blueprint.Lifecycle {
	var t tableSpec
	if !c.read(field, text, &t) {
		return blueprint.Lifecycle{}
	}
	l := blueprint.Lifecycle{
		Name: blueprint.Custom, Delete: t.Delete, OnTargetChange: blueprint.Cancel, OnFailure: blueprint.Continue,
	}
	if t.OnTargetChange != "" {
		l.OnTargetChange = blueprint.OnTargetChange(t.OnTargetChange)
	}
	if t.OnFailure != "" {
		l.OnFailure = blueprint.OnFailure(t.OnFailure)
	}
	if l.OnTargetChange == blueprint.Wait {
		c.fail(field+".onTargetChange", "the policy wait is %s", notYet)
	}
	for _, f := range t.Flows {
		l.Flows = append(l.Flows, blueprint.Flow{Verb: f.Verb, From: f.From, Path: f.Path, Target: f.Target})
	}
	return l
}

func (c *checks) phase(field string, s *phaseSpec) blueprint.Phase {
	if s.AutoDeploy != nil {
		c.fail(field+".autoDeploy", "is %s: phases are never gated, and apply starts nothing", notYet)
	}
	if s.When != "" && len(s.When) <= blueprint.WhenBytesMax {
		if err := constraint.Compile(s.When); err != nil {
			c.fail(field+".when", "%s", err)
		}
	}
	return blueprint.Phase{
		Name: s.Name, Description: s.Description, Text: s.Text, States: s.States, DependsOn: s.DependsOn, When: s.When,
		Provider: s.Provider, Executor: c.executor(field+".executor", &s.Executor), Timeout: s.Timeout,
		Interval: s.Interval, Lease: s.Lease, Retry: blueprint.Retry(s.Retry), Idempotent: s.Idempotent,
	}
}

func (c *checks) executor(field string, s *executorSpec) blueprint.Executor {
	var e blueprint.Executor
	var config json.RawMessage
	given := 0
	for _, k := range []struct {
		kind   string
		config json.RawMessage
	}{{"plugin", s.Plugin}, {"http", s.HTTP}, {"poll", s.Poll}, {"script", s.Script}} {
		if k.config != nil {
			e.Kind, config = k.kind, k.config
			given++
		}
	}
	if given != 1 {
		c.fail(field, "is to be exactly one of plugin, http, poll, script; %d are given", given)
		return e
	}
	path := strictjson.Field(field, e.Kind)
	switch e.Kind {
	case "plugin":
		c.read(path, config, &Plugin{})
	case "http":
		if h := (HTTP{}); c.read(path, config, &h) {
			h.check(c, path)
		}
	case "poll":
		if p := (Poll{}); c.read(path, config, &p) {
			p.check(c, path)
		}
	case "script":
		if s := (Script{}); c.read(path, config, &s) {
			s.check(c, path)
		}
	}
	canonical, _, err := Canonical(config)
	if err != nil {
		c.fail(path, "%s", err)
	}
	e.Config = string(canonical)
	return e
}
