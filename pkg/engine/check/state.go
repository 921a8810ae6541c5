package check

import (
	"slices"
	"time"

	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// The kinds.
const (
	Repository         = "Repository"
	Bucket             = "Bucket"
	Group              = "Group"
	Cluster            = "Cluster"
	Node               = "Node"
	CheckConfiguration = "CheckConfiguration"
	MonitoringSystem   = "MonitoringSystem"
	Capability         = "Capability"
)

// Kinds lists them.
func Kinds() []string {
	return []string{Repository, Bucket, Group, Cluster, Node, CheckConfiguration, MonitoringSystem, Capability}
}

// IsKind reports whether a kind is one of them.
func IsKind(kind string) bool { return slices.Contains(Kinds(), kind) }

// Limits.
const (
	OpenJobsMax = 16     // jobs of one object that have not ended
	ObjectsMax  = 50_000 // objects of a project in one partition
	DepthMax    = 8      // parts of an object's name
)

// ReaderFirst is the version of the rules that every state so far needs; ReaderVersion is this one's.
const (
	ReaderFirst   = 1
	ReaderVersion = 1
)

// State is one object, configuration, monitoring system or capability. The zero State stands for none.
type State struct {
	Project, Kind, Name, UID string
	// Spec is the manifest's, canonical JSON. Pins is, of a check configuration, what it was computed with beside the tree:
	// its capability and monitoring system as they were, canonical JSON.
	Spec, Pins string
	// Generation counts changes of both. Observed is the one with which all instances were ordered; only check
	// configurations have instances.
	Generation, Observed uint64
	DeletedAt            time.Time
	Jobs                 []job.Ref // that have not ended
	CreatedAt, UpdatedAt time.Time
	Revision             uint64
}

// ID is the object's id in family check: its kind, a slash and its name.
func (s *State) ID() string { return s.Kind + "/" + s.Name }

// ID is the id of an object of a kind and a name.
func ID(kind, name string) string { return kind + "/" + name }

// Deleted reports whether it is marked.
func (s *State) Deleted() bool { return !s.DeletedAt.IsZero() }

// Behind reports whether instances are to be looked at before its jobs can end.
func (s *State) Behind() bool { return s.UID != "" && (s.Observed != s.Generation || len(s.Jobs) > 0) }

func (s *State) root() job.Root {
	return job.Root{Project: s.Project, Kind: s.Kind, Name: s.Name, UID: s.UID, Revision: s.Revision, MinReader: ReaderVersion}
}

// Command is what is said about a command, whatever it asks for.
type Command struct {
	Project, Kind, Name      string
	Verb                     string
	JobID, RequestID, Digest string
	RequestedBy              string
	NewUID                   string // of an object that it makes
	Spec, Pins               string // of apply
	// Known is the record of the job that the same request made before; nil: none did.
	Known *job.Record
	// Missing is the parent that is not there, or is being deleted; empty: none is missing. Below is something that stands on
	// the object; empty: nothing does. Full says that ObjectsMax are there. All are as the shell's tree has them.
	Missing, Below string
	Full           bool
}

// Input is one thing that an object is told. Exactly one of the pointers is set, or Bury.
type Input struct {
	At      time.Time
	Command *Command
	Walked  *Walked
	// Bury says that no instance of a marked one is left.
	Bury bool
}

// Walked says that all instances are ordered as of a generation; of a marked one, that all are marked.
type Walked struct {
	Generation uint64
	Deleted    bool
}

// JobMove is one record that is stored with the object.
type JobMove struct {
	From   job.State
	Record job.Record
}

// Effects is what follows from a step. Where Changed, the object and the jobs are stored together; where Gone, it is buried
// alone.
type Effects struct {
	Changed, Gone bool
	Jobs          []JobMove
	Reply         *resource.Reply
	// Fresh says that the reply is to be given only of what the log's leader holds.
	Fresh bool
}
