package manifest

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/deployment"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/machine"
	"github.com/droverproject/drover/pkg/engine/resource"
)

const concepts = "../../docs/concepts.md"

// TestConceptsFresh: the diagrams that users see are drawn of the engine's tables.
func TestConceptsFresh(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(concepts)
	require.NoError(t, err)
	drawn := map[string]string{"phase": phaseDiagram(), "job": jobDiagram(), "deployment": deploymentDiagram(), "taskrun": runDiagram()}
	for _, name := range Presets() {
		drawn[name] = flowDiagram(name)
	}
	place := regexp.MustCompile(`(?s)<!-- diagram (\w+) -->\n.*?<!-- end -->`)
	found := map[string]bool{}
	want := place.ReplaceAllStringFunc(string(text), func(old string) string {
		name := place.FindStringSubmatch(old)[1]
		require.NotEmpty(t, drawn[name], "%s is drawn of no table", name)
		require.False(t, found[name], "%s stands there twice", name)
		found[name] = true
		return "<!-- diagram " + name + " -->\n```mermaid\nstateDiagram-v2\n" + drawn[name] + "```\n<!-- end -->"
	})
	require.Len(t, found, len(drawn), "each diagram stands in %s once", concepts)
	if *update {
		require.NoError(t, os.WriteFile(concepts, []byte(want), 0o600))
		return
	}
	require.Equal(t, want, string(text), "run: make generate")
}

// diagram is a mermaid state diagram: arrows between the same two states are one, with all its labels.
type diagram struct {
	states []string
	arrows [][2]string
	labels map[[2]string][]string
}

func (d *diagram) arrow(from, to, label string) {
	for _, s := range []string{from, to} {
		if s != "[*]" && !contains(d.states, s) {
			d.states = append(d.states, s)
		}
	}
	at := [2]string{from, to}
	if d.labels == nil {
		d.labels = map[[2]string][]string{}
	}
	if _, ok := d.labels[at]; !ok {
		d.arrows, d.labels[at] = append(d.arrows, at), nil
	}
	if label != "" && !contains(d.labels[at], label) {
		d.labels[at] = append(d.labels[at], label)
	}
}

func contains(all []string, s string) bool {
	for _, a := range all {
		if a == s {
			return true
		}
	}
	return false
}

var notInID = regexp.MustCompile(`[^A-Za-z0-9_]`)

func (d *diagram) String() string {
	id := func(s string) string {
		if s == "[*]" {
			return s
		}
		return notInID.ReplaceAllString(s, "_")
	}
	text := ""
	for _, s := range d.states {
		if id(s) != s {
			text += "    state \"" + s + "\" as " + id(s) + "\n"
		}
	}
	for _, a := range d.arrows {
		text += "    " + id(a[0]) + " --> " + id(a[1])
		if labels := d.labels[a]; len(labels) > 0 {
			text += ": " + strings.Join(labels, ", ")
		}
		text += "\n"
	}
	return text
}

// flowDiagram draws a preset's flows.
func flowDiagram(name string) string {
	l, _ := Preset(name)
	d := &diagram{}
	if l.Initial != "" {
		d.arrow("[*]", l.Initial, "")
	}
	for _, f := range l.Flows {
		from, path := f.From, f.Path
		if len(from) == 0 {
			from = []string{"any state"}
		}
		if name == blueprint.PresetNode { // its paths are each blueprint's own
			path = []string{"paths." + f.Target}
			if f.Target == blueprint.Started {
				path = []string{"states"}
			}
		}
		verb := f.Verb
		if f.Idempotent {
			verb += " (if idempotent)"
		}
		for _, s := range from {
			if s == "" {
				s = "new"
			}
			d.arrow(s, append(path, f.Target)[0], verb)
		}
		for i, s := range path {
			d.arrow(s, append(path[i+1:len(path):len(path)], f.Target)[0], "")
			if f.Failure != "" {
				d.arrow(s, f.Failure, "failure")
			}
		}
	}
	return d.String()
}

func phaseDiagram() string {
	d := &diagram{}
	for _, from := range resource.Statuses() {
		for _, e := range resource.PhaseEvents() {
			to, ok := resource.Next(from, e)
			switch {
			case !ok, from == to, e == resource.Drop, e == resource.Expire:
			case (e == resource.Enter || e == resource.Retry) && from != resource.NoStatus:
				// From everywhere, back to the beginning: said in words.
			case from == resource.NoStatus:
				d.arrow("[*]", to.String(), e.String())
			default:
				d.arrow(from.String(), to.String(), e.String())
			}
		}
	}
	return d.String()
}

func jobDiagram() string {
	d := &diagram{}
	d.arrow("[*]", job.Pending.String(), "")
	for _, from := range job.States() {
		for _, to := range job.States() {
			if from != job.None && job.May(from, to) {
				d.arrow(from.String(), to.String(), "")
			}
		}
	}
	return d.String()
}

func deploymentDiagram() string {
	d := &diagram{}
	for _, from := range deployment.Statuses() {
		for _, to := range deployment.Statuses() {
			switch {
			case from == to || !deployment.May(from, to):
			case from == deployment.None:
				d.arrow("[*]", to.String(), "")
			case to == deployment.None:
				d.arrow(from.String(), "[*]", "")
			default:
				d.arrow(from.String(), to.String(), "")
			}
		}
	}
	return d.String()
}

func runDiagram() string {
	d := &diagram{}
	for _, from := range machine.RunStates() {
		for _, to := range machine.RunStates() {
			switch {
			case !machine.May(from, to):
			case from == machine.NoRun:
				d.arrow("[*]", to.String(), "")
			default:
				d.arrow(from.String(), to.String(), "")
			}
		}
	}
	return d.String()
}
