// Package rebar is what the manifests of Digital Rebar's kinds say: Task, Stage, Workflow, BootEnv and Machine (seed 004).
//
//	kind: Task                           kind: Stage                     kind: Workflow
//	metadata: {name: hello}              metadata: {name: first}         metadata: {name: install}
//	spec:                                spec:                           spec:
//	  templates:                           bootEnv: local                  stages: [first, second]
//	  - name: script                       tasks: [hello]
//	    contents: |
//	      #!/bin/sh                      kind: Machine
//	      echo {{.Machine.Name}}         metadata: {name: m1}
//	                                     spec: {workflow: install, params: {size: 3}}
//
// Task, Stage, Workflow and BootEnv are definitions: resources of built-in kinds, which need no blueprint and have no phases,
// so that they have digests, history and names like everything else. A Machine is no resource; it is a machine of
// pkg/engine/machine, and its manifest says what a person sets of it.
//
// Intake decodes a spec when it is applied, so that what is wrong is refused with its field; who acts on it decodes it again.
package rebar

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/droverproject/drover/pkg/engine/machine"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/strictjson"
)

// Limits of one definition.
const (
	TemplatesMax     = 32        // templates of a task
	ContentsBytesMax = 256 << 10 // bytes of one template
	PathBytesMax     = 4096      // bytes of a template's path
	MetaMax          = 64        // entries of a meta
	StagesMax        = 64        // stages of a workflow
	StageTasksMax    = 256       // tasks of a stage
)

// Template is one part of a task: a script to be executed, or, with a path, a file to be written.
type Template struct {
	Name     string            `json:"name"`
	Path     string            `json:"path"`
	Contents string            `json:"contents"`
	Meta     map[string]string `json:"meta"`
}

// Task is the spec of a Task.
type Task struct {
	Description string            `json:"description"`
	Templates   []Template        `json:"templates"`
	Meta        map[string]string `json:"meta"`
}

// Stage is the spec of a Stage.
type Stage struct {
	Description string   `json:"description"`
	BootEnv     string   `json:"bootEnv"`
	Tasks       []string `json:"tasks"`
}

// Workflow is the spec of a Workflow.
type Workflow struct {
	Description string   `json:"description"`
	Stages      []string `json:"stages"`
}

// BootEnv is the spec of a BootEnv. What is to be booted is for later versions: agents need its name.
type BootEnv struct {
	Description string `json:"description"`
}

// Machine is the spec of a Machine. What is nil stays as it is.
type Machine struct {
	Description string                     `json:"description"`
	Workflow    *string                    `json:"workflow"`
	Stage       *string                    `json:"stage"`
	BootEnv     *string                    `json:"bootEnv"`
	Runnable    *bool                      `json:"runnable"`
	Available   *bool                      `json:"available"`
	Meta        map[string]string          `json:"meta"`
	Params      map[string]json.RawMessage `json:"params"`
}

// Check returns every mistake of a spec of one of the kinds, with paths below "spec".
func Check(kind string, spec []byte) []resource.Violation {
	switch kind {
	case resource.TaskKind:
		_, found := DecodeTask(spec)
		return found
	case resource.StageKind:
		_, found := DecodeStage(spec)
		return found
	case resource.WorkflowKind:
		_, found := DecodeWorkflow(spec)
		return found
	case resource.BootEnvKind:
		var b BootEnv
		c := read(spec, &b)
		return c.found
	default:
		_, found := DecodeMachine(spec)
		return found
	}
}

// DecodeTask reads a Task.
func DecodeTask(spec []byte) (t Task, found []resource.Violation) {
	c := read(spec, &t)
	c.meta("spec.meta", t.Meta)
	if len(t.Templates) > TemplatesMax {
		c.fail("spec.templates", "at most %d", TemplatesMax)
		return t, c.found
	}
	seen := map[string]bool{}
	for i, tpl := range t.Templates {
		path := fmt.Sprintf("spec.templates[%d]", i)
		c.name(path+".name", tpl.Name)
		if seen[tpl.Name] {
			c.fail(path+".name", "is given twice")
		}
		seen[tpl.Name] = true
		if len(tpl.Contents) > ContentsBytesMax {
			c.fail(path+".contents", "at most %d bytes", ContentsBytesMax)
		}
		if len(tpl.Path) > PathBytesMax {
			c.fail(path+".path", "at most %d bytes", PathBytesMax)
		}
		c.meta(path+".meta", tpl.Meta)
	}
	return t, c.found
}

// DecodeStage reads a Stage.
func DecodeStage(spec []byte) (s Stage, found []resource.Violation) {
	c := read(spec, &s)
	if s.BootEnv != "" {
		c.name("spec.bootEnv", s.BootEnv)
	}
	if len(s.Tasks) > StageTasksMax {
		c.fail("spec.tasks", "at most %d", StageTasksMax)
		return s, c.found
	}
	for i, name := range s.Tasks {
		path := fmt.Sprintf("spec.tasks[%d]", i)
		c.name(path, name)
		if what, _, ok := strings.Cut(name, ":"); ok && !slices.Contains([]string{"context", "action", "chroot", "bootenv"}, what) {
			c.fail(path, "is neither a task nor context:, action:, chroot: or bootenv:")
		}
	}
	return s, c.found
}

// DecodeWorkflow reads a Workflow.
func DecodeWorkflow(spec []byte) (w Workflow, found []resource.Violation) {
	c := read(spec, &w)
	if len(w.Stages) > StagesMax {
		c.fail("spec.stages", "at most %d", StagesMax)
		return w, c.found
	}
	for i, name := range w.Stages {
		c.name(fmt.Sprintf("spec.stages[%d]", i), name)
	}
	return w, c.found
}

// DecodeMachine reads a Machine. Its params are canonical JSON.
func DecodeMachine(spec []byte) (m Machine, found []resource.Violation) {
	c := read(spec, &m)
	c.meta("spec.meta", m.Meta)
	if len(m.Description) > machine.TextBytesMax {
		c.fail("spec.description", "at most %d bytes", machine.TextBytesMax)
	}
	if len(m.Params) > machine.ParamsMax {
		c.fail("spec.params", "at most %d", machine.ParamsMax)
		return m, c.found
	}
	for _, name := range slices.Sorted(maps.Keys(m.Params)) {
		c.name(strictjson.Field("spec.params", name), name)
	}
	for _, f := range []struct {
		field string
		value *string
	}{{"workflow", m.Workflow}, {"stage", m.Stage}, {"bootEnv", m.BootEnv}} {
		if f.value != nil && *f.value != "" {
			c.name("spec."+f.field, *f.value)
		}
	}
	if m.Workflow != nil && *m.Workflow != "" && (m.Stage != nil || m.BootEnv != nil) {
		c.fail("spec.workflow", "excludes stage and bootEnv: a workflow sets those")
	}
	return m, c.found
}

type checker struct{ found []resource.Violation }

func read(spec []byte, v any) *checker {
	if len(spec) == 0 {
		spec = []byte("{}")
	}
	c := &checker{}
	for _, e := range strictjson.Unmarshal("spec", spec, v) {
		c.fail(e.Field, "%s", e.Reason)
	}
	return c
}

func (c *checker) fail(field, format string, args ...any) {
	if len(c.found) < strictjson.ErrorsMax {
		c.found = append(c.found, resource.Violation{Field: field, Reason: fmt.Sprintf(format, args...)})
	}
}

func (c *checker) name(field, name string) {
	if reason := manifest.CheckName(name); reason != "" {
		c.fail(field, "%s", reason)
	}
}

// meta judges texts by names: agents read nothing else there (facts/digitalrebar.md, 2.6).
func (c *checker) meta(field string, meta map[string]string) {
	if len(meta) > MetaMax {
		c.fail(field, "at most %d entries", MetaMax)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(meta)) {
		if len(name) > manifest.LabelBytesMax || len(meta[name]) > machine.TextBytesMax {
			c.fail(strictjson.Field(field, name), "at most %d bytes of a name and %d of its text", manifest.LabelBytesMax, machine.TextBytesMax)
		}
	}
}
