package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/plugin/announce"
	"github.com/droverproject/drover/pkg/plugin/program"
	"github.com/droverproject/drover/pkg/wire"
)

// Limits of a state listener.
const (
	NoticesMax      = 1024                         // notices that wait for the program; a full queue drops what comes
	eventBytesMax   = program.CallBytesDefault / 2 // bytes of specs and attributes in one event; more resources are another event
	lookTimeout     = 5 * time.Second              // one look at a resource
	noticeBytesMore = 512                          // bytes of a resource in an event beside them
)

// notice is what the notifier publishes.
type notice struct {
	Type      string `json:"type"`
	State     string `json:"state"`
	Cluster   string `json:"cluster"`
	Resources []struct {
		Project string `json:"project"`
		Name    string `json:"name"`
		UID     string `json:"uid"`
	} `json:"resources"`
}

// listen tells the program of what the notifier tells, one event after another, until ctx ends. Nothing is tracked: what
// the program does with it is its own affair (seed 003, "State Listeners").
func (p *pluginExec) listen(ctx context.Context, b bus.Bus, l definedListener, caller *program.Program) error {
	log := p.log.With(zap.String("listener", l.name))
	queue := make(chan []byte, NoticesMax)
	stop, err := b.Notices(announce.ListenerSubject(p.app.project, l.name), bus.Token(l.name), func(_ map[string]string, body []byte) {
		select {
		case queue <- body:
		default:
			log.Warn("the program is too slow: a notice is dropped", zap.Int("waiting", NoticesMax))
		}
	})
	if err != nil {
		return err
	}
	defer stop()
	// A call may end within the grace.
	calling, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(p.stop, end) })()
	for {
		select {
		case <-ctx.Done():
			return nil
		case body := <-queue:
			var n notice
			if err := json.Unmarshal(body, &n); err != nil {
				log.Warn("a notice cannot be read", zap.Error(err))
				continue
			}
			for _, e := range p.events(calling, b, &n, log) {
				if err := caller.OnStateTransition(calling, e); err != nil {
					log.Warn("onStateTransition failed", zap.String("type", e.Type), zap.String("state", e.State),
						zap.Int("resources", len(e.Resources)), zap.Error(err))
				}
			}
		}
	}
}

// events are what the program is told of a notice: with the resources as they are now.
func (p *pluginExec) events(ctx context.Context, b bus.Bus, n *notice, log *zap.Logger) (events []*program.Event) {
	bytes := 0
	for _, named := range n.Resources {
		r, err := look(ctx, b, bus.Entity{Family: bus.Resource, Project: named.Project, Kind: n.Type, Name: named.Name}, named.UID)
		if err != nil {
			log.Warn("a resource cannot be looked at; the program is told its name", zap.String("name", named.Name), zap.Error(err))
		}
		size := noticeBytesMore + len(r.Spec)
		for name, value := range r.Attributes {
			size += len(name) + len(value)
		}
		if len(events) == 0 || bytes+size > eventBytesMax {
			events = append(events, &program.Event{Project: p.app.project, Type: n.Type, State: n.State, Cluster: n.Cluster})
			bytes = 0
		}
		bytes += size
		last := events[len(events)-1]
		last.Resources = append(last.Resources, r)
	}
	return events
}

// look reads a resource as it is now. One that is gone, or has a successor of its name, has no more than its name.
func look(ctx context.Context, b bus.Bus, e bus.Entity, uid string) (program.EventResource, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	r := program.EventResource{Name: e.Name, UID: uid}
	stored, err := b.Get(ctx, e)
	if errors.Is(err, bus.ErrNotFound) || err == nil && stored.Deleted {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	event, err := wire.DecodeResource(stored.Body)
	if err != nil {
		return r, err
	}
	s := &event.State
	if s.UID != uid {
		return r, nil
	}
	r.Cluster, r.State, r.Target, r.WasDeployed = s.Cluster, s.State, s.Target, s.WasDeployed
	r.Labels, r.Attributes = s.Labels, s.Attributes
	if s.SpecDigest == "" {
		return r, nil
	}
	e.Family = bus.Spec
	if stored, err = b.Get(ctx, e); err != nil {
		return r, fmt.Errorf("spec: %w", err)
	}
	spec, err := wire.DecodeSpec(stored.Body)
	if err != nil {
		return r, fmt.Errorf("spec: %w", err)
	}
	if spec.Digest == s.SpecDigest {
		r.Spec = json.RawMessage(spec.JSON)
	}
	return r, nil
}
