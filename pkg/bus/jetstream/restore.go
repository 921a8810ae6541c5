package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/droverproject/drover/pkg/bus"
)

const (
	// restoreWait is how long the server may take for one piece of a backup, and for what it does after the last: it answers
	// that when the stream is ready, on a cluster after an election.
	restoreWait = 5 * time.Minute
	// followWait is how often Restore looks whether the buckets have been derived.
	followWait = 200 * time.Millisecond
)

// Restore makes a system of a backup, on servers that hold none, with Options.Replicas copies of each stream. It calls each
// after every stream. handedOut names the phases that wait for a worker's answer, by the last event of a resource (wire.HandedOut).
//
// Buckets are derived of the log anew. WORK is not: it would hold all that was ever handed out. It goes on behind the log's end
// (workFromNow), and what was out when the backup was taken is restored into it, of the events that had handed it out, so that
// it waits for no sweep. No service may run meanwhile; one that is started all the same makes what is missing, and
// Restore fails and says of which stream. It takes the operator's rights.
func (b *Bus) Restore(ctx context.Context, dir string, handedOut func(event []byte) ([]string, error), each func(bus.Copied)) (bus.Restored, error) {
	out, err := b.restore(ctx, dir, handedOut, each)
	if err != nil {
		return bus.Restored{}, fmt.Errorf("restore: %w", err)
	}
	return out, nil
}

func (b *Bus) restore(ctx context.Context, dir string, handedOut func(event []byte) ([]string, error), each func(bus.Copied)) (out bus.Restored, err error) {
	if err := readJSON(filepath.Join(dir, backupMeta), &out.Backup); errors.Is(err, os.ErrNotExist) {
		return out, fmt.Errorf("%s is no backup, or one that was not ended: %w", dir, err)
	} else if err != nil {
		return out, err
	}
	if b.options.Partitions != 0 && b.options.Partitions != out.Partitions {
		return out, fmt.Errorf("the backup has %d partitions, which stay", out.Partitions)
	}
	if err := b.noSystem(ctx); err != nil {
		return out, err
	}
	wants := map[string]natsjs.StreamConfig{}
	for _, c := range b.options.streams(out.Partitions, b.options.Sync) {
		wants[c.Name] = c
	}
	// EVENTS first: a service that is started meanwhile would make one of its own.
	for _, c := range slices.Backward(out.Streams) {
		if err := b.restoreStream(ctx, filepath.Join(dir, c.Stream), c.Stream, wants); err != nil {
			return out, fmt.Errorf("stream %s: %w", c.Stream, err)
		}
		if each != nil {
			each(c)
		}
	}
	if err := b.learn(ctx); err != nil {
		return out, err
	}
	if out.HandedOut, out.Unread, err = b.restoreWork(ctx, wants[streamWork], handedOut); err != nil {
		return out, fmt.Errorf("stream %s: %w", streamWork, err)
	}
	if _, err := b.Setup(ctx, true); err != nil {
		return out, err
	}
	if err := b.derived(ctx); err != nil {
		return out, fmt.Errorf("buckets: %w", err)
	}
	return out, nil
}

func readJSON(path string, v any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// noSystem reports what is there of a system.
func (b *Bus) noSystem(ctx context.Context) error {
	var there []string
	for _, c := range b.options.streams(bus.Partitions, "") {
		_, err := b.streamInfo(ctx, c.Name, "")
		if err == nil {
			there = append(there, c.Name)
		} else if !errors.Is(err, bus.ErrNotFound) {
			return err
		}
	}
	if len(there) > 0 {
		return fmt.Errorf("%w: %s: a backup is restored where there is no system", bus.ErrExists, strings.Join(there, ", "))
	}
	return nil
}

// restoreStream sends a stream's backup. Its settings are those that it had, but for what follows from the number of copies.
func (b *Bus) restoreStream(ctx context.Context, folder, name string, wants map[string]natsjs.StreamConfig) error {
	want, ok := wants[name]
	if !ok {
		return errors.New("this version has no such stream")
	}
	var meta streamBackup
	if err := readJSON(filepath.Join(folder, streamMeta), &meta); err != nil {
		return err
	}
	c := meta.Config
	c.Replicas, c.PersistMode = want.Replicas, want.PersistMode
	c.Metadata = maps.Clone(c.Metadata)
	maps.DeleteFunc(c.Metadata, func(k, _ string) bool { return strings.HasPrefix(k, "_nats.") }) // the server's own
	return b.sendArchive(ctx, streamBackup{Config: c, State: meta.State}, filepath.Join(folder, streamData))
}

// sendArchive has the server make a stream of an archive. The server gives up after 5 s in which it hears nothing, or is busy
// with a piece for as long, as happens where the machine has too much to do: what it has made by then is removed, and it is asked
// again.
func (b *Bus) sendArchive(ctx context.Context, meta streamBackup, path string) error {
	for try := 1; ; try++ {
		err := b.sendArchiveOnce(ctx, meta, path)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if gone := b.api(ctx, "STREAM.DELETE."+meta.Config.Name, nil, nil); gone != nil && !errors.Is(gone, bus.ErrNotFound) {
			return errors.Join(err, gone)
		}
		if try == copyTries {
			return err
		}
	}
}

func (b *Bus) sendArchiveOnce(ctx context.Context, meta streamBackup, path string) error {
	data, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = data.Close() }() // only read
	body, err := json.Marshal(meta)
	if err != nil {
		return err
	}
	var began struct {
		DeliverSubject string `json:"deliver_subject"`
	}
	if err := b.restoring(ctx, &nats.Msg{Subject: "$JS.API.STREAM.RESTORE." + meta.Config.Name, Data: body}, &began); err != nil {
		return err
	}
	chunk := make([]byte, snapshotChunk)
	for {
		n, err := io.ReadFull(data, chunk)
		if n > 0 {
			if err := b.restoring(ctx, &nats.Msg{Subject: began.DeliverSubject, Data: chunk[:n]}, nil); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return b.restoring(ctx, &nats.Msg{Subject: began.DeliverSubject}, nil)
		}
		if err != nil {
			return err
		}
	}
}

// restoring sends a piece of a restore, once, and waits until the server has taken it.
func (b *Bus) restoring(ctx context.Context, m *nats.Msg, answer any) error {
	p := b.calls.send(m, restoreWait, nil)
	b.calls.wait(ctx, p)
	if p.err != nil || len(p.msg.Data) == 0 {
		return p.err
	}
	var failure struct {
		Error *natsjs.APIError `json:"error"`
	}
	err := json.Unmarshal(p.msg.Data, &failure)
	if err == nil && failure.Error != nil {
		return b.explain(failure.Error)
	}
	if err == nil && answer != nil {
		err = json.Unmarshal(p.msg.Data, answer)
	}
	if err != nil {
		return fmt.Errorf("answer of the server: %w", err)
	}
	return nil
}

// restoreWork makes WORK of what was handed out and not answered.
func (b *Bus) restoreWork(ctx context.Context, want natsjs.StreamConfig, handedOut func(event []byte) ([]string, error)) (n, unread int, err error) {
	dir, err := os.MkdirTemp("", "drover-restore-")
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, streamData)
	meta := streamBackup{}
	if meta.Config, err = b.workFromNow(ctx, want); err != nil {
		return 0, 0, err
	}
	err = writeArchive(path, &meta.State, func(each func(message) error) error {
		for partition := range b.Partitions() {
			err := b.Scan(ctx, partition, bus.Resource, func(s bus.Stored) error {
				if s.Deleted {
					return nil
				}
				phases, err := handedOut(s.Body)
				if err != nil {
					unread++
					return nil //nolint:nilerr // of a newer version, whose own sweep will find it
				}
				for _, phase := range phases {
					m, err := b.handOut(ctx, s.Entity, phase)
					if errors.Is(err, bus.ErrNotFound) {
						continue // evicted: a sweep hands it out again
					}
					if err != nil {
						return fmt.Errorf("phase %s of %s: %w", phase, s.Entity.Key(), err)
					}
					n++
					m.Seq = uint64(n)
					if err := each(m); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || n == 0 {
		return 0, unread, err // Setup makes an empty one
	}
	return n, unread, b.sendArchive(ctx, meta, path)
}

// handOut is the last event that handed out a phase, as the server derives work of it.
func (b *Bus) handOut(ctx context.Context, e bus.Entity, phase string) (message, error) {
	m, err := b.leaderGet(ctx, streamEvents, getRequest{LastFor: bus.Append{Entity: e, Dispatch: phase}.Subject()})
	if err != nil {
		return message{}, err
	}
	m.Subject = bus.Phase{Project: e.Project, Kind: e.Kind, Phase: phase}.WorkSubject()
	maps.DeleteFunc(m.Header, func(name string, _ []string) bool { return strings.HasPrefix(name, "Nats-") })
	return m, nil
}

// derived waits until the buckets hold what the log holds.
func (b *Bus) derived(ctx context.Context) error {
	for _, f := range bus.Families() {
		for {
			info, err := b.streamInfo(ctx, bucketStream(f), "")
			if err != nil {
				return err
			}
			if len(info.Sources) == 1 && info.Sources[0].Error == nil && info.Sources[0].Active >= 0 && info.Sources[0].Lag == 0 {
				// A source that has just begun has no lag either, and nothing of the log.
				if follows, err := b.follows(ctx, f); err != nil {
					return err
				} else if follows {
					break
				}
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("%s trails the log by %d: %w", f.Bucket(), lag(info), ctx.Err())
			case <-time.After(followWait):
			}
		}
	}
	return nil
}

// follows reports whether a family's bucket holds the last event of its family.
func (b *Bus) follows(ctx context.Context, f bus.Family) (bool, error) {
	last, err := b.leaderGet(ctx, streamEvents, getRequest{LastFor: "drover.log.*." + string(f) + ".>"})
	if errors.Is(err, bus.ErrNotFound) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	have, err := b.leaderGet(ctx, bucketStream(f), getRequest{LastFor: ">"})
	if errors.Is(err, bus.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	came, err := derived(f, strings.TrimPrefix(have.Subject, "$KV."+f.Bucket()+"."), have)
	// One that came from nowhere is a marker that the server left of an entity that is gone.
	return came.Seq == 0 || came.Seq >= last.Seq, err
}

func lag(info *natsjs.StreamInfo) uint64 {
	if len(info.Sources) == 0 {
		return 0
	}
	return info.Sources[0].Lag
}
