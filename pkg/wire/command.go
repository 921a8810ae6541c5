package wire

import (
	"maps"
	"slices"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/strictjson"
	commandv1 "github.com/droverproject/drover/proto/gen/drover/command/v1"
)

// Command is the body of a command. Whom it is for, and the verb, are in the subject.
type Command struct {
	Manifest    *Manifest         // of verb apply
	Args        map[string]string // of the other verbs
	RequestedBy string            // a label, not a proof
	Selector    string            // which resources, where the name is "-"
	All         bool              // all of the kind, where the name is "-"
}

// Manifest is a resource or a blueprint as a user writes it.
type Manifest struct {
	APIVersion, Kind string
	Name             string
	Project, Cluster string
	Labels           map[string]string
	Spec             []byte // a JSON object; nil where there is none
}

// The JSON forms of contract.md.
type (
	commandJSON struct {
		Resource    *manifestJSON     `json:"resource,omitempty"`
		Args        map[string]string `json:"args,omitempty"`
		RequestedBy string            `json:"requestedBy,omitempty" alias:"requested_by"`
		Selector    string            `json:"selector,omitempty"`
		All         bool              `json:"all,omitempty"`
	}
	manifestJSON struct {
		APIVersion string            `json:"apiVersion,omitempty" alias:"api_version"`
		Kind       string            `json:"kind,omitempty"`
		Metadata   metadataJSON      `json:"metadata"`
		Spec       strictjson.Object `json:"spec,omitempty"`
	}
	metadataJSON struct {
		Name    string            `json:"name,omitempty"`
		Project string            `json:"project,omitempty"`
		Cluster string            `json:"cluster,omitempty"`
		Labels  map[string]string `json:"labels,omitempty"`
	}
)

// DecodeCommand reads a command in JSON (content type application/json) or protobuf. It checks its form and its size;
// what it asks for is intake's to judge. An empty body is the empty command.
func DecodeCommand(contentType string, body []byte) (Command, error) {
	if len(body) > CommandBytesMax {
		return Command{}, tooLarge("", CommandBytesMax)
	}
	var c Command
	if isJSON(contentType) {
		var j commandJSON
		if len(body) > 0 {
			if errs := strictjson.Unmarshal("", body, &j); errs != nil {
				return Command{}, first(errs)
			}
		}
		c = Command{Args: present(j.Args), RequestedBy: j.RequestedBy, Selector: j.Selector, All: j.All}
		if r := j.Resource; r != nil {
			c.Manifest = &Manifest{
				APIVersion: r.APIVersion, Kind: r.Kind, Name: r.Metadata.Name, Project: r.Metadata.Project,
				Cluster: r.Metadata.Cluster, Labels: present(r.Metadata.Labels), Spec: r.Spec,
			}
		}
	} else {
		m := new(commandv1.Command)
		if err := unmarshal(body, m); err != nil {
			return Command{}, err
		}
		if err := knownFields("", m.ProtoReflect()); err != nil {
			return Command{}, err
		}
		c = Command{Args: present(m.Args), RequestedBy: m.RequestedBy, Selector: m.Selector, All: m.All}
		if r := m.Resource; r != nil {
			c.Manifest = &Manifest{
				APIVersion: r.ApiVersion, Kind: r.Kind, Name: r.GetMetadata().GetName(),
				Project: r.GetMetadata().GetProject(), Cluster: r.GetMetadata().GetCluster(),
				Labels: present(r.GetMetadata().GetLabels()),
			}
			if r.Spec != "" {
				c.Manifest.Spec = []byte(r.Spec)
			}
		}
	}
	if err := checkSpec(c.Manifest); err != nil {
		return Command{}, err
	}
	return c, nil
}

func checkSpec(m *Manifest) error {
	if m == nil || m.Spec == nil {
		return nil
	}
	if len(m.Spec) > resource.SpecBytesMax {
		return tooLarge("resource.spec", resource.SpecBytesMax)
	}
	var object strictjson.Object
	if errs := strictjson.Unmarshal("resource.spec", m.Spec, &object); errs != nil {
		return first(errs)
	}
	return nil
}

// EncodeCommand is the inverse of DecodeCommand, in the same form.
func EncodeCommand(contentType string, c Command) ([]byte, error) {
	if err := checkSpec(c.Manifest); err != nil {
		return nil, err
	}
	var body []byte
	var err error
	if isJSON(contentType) {
		j := commandJSON{Args: c.Args, RequestedBy: c.RequestedBy, Selector: c.Selector, All: c.All}
		if r := c.Manifest; r != nil {
			j.Resource = &manifestJSON{APIVersion: r.APIVersion, Kind: r.Kind, Spec: r.Spec, Metadata: metadataJSON{
				Name: r.Name, Project: r.Project, Cluster: r.Cluster, Labels: r.Labels,
			}}
		}
		body, err = marshalJSON(j)
	} else {
		m := &commandv1.Command{Args: c.Args, RequestedBy: c.RequestedBy, Selector: c.Selector, All: c.All}
		if r := c.Manifest; r != nil {
			m.Resource = &commandv1.Manifest{
				ApiVersion: r.APIVersion, Kind: r.Kind, Spec: string(r.Spec), Metadata: &commandv1.Metadata{
					Name: r.Name, Project: r.Project, Cluster: r.Cluster, Labels: r.Labels,
				},
			}
		}
		body, err = marshal(m)
	}
	if err == nil && len(body) > CommandBytesMax {
		return nil, tooLarge("", CommandBytesMax)
	}
	return body, err
}

// knownFields refuses protobuf fields that this version does not know, by their number.
func knownFields(path string, m protoreflect.Message) (err error) {
	if raw := m.GetUnknown(); len(raw) > 0 {
		number, _, _ := protowire.ConsumeField(raw)
		return malformed(strictjson.Field(path, strconv.Itoa(int(number))), "no field of this number")
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Message() == nil || f.IsMap() {
			return true // no map of ours holds messages
		}
		field := strictjson.Field(path, f.JSONName())
		if !f.IsList() {
			err = knownFields(field, v.Message())
			return err == nil
		}
		for i := range v.List().Len() {
			if err = knownFields(index(field, i), v.List().Get(i).Message()); err != nil {
				return false
			}
		}
		return true
	})
	return err
}

// BodyDigest is 32 hex digits of SHA-256 over the verb and the command in canonical form, so that the JSON and the
// protobuf form of one command are equal. Who asked is not part of it.
func BodyDigest(verb string, c Command) string {
	parts := []string{"command", verb}
	if m := c.Manifest; m == nil {
		parts = append(parts, "")
	} else {
		parts = append(parts, "manifest", m.APIVersion, m.Kind, m.Name, m.Project, m.Cluster)
		parts = appendMap(parts, m.Labels)
		spec, err := strictjson.Canonical(m.Spec)
		if err != nil {
			spec = m.Spec // decoding refuses it; digested as it is
		}
		parts = append(parts, string(spec))
	}
	parts = appendMap(parts, c.Args)
	if c.Selector != "" || c.All { // others are digested as they always were
		parts = append(parts, "selector", c.Selector, strconv.FormatBool(c.All))
	}
	return hexOf(parts)
}

func appendMap(parts []string, m map[string]string) []string {
	parts = append(parts, strconv.Itoa(len(m)))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, key, m[key])
	}
	return parts
}
