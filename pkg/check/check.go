// Package check judges a command by itself: whether what is asked could be meant at all. Everything that is wrong is
// reported, with the path of its field; nothing is stored for a command that fails here.
//
// Paths are those of the manifest where one is meant (metadata.name, spec.phases[1].dependsOn[0]), "args.<name>" for
// arguments, "subject.<part>" for the subject and "header.<name>" for headers.
//
// # Absent on purpose
//
// What depends on a state is the owner's to judge: whether the resource exists, whether its kind has the verb, and
// whether the verb is allowed now. Nothing here reads anything but the message.
package check

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/drive"
	place "github.com/droverproject/drover/pkg/engine/check"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/engine/selection"
	"github.com/droverproject/drover/pkg/listener"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/monitoring"
	"github.com/droverproject/drover/pkg/rebar"
	"github.com/droverproject/drover/pkg/selector"
	"github.com/droverproject/drover/pkg/strictjson"
	"github.com/droverproject/drover/pkg/wire"
)

// Limits of a command, beside those of wire and manifest.
const (
	RequestIDBytesMax   = 64                       // bytes of a request id
	ArgsMax             = 16                       // arguments
	ArgBytesMax         = resource.MessageBytesMax // bytes of an argument's value
	RequestedByBytesMax = 253                      // bytes of the label that says who asks
)

// Target is whom a command is for, and what it asks.
type Target struct {
	resource.Key
	Verb string
}

// ParseSubject reads the subject of a command, in either of its forms. A subject of another shape is poison: nobody can
// be told by it why it is refused.
func ParseSubject(subject string) (Target, error) {
	// The grammar's own "-" stands for a selector. It is no token of a name, so it is read as the name that it would be.
	if t := strings.Split(subject, "."); len(t) == 6 && t[4] == "-" {
		t[4] = bus.Token("-")
		subject = strings.Join(t, ".")
	}
	project, kind, name, verb, err := bus.ParseCommandSubject(subject)
	if err != nil {
		return Target{}, err
	}
	return Target{Key: resource.Key{Project: project, Kind: kind, Name: name}, Verb: verb}, nil
}

// Selects reports whether the name stands for a selector.
func (t Target) Selects() bool { return t.Name == selection.Name }

// Subject is the captured form of the target's subject, which is how the owner is told whom a command is for.
func (t Target) Subject() string { return bus.CommandSubject("cmd", t.Project, t.Kind, t.Name, t.Verb) }

// Partition is that of the root of the target's tree, of n. In this version every resource is its own root.
func (t Target) Partition(n int) int { return bus.PartitionOf(t.Project, t.Kind, t.Name, n) }

// Message is a command as it arrived.
type Message struct {
	Target      Target
	RequestID   string // from the header, or made
	MessageID   string // Nats-Msg-Id; empty where there is none
	ContentType string
	Body        []byte
}

// Command returns why a command is refused, or nil.
func Command(m Message) *resource.Refusal {
	c := &checker{}
	c.target(m.Target)
	c.ids(m)
	command, err := wire.DecodeCommand(m.ContentType, m.Body)
	if err != nil {
		c.undecodable(err)
		return c.refusal()
	}
	c.command(m.Target, command)
	return c.refusal()
}

type checker struct {
	found []resource.Violation
	large bool // one of them is a size
}

func (c *checker) fail(field, reason string) {
	if len(c.found) < strictjson.ErrorsMax {
		c.found = append(c.found, resource.Violation{Field: field, Reason: reason})
	}
}

func (c *checker) refusal() *resource.Refusal {
	if len(c.found) == 0 {
		return nil
	}
	r := &resource.Refusal{Code: resource.Invalid, Violations: c.found}
	if c.large {
		r.Code = resource.TooLarge
	}
	r.Message = c.found[0].Field + ": " + c.found[0].Reason
	if c.found[0].Field == "" {
		r.Message = "the body " + c.found[0].Reason
	}
	if more := len(c.found) - 1; more > 0 {
		r.Message += fmt.Sprintf(" (and %d more)", more)
	}
	return r
}

func (c *checker) target(t Target) {
	for _, part := range []struct{ field, name string }{
		{"subject.project", t.Project}, {"subject.kind", t.Kind}, {"subject.name", t.Name}, {"subject.verb", t.Verb},
	} {
		if reason := manifest.CheckName(part.name); reason != "" {
			c.fail(part.field, reason)
		}
	}
	if t.Selects() && (t.Verb == resource.VerbApply || t.Kind == manifest.KindBlueprint || place.IsKind(t.Kind)) {
		c.fail("subject.name", "the name - stands for a selector; a manifest, a Blueprint and what checks are made of are named one by one")
	}
	if t.Kind == resource.MachineKind && (t.Selects() || t.Verb != resource.VerbApply) {
		c.fail("subject.verb", "a Machine knows apply only, by its name; its agent drives it")
	}
	if (t.Kind == manifest.KindBlueprint || place.IsKind(t.Kind)) && t.Verb != resource.VerbApply && t.Verb != resource.VerbDelete {
		c.fail("subject.verb", "a "+t.Kind+" knows apply and delete only")
	}
}

func (c *checker) ids(m Message) {
	if !RequestID(m.RequestID) {
		c.fail("header."+bus.HeaderRequestID, "must be 1 to 64 letters, digits, '-' and '_'")
	}
	if want := m.Target.Key.String() + "/" + m.RequestID; m.MessageID != "" && m.MessageID != want {
		c.fail("header.Nats-Msg-Id", "must be <project>/<kind>/<name>/<request id>, and "+bus.HeaderRequestID+" set, where it is given")
	}
}

// RequestID reports whether id can be a request's.
func RequestID(id string) bool {
	if id == "" || len(id) > RequestIDBytesMax {
		return false
	}
	for i := range len(id) {
		b := id[i]
		if (b < 'a' || b > 'z') && (b < 'A' || b > 'Z') && (b < '0' || b > '9') && b != '_' && b != '-' {
			return false
		}
	}
	return true
}

func (c *checker) undecodable(err error) {
	c.large = errors.Is(err, wire.ErrTooLarge)
	if field := (*wire.FieldError)(nil); errors.As(err, &field) {
		c.fail(inManifest(field.Field), field.Reason)
		return
	}
	c.fail("", err.Error())
}

// inManifest is a path of the body as a path of the manifest that the user wrote.
func inManifest(path string) string { return strings.TrimPrefix(path, "resource.") }

func (c *checker) command(t Target, command wire.Command) {
	if len(command.RequestedBy) > RequestedByBytesMax {
		c.fail("requestedBy", fmt.Sprintf("at most %d bytes", RequestedByBytesMax))
	}
	c.args(t, command)
	c.selector(t, command)
	m := command.Manifest
	switch {
	case t.Verb != resource.VerbApply && m != nil:
		c.fail("resource", "only verb apply takes a manifest")
	case t.Verb == resource.VerbApply && m == nil:
		c.fail("resource", "is missing: verb apply needs the manifest")
	case m != nil:
		c.manifest(t, m)
	}
}

// argsOf is which arguments each verb takes. Flows take none.
var argsOf = map[string][]string{
	resource.VerbRetry:     {"scope"},
	resource.VerbCancel:    {"job", "message"},
	resource.VerbInterrupt: {"job", "message"},
	resource.VerbApprove:   {"phase"},
}

func (c *checker) args(t Target, command wire.Command) {
	verb, args := t.Verb, command.Args
	of := argsOf[verb]
	if verb == resource.VerbApply && t.Kind == manifest.KindBlueprint {
		of = []string{drive.ArgIfDigest}
	}
	if slices.Contains(of, "job") && t.Selects() {
		if of = []string{"job", "message", selection.ArgCascade}; command.Selector != "" || command.All {
			of = []string{"message"} // a job belongs to one resource
		}
	}
	if len(args) > ArgsMax {
		c.fail("args", fmt.Sprintf("at most %d", ArgsMax))
		return
	}
	for _, name := range slices.Sorted(maps.Keys(args)) {
		field, value := strictjson.Field("args", name), args[name]
		switch {
		case !slices.Contains(of, name):
			c.fail(field, "verb "+verb+" has no argument of this name"+known(of))
		case len(value) > ArgBytesMax:
			c.fail(field, fmt.Sprintf("at most %d bytes", ArgBytesMax))
		case name == "scope" && value != "failed" && value != "all":
			c.fail(field, `not one of "failed", "all"`)
		case name == selection.ArgCascade && value != "true" && value != "false":
			c.fail(field, `not one of "true", "false"`)
		}
	}
}

// selector judges which resources are meant: nobody hits all of them by leaving something out.
func (c *checker) selector(t Target, command wire.Command) {
	chosen := command.Selector != "" || command.All
	switch {
	case !t.Selects():
		if command.Selector != "" {
			c.fail("selector", "only where the subject's name is -")
		}
		if command.All {
			c.fail("all", "only where the subject's name is -")
		}
	case !chosen && command.Args["job"] == "":
		c.fail("selector", `is missing: the name - needs a selector, or "all": true`)
	case command.Selector != "" && command.All:
		c.fail("all", "excludes selector")
	case len(command.Selector) > selection.SelectorBytesMax:
		c.fail("selector", fmt.Sprintf("at most %d bytes", selection.SelectorBytesMax))
	case command.Selector != "":
		s, err := selector.Parse(command.Selector)
		if err != nil {
			c.fail("selector", err.Error())
		} else if s.Empty() {
			c.fail("selector", `asks for nothing: say "all": true for all resources of the kind`)
		}
	}
}

func known(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "; it has " + strings.Join(names, ", ")
}

func (c *checker) manifest(t Target, m *wire.Manifest) {
	for _, v := range manifest.Check(m) {
		c.fail(v.Field, v.Reason)
	}
	if m.Kind != "" && m.Kind != t.Kind {
		c.fail("kind", "is not the subject's, which is "+t.Kind)
	}
	if m.Name != "" && m.Name != t.Name {
		c.fail("metadata.name", "is not the subject's, which is "+t.Name)
	}
	if m.Project != "" && m.Project != t.Project {
		c.fail("metadata.project", "is not the subject's, which is "+t.Project)
	}
	switch t.Kind {
	case manifest.KindBlueprint:
		if resource.BuiltIn(t.Name) || t.Name == resource.MachineKind || place.IsKind(t.Name) {
			c.fail("metadata.name", "is the name of a built-in kind")
		}
		_, found := manifest.Blueprint(t.Project, t.Name, m.Spec)
		c.spec(found)
	case place.Repository, place.Bucket, place.Group, place.Cluster, place.Node, place.CheckConfiguration, place.MonitoringSystem, place.Capability:
		c.spec(monitoring.Check(t.Kind, t.Name, m.Spec))
	case resource.ListenerKind:
		if m.Spec == nil {
			c.fail("spec", "is missing")
			return
		}
		_, found := listener.Decode(m.Spec)
		c.spec(found)
	case resource.TaskKind, resource.StageKind, resource.WorkflowKind, resource.BootEnvKind, resource.MachineKind:
		c.spec(rebar.Check(t.Kind, m.Spec))
	}
}

func (c *checker) spec(found []resource.Violation) {
	for _, v := range found {
		c.fail(inManifest(v.Field), v.Reason)
	}
}
