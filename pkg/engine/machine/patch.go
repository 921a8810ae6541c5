package machine

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// patch changes a machine: the operations one after another on a draft, and then what the draft means.
func patch(s State, p *Patch, in Input) (State, Effects) {
	if in.RequestID != "" && in.RequestID == s.PatchID {
		return s, Effects{Run: s.Run, Again: true}
	}
	draft := s
	draft.Meta, draft.Params = maps.Clone(s.Meta), maps.Clone(s.Params)
	if r := operate(p.Ops, draft.value, draft.set); r != nil {
		return s, Effects{Refused: r}
	}
	after := s
	after.Description, after.Meta, after.Params, after.Runnable = draft.Description, draft.Meta, draft.Params, draft.Runnable
	if r := move(&s, &after, &draft.Workflow, &draft.Stage, &draft.BootEnv, p.Definitions, false); r != nil {
		return s, Effects{Refused: r}
	}
	moved := draft.Workflow != s.Workflow || draft.Stage != s.Stage
	tasks, place := !slices.Equal(draft.Tasks, s.Tasks), draft.CurrentTask != s.CurrentTask
	switch {
	case moved && (tasks || place):
		return s, refuse(Invalid, "Tasks", "Tasks and CurrentTask follow from the Workflow or Stage that the same patch sets")
	case tasks && place:
		return s, refuse(Invalid, "CurrentTask", "cannot be changed together with Tasks")
	case tasks:
		if r := s.editable(draft.Tasks); r != nil {
			return s, Effects{Refused: r}
		}
		after.Tasks = draft.Tasks
	case place:
		to, r := s.reset(draft.CurrentTask)
		if r != nil {
			return s, Effects{Refused: r}
		}
		after.CurrentTask, after.Context = to, s.contextAt(to)
	}
	if draft.Context != s.Context {
		after.Context = draft.Context
	}
	if r := checkLimits(&after); r != nil {
		return s, Effects{Refused: r}
	}
	if same(&s, &after) {
		return s, Effects{Run: s.Run}
	}
	after.PatchID = in.RequestID
	return commit(after, nil, nil, in.At, Effects{Cause: "patch"})
}

func same(a, b *State) bool {
	return a.Description == b.Description && a.Workflow == b.Workflow && a.Stage == b.Stage && a.BootEnv == b.BootEnv &&
		a.Context == b.Context && maps.Equal(a.Meta, b.Meta) && maps.Equal(a.Params, b.Params) && slices.Equal(a.Tasks, b.Tasks) &&
		a.CurrentTask == b.CurrentTask && a.Runnable == b.Runnable
}

// operate carries out operations, through the two functions.
func operate(ops []Op, get func(path string) (Value, bool), set func(path string, v Value) (known bool, reason string)) *Refusal {
	if len(ops) > OpsMax {
		return &Refusal{Code: TooLarge, Message: "at most " + strconv.Itoa(OpsMax) + " operations"}
	}
	for i, op := range ops {
		if op.Test {
			if v, ok := get(op.Path); !ok || !v.equal(op.Value) {
				return &Refusal{Code: TestFailed, Field: op.Path, Message: "Test op failed.", Line: i}
			}
			continue
		}
		v := op.Value
		if op.Remove {
			v = Value{Kind: Null}
		}
		known, reason := set(op.Path, v)
		switch {
		case !known:
			return &Refusal{Code: BadPatch, Field: op.Path, Message: "there is no such field", Line: i}
		case reason != "":
			return &Refusal{Code: Invalid, Field: strings.TrimPrefix(op.Path, "/"), Message: reason, Line: i}
		}
	}
	return nil
}

func (v Value) equal(w Value) bool {
	empty := func(v Value) bool { return v.Kind == Null || v.Kind == List && len(v.List) == 0 }
	switch {
	case empty(v) && empty(w):
		return true
	case v.Kind != w.Kind:
		return v.JSON != "" && v.JSON == w.JSON
	}
	switch v.Kind {
	case Text:
		return v.Text == w.Text
	case Bool:
		return v.Bool == w.Bool
	case Int:
		return v.Int == w.Int
	case List:
		return slices.Equal(v.List, w.List)
	default:
		return v.JSON == w.JSON
	}
}

func textValue(s string) Value { return Value{Kind: Text, Text: s} }
func boolValue(b bool) Value   { return Value{Kind: Bool, Bool: b} }

// pointer splits a JSON pointer of two parts: "/Params/a~1b" is Params and a/b.
func pointer(path string) (field, key string, deep bool) {
	field, key, deep = strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return field, strings.ReplaceAll(strings.ReplaceAll(key, "~1", "/"), "~0", "~"), deep
}

// value is what a path of a machine holds.
func (s *State) value(path string) (Value, bool) {
	field, key, deep := pointer(path)
	if deep {
		switch field {
		case "Meta":
			v, ok := s.Meta[key]
			return textValue(v), ok
		case "Params":
			v, ok := s.Params[key]
			return Value{Kind: Other, JSON: v}, ok
		}
		return Value{}, false
	}
	switch field {
	case "Uuid":
		return textValue(s.UUID), true
	case "Name":
		return textValue(s.Name), true
	case "Description":
		return textValue(s.Description), true
	case "Workflow":
		return textValue(s.Workflow), true
	case "Stage":
		return textValue(s.Stage), true
	case "BootEnv":
		return textValue(s.BootEnv), true
	case "Context":
		return textValue(s.Context), true
	case "CurrentJob":
		return textValue(s.CurrentJob), true
	case "Runnable":
		return boolValue(s.Runnable), true
	case "Available":
		return boolValue(s.Available), true
	case "CurrentTask":
		return Value{Kind: Int, Int: s.CurrentTask}, true
	case "Tasks":
		return Value{Kind: List, List: s.Tasks}, true
	}
	return Value{}, false
}

const (
	needsText = "must be a text"
	readOnly  = "is read-only"
)

// set changes what a path of a draft holds.
func (s *State) set(path string, v Value) (known bool, reason string) {
	field, key, deep := pointer(path)
	if deep {
		return s.setDeep(field, key, v)
	}
	text := func(to *string) (bool, string) {
		if v.Kind != Text && v.Kind != Null {
			return true, needsText
		}
		*to = v.Text
		return true, ""
	}
	switch field {
	case "Description":
		return text(&s.Description)
	case "Workflow":
		return text(&s.Workflow)
	case "Stage":
		return text(&s.Stage)
	case "BootEnv":
		return text(&s.BootEnv)
	case "Context":
		return text(&s.Context)
	case "Runnable":
		if v.Kind != Bool {
			return true, "must be true or false"
		}
		s.Runnable = v.Bool
		return true, ""
	case "CurrentTask":
		if v.Kind != Int {
			return true, "must be a whole number"
		}
		s.CurrentTask = v.Int
		return true, ""
	case "Tasks":
		if v.Kind != List && v.Kind != Null {
			return true, "must be a list of texts"
		}
		s.Tasks = slices.Clone(v.List)
		return true, ""
	}
	if now, ok := s.value(path); ok && now.equal(v) {
		return true, ""
	} else if ok {
		return true, readOnly
	}
	return false, ""
}

func (s *State) setDeep(field, key string, v Value) (known bool, reason string) {
	put := func(m *map[string]string, value string) (bool, string) {
		switch {
		case v.Kind == Null:
			delete(*m, key)
		case *m == nil:
			*m = map[string]string{key: value}
		default:
			(*m)[key] = value
		}
		return true, ""
	}
	switch field {
	case "Meta":
		if v.Kind != Text && v.Kind != Null {
			return true, needsText
		}
		return put(&s.Meta, v.Text)
	case "Params":
		return put(&s.Params, v.JSON)
	}
	return false, ""
}

// editable says why a task list cannot take the place of the present one: what was done stays, what belongs to the next
// stage stays; between them all may change (facts, section 6, "Task-list edits").
func (s *State) editable(tasks []string) *Refusal {
	past := s.Tasks[:min(max(s.CurrentTask+1, 0), len(s.Tasks))]
	future := s.Tasks[len(past):]
	for i, entry := range future {
		if strings.HasPrefix(entry, prefixStage) {
			future = future[i:]
			break
		}
		if i == len(future)-1 {
			future = nil
		}
	}
	if len(past) == 0 { // nothing was begun, and the stage at the head is the present one
		future = nil
	}
	switch {
	case len(tasks) < len(past)+len(future), !slices.Equal(tasks[:len(past)], past):
		return &Refusal{Code: Invalid, Field: "Tasks", Message: "what stands before and at CurrentTask cannot be changed"}
	case !slices.Equal(tasks[len(tasks)-len(future):], future):
		return &Refusal{Code: Invalid, Field: "Tasks", Message: "what belongs to the next stages cannot be changed"}
	}
	return nil
}

// reset is where the place goes that is set to an index: back only, never over a change of the boot environment. To -1 is,
// with a workflow, as far back as the machine need not boot into another one (seed 004, "Resetting the CurrentTask index").
func (s *State) reset(to int) (int, *Refusal) {
	switch {
	case to < -1 || to > s.CurrentTask:
		return 0, &Refusal{Code: Invalid, Field: "CurrentTask", Message: "can only be set back, at the most to -1"}
	case to >= 0:
		for _, entry := range s.Tasks[to:min(s.CurrentTask+1, len(s.Tasks))] {
			if strings.HasPrefix(entry, prefixBootEnv) {
				return 0, &Refusal{Code: Invalid, Field: "CurrentTask", Message: "cannot be set back over " + entry}
			}
		}
		return to, nil
	case s.Workflow == "":
		return -1, nil
	}
	found, env, head := -1, "", -1 // env is that of the section which begins at head
	last := min(s.CurrentTask, len(s.Tasks)-1)
	type section struct {
		head int
		env  string
	}
	var sections []section
	for i := 0; i <= last; i++ {
		if strings.HasPrefix(s.Tasks[i], prefixStage) {
			if head >= 0 {
				sections = append(sections, section{head, env})
			}
			head, env = i, ""
		}
		if value, ok := strings.CutPrefix(s.Tasks[i], prefixBootEnv); ok {
			env = value
		}
	}
	if head >= 0 {
		sections = append(sections, section{head, env})
	}
	for _, sec := range slices.Backward(sections) {
		if sec.env != "" && sec.env != s.BootEnv {
			break
		}
		if sec.env == s.BootEnv {
			found = sec.head
		}
	}
	return found, nil
}

// contextAt is the context at a place, by the entries before it.
func (s *State) contextAt(place int) string {
	context := s.baseContext()
	for i := 0; i < place && i < len(s.Tasks); i++ {
		if value, ok := strings.CutPrefix(s.Tasks[i], prefixContext); ok {
			context = value
		}
	}
	return context
}

// report changes a run.
func report(s State, p *Report, in Input) (State, Effects) {
	current := s.Run != nil && s.Run.ID == p.RunID
	run := p.Past
	if current {
		run = s.Run
	}
	if run == nil {
		return s, refuse(NotFound, "", "there is no such job")
	}
	if in.RequestID != "" && in.RequestID == run.ReportID {
		return s, Effects{Run: run, Again: true}
	}
	draft := *run
	if r := operate(p.Ops, draft.value, draft.set); r != nil {
		return s, Effects{Refused: r}
	}
	if draft == *run {
		return s, Effects{Run: run}
	}
	switch {
	case !current:
		return s, refuse(Conflict, "State", "another job has taken its place; it is "+run.State.String())
	case run.State.Final():
		return s, refuse(Conflict, "State", "the job is "+run.State.String()+", which is final")
	case draft.State != run.State && !May(run.State, draft.State):
		return s, refuse(Conflict, "State", "a job that is "+run.State.String()+" cannot become "+draft.State.String())
	}
	after, changed := s, *run
	end(&changed, draft.State, in.At)
	changed.ExitState, changed.ReportID = draft.ExitState, in.RequestID
	if run.State == draft.State { // the exit state alone
		changed.StartedAt = run.StartedAt
	}
	fx := Effects{Cause: "report", Run: &changed, Runs: []Run{changed}}
	after.Run = &changed
	if changed.State == Failed && s.Runnable { // seed 004, step 7: "updating a Job to the failed state automatically makes the Machine not Runnable"
		after.Runnable = false
		after = stamp(after, in.At)
		fx.Machine = true
	}
	return after, fx
}

// value is what a path of a run holds.
func (r *Run) value(path string) (Value, bool) {
	switch path {
	case "/Uuid":
		return textValue(r.ID), true
	case "/Previous":
		return textValue(r.Previous), true
	case "/Machine":
		return textValue(r.MachineUUID), true
	case "/Task":
		return textValue(r.Task), true
	case "/Stage":
		return textValue(r.Stage), true
	case "/BootEnv":
		return textValue(r.BootEnv), true
	case "/Workflow":
		return textValue(r.Workflow), true
	case "/Context":
		return textValue(r.Context), true
	case "/State":
		return textValue(r.State.String()), true
	case "/ExitState":
		return textValue(r.ExitState), true
	case "/CurrentIndex":
		return Value{Kind: Int, Int: r.Index}, true
	case "/NextIndex":
		return Value{Kind: Int, Int: r.Index + 1}, true
	}
	return Value{}, false
}

func (r *Run) set(path string, v Value) (known bool, reason string) {
	now, ok := r.value(path)
	switch {
	case !ok:
		return false, ""
	case path == "/State":
		to, ok := ParseRunState(v.Text)
		if !ok {
			return true, "must be created, running, incomplete, failed or finished"
		}
		r.State = to
	case path == "/ExitState":
		if v.Kind != Text && v.Kind != Null || !slices.Contains(exitStates, v.Text) {
			return true, "must be reboot, poweroff, stop, complete or failed"
		}
		r.ExitState = v.Text
	case !now.equal(v):
		return true, readOnly
	}
	return true, ""
}

// checkLimits says which limit a machine would pass.
func checkLimits(s *State) *Refusal {
	sum := func(m map[string]string) (n int) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			n += len(k) + len(m[k])
		}
		return n
	}
	too := func(field string, most int, unit string) *Refusal {
		return &Refusal{Code: TooLarge, Field: field, Message: "at most " + strconv.Itoa(most) + " " + unit}
	}
	switch {
	case len(s.Tasks) > TasksMax:
		return too("Tasks", TasksMax, "entries")
	case slices.ContainsFunc(s.Tasks, func(e string) bool { return e == "" || len(e) > EntryBytesMax }):
		return too("Tasks", EntryBytesMax, "bytes an entry, and none is empty")
	case len(s.Description) > TextBytesMax:
		return too("Description", TextBytesMax, "bytes")
	case len(s.Context) > TextBytesMax:
		return too("Context", TextBytesMax, "bytes")
	case len(s.BootEnv) > EntryBytesMax:
		return too("BootEnv", EntryBytesMax, "bytes")
	case len(s.Meta) > MetaMax:
		return too("Meta", MetaMax, "entries")
	case sum(s.Meta) > MetaBytesMax:
		return too("Meta", MetaBytesMax, "bytes")
	case len(s.Params) > ParamsMax:
		return too("Params", ParamsMax, "parameters")
	case sum(s.Params) > ParamsBytesMax:
		return too("Params", ParamsBytesMax, "bytes")
	}
	return nil
}
