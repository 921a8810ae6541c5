package monitoring

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/droverproject/drover/pkg/engine/check"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/strictjson"
)

// Limits of specs.
const (
	TextBytesMax     = 253         // bytes of a text
	URLBytesMax      = 2 << 10     // bytes of a callback
	PropertiesMax    = 64          // properties of an object
	ThresholdsMax    = 16          // thresholds of a check configuration
	PokesMaxDefault  = 8           // pokes of one monitoring system under way, from one notifier
	PokesMaxMost     = 64          // what pokesMax may be
	TimeoutDefault   = time.Second // 0.9's notify.timeout.ms
	TimeoutMost      = 30 * time.Second
	IntervalMost     = 24 * time.Hour
	pathDefault08    = "/deployments/id"
	pathDefault09    = "/deployment/id"
	generation08     = "0.8"
	generation09     = "0.9"
	orderingAtOnce   = "immediate"
	orderingInQueues = "queued"
)

// RepositorySpec is the spec of a Repository.
type RepositorySpec struct {
	Team string `json:"team"`
}

// BucketSpec is the spec of a Bucket.
type BucketSpec struct {
	Environment string `json:"environment"`
}

// ObjectSpec is the spec of a Group, a Cluster or a Node.
type ObjectSpec struct {
	AssetID    uint32            `json:"assetId"`
	Datacenter string            `json:"datacenter"`
	Offline    bool              `json:"offline"`
	Properties map[string]string `json:"properties"`
}

// SystemSpec is the spec of a MonitoringSystem.
type SystemSpec struct {
	Callback   string        `json:"callback"`
	Mode       string        `json:"mode"`
	Contact    string        `json:"contact"`
	Team       string        `json:"team"`
	Generation string        `json:"generation"`
	Path       string        `json:"path"`
	Ordering   string        `json:"ordering"`
	PokesMax   int           `json:"pokesMax"`
	Timeout    time.Duration `json:"timeout"`
}

// PokePath is the path that a poke names, and below which the deployment is fetched.
func (s *SystemSpec) PokePath() string {
	switch {
	case s.Path != "":
		return s.Path
	case s.Generation == generation09:
		return pathDefault09
	default:
		return pathDefault08
	}
}

// KnowsDelete reports whether it knows the task delete.
func (s *SystemSpec) KnowsDelete() bool { return s.Generation == generation09 }

// Queued reports whether an order leaves the configuration before it to the sweep.
func (s *SystemSpec) Queued() bool { return s.Ordering == orderingInQueues }

// CapabilitySpec is the spec of a Capability.
type CapabilitySpec struct {
	System     string     `json:"system"`
	View       string     `json:"view"`
	Metric     MetricSpec `json:"metric"`
	Thresholds int        `json:"thresholds"`
}

// MetricSpec is what a capability measures.
type MetricSpec struct {
	Path        string `json:"path"`
	Unit        string `json:"unit"`
	UnitName    string `json:"unitName"`
	Description string `json:"description"`
}

// ConfigurationSpec is the spec of a CheckConfiguration.
type ConfigurationSpec struct {
	On           string          `json:"on"`
	Capability   string          `json:"capability"`
	Interval     time.Duration   `json:"interval"`
	Inheritance  *bool           `json:"inheritance"`
	ChildrenOnly bool            `json:"childrenOnly"`
	ObjectTypes  []string        `json:"objectTypes"`
	ExternalID   string          `json:"externalId"`
	Thresholds   []ThresholdSpec `json:"thresholds"`
}

// ThresholdSpec is one threshold.
type ThresholdSpec struct {
	Predicate string    `json:"predicate"`
	Level     LevelSpec `json:"level"`
	Value     int       `json:"value"`
}

// LevelSpec is a level of alarm.
type LevelSpec struct {
	Name      string `json:"name"`
	ShortName string `json:"shortName"`
	Numeric   uint32 `json:"numeric"`
}

// Place is where the configuration is placed.
func (s *ConfigurationSpec) Place() check.Place {
	return check.Place{
		On: s.On, Inheritance: s.Inheritance == nil || *s.Inheritance, ChildrenOnly: s.ChildrenOnly, ObjectTypes: s.ObjectTypes,
	}
}

// judge gathers mistakes.
type judge struct{ found []resource.Violation }

func (j *judge) that(ok bool, field, reason string) {
	if !ok && len(j.found) < strictjson.ErrorsMax {
		j.found = append(j.found, resource.Violation{Field: field, Reason: reason})
	}
}

func (j *judge) text(field, value string) {
	j.that(len(value) <= TextBytesMax, field, fmt.Sprintf("is longer than %d bytes", TextBytesMax))
}

// need judges a text that must be there.
func (j *judge) need(field, value string) {
	j.that(value != "", field, "is missing")
	j.text(field, value)
}

// texts judges texts by their fields below spec, in the order of these.
func (j *judge) texts(values map[string]string) {
	for _, field := range slices.Sorted(maps.Keys(values)) {
		j.text("spec."+field, values[field])
	}
}

func read[T any](spec []byte) (v T, j *judge) {
	j = &judge{}
	if spec == nil {
		spec = []byte("{}")
	}
	for _, e := range strictjson.Unmarshal("spec", spec, &v) {
		j.that(false, e.Field, e.Reason)
	}
	return v, j
}

// Check judges a manifest by itself, its name included. It returns every mistake, with paths of the manifest.
func Check(kind, name string, spec []byte) []resource.Violation {
	j := checkName(kind, name)
	var more *judge
	switch kind {
	case check.Repository:
		var s RepositorySpec
		s, more = read[RepositorySpec](spec)
		more.text("spec.team", s.Team)
	case check.Bucket:
		var s BucketSpec
		s, more = read[BucketSpec](spec)
		more.text("spec.environment", s.Environment)
	case check.Group, check.Cluster, check.Node:
		more = checkObject(kind, spec)
	case check.MonitoringSystem:
		more = checkSystem(spec)
	case check.Capability:
		var s CapabilitySpec
		s, more = read[CapabilitySpec](spec)
		more.need("spec.system", s.System)
		more.need("spec.metric.path", s.Metric.Path)
		more.texts(map[string]string{"view": s.View, "metric.unit": s.Metric.Unit,
			"metric.unitName": s.Metric.UnitName, "metric.description": s.Metric.Description})
		more.that(s.Thresholds >= 0 && s.Thresholds <= ThresholdsMax, "spec.thresholds", fmt.Sprintf("must be 0 to %d", ThresholdsMax))
	default:
		more = checkConfiguration(name, spec)
	}
	return append(j.found, more.found...)
}

// checkName judges the parts of a name.
func checkName(kind, name string) *judge {
	j := &judge{}
	parts := strings.Split(name, "/")
	j.that(!slices.Contains(parts, ""), "metadata.name", "has an empty part between slashes")
	least, most := 1, 1
	switch kind {
	case check.Bucket, check.CheckConfiguration:
		least, most = 2, 2
	case check.Group, check.Cluster, check.Node:
		least, most = 3, check.DepthMax
	}
	switch {
	case len(parts) < least && kind == check.CheckConfiguration:
		j.that(false, "metadata.name", "must begin with its repository and a slash")
	case len(parts) < least:
		j.that(false, "metadata.name", fmt.Sprintf("a %s is named by its way from the repository: %d parts or more, with slashes between", kind, least))
	default:
		j.that(len(parts) <= most, "metadata.name", fmt.Sprintf("has more than %d parts", most))
	}
	return j
}

func checkObject(kind string, spec []byte) *judge {
	s, j := read[ObjectSpec](spec)
	j.that(kind == check.Node || s.AssetID == 0 && !s.Offline, "spec.assetId", "only a Node has one")
	j.that(kind != check.Node || s.AssetID != 0, "spec.assetId", "is missing: monitoring systems ask for it")
	j.text("spec.datacenter", s.Datacenter)
	j.that(len(s.Properties) <= PropertiesMax, "spec.properties", fmt.Sprintf("has more than %d", PropertiesMax))
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		value := s.Properties[name]
		j.that(name != "" && len(name)+len(value) <= 4*TextBytesMax, strictjson.Field("spec.properties", name), fmt.Sprintf("is longer than %d bytes", 4*TextBytesMax))
	}
	return j
}

func checkSystem(spec []byte) *judge {
	s, j := read[SystemSpec](spec)
	if s.Callback != "" {
		u, err := url.Parse(s.Callback)
		j.that(err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil && len(s.Callback) <= URLBytesMax,
			"spec.callback", fmt.Sprintf("must be an http or https URL of at most %d bytes, without user name and password", URLBytesMax))
	}
	j.texts(map[string]string{"mode": s.Mode, "contact": s.Contact, "team": s.Team, "path": s.Path})
	j.that(s.Generation == "" || s.Generation == generation08 || s.Generation == generation09, "spec.generation", `not one of "0.8", "0.9"`)
	j.that(s.Path == "" || strings.HasPrefix(s.Path, "/"), "spec.path", "must begin with a slash")
	j.that(s.Ordering == "" || s.Ordering == orderingAtOnce || s.Ordering == orderingInQueues, "spec.ordering", `not one of "immediate", "queued"`)
	j.that(s.PokesMax >= 0 && s.PokesMax <= PokesMaxMost, "spec.pokesMax", fmt.Sprintf("must be 0 (the default) to %d", PokesMaxMost))
	j.that(s.Timeout >= 0 && s.Timeout <= TimeoutMost, "spec.timeout", "must be 0 (the default) to "+TimeoutMost.String())
	return j
}

func checkConfiguration(name string, spec []byte) *judge {
	s, j := read[ConfigurationSpec](spec)
	repository, _, _ := strings.Cut(name, "/")
	on, _, _ := strings.Cut(s.On, "/")
	j.need("spec.on", s.On)
	j.need("spec.capability", s.Capability)
	j.that(s.On == "" || on == repository, "spec.on", "is not of repository "+repository)
	j.that(s.Interval >= time.Second && s.Interval <= IntervalMost && s.Interval%time.Second == 0, "spec.interval",
		"must be whole seconds, 1s to "+IntervalMost.String())
	for i, kind := range s.ObjectTypes {
		j.that(check.HasInstances(kind), strictjson.Item("spec.objectTypes", i), "not one of Group, Cluster, Node")
	}
	j.text("spec.externalId", s.ExternalID)
	j.that(len(s.Thresholds) > 0, "spec.thresholds", "needs one at least")
	j.that(len(s.Thresholds) <= ThresholdsMax, "spec.thresholds", fmt.Sprintf("has more than %d", ThresholdsMax))
	for i, t := range s.Thresholds {
		field := strictjson.Item("spec.thresholds", i)
		j.that(slices.Contains([]string{"<", "<=", "==", ">=", ">", "!="}, t.Predicate), field+".predicate", `not one of "<", "<=", "==", ">=", ">", "!="`)
		j.need(field+".level.name", t.Level.Name)
		j.text(field+".level.shortName", t.Level.ShortName)
		j.that(t.Level.Numeric > 0 && t.Level.Numeric < 1<<16, field+".level.numeric", "must be 1 to 65535")
	}
	return j
}
