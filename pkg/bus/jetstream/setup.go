package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/droverproject/drover/pkg/bus"
)

// Setup implements bus.Bus. Several processes may do it at once: who comes second finds what the first made.
func (b *Bus) Setup(ctx context.Context, repair bool) ([]bus.Drift, error) {
	if err := b.learn(ctx); err != nil {
		return nil, fmt.Errorf("setup: %w", err)
	}
	if err := b.noteSync(ctx); err != nil {
		return nil, fmt.Errorf("setup: %w", err)
	}
	want := or(b.options.Partitions, b.Partitions())
	var drifts []bus.Drift
	wanted := b.layout().streams(want, or(b.options.Sync, b.noted()))
	made := wanted
	for i, c := range wanted {
		drift, err := b.setupStream(ctx, c, made[i], repair)
		if err != nil {
			return nil, fmt.Errorf("setup: stream %s: %w", c.Name, err)
		}
		drifts = append(drifts, drift...)
		if c.Name == streamEvents { // the first: what is missing beside it is made as it says, whatever is asked for
			if err := b.learn(ctx); err != nil {
				return nil, fmt.Errorf("setup: %w", err)
			}
			made = b.layout().streams(b.Partitions(), or(b.options.Sync, b.noted()))
		}
	}
	for _, t := range ticks() {
		if err := b.setupSchedule(ctx, t); err != nil {
			return nil, fmt.Errorf("setup: schedule %s: %w", t, err)
		}
	}
	return drifts, nil
}

// Check implements bus.Bus.
func (b *Bus) Check(ctx context.Context) ([]bus.Drift, error) {
	if err := b.learn(ctx); err != nil {
		return nil, fmt.Errorf("check: %w", err)
	}
	var drifts []bus.Drift
	timers := false
	for _, c := range b.layout().streams(or(b.options.Partitions, b.Partitions()), or(b.options.Sync, b.noted())) {
		info, err := b.streamInfo(ctx, c.Name, "")
		if errors.Is(err, bus.ErrNotFound) {
			drifts = append(drifts, bus.Drift{Stream: c.Name, Want: "present", Have: "missing", Repairable: true, Missing: true})
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("check: stream %s: %w", c.Name, err)
		}
		timers = timers || c.Name == streamTimers
		found, err := compare(begunAs(c, info.Config), info.Config)
		if err != nil {
			return nil, fmt.Errorf("check: stream %s: %w", c.Name, err)
		}
		drifts = append(drifts, found...)
	}
	for _, t := range ticks() {
		if !timers { // said already, and there is nothing to ask
			break
		}
		have, err := b.scheduleOf(ctx, t)
		if err != nil {
			return nil, fmt.Errorf("check: schedule %s: %w", t, err)
		}
		if have != schedules[t] {
			drifts = append(drifts, bus.Drift{
				Stream: streamTimers, Setting: "schedule " + string(t), Want: schedules[t], Have: have, Repairable: true, Missing: have == "",
			})
		}
	}
	return drifts, nil
}

// noteSync changes the note of how the server syncs, where it is known better. It describes the server, not the stream,
// so that it is no drift to be repaired on demand.
func (b *Bus) noteSync(ctx context.Context) error {
	if b.options.Sync == "" || b.options.Sync == b.noted() {
		return nil
	}
	info, err := b.streamInfo(ctx, streamEvents, "")
	if errors.Is(err, bus.ErrNotFound) {
		return nil // it is made with the note
	}
	if err != nil {
		return err
	}
	c := info.Config
	c.Metadata = maps.Clone(c.Metadata)
	if c.Metadata == nil {
		c.Metadata = map[string]string{}
	}
	c.Metadata[metaSync] = b.options.Sync
	return b.api(ctx, "STREAM.UPDATE."+streamEvents, c, nil)
}

// setupStream holds a stream against what is wanted, and makes one that is missing.
func (b *Bus) setupStream(ctx context.Context, want, made natsjs.StreamConfig, repair bool) ([]bus.Drift, error) {
	info, err := b.streamInfo(ctx, want.Name, "")
	if errors.Is(err, bus.ErrNotFound) {
		if made.Name == streamWork {
			if made, err = b.workFromNow(ctx, made); err != nil {
				return nil, err
			}
		}
		// Who is second to create the same stream is told that it is there. With other settings it is an error, and
		// what the first one made is compared.
		err = b.api(ctx, "STREAM.CREATE."+want.Name, made, info)
		var api *natsjs.APIError
		if errors.As(err, &api) && api.ErrorCode == natsjs.JSErrCodeStreamNameInUse {
			info, err = b.streamInfo(ctx, want.Name, "")
		}
	}
	if err != nil {
		return nil, err
	}
	have := info.Config
	want = begunAs(want, have)
	drifts, err := compare(want, have)
	if err != nil || len(drifts) == 0 || !repair {
		return drifts, err
	}
	// Only what may be changed is changed; the rest keeps its drift.
	mended, err := mend(have, want, drifts)
	if err != nil {
		return nil, err
	}
	var left []bus.Drift
	for _, d := range drifts {
		if !d.Repairable {
			left = append(left, d)
		}
	}
	if len(left) == len(drifts) {
		return left, nil
	}
	return left, b.api(ctx, "STREAM.UPDATE."+want.Name, mended, nil)
}

// workFromNow has WORK begin behind the log's end: what was ever handed out is not handed out again where WORK was lost, or is
// made of a backup. What is out is found by a sweep (Outstanding), or put there by Restore.
func (b *Bus) workFromNow(ctx context.Context, want natsjs.StreamConfig) (natsjs.StreamConfig, error) {
	info, err := b.streamInfo(ctx, streamEvents, "")
	if err != nil || info.State.LastSeq == 0 {
		return want, err
	}
	source := *want.Sources[0]
	source.OptStartSeq = info.State.LastSeq + 1
	want.Sources = []*natsjs.StreamSource{&source}
	return want, nil
}

// begunAs is want, with its sources begun where they were: that says when a stream was made, and is no drift.
func begunAs(want, have natsjs.StreamConfig) natsjs.StreamConfig {
	sources := slices.Clone(want.Sources)
	for i := range sources {
		if i < len(have.Sources) && have.Sources[i].Name == sources[i].Name {
			source := *sources[i]
			source.OptStartSeq = have.Sources[i].OptStartSeq
			sources[i] = &source
		}
	}
	want.Sources = sources
	return want
}

// settings is a configuration as the server writes it, one entry a setting.
func settings(c natsjs.StreamConfig) (map[string]json.RawMessage, error) {
	c.Metadata = maps.Clone(c.Metadata)
	maps.DeleteFunc(c.Metadata, func(k, _ string) bool { return strings.HasPrefix(k, "_nats.") }) // the server's own
	raw, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	delete(m, "consumer_limits") // an empty object or none at all
	return m, nil
}

// compare lists the settings that differ, in the order of their names.
func compare(want, have natsjs.StreamConfig) ([]bus.Drift, error) {
	w, err := settings(want)
	if err != nil {
		return nil, err
	}
	h, err := settings(have)
	if err != nil {
		return nil, err
	}
	names := slices.Collect(maps.Keys(w))
	for name := range h {
		if _, ok := w[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var drifts []bus.Drift
	for _, name := range names {
		if string(w[name]) != string(h[name]) {
			drifts = append(drifts, bus.Drift{Stream: want.Name, Setting: name, Want: plain(w[name]), Have: plain(h[name]),
				Repairable: repairable(name, w[name], h[name])})
		}
	}
	return drifts, nil
}

func plain(v json.RawMessage) string {
	if v == nil {
		return "unset"
	}
	return strings.Trim(string(v), `"`)
}

// repairable says whether a setting may be changed on a living stream without losing a message or breaking a reader.
func repairable(name string, want, have json.RawMessage) bool {
	switch name {
	case "description", "republish", "allow_direct", "mirror_direct", "num_replicas", "allow_atomic", "discard",
		"duplicate_window", "deny_purge", "allow_rollup_hdrs", "compression", "placement":
		return true
	case "allow_msg_ttl", "allow_msg_schedules":
		return string(want) == "true" // the server never takes them back
	case "max_msgs", "max_bytes", "max_age", "max_msgs_per_subject", "max_msg_size", "max_consumers":
		// To lower a limit can drop messages. Zero and less mean: none.
		w, werr := strconv.ParseInt(or(string(want), "0"), 10, 64)
		h, herr := strconv.ParseInt(or(string(have), "0"), 10, 64)
		return werr == nil && herr == nil && (w <= 0 || h > 0 && w > h)
	}
	return false
}

// mend is have with the repairable settings of want.
func mend(have, want natsjs.StreamConfig, drifts []bus.Drift) (natsjs.StreamConfig, error) {
	var mended natsjs.StreamConfig
	raw, err := json.Marshal(have)
	if err != nil {
		return mended, fmt.Errorf("settings: %w", err)
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(raw, &m); err != nil {
		return mended, fmt.Errorf("settings: %w", err)
	}
	w, err := settings(want)
	if err != nil {
		return mended, err
	}
	for _, d := range drifts {
		if !d.Repairable {
			continue
		}
		if v, ok := w[d.Setting]; ok {
			m[d.Setting] = v
		} else {
			delete(m, d.Setting)
		}
	}
	if raw, err = json.Marshal(m); err != nil {
		return mended, fmt.Errorf("settings: %w", err)
	}
	if err := json.Unmarshal(raw, &mended); err != nil {
		return mended, fmt.Errorf("settings: %w", err)
	}
	return mended, nil
}

// setupSchedule stores a tick's schedule, unless it is there: storing it again would start its period anew.
func (b *Bus) setupSchedule(ctx context.Context, t bus.Tick) error {
	have, err := b.scheduleOf(ctx, t)
	if err != nil || have == schedules[t] {
		return err
	}
	m := nats.NewMsg(timerSubject(t))
	m.Header["Nats-Schedule"] = []string{schedules[t]}
	m.Header["Nats-Schedule-Target"] = []string{"drover.tick." + string(t)}
	return b.retry(ctx, func(ctx context.Context) error {
		_, err := b.publish(ctx, m)
		return err
	})
}

func timerSubject(t bus.Tick) string { return "drover.timer." + string(t) }

// scheduleOf is the schedule of a tick that is stored; empty: none is.
func (b *Bus) scheduleOf(ctx context.Context, t bus.Tick) (string, error) {
	last, err := b.leaderGet(ctx, streamTimers, getRequest{LastFor: timerSubject(t)})
	if errors.Is(err, bus.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return last.Header.Get("Nats-Schedule"), nil
}

// publish stores one message, and returns its sequence. It may be stored twice, unless it carries what keeps it from that.
func (b *Bus) publish(ctx context.Context, m *nats.Msg) (uint64, error) {
	p := b.calls.sendSure(m, nil)
	b.calls.wait(ctx, p)
	return p.seq, p.err
}

// publishOnce is publish of what must not be stored twice: where its answer is lost, that is an error.
func (b *Bus) publishOnce(ctx context.Context, m *nats.Msg) (uint64, error) {
	p := b.calls.send(m, callTimeout, parsePubAck)
	b.calls.wait(ctx, p)
	return p.seq, p.err
}
