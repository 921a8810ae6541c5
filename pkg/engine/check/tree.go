package check

import (
	"slices"
	"strings"
)

// Parents lists the kinds below which an object of a kind may stand; none: it stands by itself.
func Parents(kind string) []string {
	switch kind {
	case Bucket:
		return []string{Repository}
	case Group, Cluster:
		return []string{Bucket, Group}
	case Node:
		return []string{Bucket, Group, Cluster}
	default:
		return nil
	}
}

// HasInstances reports whether checks on objects of a kind make instances.
func HasInstances(kind string) bool { return kind == Group || kind == Cluster || kind == Node }

// Parent is the name of the object that one of this name stands on; empty: none.
func Parent(name string) string {
	i := strings.LastIndexByte(name, '/')
	if i < 0 {
		return ""
	}
	return name[:i]
}

// Place is where a check configuration is placed.
type Place struct {
	On           string // name of an object
	Inheritance  bool   // also on the objects below
	ChildrenOnly bool   // and not on the object itself
	ObjectTypes  []string
}

// Object is an object as the tree knows it. Names are unique among objects, whatever their kinds.
type Object struct {
	Kind, Name, UID string
	Revision        uint64
	Deleted         bool
}

// Tree is the objects of one project in one partition. The zero Tree is empty. It is not safe for concurrent use.
type Tree struct {
	objects map[string]*Object
	below   map[string][]string // names right below a name, sorted
}

// Len is how many objects there are.
func (t *Tree) Len() int { return len(t.objects) }

// Get is the object of a name; nil: none.
func (t *Tree) Get(name string) *Object { return t.objects[name] }

// Put adds an object or changes it.
func (t *Tree) Put(o Object) {
	if t.objects == nil {
		t.objects, t.below = map[string]*Object{}, map[string][]string{}
	}
	if t.objects[o.Name] == nil {
		if parent := Parent(o.Name); parent != "" {
			i, _ := slices.BinarySearch(t.below[parent], o.Name)
			t.below[parent] = slices.Insert(t.below[parent], i, o.Name)
		}
	}
	t.objects[o.Name] = &o
}

// Remove takes an object out.
func (t *Tree) Remove(name string) {
	if t.objects[name] == nil {
		return
	}
	delete(t.objects, name)
	parent := Parent(name)
	if i, ok := slices.BinarySearch(t.below[parent], name); ok {
		if t.below[parent] = slices.Delete(t.below[parent], i, i+1); len(t.below[parent]) == 0 {
			delete(t.below, parent)
		}
	}
}

// Missing says why an object of a kind cannot have this name: who is not there to stand on. Empty: it can.
func (t *Tree) Missing(kind, name string) string {
	if here := t.objects[name]; here != nil && here.Kind != kind {
		return "is the name of a " + here.Kind
	}
	allowed := Parents(kind)
	if allowed == nil {
		return ""
	}
	parent := Parent(name)
	on := t.objects[parent]
	switch {
	case on == nil:
		return "there is no " + parent + " for it to stand on"
	case on.Deleted:
		return parent + " is being deleted"
	case !slices.Contains(allowed, on.Kind):
		return parent + " is a " + on.Kind + "; a " + kind + " stands on a " + strings.Join(allowed, ", ")
	}
	return ""
}

// Below is the name of something that stands right below an object; empty: nothing does.
func (t *Tree) Below(name string) string {
	if names := t.below[name]; len(names) > 0 {
		return names[0]
	}
	return ""
}

// Reach calls each with every object on which a check configuration has an instance, in the order of names, until it returns
// false.
func (t *Tree) Reach(p Place, each func(o *Object) bool) {
	t.reach(p, p.On, !p.ChildrenOnly, each)
}

func (t *Tree) reach(p Place, name string, itself bool, each func(o *Object) bool) bool {
	o := t.objects[name]
	if o == nil {
		return true
	}
	if itself && !o.Deleted && HasInstances(o.Kind) && (len(p.ObjectTypes) == 0 || slices.Contains(p.ObjectTypes, o.Kind)) && !each(o) {
		return false
	}
	if !p.Inheritance && !p.ChildrenOnly {
		return true
	}
	for _, child := range t.below[name] {
		if !t.reach(p, child, true, each) {
			return false
		}
	}
	return true
}

// Reaches reports whether a check configuration has an instance on an object.
func (t *Tree) Reaches(p Place, name string) bool {
	o := t.objects[name]
	if o == nil || o.Deleted || t.objects[p.On] == nil || !HasInstances(o.Kind) || len(p.ObjectTypes) > 0 && !slices.Contains(p.ObjectTypes, o.Kind) {
		return false
	}
	if name == p.On {
		return !p.ChildrenOnly
	}
	return (p.Inheritance || p.ChildrenOnly) && strings.HasPrefix(name, p.On+"/")
}

// Way is an object and those above it, from the repository down.
func (t *Tree) Way(name string) []Object {
	var way []Object
	for ; name != ""; name = Parent(name) {
		if o := t.objects[name]; o != nil {
			way = append(way, *o)
		}
	}
	slices.Reverse(way)
	return way
}
