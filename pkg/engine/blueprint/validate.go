package blueprint

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/droverproject/drover/pkg/engine/phase"
)

// Further limits of one blueprint.
const (
	FlowsMax      = 32             // flows per lifecycle
	VerbBytesMax  = 63             // bytes per verb
	LeaseMax      = IntervalMax    // of a phase
	RetryDelayMax = 24 * time.Hour // of a phase
	ViolationsMax = 32             // violations that Validate reports
)

// Violation is one field that is wrong. Field is its path in the manifest: spec.phases[1].dependsOn[0].
type Violation struct {
	Field, Reason string
}

// reserved are the verbs that every lifecycle has (package resource); a flow cannot have them.
var reserved = []string{"apply", "delete", "retry", "cancel", "interrupt", "approve"}

// ExecutorKinds lists what Executor.Kind may be.
func ExecutorKinds() []string {
	return []string{ExecutorPlugin, "http", "poll", "script", ExecutorChildren}
}

// ExecutorPlugin is the one executor that the runner does not carry out: anyone's worker does.
const ExecutorPlugin = "plugin"

// ExecutorChildren is the executor of phases that the engine carries out itself, on the resource's children.
const ExecutorChildren = "children"

// Validate reports what is wrong with a blueprint, in the order of its fields, ViolationsMax at most; none means that
// the engine can drive it. It judges structure: constraints and executor configurations are the shell's to compile.
func Validate(b *Blueprint) []Violation {
	c := checker{blueprint: b}
	c.name("metadata.name", b.Kind)
	c.lifecycle(&b.Lifecycle)
	c.phases()
	return c.found
}

type checker struct {
	blueprint *Blueprint
	found     []Violation
	walked    []string // states of any path
	known     []string // states of any path, and targets
}

func (c *checker) fail(field, format string, args ...any) {
	if len(c.found) < ViolationsMax {
		c.found = append(c.found, Violation{Field: field, Reason: fmt.Sprintf(format, args...)})
	}
}

func at(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }

// name checks what people call a phase, a state or a kind. It reports whether it is fit to be compared with others.
func (c *checker) name(field, name string) bool {
	switch {
	case name == "":
		c.fail(field, "is missing")
	case len(name) > NameBytesMax:
		c.fail(field, "is longer than %d bytes", NameBytesMax)
	case !printable(name):
		c.fail(field, "holds a character that cannot be printed")
	case strings.TrimSpace(name) != name:
		c.fail(field, "begins or ends with a space")
	default:
		return true
	}
	return false
}

func printable(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) < 0
}

func (c *checker) lifecycle(l *Lifecycle) {
	flows := pathsOf(l)
	if len(l.Flows) == 0 {
		c.fail("spec.lifecycle", "has no flows")
	}
	if len(l.Flows) > FlowsMax {
		c.fail(flows.list, "has more than %d flows", FlowsMax)
		return
	}
	for i := range l.Flows {
		f := &l.Flows[i]
		for _, state := range f.Path {
			if !slices.Contains(c.walked, state) {
				c.walked = append(c.walked, state)
			}
		}
		for _, state := range []string{f.Target, f.Failure} {
			if state != "" && !slices.Contains(c.known, state) {
				c.known = append(c.known, state)
			}
		}
	}
	if l.Initial != "" && !slices.Contains(c.known, l.Initial) {
		c.known = append(c.known, l.Initial)
	}
	for _, state := range c.walked {
		if !slices.Contains(c.known, state) {
			c.known = append(c.known, state)
		}
	}
	for i := range l.Flows {
		c.flow(l, i, flows)
	}
	for _, v := range []struct{ field, verb string }{
		{"delete", l.Delete}, {"onCreate", l.OnCreate}, {"onChange", l.OnChange},
	} {
		if _, ok := l.Flow(v.verb); v.verb != "" && !ok {
			c.fail("spec.lifecycle."+v.field, "no flow has this verb")
		}
	}
	if l.Rerun != RerunFailed && l.Rerun != RerunAll {
		c.fail("spec.lifecycle.rerun", "is neither failed nor all")
	}
	if l.Initial != "" {
		c.name("spec.lifecycle.initial", l.Initial)
	}
	c.walk(l)
	if l.OnTargetChange != Cancel && l.OnTargetChange != Reject && l.OnTargetChange != Wait {
		c.fail("spec.lifecycle.onTargetChange", "is none of cancel, reject, wait")
	}
	if l.OnFailure != Continue && l.OnFailure != Drain {
		c.fail("spec.lifecycle.onFailure", "is none of continue, drain")
	}
}

// walk checks what Walk asks for.
func (c *checker) walk(l *Lifecycle) {
	const field = "spec.lifecycle"
	switch l.Walk {
	case Together:
		if len(l.Precedence) > 0 {
			c.fail(field+".precedence", "is for phases that walk by themselves (walk: each)")
		}
		return
	case Each:
	default:
		c.fail(field+".walk", "is neither together nor each")
		return
	}
	if l.Initial == "" {
		c.fail(field+".initial", "is missing: the state of a phase that no flow has touched")
	}
	if l.Rerun == RerunAll {
		c.fail(field+".rerun", "is not for phases that walk by themselves: redeploy, or a flow like it, runs those again that are done")
	}
	if l.OnTargetChange == Cancel {
		c.fail(field+".onTargetChange", "is not reject or wait: phases that walk by themselves have no common state to leave")
	}
	for i := range l.Flows {
		if len(l.Flows[i].From) == 0 {
			c.fail(at(field+".flows", i)+".from", "is missing: each phase starts from a state of its own")
		}
		if len(l.Flows[i].Path) > 0 && l.Flows[i].Failure == "" {
			c.fail(at(field+".flows", i)+".failure", "is missing: where a phase is that failed")
		}
	}
	if len(l.Precedence) > len(c.known) {
		c.fail(field+".precedence", "has more states than the lifecycle")
		return
	}
	for i, state := range l.Precedence {
		switch {
		case !slices.Contains(c.known, state):
			c.fail(at(field+".precedence", i), "no flow leads to or through this state")
		case slices.Contains(l.Precedence[:i], state):
			c.fail(at(field+".precedence", i), "is in the list twice")
		}
	}
	for _, state := range c.known {
		if !slices.Contains(l.Precedence, state) {
			c.fail(field+".precedence", "does not say where %s comes", state)
		}
	}
}

// sameWay reports whether two rows of a verb lead the same way.
func sameWay(a, b *Flow) bool {
	return a.Target == b.Target && a.Failure == b.Failure && a.Undo == b.Undo && a.Reverse == b.Reverse && slices.Equal(a.Path, b.Path)
}

// row checks a row against the rows of the same verb before it.
func (c *checker) row(l *Lifecycle, i int, field string) {
	f := &l.Flows[i]
	for k := range i {
		o := &l.Flows[k]
		if o.Verb != f.Verb {
			continue
		}
		overlap := len(o.From) == 0 || len(f.From) == 0 ||
			slices.ContainsFunc(f.From, func(s string) bool { return slices.Contains(o.From, s) })
		switch {
		case overlap:
			c.fail(field+".verb", "another flow has this verb, and may start from the same state")
			return
		case !sameWay(o, f):
			c.fail(field+".verb", "another flow has this verb and leads another way: rows of a verb differ in from, idempotent and wasDeployed")
			return
		}
	}
}

func (c *checker) flow(l *Lifecycle, i int, paths flowPaths) {
	f, field := &l.Flows[i], paths.flow(i)
	switch {
	case f.Verb == "":
		c.fail(field+".verb", "is missing")
	case len(f.Verb) > VerbBytesMax:
		c.fail(field+".verb", "is longer than %d bytes", VerbBytesMax)
	case !isVerb(f.Verb):
		c.fail(field+".verb", "is not lower-case letters, digits, - and _, beginning with a letter")
	case slices.Contains(reserved, f.Verb):
		c.fail(field+".verb", "is a verb that every lifecycle has")
	default:
		c.row(l, i, field)
	}
	if f.Failure != "" && c.name(field+".failure", f.Failure) && (f.Failure == f.Target || slices.Contains(f.Path, f.Failure)) {
		c.fail(field+".failure", "is the target or on the path")
	}
	if w := f.WasDeployed; w != "" && w != WasNot && w != WasIndeed && w != ByItsPast {
		c.fail(field+".wasDeployed", "is none of no, yes, history")
	}
	target := c.name(field+".target", f.Target)
	if len(f.Path) > StatesMax {
		c.fail(paths.path(f, i), "has more than %d states", StatesMax)
		return
	}
	for k, state := range f.Path {
		where := at(paths.path(f, i), k)
		if !c.name(where, state) {
			continue
		}
		if target && state == f.Target {
			c.fail(where, "is the target, which is reached when the path is walked")
		}
		if slices.Contains(f.Path[:k], state) {
			c.fail(where, "is in the path twice")
		}
	}
	if len(f.From) > len(c.known) {
		c.fail(field+".from", "has more states than the lifecycle")
		return
	}
	for k, state := range f.From {
		where := at(field+".from", k)
		if !slices.Contains(c.known, state) {
			c.fail(where, "no flow leads to or through this state")
		} else if slices.Contains(f.From[:k], state) {
			c.fail(where, "is in the list twice")
		}
	}
}

func isVerb(s string) bool {
	for i := range len(s) {
		letter := s[i] >= 'a' && s[i] <= 'z'
		if !letter && (i == 0 || (s[i] < '0' || s[i] > '9') && s[i] != '-' && s[i] != '_') {
			return false
		}
	}
	return s != ""
}

// flowPaths says where the flows stand in the manifest: presets take their paths from other fields than tables.
type flowPaths struct {
	preset bool
	list   string
}

func pathsOf(l *Lifecycle) flowPaths {
	return flowPaths{preset: l.Name != Custom, list: "spec.lifecycle.flows"}
}

func (p flowPaths) flow(i int) string { return at(p.list, i) }

func (p flowPaths) path(f *Flow, i int) string {
	switch {
	case !p.preset:
		return p.flow(i) + ".path"
	case f.Target == Started:
		return "spec.states"
	default:
		return "spec.paths." + f.Target
	}
}

func (c *checker) phases() {
	phases := c.blueprint.Phases
	if len(phases) > PhasesMax {
		c.fail("spec.phases", "has more than %d phases", PhasesMax)
		return
	}
	byName := make(map[string]*Phase, len(phases))
	for i := range phases {
		p, field := &phases[i], at("spec.phases", i)
		if c.name(field+".name", p.Name) {
			if byName[p.Name] != nil {
				c.fail(field+".name", "another phase has this name")
			} else {
				byName[p.Name] = p
			}
		}
	}
	for i := range phases {
		c.phase(at("spec.phases", i), &phases[i], byName)
	}
	c.cycles()
}

func (c *checker) phase(field string, p *Phase, byName map[string]*Phase) {
	c.text(field+".description", p.Description, TextBytesMax)
	c.text(field+".text", p.Text, TextBytesMax)
	each := c.blueprint.Lifecycle.Walk == Each
	switch {
	case each && len(p.States) > 0:
		c.fail(field+".states", "is not for this lifecycle: each of its phases walks all states by itself")
	case each:
	case len(p.States) == 0:
		c.fail(field+".states", "is missing: a phase belongs to one or more states")
	case len(p.States) > StatesMax:
		c.fail(field+".states", "has more than %d states", StatesMax)
	default:
		for i, state := range p.States {
			if !slices.Contains(c.walked, state) {
				c.fail(at(field+".states", i), "no path of the lifecycle leads through this state")
			} else if slices.Contains(p.States[:i], state) {
				c.fail(at(field+".states", i), "is in the list twice")
			}
		}
	}
	c.dependsOn(field+".dependsOn", p, byName)
	c.text(field+".when", p.When, WhenBytesMax)
	if len(p.Provider) > NameBytesMax || !printable(p.Provider) {
		c.fail(field+".provider", "is not printable text of at most %d bytes", NameBytesMax)
	}
	if !slices.Contains(ExecutorKinds(), p.Executor.Kind) {
		c.fail(field+".executor", "is none of %s", strings.Join(ExecutorKinds(), ", "))
	}
	if (p.Executor.Kind == ExecutorChildren) != (p.Children != nil) {
		c.fail(field+".executor.children", "says what to do with children where the executor is children, and only there")
	} else if p.Children != nil {
		c.children(field, p)
	}
	if p.Undo != nil && !slices.Contains(ExecutorKinds(), p.Undo.Kind) {
		c.fail(field+".undo", "is none of %s", strings.Join(ExecutorKinds(), ", "))
	}
	if l := &c.blueprint.Lifecycle; p.AutoDeploy != nil && *p.AutoDeploy && l.OnCreate == "" && l.OnChange == "" {
		c.fail(field+".autoDeploy", "is true, and the lifecycle names no flow that apply starts (onCreate, onChange)")
	}
	c.duration(field+".timeout", p.Timeout, 0, TimeoutMax)
	c.duration(field+".interval", p.Interval, IntervalMin, IntervalMax)
	c.duration(field+".lease", p.Lease, 0, LeaseMax)
	if p.Retry.Attempts < 0 || p.Retry.Attempts > RetryAttemptsMax {
		c.fail(field+".retry.attempts", "is not 0 to %d", RetryAttemptsMax)
	}
	c.duration(field+".retry.delay", p.Retry.Delay, 0, RetryDelayMax)
	switch {
	case p.Calls == nil:
	case p.Executor.Kind == ExecutorChildren:
		c.fail(field+".calls", "is of no use: the engine itself carries out what is done with children")
	case *p.Calls < 0 || *p.Calls > phase.CallsMax:
		c.fail(field+".calls", "is not 0 to %d", phase.CallsMax)
	}
}

func (c *checker) children(field string, p *Phase) {
	switch p.Children.Do {
	case DoAll, DoApply, DoRun, DoMark, DoDelete:
	default:
		c.fail(field+".executor.children.do", "is none of apply, run, mark, delete")
	}
	makes := func(o *Phase) bool { return o.Children != nil && (o.Children.Do == DoAll || o.Children.Do == DoApply) }
	for i := range c.blueprint.Phases {
		if o := &c.blueprint.Phases[i]; o == p {
			break
		} else if makes(o) && makes(p) {
			c.fail(field+".executor.children", "phase %s makes the children already: one would take those of the other for orphans", o.Name)
		}
	}
	if p.Retry.Attempts > 0 {
		c.fail(field+".retry", "is not for a phase on children: each child has its own")
	}
	if p.Undo != nil && p.Undo.Kind != ExecutorChildren {
		c.fail(field+".undo", "is not children, and the executor is")
	}
}

func (c *checker) dependsOn(field string, p *Phase, byName map[string]*Phase) {
	if len(p.DependsOn) > DependsOnMax {
		c.fail(field, "has more than %d phases", DependsOnMax)
		return
	}
	for i, name := range p.DependsOn {
		on := byName[name]
		switch {
		case name == p.Name:
			c.fail(at(field, i), "is the phase itself")
		case on == nil:
			c.fail(at(field, i), "no phase of this name")
		case slices.Contains(p.DependsOn[:i], name):
			c.fail(at(field, i), "is in the list twice")
		case c.blueprint.Lifecycle.Walk == Together && !slices.ContainsFunc(on.States, func(s string) bool { return slices.Contains(p.States, s) }):
			c.fail(at(field, i), "shares no state with this phase: dependencies hold within a state, and the order of "+
				"states is the path's")
		}
	}
}

// cycles reports the dependency that closes a cycle, state by state: phases wait for each other only within one.
func (c *checker) cycles() {
	phases := c.blueprint.Phases
	var reported []string
	states := c.walked
	if c.blueprint.Lifecycle.Walk == Each {
		states = []string{c.blueprint.Lifecycle.Initial} // they stand side by side, whatever each is in
	}
	for _, state := range states {
		w := cycleWalk{in: make(map[string]int), mark: make([]uint8, len(phases)), phases: phases}
		for i := range phases {
			if c.blueprint.Has(&phases[i], state) {
				w.in[phases[i].Name] = i
			}
		}
		for i := range phases {
			if own, ok := w.in[phases[i].Name]; !ok || own != i || w.mark[i] != 0 || !w.visit(i) {
				continue
			}
			if !slices.Contains(reported, w.field) { // the same phases may share several states
				reported = append(reported, w.field)
				c.fail(w.field, "closes a cycle in state %s: %s", state, strings.Join(w.cycle, " → "))
			}
			break
		}
	}
}

type cycleWalk struct {
	phases []Phase
	in     map[string]int // index by name of the phases of the state; never ranged over
	mark   []uint8        // 0 not seen, 1 on the way, 2 done
	way    []int
	field  string   // of the dependency that closes the cycle
	cycle  []string // names
}

func (w *cycleWalk) visit(i int) bool {
	w.mark[i] = 1
	w.way = append(w.way, i)
	for k, name := range w.phases[i].DependsOn {
		on, ok := w.in[name]
		if !ok || on == i || w.mark[on] == 2 { // a phase that waits for itself is reported as such
			continue
		}
		if w.mark[on] == 1 {
			w.field = at(at("spec.phases", i)+".dependsOn", k)
			for _, step := range w.way[slices.Index(w.way, on):] {
				w.cycle = append(w.cycle, w.phases[step].Name)
			}
			w.cycle = append(w.cycle, name)
			return true
		}
		if w.visit(on) {
			return true
		}
	}
	w.mark[i] = 2
	w.way = w.way[:len(w.way)-1]
	return false
}

func (c *checker) text(field, s string, bytesMax int) {
	if len(s) > bytesMax {
		c.fail(field, "is longer than %d bytes", bytesMax)
	} else if !utf8.ValidString(s) {
		c.fail(field, "is not UTF-8")
	}
}

// duration checks a duration whose zero means its default.
func (c *checker) duration(field string, d, least, most time.Duration) {
	switch {
	case d < 0:
		c.fail(field, "is negative")
	case d > most:
		c.fail(field, "is longer than %s", most)
	case d > 0 && d < least:
		c.fail(field, "is shorter than %s", least)
	}
}
