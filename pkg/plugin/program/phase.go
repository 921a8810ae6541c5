package program

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/plugin"
)

// releaseAfter is the wait before work that no call could be made for is delivered again.
const releaseAfter = time.Second

// Handle is a plugin.Handler: it calls the program with a batch, in one call, or in several, one after another, where the
// batch is larger than Options.CallBytes. Specs are loaded call by call, so that it holds those of one.
func (p *Program) Handle(ctx context.Context, b *plugin.Batch) error {
	seen := map[resource.Key]bool{}
	for rest := b.Resources(); len(rest) > 0; {
		c, taken, err := p.gather(ctx, b, rest, seen)
		if err != nil {
			return err
		}
		rest = rest[taken:]
		if len(c.resources) == 0 {
			continue
		}
		if err := p.handle(ctx, b, c); err != nil {
			return err
		}
	}
	return nil
}

// phaseCall is one call of a phase.
type phaseCall struct {
	resources []*plugin.Resource
	keys      []resource.Key
	lines     []json.RawMessage
	bytes     int
}

// gather makes the next call: of as many resources as fit, and of the first whatever its size. taken is how many it has
// looked at; those that cannot be called now are given back. seen are those that were called before.
func (p *Program) gather(ctx context.Context, b *plugin.Batch, rs []*plugin.Resource, seen map[resource.Key]bool) (c *phaseCall, taken int, err error) {
	c = &phaseCall{bytes: envelopeBytes}
	for _, r := range rs {
		key := r.Key()
		if errors.Is(context.Cause(r.Context()), plugin.ErrCanceled) {
			taken++ // while others were called: nothing was done for it
			continue
		}
		line, err := lineOf(ctx, r)
		switch {
		case ctx.Err() != nil:
			return nil, 0, err
		case errors.Is(err, plugin.ErrUnavailable): // nor will the others' specs be had
			for _, r := range rs[taken:] {
				b.Release(r, releaseAfter)
			}
			return c, len(rs), nil
		case err != nil || seen[key]:
			// A spec that is gone is of a resource that is gone, or soon of another one of its name: the next delivery knows.
			b.Release(r, releaseAfter)
			taken++
			continue
		}
		body, err := json.Marshal(line)
		if err != nil {
			return nil, 0, fmt.Errorf("encode %s: %w", r.Key(), err)
		}
		if len(c.lines) > 0 && c.bytes+len(body)+1 > p.o.CallBytes {
			break
		}
		taken++
		seen[key] = true
		c.resources, c.keys, c.lines = append(c.resources, r), append(c.keys, key), append(c.lines, body)
		c.bytes += len(body) + 1
	}
	return c, taken, nil
}

func lineOf(ctx context.Context, r *plugin.Resource) (resourceLine, error) {
	key := r.Key()
	spec, err := r.Spec(ctx)
	if err != nil {
		return resourceLine{Name: key.Name}, err
	}
	line := resourceLine{
		Name: key.Name, Kind: key.Kind, UID: r.UID(), Cluster: r.Cluster(), State: r.State(), Target: r.Target(), Job: r.Job(),
		Attempt: r.Attempt(), Polled: r.Polled(), Undo: r.Undo(), WasDeployed: r.WasDeployed(), Labels: r.Labels(), Spec: spec,
		Attributes: jsonOf(r.Attributes()), Data: jsonOf(r.Data()),
	}
	if line.Labels == nil {
		line.Labels = map[string]string{}
	}
	if d := r.Deadline(); !d.IsZero() {
		line.Deadline = &d
	}
	return line, nil
}

// handle makes one call. An exception fails what was not decided before it; an error that it returns fails nothing.
func (p *Program) handle(ctx context.Context, b *plugin.Batch, c *phaseCall) error {
	first := c.resources[0].Key()
	kind := first.Kind
	if slices.ContainsFunc(c.keys, func(k resource.Key) bool { return k.Kind != kind }) {
		kind = "" // each resource says its own
	}
	phase := c.resources[0].Phase()
	request, err := (&callLine{
		Function: FunctionHandle, Project: first.Project, Kind: kind, Phase: phase, Resources: c.lines,
	}).line()
	if err != nil {
		return err
	}
	named := named(c.resources)
	vars := []string{"DROVER_PROJECT=" + first.Project, "DROVER_KIND=" + kind, "DROVER_PHASE=" + phase}
	calling, stop := context.WithCancel(ctx)
	defer stop()
	decided := map[*plugin.Resource]bool{}
	err = p.call(ctx, request, c.keys, vars, unwanted(calling, c.resources), func(a *Answer) error {
		for _, name := range a.Resources {
			r, err := named.find(a.Kind, name)
			if err != nil {
				return err
			}
			if err := set(r, a); err != nil {
				return err
			}
			switch a.Outcome {
			case completed:
				b.Completed(r)
			case failed:
				if a.Retryable {
					b.FailedRetryable(r, a.Message)
				} else {
					b.Failed(r, a.Message)
				}
			case pending:
				b.Pending(r, a.Delay, a.Message)
			default:
				continue
			}
			decided[r] = a.Outcome != pending
		}
		return nil
	})
	switch {
	case err == nil, errors.Is(err, errUnwanted):
		return nil // what is unanswered is pending, or no longer asked for
	case ctx.Err() != nil, errors.Is(err, errStopping):
		return err
	}
	var exceeded *limitError
	if errors.As(err, &exceeded) {
		b.Exceeded()
	}
	for _, r := range c.resources {
		if !decided[r] {
			b.Failed(r, err.Error())
		}
	}
	return nil
}

// byName are the resources of a call by their names, which several kinds may have.
type byName map[string][]*plugin.Resource

func named(rs []*plugin.Resource) byName {
	m := make(byName, len(rs))
	for _, r := range rs {
		name := r.Key().Name
		m[name] = append(m[name], r)
	}
	return m
}

// find is the one resource that an answer speaks of. kind may be empty.
func (m byName) find(kind, name string) (*plugin.Resource, error) {
	var found *plugin.Resource
	for _, r := range m[name] {
		switch {
		case kind != "" && r.Key().Kind != kind:
		case found != nil:
			return nil, fmt.Errorf("%w: several kinds have a resource of this name, and kind is missing: %.80q", ErrAnswer, name)
		default:
			found = r
		}
	}
	if found == nil {
		return nil, fmt.Errorf("%w: no resource of this name is in the call: %.80q", ErrAnswer, name)
	}
	return found, nil
}

// set keeps what an answer sets, and prints what it logs.
func set(r *plugin.Resource, a *Answer) error {
	for _, s := range []struct {
		values map[string]json.RawMessage
		set    func(string, any) error
	}{{a.Attributes, r.SetAttribute}, {a.Data, r.SetPhaseData}, {a.Outputs, r.SetOutput}} {
		for name, value := range s.values {
			if err := s.set(name, value); err != nil {
				return fmt.Errorf("%w: %w", ErrAnswer, err)
			}
		}
	}
	if a.Log != "" {
		_ = r.Log(a.Log) // lines may be lost
	}
	return nil
}

// unwanted is closed once no call of these resources is wanted any more, and never after ctx has ended.
func unwanted(ctx context.Context, rs []*plugin.Resource) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		for _, r := range rs {
			wanted := r.Context()
			select {
			case <-wanted.Done():
			case <-ctx.Done():
				return
			}
			if !errors.Is(context.Cause(wanted), plugin.ErrCanceled) {
				return
			}
		}
		close(done)
	}()
	return done
}
