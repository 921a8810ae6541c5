// Package announce adds what a plugin defines to the system that it connects to: its phases to the blueprints of their
// kinds, its listener to the listeners. It does so as a user would, by applying through intake, so that it is durable,
// checked and in the history; and whoever may not apply cannot announce.
//
// # What it changes
//
// The kind's blueprint must be there, with its lifecycle and states: a plugin cannot know them. A phase that it does not
// have yet is added behind the others. Of one that it has, the definition says name, description, states, dependsOn,
// when, provider and attributes, also by not saying them; everything else (timeout, interval, retry, …) stays as the
// blueprint has it, and so can be set there. A phase of that name with another executor than plugin is somebody else's,
// and an error. The same definition again changes nothing.
//
// What is announced stays when the plugin goes, or announces less: jobs may need it, and a plugin that restarts must not
// tear the fleet's blueprint down. It is removed by applying a blueprint without it.
//
// # Several at once
//
// A change holds for the blueprint that was read (drive.ArgIfDigest): if another came in between, it is refused, read
// again and made again. So nobody's phases are lost. A phase that depends on one that no blueprint has yet is announced
// when that one is there: plugins may start in any order.
package announce

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/definition"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/listener"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/strictjson"
	"github.com/droverproject/drover/pkg/wire"
)

// Times of one announcement.
const (
	absentFor     = 2 * time.Second        // how long a blueprint may be absent: buckets trail, and a manifest may be on its way
	retryFirst    = 20 * time.Millisecond  // first wait after a conflict; doubles, and half of it is drawn
	retryLast     = time.Second            // longest such wait
	dependsEvery  = 200 * time.Millisecond // how often a phase that is depended on is looked for
	requestFor    = 10 * time.Second       // one request
	subjectPrefix = listener.SubjectPrefix + "plugin."
)

// Errors that are for a person.
var (
	// ErrNoBlueprint: the kind has no blueprint.
	ErrNoBlueprint = errors.New("the kind has no blueprint: apply one with its lifecycle and its states first")
	// ErrTaken: the blueprint has a phase of this name that is no plugin's.
	ErrTaken = errors.New("the blueprint has a phase of this name with another executor")
	// ErrInvalid: with this phase the blueprint would not be valid.
	ErrInvalid = errors.New("the phase does not fit the blueprint")
	// ErrRefused: intake has refused it.
	ErrRefused = errors.New("refused")
)

// Bus is the part of the bus that is needed.
type Bus interface {
	Get(ctx context.Context, e bus.Entity) (bus.Stored, error)
	Request(ctx context.Context, subject string, header map[string]string, body []byte) (bus.Request, error)
}

// Options of an announcement.
type Options struct {
	// RequestedBy is the label in the history. Empty: "plugin".
	RequestedBy string
	// Waiting, if set, is told once for each thing that is waited for: no answer, or a phase that is depended on.
	Waiting func(reason string)
}

// Outcome is what an announcement came to.
type Outcome uint8

// The outcomes.
const (
	Unchanged Outcome = iota
	Added
	Changed
)

// String is for people.
func (o Outcome) String() string { return [...]string{"unchanged", "added", "changed"}[o] }

// Phase adds a phase to the blueprint of one of its kinds, and returns when that is stored. It tries on until ctx ends
// where nobody answers, where others announce at the same time, and where a phase that it depends on is not there yet. The
// error is one of this package's, ctx's, or that of a bus that cannot be used.
func Phase(ctx context.Context, b Bus, project, kind string, p *definition.Phase, o Options) (Outcome, error) {
	a := announcer{Options: o, bus: b, project: project, told: map[string]bool{}}
	began := time.Now()
	for tries := 0; ; {
		outcome, err := a.phase(ctx, kind, p)
		var depends *missingError
		var wait time.Duration
		switch {
		case err == nil || ctx.Err() != nil:
			return outcome, errors.Join(ctx.Err(), err)
		case errors.Is(err, errConflict):
			wait = backoff(tries)
			tries++
		case errors.Is(err, ErrNoBlueprint) && time.Since(began) < absentFor:
			wait = retryFirst
		case errors.As(err, &depends):
			a.waiting(depends.Error())
			wait = dependsEvery
		case passes(err):
			a.waiting(err.Error())
			wait = backoff(tries)
			tries++
		default:
			return 0, err
		}
		if !sleep(ctx, wait) {
			return 0, errors.Join(ctx.Err(), err)
		}
	}
}

// ListenerSubject is where the notices of an announced listener go.
func ListenerSubject(project, name string) string {
	return subjectPrefix + bus.Token(project) + "." + bus.Token(name)
}

// Listener makes the listener of a name, or changes it, and returns when that is stored.
func Listener(ctx context.Context, b Bus, project, name string, l *definition.Listener, o Options) (Outcome, error) {
	a := announcer{Options: o, bus: b, project: project, told: map[string]bool{}}
	spec, err := json.Marshal(map[string]any{"kinds": l.Kinds, "states": l.States, "subject": ListenerSubject(project, name)})
	if err != nil {
		return 0, err
	}
	if _, found := listener.Decode(spec); len(found) > 0 {
		return 0, fmt.Errorf("listener %s: %s: %s", name, found[0].Field, found[0].Reason)
	}
	_, digest, err := manifest.Canonical(spec)
	if err != nil {
		return 0, err
	}
	for tries := 0; ; tries++ {
		outcome, err := a.listener(ctx, name, spec, digest)
		if err == nil || ctx.Err() != nil || !passes(err) && !errors.Is(err, errConflict) {
			return outcome, errors.Join(ctx.Err(), err)
		}
		a.waiting(err.Error())
		if !sleep(ctx, backoff(tries)) {
			return 0, errors.Join(ctx.Err(), err)
		}
	}
}

type announcer struct {
	Options
	bus     Bus
	project string
	told    map[string]bool
}

func (a *announcer) waiting(reason string) {
	if a.Waiting != nil && !a.told[reason] {
		a.told[reason] = true
		a.Waiting(reason)
	}
}

// Conditions that pass.
var (
	errConflict = errors.New("the blueprint was changed by somebody else")
	errBusy     = errors.New("the system is overloaded")
)

// missingError is a phase that is depended on and not there yet.
type missingError struct{ kind, phase, on string }

func (e *missingError) Error() string {
	return fmt.Sprintf("phase %s of kind %s waits for phase %s, on which it depends, to be announced", e.phase, e.kind, e.on)
}

// passes reports whether trying again may help.
func passes(err error) bool {
	return errors.Is(err, errBusy) || errors.Is(err, bus.ErrNoOwner) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, bus.ErrFull)
}

// phase tries once.
func (a *announcer) phase(ctx context.Context, kind string, p *definition.Phase) (Outcome, error) {
	stored, err := a.bus.Get(ctx, bus.Entity{Family: bus.Blueprint, Project: a.project, Kind: kind})
	switch {
	case errors.Is(err, bus.ErrNotFound), err == nil && stored.Deleted:
		return 0, fmt.Errorf("kind %s: %w", kind, ErrNoBlueprint)
	case err != nil:
		return 0, fmt.Errorf("blueprint of kind %s: %w", kind, err)
	}
	present, err := wire.DecodeBlueprint(stored.Body)
	if err != nil {
		return 0, fmt.Errorf("blueprint of kind %s: %w", kind, err)
	}
	if present.Gone {
		return 0, fmt.Errorf("kind %s: %w", kind, ErrNoBlueprint)
	}
	spec, outcome, err := Merge([]byte(present.JSON), p)
	if err != nil {
		return 0, fmt.Errorf("phase %s of kind %s: %w", p.Name, kind, err)
	}
	if outcome == Unchanged {
		return Unchanged, nil
	}
	if _, found := manifest.Blueprint(a.project, kind, spec); len(found) > 0 {
		if on := missing([]byte(present.JSON), p); on != "" {
			return 0, &missingError{kind, p.Name, on}
		}
		return 0, fmt.Errorf("phase %s of kind %s: %w: %s: %s", p.Name, kind, ErrInvalid, found[0].Field, found[0].Reason)
	}
	return outcome, a.apply(ctx, manifest.KindBlueprint, kind, spec, map[string]string{drive.ArgIfDigest: present.Digest})
}

// missing is the first phase that p depends on and the blueprint does not have.
func missing(spec []byte, p *definition.Phase) string {
	type phase struct {
		Name string `json:"name"`
	}
	var s struct {
		Phases []phase `json:"phases"`
	}
	if json.Unmarshal(spec, &s) != nil {
		return ""
	}
	for _, on := range p.DependsOn {
		if on != p.Name && !slices.Contains(s.Phases, phase{on}) {
			return on
		}
	}
	return ""
}

func (a *announcer) listener(ctx context.Context, name string, spec []byte, digest string) (Outcome, error) {
	outcome := Added
	stored, err := a.bus.Get(ctx, bus.Entity{Family: bus.Resource, Project: a.project, Kind: resource.ListenerKind, Name: name})
	switch {
	case errors.Is(err, bus.ErrNotFound):
	case err != nil:
		return 0, fmt.Errorf("listener %s: %w", name, err)
	case !stored.Deleted:
		event, err := wire.DecodeResource(stored.Body)
		if err != nil {
			return 0, fmt.Errorf("listener %s: %w", name, err)
		}
		if event.State.SpecDigest == digest && !event.State.Gone {
			return Unchanged, nil
		}
		outcome = Changed
	}
	return outcome, a.apply(ctx, resource.ListenerKind, name, spec, nil)
}

// apply asks intake, and waits for its answer.
func (a *announcer) apply(ctx context.Context, kind, name string, spec []byte, args map[string]string) error {
	by := a.RequestedBy
	if by == "" {
		by = "plugin"
	}
	body, err := wire.EncodeCommand("", wire.Command{
		Manifest: &wire.Manifest{APIVersion: manifest.APIVersion, Kind: kind, Name: name, Spec: spec}, Args: args, RequestedBy: by,
	})
	if err != nil {
		return fmt.Errorf("%s %s: %w", kind, name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestFor)
	defer cancel()
	// An id of its own each time: what was applied under one before may have been taken back since.
	reply, err := a.bus.Request(ctx, bus.CommandSubject("api", a.project, kind, name, resource.VerbApply),
		map[string]string{bus.HeaderRequestID: rand.Text()}, body)
	if err != nil {
		return fmt.Errorf("apply %s %s: %w", kind, name, err)
	}
	r, err := wire.DecodeReply(reply.Header[bus.HeaderContentType], reply.Body)
	if err != nil {
		return fmt.Errorf("reply to apply %s %s: %w", kind, name, err)
	}
	if r.Refused == nil {
		return nil
	}
	changed := slices.ContainsFunc(r.Refused.Violations, func(v resource.Violation) bool { return v.Field == drive.IfDigestField })
	switch {
	case r.Refused.Code == resource.Conflict && changed:
		return errConflict
	case r.Refused.Code == resource.Overloaded:
		return fmt.Errorf("%w: %s", errBusy, r.Refused.Message)
	}
	return fmt.Errorf("%w: %s", ErrRefused, r.Refused.Message)
}

// says are the fields of a phase that a definition says, with their other names.
var says = []string{"name", "description", "states", "dependsOn", "depends_on", "when", "provider", "attributes"}

// Merge is the spec of a blueprint with a phase in it. Where it is Unchanged, the spec is as it was. The error is ErrTaken,
// or says that the spec is none.
func Merge(spec []byte, p *definition.Phase) ([]byte, Outcome, error) {
	var top map[string]json.RawMessage
	if err := json.Unmarshal(spec, &top); err != nil {
		return nil, 0, fmt.Errorf("the blueprint cannot be read: %w", err)
	}
	var phases []map[string]json.RawMessage
	if raw, ok := top["phases"]; ok {
		if err := json.Unmarshal(raw, &phases); err != nil {
			return nil, 0, fmt.Errorf("the blueprint's phases cannot be read: %w", err)
		}
	}
	outcome := Added
	own := map[string]json.RawMessage{"executor": json.RawMessage(`{"plugin":{}}`)}
	at := slices.IndexFunc(phases, func(have map[string]json.RawMessage) bool {
		var name string
		return json.Unmarshal(have["name"], &name) == nil && name == p.Name
	})
	if at >= 0 {
		outcome, own = Changed, phases[at]
		var executor map[string]json.RawMessage
		if err := json.Unmarshal(own["executor"], &executor); err != nil || executor["plugin"] == nil {
			return nil, 0, ErrTaken
		}
	} else {
		phases, at = append(phases, own), len(phases)
	}
	before, err := canonical(phases[at])
	if err != nil {
		return nil, 0, err
	}
	said := map[string]any{}
	put := func(name string, given bool, value any) {
		if given {
			said[name] = value
		}
	}
	attributes := map[string]json.RawMessage{}
	for _, a := range p.Attributes {
		attributes[a.Name] = json.RawMessage(a.JSON)
	}
	put("name", true, p.Name)
	put("description", p.Description != "", p.Description)
	put("states", true, p.States)
	put("dependsOn", len(p.DependsOn) > 0, p.DependsOn)
	put("when", p.When != "", p.When)
	put("provider", p.Provider != "", p.Provider)
	put("attributes", len(attributes) > 0, attributes)
	for _, name := range says {
		delete(own, name)
	}
	for name, value := range said {
		if own[name], err = json.Marshal(value); err != nil {
			return nil, 0, err
		}
	}
	after, err := canonical(own)
	if err != nil {
		return nil, 0, err
	}
	if before == after {
		return spec, Unchanged, nil
	}
	if top["phases"], err = json.Marshal(phases); err != nil {
		return nil, 0, err
	}
	merged, err := json.Marshal(top)
	return merged, outcome, err
}

func canonical(v any) (string, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	text, err := strictjson.Canonical(body)
	return string(text), err
}

// backoff is how long to wait after so many tries; half of it is drawn, so that those who met do not meet again.
func backoff(tries int) time.Duration {
	most := min(retryFirst<<min(tries, 10), retryLast)
	drawn, err := rand.Int(rand.Reader, big.NewInt(int64(most/2)))
	if err != nil {
		return most
	}
	return most/2 + time.Duration(drawn.Int64())
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
