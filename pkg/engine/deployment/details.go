package deployment

// Details is the document that a monitoring system fetches (facts/soma.md section 3.2). The names of its JSON fields are those
// of release 0.8; clients of both generations read them without regard to case. Thresholds have capital letters there.
type Details struct {
	Task               string           `json:"task"`
	ID                 string           `json:"id,omitempty"`
	Repository         string           `json:"repository"`
	Environment        string           `json:"environment"`
	Bucket             string           `json:"bucket"`
	ObjectType         string           `json:"objectType"`
	View               string           `json:"view"`
	Datacenter         string           `json:"datacenter"`
	Capability         Capability       `json:"capability"`
	MonitoringSystem   MonitoringSystem `json:"monitoringSystem"`
	Metric             Metric           `json:"metric"`
	Unit               Unit             `json:"unit"`
	OrganizationalTeam Team             `json:"organizationalTeam"`
	OncallDuty         Oncall           `json:"oncallDuty"`
	Service            *Service         `json:"service,omitempty"`
	Properties         []Property       `json:"properties"`
	CustomProperties   []CustomProperty `json:"customProperties"`
	Group              *Named           `json:"group,omitempty"`
	Cluster            *Named           `json:"cluster,omitempty"`
	Node               *Node            `json:"node,omitempty"`
	Server             *Server          `json:"server,omitempty"`
	CheckConfig        CheckConfig      `json:"checkConfig"`
	Check              Check            `json:"check"`
	CheckInstance      CheckInstance    `json:"checkInstance"`
}

// Capability is what a monitoring system can check.
type Capability struct {
	ID           string `json:"id"`
	Name         string `json:"name"`
	MonitoringID string `json:"monitoringId"`
	Metric       string `json:"metric"`
	View         string `json:"view"`
	Thresholds   int    `json:"thresholds"`
}

// MonitoringSystem is who carries the check out.
type MonitoringSystem struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	Mode     string `json:"mode"`
	Contact  string `json:"contact"`
	TeamID   string `json:"teamId"`
	Callback string `json:"callback"`
}

// Metric is what is measured.
type Metric struct {
	Path        string    `json:"path"`
	Unit        string    `json:"unit"`
	Description string    `json:"description"`
	Packages    []Package `json:"packages"`
}

// Package is one that provides a metric.
type Package struct {
	Provider string `json:"provider"`
	Name     string `json:"name"`
}

// Unit is a metric's unit.
type Unit struct {
	Unit string `json:"unit"`
	Name string `json:"name"`
}

// Team is whose repository it is.
type Team struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	LdapID string `json:"ldapId"`
}

// Oncall is whom to call.
type Oncall struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	Number string `json:"number"`
}

// Service is the service that is checked.
type Service struct {
	ID         string             `json:"id,omitempty"`
	Name       string             `json:"name"`
	TeamID     string             `json:"teamId"`
	Attributes []ServiceAttribute `json:"attributes"`
}

// ServiceAttribute is one attribute of a service.
type ServiceAttribute struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Property is one of the system's own properties of an object.
type Property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// CustomProperty is one of the users' properties of an object.
type CustomProperty struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Named is a group or a cluster.
type Named struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// Node is the node that is checked.
type Node struct {
	ID      string `json:"id"`
	AssetID uint64 `json:"assetId"`
	Name    string `json:"name"`
	State   string `json:"state"`
	Online  bool   `json:"isOnline"`
}

// Server is the machine that a node runs on.
type Server struct {
	ID       string `json:"id"`
	AssetID  uint64 `json:"assetId"`
	Name     string `json:"name"`
	Location string `json:"location"`
	Online   bool   `json:"isOnline"`
}

// CheckConfig is the check configuration that a user wrote.
type CheckConfig struct {
	ID           string      `json:"id"`
	Name         string      `json:"name"`
	Interval     uint64      `json:"interval"` // seconds
	RepositoryID string      `json:"repositoryId"`
	BucketID     string      `json:"bucketId"`
	CapabilityID string      `json:"capabilityId"`
	ObjectID     string      `json:"objectId"`
	ObjectType   string      `json:"objectType"`
	IsActive     bool        `json:"isActive"`
	IsEnabled    bool        `json:"isEnabled"`
	Inheritance  bool        `json:"inheritance"`
	ChildrenOnly bool        `json:"childrenOnly"`
	ExternalID   string      `json:"externalId"`
	Thresholds   []Threshold `json:"thresholds"`
}

// Threshold is a value at which a level of alarm begins. Its JSON has capital letters, as both generations send it.
type Threshold struct {
	Predicate Predicate
	Level     Level
	Value     int64
}

// Predicate compares.
type Predicate struct {
	Symbol string `json:"symbol"`
}

// Level is a level of alarm.
type Level struct {
	Name      string `json:"name"`
	ShortName string `json:"shortName"`
	Numeric   uint16 `json:"numeric"`
}

// Check is the check configuration on one object.
type Check struct {
	CheckID       string `json:"checkId"`
	SourceCheckID string `json:"sourceCheckId"`
	CheckConfigID string `json:"checkConfigId"`
	SourceType    string `json:"sourceType"`
	IsInherited   bool   `json:"isInherited"`
	InheritedFrom string `json:"inheritedFrom"`
	RepositoryID  string `json:"repositoryId"`
	BucketID      string `json:"bucketId"`
	CapabilityID  string `json:"capabilityId"`
}

// CheckInstance is the instance, and the version of its configuration.
type CheckInstance struct {
	InstanceID         string `json:"instanceId"`
	CheckID            string `json:"checkId"`
	ConfigID           string `json:"configId"`
	InstanceConfigID   string `json:"instanceConfigId"`
	Version            uint64 `json:"version"`
	ConstraintHash     string `json:"constraintHash"`
	ConstraintValHash  string `json:"constraintValHash"`
	InstanceSvcCfgHash string `json:"instanceSvcCfghash"`
	InstanceService    string `json:"instanceService"`
	InstanceServiceCfg string `json:"instanceServiceCfg"`
}

// Same is the deep compare of seed 002, "configuration ordering", and facts/soma.md section 4: all of the document but what
// must differ between two versions (the task, the ids of the configuration, its version, the service's configuration, which
// Service stands for) and what says the same in other words (a level's short name and number). The order of arrays, and
// what they hold twice, does not count; one that is empty is as one that is missing.
func Same(a, b *Details) bool {
	if a == nil || b == nil {
		return a == b
	}
	scalars := func(d *Details) [6]string {
		return [6]string{d.Repository, d.Environment, d.Bucket, d.ObjectType, d.View, d.Datacenter}
	}
	return scalars(a) == scalars(b) && a.Capability == b.Capability && a.MonitoringSystem == b.MonitoringSystem &&
		a.Metric.Path == b.Metric.Path && a.Metric.Unit == b.Metric.Unit && a.Metric.Description == b.Metric.Description &&
		sameSet(a.Metric.Packages, b.Metric.Packages) && a.Unit == b.Unit && a.OrganizationalTeam == b.OrganizationalTeam &&
		a.OncallDuty == b.OncallDuty && sameService(a.Service, b.Service) && sameSet(a.Properties, b.Properties) &&
		sameSet(a.CustomProperties, b.CustomProperties) && equal(a.Group, b.Group) && equal(a.Cluster, b.Cluster) &&
		equal(a.Node, b.Node) && equal(a.Server, b.Server) && sameCheckConfig(&a.CheckConfig, &b.CheckConfig) &&
		a.Check == b.Check && sameInstance(a.CheckInstance, b.CheckInstance)
}

// sameSet compares lists as sets, in both directions.
func sameSet[T comparable](a, b []T) bool {
	in := make(map[T]bool, len(a))
	for _, v := range a {
		in[v] = false
	}
	for _, v := range b {
		if _, ok := in[v]; !ok {
			return false
		}
		in[v] = true
	}
	for _, v := range a {
		if !in[v] {
			return false
		}
	}
	return true
}

func equal[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

func sameService(a, b *Service) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Name == b.Name && a.TeamID == b.TeamID && sameSet(a.Attributes, b.Attributes)
}

func sameCheckConfig(a, b *CheckConfig) bool {
	rest := func(c *CheckConfig) ([7]string, uint64, [4]bool) {
		return [7]string{c.ID, c.Name, c.RepositoryID, c.BucketID, c.CapabilityID, c.ObjectType, c.ExternalID}, c.Interval,
			[4]bool{c.IsActive, c.IsEnabled, c.Inheritance, c.ChildrenOnly}
	}
	levels := func(c *CheckConfig) []Threshold {
		all := make([]Threshold, len(c.Thresholds))
		for i, t := range c.Thresholds {
			t.Level = Level{Name: t.Level.Name}
			all[i] = t
		}
		return all
	}
	names, interval, flags := rest(a)
	names2, interval2, flags2 := rest(b)
	return names == names2 && interval == interval2 && flags == flags2 && a.ObjectID == b.ObjectID && sameSet(levels(a), levels(b))
}

func sameInstance(a, b CheckInstance) bool {
	for _, c := range []*CheckInstance{&a, &b} {
		c.InstanceConfigID, c.Version, c.InstanceServiceCfg = "", 0, ""
	}
	return a == b
}
