package monitoring

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"time"

	"github.com/droverproject/drover/pkg/engine/check"
	"github.com/droverproject/drover/pkg/engine/deployment"
)

// Pins is what a check configuration was computed with beside the tree: its capability and monitoring system as they were
// when it was applied. A change of these reaches its instances when it is applied again.
type Pins struct {
	CapabilityName string         `json:"capabilityName"`
	Capability     CapabilitySpec `json:"capability"`
	SystemName     string         `json:"systemName"`
	System         SystemSpec     `json:"system"`
}

// Pin makes the pins of specs that Check has passed; canonical JSON.
func Pin(capabilityName string, capability []byte, systemName string, system []byte) (string, error) {
	p := Pins{CapabilityName: capabilityName, SystemName: systemName}
	var j *judge
	if p.Capability, j = read[CapabilitySpec](capability); len(j.found) > 0 {
		return "", fmt.Errorf("capability %s: %s: %s", capabilityName, j.found[0].Field, j.found[0].Reason)
	}
	if p.System, j = read[SystemSpec](system); len(j.found) > 0 {
		return "", fmt.Errorf("monitoring system %s: %s: %s", systemName, j.found[0].Field, j.found[0].Reason)
	}
	body, err := json.Marshal(p)
	return string(body), err
}

// CapabilityOf is the name of the capability of a check configuration's spec, and its place.
func CapabilityOf(spec []byte) (name string, place check.Place, err error) {
	s, j := read[ConfigurationSpec](spec)
	if len(j.found) > 0 {
		return "", place, fmt.Errorf("%s: %s", j.found[0].Field, j.found[0].Reason)
	}
	return s.Capability, s.Place(), nil
}

// SystemOf is the name of the monitoring system of a capability's spec.
func SystemOf(capability []byte) (string, error) {
	s, j := read[CapabilitySpec](capability)
	if len(j.found) > 0 {
		return "", fmt.Errorf("%s: %s", j.found[0].Field, j.found[0].Reason)
	}
	return s.System, nil
}

// System reads the spec of a MonitoringSystem.
func System(spec []byte) (SystemSpec, error) {
	s, j := read[SystemSpec](spec)
	if len(j.found) > 0 {
		return s, fmt.Errorf("%s: %s", j.found[0].Field, j.found[0].Reason)
	}
	if s.PokesMax == 0 {
		s.PokesMax = PokesMaxDefault
	}
	if s.Timeout == 0 {
		s.Timeout = TimeoutDefault
	}
	return s, nil
}

// Configuration is a check configuration, ready to be placed. Make one with Read. It is not changed after that.
type Configuration struct {
	name, uid string
	spec      ConfigurationSpec
	pins      Pins
}

// Read reads a check configuration as it is stored.
func Read(s *check.State) (*Configuration, error) {
	c := &Configuration{name: s.Name, uid: s.UID}
	var j *judge
	if c.spec, j = read[ConfigurationSpec]([]byte(s.Spec)); len(j.found) > 0 {
		return nil, fmt.Errorf("%s: %s", j.found[0].Field, j.found[0].Reason)
	}
	if err := json.Unmarshal([]byte(s.Pins), &c.pins); err != nil {
		return nil, fmt.Errorf("pins: %w", err)
	}
	return c, nil
}

// Place is where it is placed.
func (c *Configuration) Place() check.Place { return c.spec.Place() }

// System is the name of its monitoring system.
func (c *Configuration) System() string { return c.pins.SystemName }

// Policy is how its instances are ordered.
func (c *Configuration) Policy() deployment.Policy {
	return deployment.Policy{Queued: c.pins.System.Queued(), TaskDelete: c.pins.System.KnowsDelete()}
}

// Placed is one object on the way from the repository to the object that is checked.
type Placed struct {
	Kind, Name, UID, Spec string
}

// objectTypes are SOMA's words for kinds.
var objectTypes = map[string]string{
	check.Repository: "repository", check.Bucket: "bucket", check.Group: "group", check.Cluster: "cluster", check.Node: "node",
}

// Details assembles the deployment details of an instance: way ends in its object. What belongs to one version only (the
// task, the id of the configuration, its version) is added when it is fetched.
func (c *Configuration) Details(instance string, way []Placed) (*deployment.Details, error) {
	if len(way) == 0 {
		return nil, fmt.Errorf("no object")
	}
	object := way[len(way)-1]
	p := &c.pins
	d := &deployment.Details{
		Repository: way[0].Name, ObjectType: objectTypes[object.Kind], View: p.Capability.View,
		Capability: deployment.Capability{
			ID: p.CapabilityName, Name: p.CapabilityName, MonitoringID: p.SystemName, Metric: p.Capability.Metric.Path, View: p.Capability.View,
			Thresholds: p.Capability.Thresholds,
		},
		MonitoringSystem: deployment.MonitoringSystem{
			ID: p.SystemName, Name: p.SystemName, Mode: p.System.Mode, Contact: p.System.Contact, TeamID: p.System.Team, Callback: p.System.Callback,
		},
		Metric: deployment.Metric{
			Path: p.Capability.Metric.Path, Unit: p.Capability.Metric.Unit, Description: p.Capability.Metric.Description, Packages: []deployment.Package{},
		},
		Unit:       deployment.Unit{Unit: p.Capability.Metric.Unit, Name: p.Capability.Metric.UnitName},
		Properties: []deployment.Property{}, CustomProperties: []deployment.CustomProperty{},
	}
	on, onUID := "", ""
	for _, o := range way {
		if o.Name == c.spec.On {
			on, onUID = objectTypes[o.Kind], o.UID
		}
		if err := placed(d, &o); err != nil {
			return nil, fmt.Errorf("%s %s: %w", o.Kind, o.Name, err)
		}
	}
	bucketUID := ""
	if len(way) > 1 {
		bucketUID = way[1].UID
	}
	d.CheckConfig = deployment.CheckConfig{
		ID: c.uid, Name: c.name, Interval: uint64(c.spec.Interval / time.Second), RepositoryID: way[0].UID, BucketID: bucketUID,
		CapabilityID: p.CapabilityName, ObjectID: onUID, ObjectType: on, IsActive: true, IsEnabled: true, Inheritance: c.spec.Place().Inheritance,
		ChildrenOnly: c.spec.ChildrenOnly, ExternalID: c.spec.ExternalID, Thresholds: []deployment.Threshold{},
	}
	for _, t := range c.spec.Thresholds {
		d.CheckConfig.Thresholds = append(d.CheckConfig.Thresholds, deployment.Threshold{
			Predicate: deployment.Predicate{Symbol: t.Predicate},
			Level:     deployment.Level{Name: t.Level.Name, ShortName: t.Level.ShortName, Numeric: uint16(t.Level.Numeric)}, Value: int64(t.Value),
		})
	}
	checkID := c.uid + "." + object.UID
	d.Check = deployment.Check{
		CheckID: checkID, SourceCheckID: c.uid + "." + onUID, CheckConfigID: c.uid, SourceType: on, IsInherited: object.Name != c.spec.On,
		RepositoryID: way[0].UID, BucketID: bucketUID, CapabilityID: p.CapabilityName,
	}
	if d.Check.IsInherited {
		d.Check.InheritedFrom = onUID
	}
	d.CheckInstance = deployment.CheckInstance{InstanceID: instance, CheckID: checkID, ConfigID: c.uid}
	return d, nil
}

// placed adds what an object on the way says.
func placed(d *deployment.Details, o *Placed) error {
	name := path.Base(o.Name)
	switch o.Kind {
	case check.Repository:
		s, j := read[RepositorySpec]([]byte(o.Spec))
		d.OrganizationalTeam = deployment.Team{ID: s.Team, Name: s.Team}
		if s.Team == "" { // monitoring systems insist on one
			d.OrganizationalTeam.Name = name
		}
		return j.err()
	case check.Bucket:
		s, j := read[BucketSpec]([]byte(o.Spec))
		d.Bucket, d.Environment = name, s.Environment
		return j.err()
	}
	s, j := read[ObjectSpec]([]byte(o.Spec))
	if s.Datacenter != "" {
		d.Datacenter = s.Datacenter
	}
	switch o.Kind {
	case check.Group:
		d.Group = &deployment.Named{ID: o.UID, Name: name}
	case check.Cluster:
		d.Cluster = &deployment.Named{ID: o.UID, Name: name}
	case check.Node:
		d.Node = &deployment.Node{ID: o.UID, AssetID: uint64(s.AssetID), Name: name, State: "assigned", Online: !s.Offline}
	}
	for _, property := range slices.Sorted(maps.Keys(s.Properties)) {
		// What stands nearer to the object holds.
		d.Properties = slices.DeleteFunc(d.Properties, func(p deployment.Property) bool { return p.Name == property })
		d.Properties = append(d.Properties, deployment.Property{Name: property, Value: s.Properties[property]})
	}
	return j.err()
}

func (j *judge) err() error {
	if len(j.found) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %s", j.found[0].Field, j.found[0].Reason)
}
