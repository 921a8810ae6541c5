package deployment

import (
	"slices"
	"time"
)

// Limits of one check instance.
const (
	// VersionsMax is how many configurations of an instance may be there at once; an order past it is refused until some
	// have gone their way.
	VersionsMax = 16
	// DoneKept is how many deprovisioned versions before the present one are kept. Older ones are buried.
	DoneKept = 4
	// DeletedKept is how long a deleted instance is kept once all of its configurations are awaiting_deletion. Seed 002
	// ("cleanup pruning") leaves it open.
	DeletedKept = 7 * 24 * time.Hour
)

// ReaderFirst is the version of the rules that every state so far needs; ReaderVersion is this one's.
const (
	ReaderFirst   = 1
	ReaderVersion = 1
)

// Key is what a check instance is an instance of: a check configuration on an object of the tree.
type Key struct {
	Check, CheckUID   string // name and uid of the CheckConfiguration
	Object, ObjectUID string // kind/name and uid of the object
	System            string // name of the monitoring system
}

// State is one check instance with its configurations. The zero State stands for none.
type State struct {
	Project, ID string
	Key
	// Generation and ObjectRevision are those of the check configuration and of the object with which it was ordered last:
	// an order that is not younger changes nothing.
	Generation, ObjectRevision uint64
	// Current is the id of the configuration that the monitoring system deals with; empty before the first order.
	Current string
	// UpdateAvailable is the flag of seed 002: the monitoring system has to hear of it.
	UpdateAvailable bool
	// Updates counts how often the flag was set: what answers an earlier one does not clear a later one.
	Updates uint64
	// Deleted says that its check, or its object, was deleted.
	Deleted    bool
	Policy     Policy
	Versions   uint64 // that there were; the next one has this number
	Revision   uint64
	CreatedAt  time.Time
	UpdatedAt  time.Time
	NotifiedAt time.Time // when the monitoring system was last told, by a poke or a list
	// Configurations are in the order of their versions.
	Configurations []Configuration
}

// Policy is how the rules that the sources tell differently are read. It is a setting of the monitoring system, and pinned
// with every order.
type Policy struct {
	// Queued has an order leave the configuration before it alone, as both generations' code does; the sweep then moves it,
	// and only once it is active. Otherwise the order moves it, whatever the monitoring system has made of it so far (seed
	// 002, "configuration ordering").
	Queued bool
	// TaskDelete says that the monitoring system knows the task delete (0.9): a configuration that nothing is blocked on is
	// deleted, not deprovisioned.
	TaskDelete bool
}

// Configuration is one version of a check instance.
type Configuration struct {
	ID      string
	Version uint64
	Status  Status
	Next    Status
	// BlockedOn is the id of the configuration that must be deprovisioned first; empty: none.
	BlockedOn       string
	Revision        uint64
	CreatedAt       time.Time
	Since           time.Time // when it got its status
	ActivatedAt     time.Time
	DeprovisionedAt time.Time
	// Details is what the monitoring system is told. It is shared and never changed. An index of states may leave it out.
	Details *Details
}

// Present is the configuration that the monitoring system deals with; nil before the first order.
func (s *State) Present() *Configuration { return s.find(s.Current) }

func (s *State) find(id string) *Configuration {
	for i := range s.Configurations {
		if id != "" && s.Configurations[i].ID == id {
			return &s.Configurations[i]
		}
	}
	return nil
}

// last is the configuration of the highest version; nil where there is none.
func (s *State) last() *Configuration {
	if len(s.Configurations) == 0 {
		return nil
	}
	return &s.Configurations[len(s.Configurations)-1]
}

// behind is the configuration that is blocked on another; nil: none is.
func (s *State) behind(id string) *Configuration {
	for i := range s.Configurations {
		if c := &s.Configurations[i]; c.Status == Blocked && c.BlockedOn == id {
			return c
		}
	}
	return nil
}

// Pending reports whether the monitoring system is to be told: seed 002, "poke" and "list deployments", of what it owes
// something for. A fetch does not clear the flag, so what was fetched and whose poke was not taken is told again: the answer
// of the fetch may have been lost, and nothing else would have it fetched once more. Both generations' code tells only what
// nobody has fetched (facts/soma.md sections 2.2 and 3.4), and forgets it there. Where nothing is owed a poke would ask for
// nothing; seed 002 would send it.
func (s *State) Pending() bool { return s.UpdateAvailable && s.Outstanding() }

// Outstanding reports whether the monitoring system owes something: seed 002, "list all deployments".
func (s *State) Outstanding() bool {
	c := s.Present()
	if c == nil {
		return false
	}
	switch c.Status {
	case AwaitingRollout, RolloutInProgress, AwaitingDeprovision, DeprovisionInProgress:
		return true
	default:
		return false
	}
}

// Ended reports whether it is deleted and nothing is left to do.
func (s *State) Ended() bool {
	if !s.Deleted {
		return false
	}
	for i := range s.Configurations {
		if s.Configurations[i].Status != AwaitingDeletion {
			return false
		}
	}
	return true
}

// Due is when the instance is to be swept by itself: when it has been deleted long enough. Zero: never.
func (s *State) Due() time.Time {
	if s.ID == "" || !s.Ended() {
		return time.Time{}
	}
	return s.UpdatedAt.Add(DeletedKept)
}

func (s State) clone() State {
	s.Configurations = slices.Clone(s.Configurations)
	return s
}
