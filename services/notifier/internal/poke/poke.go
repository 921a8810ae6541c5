// Package poke tells monitoring systems that there is a deployment to fetch (seed 002, "poke"; facts/soma.md section 3.1):
//
//	POST <the monitoring system's callback>
//	{"uuid": "<check instance>", "path": "/deployments/id"}
//
// Who is to be poked follows from committed state: owners of partitions say which instances are pending. This package asks
// them when the feed tells of one, with every sweep, and when it takes a partition over; it pokes, and tells the owner which
// pokes were taken, upon which that clears the flag. Nothing is held while a poke is under way: real clients fetch, and may
// even send feedback, before they answer.
//
// # Rules
//
//   - At least once: a poke whose answer was lost, or whose success could not be told to the owner, comes again. None is
//     lost: what failed is poked again with the next sweep, by whoever serves the partition then.
//   - A poke was taken if it was answered with 2xx. (Both generations took any answer for one.)
//   - A monitoring system that cannot be reached is left alone until the next sweep; one that refuses a poke gets the others.
//   - A slow or dead system delays no other. Each has as many pokes under way as its spec allows, from one notifier.
//   - A system without a callback polls, and is never poked. The callback is that of now, not of when the check was ordered.
package poke

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/check"
	"github.com/droverproject/drover/pkg/engine/deployment"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/listener"
	"github.com/droverproject/drover/pkg/monitoring"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/notifier/internal/webhook"
)

// Limits.
const (
	RoundsMax  = 8                     // owners asked at once
	AskTimeout = 5 * time.Second       // for an owner's answer
	gatherFor  = 10 * time.Millisecond // events of this span are one look
	systemFor  = 2 * time.Second       // that a monitoring system's spec is taken from memory
)

// Bus is the part of the bus that is needed.
type Bus interface {
	AskDoor(ctx context.Context, partition int, r bus.Request) (bus.Request, error)
	Get(ctx context.Context, e bus.Entity) (bus.Stored, error)
	Partitions() int
}

// Caller makes one call.
type Caller interface {
	Post(ctx context.Context, project string, w *listener.Webhook, id string, header map[string]string, body []byte) error
}

// Poker pokes. Safe for concurrent use. Make one with New.
type Poker struct {
	bus    Bus
	caller Caller
	log    *zap.Logger
	pokes  *prometheus.CounterVec

	wake chan struct{} // something is dirty

	mu      sync.Mutex
	owned   map[int]bool
	dirty   map[int]bool
	looking map[int]bool
	lines   map[lineKey]*line
	systems map[systemKey]*system
}

type systemKey struct{ project, name string }

// lineKey is what is poked in order: one monitoring system's instances of one partition.
type lineKey struct {
	systemKey
	partition int
}

// line is at work, and whether it was asked for again meanwhile.
type line struct{ again bool }

// system is a monitoring system as it was last read.
type system struct {
	spec   monitoring.SystemSpec
	absent bool
	read   time.Time
	places chan struct{} // pokes under way
	// down says that it could not be reached, refused which pokes it did not take; until the next sweep.
	down    bool
	refused map[string]uint64
}

// New returns a Poker that counts in r.
func New(b Bus, c Caller, log *zap.Logger, r prometheus.Registerer) (*Poker, error) {
	p := &Poker{
		bus: b, caller: c, log: log, wake: make(chan struct{}, 1), owned: map[int]bool{}, dirty: map[int]bool{}, looking: map[int]bool{},
		lines: map[lineKey]*line{}, systems: map[systemKey]*system{},
		pokes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "drover_notifier_pokes_total", Help: "Pokes of monitoring systems by outcome.",
		}, []string{"outcome"}),
	}
	return p, r.Register(p.pokes)
}

// Own says which partitions are this notifier's to look at.
func (p *Poker) Own(partitions []int) {
	p.mu.Lock()
	before := p.owned
	p.owned = map[int]bool{}
	for _, n := range partitions {
		p.owned[n] = true
		if !before[n] {
			p.dirty[n] = true
		}
	}
	p.mu.Unlock()
	p.nudge()
}

// Event takes an event of the feed of instances; it never waits.
func (p *Poker) Event(s bus.Stored) {
	if to := s.Header.To; to != deployment.AwaitingRollout.String() && to != deployment.AwaitingDeprovision.String() {
		return
	}
	n, ok := wire.RoutedPartition(s.Entity.Name, p.bus.Partitions())
	if !ok {
		return
	}
	p.mu.Lock()
	mine := p.owned[n]
	if mine {
		p.dirty[n] = true
	}
	p.mu.Unlock()
	if mine {
		p.nudge()
	}
}

// Sweep has everything looked at, and what failed tried again.
func (p *Poker) Sweep() {
	p.mu.Lock()
	for n := range p.owned {
		p.dirty[n] = true
	}
	for _, s := range p.systems {
		s.down, s.refused = false, nil
	}
	p.mu.Unlock()
	p.nudge()
}

func (p *Poker) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run pokes until ctx ends; pokes under way are given up then, and come again.
func (p *Poker) Run(ctx context.Context) error {
	places := make(chan struct{}, RoundsMax)
	var under sync.WaitGroup
	defer under.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(gatherFor):
		}
		for {
			n, ok := p.next()
			if !ok {
				break
			}
			select {
			case <-ctx.Done():
				return nil
			case places <- struct{}{}:
			}
			under.Go(func() {
				defer func() { <-places }()
				p.look(ctx, n, &under)
			})
		}
	}
}

// next takes a partition that is to be looked at and is not at present.
func (p *Poker) next() (int, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n := range p.dirty {
		switch {
		case !p.owned[n]:
			delete(p.dirty, n)
		case !p.looking[n]:
			delete(p.dirty, n)
			p.looking[n] = true
			return n, true
		}
	}
	return 0, false
}

// look asks an owner who is pending, and has each monitoring system poked by itself.
func (p *Poker) look(ctx context.Context, n int, under *sync.WaitGroup) {
	a, err := p.ask(ctx, n, "pokes", wire.CheckRequest{})
	p.mu.Lock()
	delete(p.looking, n)
	again := p.dirty[n]
	p.mu.Unlock()
	if again {
		p.nudge()
	}
	if err != nil {
		if ctx.Err() == nil {
			p.log.Debug("an owner could not be asked for pokes; the next sweep asks again", host.Partition(n), zap.Error(err))
		}
		return
	}
	for _, pending := range a.Pokes {
		key := lineKey{systemKey{pending.Project, pending.System}, n}
		p.mu.Lock()
		busy := p.lines[key]
		if busy != nil {
			busy.again = true
		} else {
			p.lines[key] = &line{}
		}
		p.mu.Unlock()
		if busy == nil {
			under.Go(func() { p.work(ctx, key, pending) })
		}
	}
}

// work pokes a system for a partition's pending instances.
func (p *Poker) work(ctx context.Context, key lineKey, pending wire.CheckPokes) {
	taken := p.pokeAll(ctx, key.systemKey, pending.Pokes)
	host.CrashPoint("notifier.after-poke")
	told := false
	if len(taken) > 0 {
		a, err := p.ask(ctx, key.partition, "poked", wire.CheckRequest{Project: key.project, Poked: taken})
		told = err == nil && a.Missed == 0
		if !told && ctx.Err() == nil {
			p.log.Debug("pokes that were taken could not be told; they come again", host.Partition(key.partition), zap.Error(err))
		}
	}
	p.mu.Lock()
	again := p.lines[key].again || told && pending.More
	delete(p.lines, key)
	if again = again && p.owned[key.partition]; again {
		p.dirty[key.partition] = true
	}
	p.mu.Unlock()
	if again {
		p.nudge()
	}
}

// system is a monitoring system as it is now; nil where it cannot be read, or is not to be poked.
func (p *Poker) system(ctx context.Context, key systemKey) *system {
	p.mu.Lock()
	s := p.systems[key]
	fresh := s != nil && time.Since(s.read) < systemFor
	p.mu.Unlock()
	if !fresh {
		stored, err := p.bus.Get(ctx, bus.Entity{Family: bus.Check, Project: key.project, Name: check.ID(check.MonitoringSystem, key.name)})
		var spec monitoring.SystemSpec
		absent := errors.Is(err, bus.ErrNotFound) || err == nil && stored.Deleted
		if err == nil && !absent {
			var e wire.CheckEvent
			if e, err = wire.DecodeCheck(stored.Body); err == nil {
				absent = e.Gone || e.State.Deleted()
				spec, err = monitoring.System([]byte(e.State.Spec))
			}
		}
		if err != nil && !absent {
			if ctx.Err() == nil {
				p.log.Warn("a monitoring system cannot be read; it is poked with the next sweep", zap.String("system", key.name), zap.Error(err))
			}
			return nil
		}
		p.mu.Lock()
		next := &system{spec: spec, absent: absent, read: time.Now()}
		if s = p.systems[key]; s != nil {
			next.down, next.refused, next.places = s.down, s.refused, s.places
		}
		if next.places == nil || cap(next.places) != max(spec.PokesMax, 1) {
			next.places = make(chan struct{}, max(spec.PokesMax, 1))
		}
		p.systems[key], s = next, next
		p.mu.Unlock()
	}
	if s.absent || s.spec.Callback == "" {
		return nil
	}
	return s
}

// pokeAll returns the pokes that were taken.
func (p *Poker) pokeAll(ctx context.Context, key systemKey, pokes []wire.CheckPoke) (taken []wire.CheckPoke) {
	s := p.system(ctx, key)
	if s == nil {
		return nil
	}
	var mu sync.Mutex
	var under sync.WaitGroup
	for _, poke := range pokes {
		select {
		case <-ctx.Done():
		case s.places <- struct{}{}:
			if p.leave(key, poke) {
				<-s.places
				continue
			}
			under.Go(func() {
				defer func() { <-s.places }()
				if p.poke(ctx, key, s, poke) {
					mu.Lock()
					defer mu.Unlock()
					taken = append(taken, poke)
				}
			})
		}
	}
	under.Wait()
	return taken
}

// leave reports whether a poke is left to the next sweep.
func (p *Poker) leave(key systemKey, poke wire.CheckPoke) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.systems[key]
	updates, refused := now.refused[poke.ID]
	return now.down || refused && updates == poke.Updates
}

// poke sends one.
func (p *Poker) poke(ctx context.Context, key systemKey, s *system, poke wire.CheckPoke) bool {
	body, err := json.Marshal(struct {
		UUID string `json:"uuid"`
		Path string `json:"path"`
	}{poke.ID, s.spec.PokePath()})
	if err != nil {
		return false // two strings
	}
	within, cancel := context.WithTimeout(ctx, s.spec.Timeout)
	defer cancel()
	err = p.caller.Post(within, key.project, &listener.Webhook{URL: s.spec.Callback}, poke.ID,
		map[string]string{"Content-Type": "application/json; charset=utf-8"}, body)
	if err == nil {
		p.pokes.WithLabelValues("taken").Inc()
		return true
	}
	if ctx.Err() != nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.systems[key]
	if errors.Is(err, webhook.ErrStatus) {
		p.pokes.WithLabelValues("refused").Inc()
		if now.refused == nil {
			now.refused = map[string]uint64{}
		}
		now.refused[poke.ID] = poke.Updates
		p.log.Warn("a monitoring system did not take a poke; it comes again with the next sweep", zap.String("system", key.name),
			zap.String("instance", poke.ID), zap.Error(err))
		return false
	}
	p.pokes.WithLabelValues("failed").Inc()
	if !now.down {
		now.down = true
		p.log.Warn("a monitoring system cannot be poked; it is tried again with the next sweep", zap.String("system", key.name), zap.Error(err))
	}
	return false
}

func (p *Poker) ask(ctx context.Context, n int, verb string, q wire.CheckRequest) (a wire.CheckAnswer, err error) {
	body, err := wire.EncodeCheckRequest(q)
	if err != nil {
		return a, err
	}
	ctx, cancel := context.WithTimeout(ctx, AskTimeout)
	defer cancel()
	reply, err := p.bus.AskDoor(ctx, n, bus.Request{Verb: "check." + verb, Header: map[string]string{bus.HeaderContentType: bus.ContentTypeJSON}, Body: body})
	if err != nil {
		return a, err
	}
	if a, err = wire.DecodeCheckAnswer(reply.Body); err == nil && a.Code != "" {
		err = fmt.Errorf("%s: %s", a.Code, a.Message)
	}
	return a, err
}
