package sim

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/droverproject/drover/pkg/engine/children"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/wire"
)

// families is what the checker knows of trees.
type families struct {
	kids   map[string][]resource.Key // by the parent's uid, in the order of their making
	handed map[handed]job.State      // jobs that children were given
	failed map[handed]time.Time      // by the parent's uid: when a child first failed with this job
	specs  map[string][]byte         // by digest
}

type handed struct{ uid, job string }

func newFamilies() families {
	return families{map[string][]resource.Key{}, map[handed]job.State{}, map[handed]time.Time{}, map[string][]byte{}}
}

const (
	stopsWithin  = 5 * time.Second // no more children begin, once one has failed, in calm
	stopsUnderIt = 3 * time.Minute // the same under faults: what was asked before is tried that long
	orphansRest  = 70 * time.Second
)

// child holds a child's event to seed 001 and to its parent.
func (c *checker) child(e *resource.Event, before, after *resource.State) {
	w, f := c.w, &c.families
	if after.Gone {
		for _, key := range f.kids[after.UID] {
			if s := c.states[key]; s.Exists() && s.Parent.UID == after.UID {
				w.violate("%s is gone, and its child %s is there", after.Key, key)
			}
		}
	}
	if after.Parent.Name == "" {
		if strings.Contains(after.Name, "/") {
			w.violate("%s has the name of a child, and no parent", after.Key)
		}
		return
	}
	parent := c.states[resource.Key{Project: after.Project, Kind: after.Parent.Kind, Name: after.Parent.Name}]
	there := parent.Exists() && parent.UID == after.Parent.UID
	switch {
	case before.UID == "" && !there:
		w.violate("%s was made for a parent that is not there", after.Key)
	case before.UID != "" && before.Parent.UID != after.Parent.UID:
		w.violate("%s goes from one parent to another", after.Key)
	case before.UID != "" && before.DeletedAt.IsZero() != after.DeletedAt.IsZero() && !there:
		w.violate("%s was marked for a parent that is not there", after.Key)
	}
	if before.UID == "" {
		f.kids[after.Parent.UID] = append(f.kids[after.Parent.UID], after.Key)
	}
	for i := range after.Jobs {
		j := &after.Jobs[i]
		was := before.JobByID(j.ID)
		switch {
		case !j.Handed && j.Verb != resource.VerbApprove:
			w.violate("%s has a job %s of its own", after.Key, j.Verb)
		case !j.Handed:
			continue
		case was == nil:
			c.begun(before, after, j.ID)
		}
		f.handed[handed{after.UID, j.ID}] = j.State
		first := handed{after.Parent.UID, j.ID}
		if _, ok := f.failed[first]; !ok && (j.State == job.Failed || j.State == job.Canceled) {
			f.failed[first] = w.now
		}
	}
	if d := e.Dispatch; d != nil && w.calm && w.now.After(c.healed.Add(orphansRest)) && (c.restarted.IsZero() || w.now.After(c.restarted.Add(orphansRest))) {
		j := parent.JobByID(d.Fence.JobID)
		if !there || j == nil || j.State.Final() && w.now.After(j.EndedAt.Add(orphansRest)) {
			w.violate("%s hands out %s for job %s, which its parent is long done with", after.Key, d.Fence.Phase, d.Fence.JobID)
		}
	}
}

// begun is a child that gets the tree's job.
func (c *checker) begun(before, after *resource.State, id string) {
	w, f := c.w, &c.families
	if _, again := f.handed[handed{after.UID, id}]; again {
		w.violate("%s gets job %s a second time", after.Key, id)
	}
	if seen := c.jobs[id]; seen == nil || seen.key.Name != resource.RootName(after.Name) {
		w.violate("%s gets job %s, which is none of its root's", after.Key, id)
	}
	marked := !before.DeletedAt.IsZero()
	for _, key := range f.kids[after.Parent.UID] {
		s := c.states[key]
		switch {
		case s.Key == after.Key || !s.Exists() || s.Parent.UID != after.Parent.UID:
		case marked && !s.DeletedAt.IsZero() && slices.Contains(s.Parent.DependsOn, after.Parent.Item):
			w.violate("%s is deleted while %s, which depends on it, is there", after.Key, key)
		}
	}
	for _, item := range before.Parent.DependsOn {
		key, found := c.sibling(after, item)
		s := c.states[key]
		if !marked && (!found || f.handed[handed{s.UID, id}] != job.Succeeded) {
			w.violate("%s gets job %s before %s has finished", after.Key, id, item)
		}
	}
	if at, ok := f.failed[handed{after.Parent.UID, id}]; ok {
		limit := stopsUnderIt
		if w.calm && at.After(c.healed.Add(ownersSettle)) {
			limit = stopsWithin
		}
		if w.now.After(at.Add(limit)) {
			w.violate("%s gets job %s, which failed %s ago in a sibling", after.Key, id, w.now.Sub(at))
		}
	}
}

func (c *checker) sibling(of *resource.State, item string) (resource.Key, bool) {
	for _, key := range c.families.kids[of.Parent.UID] {
		if s := c.states[key]; s.Exists() && s.Parent.UID == of.Parent.UID && s.Parent.Item == item {
			return key, true
		}
	}
	return resource.Key{}, false
}

// spec remembers a spec.
func (c *checker) spec(body []byte) {
	e, err := wire.DecodeSpec(body)
	if err != nil {
		c.w.violate("a spec cannot be read: %v", err)
	}
	if e.JSON != "" {
		c.families.specs[e.Digest] = []byte(e.JSON)
	}
}

// waitsForAPerson reports whether a descendant's job waits for one: then so does its parent's.
func (c *checker) waitsForAPerson(s *resource.State) bool {
	for _, key := range c.families.kids[s.UID] {
		child := c.states[key]
		if !child.Exists() || child.Job() == nil {
			continue
		}
		reasons := resource.Why(&child)
		if c.waitsForAPerson(&child) || !slices.ContainsFunc(reasons, func(r resource.Reason) bool {
			return r.Code == resource.ForChildren || slices.Contains(moving, r.Code)
		}) {
			return true
		}
	}
	return false
}

// trees holds the families of a house at rest to their parents.
func (c *checker) trees() {
	w := c.w
	for _, key := range slices.SortedFunc(maps.Keys(c.states), compareKeys) {
		s := c.states[key]
		if !s.Exists() {
			continue
		}
		if s.Parent.Name != "" {
			parent := c.states[resource.Key{Project: s.Project, Kind: s.Parent.Kind, Name: s.Parent.Name}]
			if !parent.Exists() || parent.UID != s.Parent.UID {
				w.violate("%s is there without its parent", key)
			}
			if j := s.Job(); j != nil && (parent.Job() == nil || parent.Job().ID != j.ID) {
				w.violate("%s is at job %s, and its parent is not", key, j.ID)
			}
		}
		c.complete(&s)
	}
}

// complete holds a parent whose phase on children has succeeded to its items: these are its children, no others, and all
// have succeeded with the phase's job.
func (c *checker) complete(s *resource.State) {
	w := c.w
	j := s.FlowJob()
	if j == nil || s.Job() != nil {
		return
	}
	bp := c.blueprints[j.Blueprint]
	for i := range s.Phases {
		p := &s.Phases[i]
		ph := bp.Phase(p.Name)
		if ph == nil || ph.Children == nil || p.Status != resource.Completed || ph.Children.Do == "apply" || ph.Children.Do == "mark" || ph.Children.Do == "delete" {
			continue
		}
		under := s.JobByID(p.JobID)
		if under == nil || under.State != job.Succeeded || !s.Separate && (s.State != "Succeeded" || under.ID != j.ID) {
			continue // it was stopped behind this phase, or marked since
		}
		kids := map[string]resource.State{}
		for _, key := range c.families.kids[s.UID] {
			if kid := c.states[key]; kid.Exists() && kid.Parent.UID == s.UID {
				kids[kid.Parent.Item] = kid
				if c.families.handed[handed{kid.UID, p.JobID}] != job.Succeeded {
					w.violate("%s has succeeded with job %s, and its child %s has not: %s", s.Key, p.JobID, key, stateText(nil, &kid))
				}
				if !kid.DeletedAt.IsZero() {
					w.violate("%s has succeeded with job %s, and its child %s is marked deleted", s.Key, p.JobID, key)
				}
			}
		}
		if len(kids) != int(s.Children.Items) {
			w.violate("%s has %d children, and says %d", s.Key, len(kids), s.Children.Items)
		}
		if under.Generation != s.Generation {
			continue // its spec has changed since
		}
		items, err := manifest.Items(ph, c.families.specs[s.SpecDigest])
		if err != nil || len(items) != len(kids) {
			w.violate("%s has %d children, and its spec has %d items (%v)", s.Key, len(kids), len(items), err)
		}
		for i := range items {
			kid, ok := kids[items[i].Name]
			if as := kid.AsChild(); !ok || !as.Is(&items[i], uint32(i)) || as.Meta != children.Meta(items[i].Labels, items[i].Cluster) {
				w.violate("%s has no child as its item %s (there: %t)", s.Key, items[i].Name, ok)
			}
		}
	}
}
