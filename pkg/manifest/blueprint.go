package manifest

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/droverproject/drover/pkg/constraint"
	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/strictjson"
)

// The spec of a Blueprint as users write it. Schema is made from these types, so that both say the same.
type (
	blueprintSpec struct {
		Lifecycle json.RawMessage `json:"lifecycle" need:"true" schema:"lifecycle" doc:"A preset, or a table of flows."`
		States    []string        `json:"states" doc:"Preset node: the states that lead to Started, in order."`
		Paths     pathsSpec       `json:"paths" doc:"Preset node: the states that lead to the other targets. A target without a path is reached at once."`
		Phases    []phaseSpec     `json:"phases" doc:"What is done, in the order in which phases that are equal are handed out."`
	}
	pathsSpec struct {
		Terminated  []string `json:"Terminated" doc:"States on the way to Terminated."`
		Off         []string `json:"Off" doc:"States on the way to Off."`
		Deallocated []string `json:"Deallocated" doc:"States on the way to Deallocated."`
	}
	tableSpec struct {
		Flows          []flowSpec `json:"flows" need:"true" doc:"The rows of the table. Rows may share a verb: they differ in from, idempotent and wasDeployed."`
		Delete         string     `json:"delete" doc:"Verb of the flow that deletion walks first. Default: none."`
		OnTargetChange string     `json:"onTargetChange" enum:"cancel reject wait" doc:"What a new flow does to one that runs: cancel it (default), be refused (reject), or wait behind it."`
		OnFailure      string     `json:"onFailure" enum:"continue drain" doc:"What a failed phase means for the others of its state: continue (default), or drain."`
		Walk           string     `json:"walk" enum:"together each" doc:"What walks a path: the resource (together, the default), or each of its phases by itself."`
		Initial        string     `json:"initial" doc:"State of what no flow has touched. Default: none."`
		Precedence     []string   `json:"precedence" doc:"With walk each: the resource's state is the first of these that any of its phases is in."`
		Rerun          string     `json:"rerun" enum:"failed all" doc:"What another job does: go on with what failed (default), or begin at the beginning of its path (all)."`
		OnCreate       string     `json:"onCreate" alias:"on_create" doc:"Verb of the flow that apply starts for a new resource whose first phase has autoDeploy true. Default: none."`
		OnChange       string     `json:"onChange" alias:"on_change" doc:"The same, for a changed spec."`
		SkipUnchanged  bool       `json:"skipUnchanged" alias:"skip_unchanged" doc:"True where a job of onCreate or onChange succeeds without running if the resource is at its target and the spec is as it was then."`
		ByMark         bool       `json:"byMark" alias:"by_mark" doc:"True where any flow of a resource that is marked deleted is the one of delete."`
	}
	flowSpec struct {
		Verb        string   `json:"verb" need:"true" doc:"Command that starts the flow."`
		From        []string `json:"from" doc:"States that it may start from. Default: any."`
		Path        []string `json:"path" doc:"States that it walks, in order."`
		Target      string   `json:"target" need:"true" doc:"State that it ends in."`
		Failure     string   `json:"failure" doc:"State that a failed or canceled job leads to. Default: none, a retry goes on where it failed."`
		Undo        bool     `json:"undo" doc:"True where phases are carried out by their undo executor."`
		Reverse     bool     `json:"reverse" doc:"True where what depends on a phase goes before it."`
		Idempotent  bool     `json:"idempotent" doc:"True where it may start only if the phases concerned are idempotent."`
		WasDeployed string   `json:"wasDeployed" alias:"was_deployed" enum:"no yes history" doc:"What executors are told of earlier deployments. Default: true from a reached target until that of delete is reached."`
	}
	phaseSpec struct {
		Name        string        `json:"name" need:"true" doc:"Name, once in the blueprint."`
		Description string        `json:"description" doc:"What the phase does, for people."`
		Text        string        `json:"text" doc:"What to show while it runs."`
		States      []string      `json:"states" doc:"States during which the phase is called. Not where each phase walks by itself; needed everywhere else."`
		DependsOn   []string      `json:"dependsOn" alias:"depends_on" doc:"Phases of the same state that must be completed first."`
		When        string        `json:"when" doc:"CEL expression over the resource; where it is false, the phase is skipped."`
		Provider    string        `json:"provider" doc:"Provider whose resources the phase is for; it is skipped for all others. A resource's own is its attribute Provider or provider, or that field of its spec."`
		Executor    executorSpec  `json:"executor" need:"true" doc:"Who carries the phase out: exactly one."`
		Undo        *executorSpec `json:"undo" alias:"decom" doc:"Who carries it out in flows that undo: exactly one; plugin where executor is plugin, and no plugin elsewhere."`
		Timeout     time.Duration `json:"timeout" doc:"Time for an attempt. Default: none."`
		Interval    time.Duration `json:"interval" doc:"Delay until a pending phase is called again. Default: 15s."`
		Lease       time.Duration `json:"lease" doc:"Silence after which a canceled call is given up. Default: 30s."`
		Calls       *int          `json:"calls" doc:"Calls of the phase at a time, over all workers; 0: any number. Default: 1 of a plugin, any number of others."`
		Retry       retrySpec     `json:"retry" doc:"Policy for failures that may pass. Default: none."`
		Idempotent  bool          `json:"idempotent" alias:"idempotency" doc:"True where the phase may run again after it has begun, and yields the same."`
		AutoDeploy  *bool         `json:"autoDeploy" alias:"auto_deploy" doc:"Not set: apply starts nothing. True, of a flow's first phase: apply starts the flow. False: the phase waits for approve."`

		Attributes map[string]json.RawMessage `json:"attributes" schema:"attributes" doc:"What else is to be said of the phase, by name: kept and shown, and read by nothing."`
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

		Children json.RawMessage `json:"children" schema:"children" doc:"The resource's children, which the orchestrator itself makes, runs and deletes."`
	}
)

// preset makes a lifecycle that has a name.
type preset struct {
	name string
	make func(spec *blueprintSpec) blueprint.Lifecycle
}

// presets are those that a manifest may name, in the order in which they are listed.
var presets = []preset{
	{blueprint.PresetNode, func(spec *blueprintSpec) blueprint.Lifecycle {
		return blueprint.Node(blueprint.NodePaths{
			Started: spec.States, Off: spec.Paths.Off, Deallocated: spec.Paths.Deallocated, Terminated: spec.Paths.Terminated,
		})
	}},
	{blueprint.PresetService, func(*blueprintSpec) blueprint.Lifecycle { return blueprint.Service() }},
	{blueprint.PresetInstallation, func(*blueprintSpec) blueprint.Lifecycle { return blueprint.Installation() }},
	{blueprint.PresetExecution, func(*blueprintSpec) blueprint.Lifecycle { return blueprint.Execution() }},
	{blueprint.PresetDeployItem, func(*blueprintSpec) blueprint.Lifecycle { return blueprint.DeployItem() }},
}

// Presets lists the lifecycles that a blueprint may name, instead of spelling out a table of flows.
func Presets() []string {
	names := make([]string, len(presets))
	for i := range presets {
		names[i] = presets[i].name
	}
	return names
}

// Preset is the table of a lifecycle that has a name. The paths of node are each blueprint's own, and empty here.
func Preset(name string) (blueprint.Lifecycle, bool) {
	for i := range presets {
		if presets[i].name == name {
			return presets[i].make(&blueprintSpec{}), true
		}
	}
	return blueprint.Lifecycle{}, false
}

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
	known := strings.Join(Presets(), ", ")
	if len(spec.Lifecycle) == 0 {
		c.fail(field, "is missing: %s, or a table of flows", known)
		return blueprint.Lifecycle{}
	}
	if spec.Lifecycle[0] == '{' {
		c.nodeOnly(spec, "a table of flows")
		return c.table(field, spec.Lifecycle)
	}
	var name string
	if !c.read(field, spec.Lifecycle, &name) {
		return blueprint.Lifecycle{}
	}
	i := slices.IndexFunc(presets, func(p preset) bool { return p.name == name })
	if i < 0 {
		c.fail(field, "is no preset: %s, or a table of flows", known)
		return blueprint.Lifecycle{}
	}
	if name != blueprint.PresetNode {
		c.nodeOnly(spec, "the preset "+name)
	}
	return presets[i].make(spec)
}

// nodeOnly refuses the fields from which the preset node takes its paths.
func (c *checks) nodeOnly(spec *blueprintSpec, lifecycle string) {
	for _, f := range []struct {
		field string
		given bool
	}{
		{"spec.states", spec.States != nil},
		{"spec.paths", spec.Paths.Terminated != nil || spec.Paths.Off != nil || spec.Paths.Deallocated != nil},
	} {
		if f.given {
			c.fail(f.field, "is for the preset %s: %s has its own paths", blueprint.PresetNode, lifecycle)
		}
	}
}

func (c *checks) table(field string, text []byte) blueprint.Lifecycle {
	var t tableSpec
	if !c.read(field, text, &t) {
		return blueprint.Lifecycle{}
	}
	l := blueprint.Lifecycle{
		Name: blueprint.Custom, Delete: t.Delete, OnTargetChange: blueprint.Cancel, OnFailure: blueprint.Continue,
		Rerun: blueprint.Rerun(t.Rerun), Walk: blueprint.Walk(t.Walk), Initial: t.Initial, Precedence: t.Precedence,
		OnCreate: t.OnCreate, OnChange: t.OnChange, SkipUnchanged: t.SkipUnchanged, ByMark: t.ByMark,
	}
	if t.OnTargetChange != "" {
		l.OnTargetChange = blueprint.OnTargetChange(t.OnTargetChange)
	}
	if t.OnFailure != "" {
		l.OnFailure = blueprint.OnFailure(t.OnFailure)
	}
	// The engine's zero values have names in a manifest.
	if t.Rerun == rerunFailed {
		l.Rerun = blueprint.RerunFailed
	}
	if t.Walk == walkTogether {
		l.Walk = blueprint.Together
	}
	for i := range t.Flows {
		f := &t.Flows[i]
		l.Flows = append(l.Flows, blueprint.Flow{
			Verb: f.Verb, From: f.From, Path: f.Path, Target: f.Target, Failure: f.Failure, Undo: f.Undo, Reverse: f.Reverse,
			Idempotent: f.Idempotent, WasDeployed: blueprint.WasDeployed(f.WasDeployed),
		})
	}
	return l
}

// Names that only manifests have.
const (
	rerunFailed  = "failed"
	walkTogether = "together"
)

func (c *checks) phase(field string, s *phaseSpec) blueprint.Phase {
	if s.When != "" && len(s.When) <= blueprint.WhenBytesMax {
		if err := constraint.Compile(s.When); err != nil {
			c.fail(field+".when", "%s", err)
		}
	}
	c.attributes(field+".attributes", s.Attributes)
	executor, own := c.executor(field+".executor", &s.Executor)
	p := blueprint.Phase{
		Children: own, Name: s.Name, Description: s.Description, Text: s.Text, States: s.States, DependsOn: s.DependsOn, When: c.when(field, s),
		Provider: s.Provider, Executor: executor, Timeout: s.Timeout,
		Interval: s.Interval, Lease: s.Lease, Calls: s.Calls, Retry: blueprint.Retry(s.Retry), Idempotent: s.Idempotent, AutoDeploy: s.AutoDeploy,
	}
	if s.Undo != nil {
		undo, _ := c.executor(field+".undo", s.Undo)
		p.Undo = &undo
		c.sameConsumer(field+".undo", p.Executor.Kind, undo.Kind)
	}
	return p
}

// when is the phase's constraint: its own, and that of its provider (seed 003, "Phase Plugin Attributes": "The cloud
// provider that this plugin is intended for"). The engine knows one constraint, so that both are skipped alike.
func (c *checks) when(field string, s *phaseSpec) string {
	if s.Provider == "" || len(s.Provider) > blueprint.NameBytesMax || len(s.When) > blueprint.WhenBytesMax {
		return s.When // what is too long is refused as it is
	}
	both := constraint.ForProvider(s.Provider, s.When)
	if len(both) > blueprint.WhenBytesMax {
		c.fail(field+".when", "is longer than the %d bytes that provider leaves", blueprint.WhenBytesMax-len(constraint.ForProvider(s.Provider, " "))+1)
		return s.When
	}
	return both
}

// attributes checks what a definition says of a phase that nothing here reads.
func (c *checks) attributes(field string, attributes map[string]json.RawMessage) {
	if len(attributes) > PhaseAttributesMax {
		c.fail(field, "has more than %d names", PhaseAttributesMax)
		return
	}
	bytes := 0
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		if reason := CheckName(name); reason != "" {
			c.fail(strictjson.Field(field, name), "%s", reason)
		}
		bytes += len(name) + len(attributes[name])
	}
	if bytes > PhaseAttributesBytesMax {
		c.fail(field, "is larger than %d bytes", PhaseAttributesBytesMax)
	}
}

// Limits of the attributes of one phase.
const (
	PhaseAttributesMax      = 64      // names
	PhaseAttributesBytesMax = 8 << 10 // bytes of names and values
)

// sameConsumer refuses an undo that another process would have to carry out: a phase has one consumer, and whoever pulls
// from it is given what is to be done and what is to be undone.
func (c *checks) sameConsumer(field, executor, undo string) {
	switch {
	case executor == "" || undo == "": // refused already
	case (executor == blueprint.ExecutorChildren) != (undo == blueprint.ExecutorChildren):
		c.fail(strictjson.Field(field, undo), "does not fit the phase's executor, %s: what was done with children is undone with children", executor)
	case executor == blueprint.ExecutorPlugin && undo != blueprint.ExecutorPlugin:
		c.fail(strictjson.Field(field, undo), "is not plugin, as the phase's executor is: one worker serves a phase, and undoes it too")
	case executor != blueprint.ExecutorPlugin && undo == blueprint.ExecutorPlugin:
		c.fail(strictjson.Field(field, undo), "is plugin, and the phase's executor is %s: the runner serves the phase, and undoes it too", executor)
	}
}

func (c *checks) executor(field string, s *executorSpec) (e blueprint.Executor, own *blueprint.Children) {
	var config json.RawMessage
	given := 0
	for _, k := range []struct {
		kind   string
		config json.RawMessage
	}{{blueprint.ExecutorPlugin, s.Plugin}, {"http", s.HTTP}, {"poll", s.Poll}, {"script", s.Script}, {blueprint.ExecutorChildren, s.Children}} {
		if k.config != nil {
			e.Kind, config = k.kind, k.config
			given++
		}
	}
	if given != 1 {
		c.fail(field, "is to be exactly one of plugin, http, poll, script, children; %d are given", given)
		return e, nil
	}
	path := strictjson.Field(field, e.Kind)
	switch e.Kind {
	case blueprint.ExecutorPlugin:
		c.read(path, config, &Plugin{})
	case "http":
		if h := (HTTP{}); c.read(path, config, &h) {
			h.check(c, path)
			e.Callback = h.ExtAPI != nil
		}
	case "poll":
		if p := (Poll{}); c.read(path, config, &p) {
			p.check(c, path)
		}
	case "script":
		if s := (Script{}); c.read(path, config, &s) {
			s.check(c, path)
		}
	case blueprint.ExecutorChildren:
		if s := (Children{}); c.read(path, config, &s) {
			own = s.blueprint(c, path)
		}
	}
	canonical, _, err := Canonical(config)
	if err != nil {
		c.fail(path, "%s", err)
	}
	e.Config = string(canonical)
	return e, own
}
