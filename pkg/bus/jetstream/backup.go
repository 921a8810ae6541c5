package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/nats-io/nats-server/v2/server/archive"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/droverproject/drover/pkg/bus"
)

// A backup is a folder with one folder a stream, each of which holds what `nats stream backup` writes and
// `nats stream restore` reads (nats-server 2.15), and the file drover.json, which is written last: a folder without it is
// half of a backup.
//
// Only what is not derived is in it: buckets and WORK are made anew of the log (Restore), schedules by Setup.
//
// # Why EVENTS is read, and the others are snapshots
//
// The server makes a snapshot of a stream while that goes on: it copies message by message what is still there, up to the
// sequence that was the last when it began. EVENTS keeps 8 messages a subject, so a resource that moves nine times meanwhile
// would be missing from it, with the job that was accepted for it. So EVENTS is read by a consumer, in order, until that is
// at the end: when it has passed the last event of an entity, that was there, because nothing but a younger one takes it
// away. The queues lose what is settled, which is in the log by then, as EVENTS comes last; the other streams lose what is too old.
const (
	backupMeta     = "drover.json"
	streamMeta     = "backup.json"
	streamData     = "stream.tar.s2"
	stateEntry     = "state.json" // the first of an archive; the last has no name and no sequence
	snapshotChunk  = 64 << 10     // bytes of a message of a snapshot, either way
	snapshotSilent = 15 * time.Second
	copyTries      = 5 // that one stream takes, either way, before it is an error
)

// backedUp are the streams of a backup, in the order in which they are copied: a command, or a result, is either still in
// its queue when that is copied, or in the log when that is copied after it.
func backedUp() []string {
	return []string{streamCommands, streamResults, streamOutput, streamRefused, streamPoison, streamEvents}
}

// streamBackup is the file backup.json of a stream.
type streamBackup struct {
	Config natsjs.StreamConfig `json:"config"`
	State  archiveState        `json:"state"`
}

// archiveState is what an archive says of itself; the server's words.
type archiveState struct {
	Messages  uint64    `json:"messages"`
	Bytes     uint64    `json:"bytes"`
	FirstSeq  uint64    `json:"first_seq"`
	FirstTime time.Time `json:"first_ts"`
	LastSeq   uint64    `json:"last_seq"`
	LastTime  time.Time `json:"last_ts"`
	Consumers int       `json:"consumer_count"`
}

// Backup copies what a system is made of into a folder, which must be empty or not there, while it is at work. It calls
// each after every stream. All that was accepted before it began is in it, and the log is whole up to Backup.TakenAt.
// Consumers are left out. It takes the operator's rights.
func (b *Bus) Backup(ctx context.Context, dir string, each func(bus.Copied)) (bus.Backup, error) {
	if err := b.learn(ctx); err != nil {
		return bus.Backup{}, fmt.Errorf("backup: %w", err)
	}
	if err := emptyFolder(dir); err != nil {
		return bus.Backup{}, fmt.Errorf("backup: %w", err)
	}
	out := bus.Backup{Partitions: b.Partitions()}
	for _, name := range backedUp() {
		folder := filepath.Join(dir, name)
		if err := os.Mkdir(folder, 0o700); err != nil {
			return bus.Backup{}, fmt.Errorf("backup of %s: %w", name, err)
		}
		copyStream := b.snapshot
		if name == streamEvents {
			copyStream = b.readWhole
			info, err := b.streamInfo(ctx, name, "")
			if err != nil {
				return bus.Backup{}, fmt.Errorf("backup of %s: %w", name, err)
			}
			out.TakenAt = info.TimeStamp
		}
		meta, err := copyStream(ctx, name, filepath.Join(folder, streamData))
		if err != nil {
			return bus.Backup{}, fmt.Errorf("backup of %s: %w", name, err)
		}
		if err := writeJSON(filepath.Join(folder, streamMeta), meta); err != nil {
			return bus.Backup{}, fmt.Errorf("backup of %s: %w", name, err)
		}
		info, err := os.Stat(filepath.Join(folder, streamData))
		if err != nil {
			return bus.Backup{}, fmt.Errorf("backup of %s: %w", name, err)
		}
		c := bus.Copied{Stream: name, Messages: meta.State.Messages, LastSeq: meta.State.LastSeq, Bytes: info.Size()}
		out.Streams = append(out.Streams, c)
		if each != nil {
			each(c)
		}
	}
	if err := writeJSON(filepath.Join(dir, backupMeta), out); err != nil {
		return bus.Backup{}, fmt.Errorf("backup: %w", err)
	}
	return out, nil
}

// emptyFolder makes a folder, for its owner alone: specs and output lines are in it.
func emptyFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		return fmt.Errorf("folder %s is not empty", dir)
	}
	return err
}

func writeJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(path, func(w io.Writer) error {
		_, err := w.Write(append(text, '\n'))
		return err
	})
}

// writeFile makes a file and has it on disk when it returns.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err = write(f); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// snapshot has the server send a stream. The server gives up after 5 s in which it hears nothing: then it is asked again.
func (b *Bus) snapshot(ctx context.Context, stream, path string) (streamBackup, error) {
	for try := 1; ; try++ {
		meta, err := b.snapshotOnce(ctx, stream, path)
		if err == nil || try == copyTries || ctx.Err() != nil || errors.Is(err, bus.ErrDenied) {
			return meta, err
		}
		if gone := os.Remove(path); gone != nil && !errors.Is(gone, os.ErrNotExist) {
			return meta, errors.Join(err, gone)
		}
	}
}

// snapshotOnce has the server send a stream, without its consumers. Each of its messages asks for an answer, by which the server
// knows how fast it may go on; one without a body is the end.
func (b *Bus) snapshotOnce(ctx context.Context, stream, path string) (streamBackup, error) {
	inbox := b.nc.NewInbox()
	sub, err := b.nc.SubscribeSync(inbox)
	if err != nil {
		return streamBackup{}, b.explain(err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only if the connection is closed
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return streamBackup{}, b.explain(err) // the server has no more than 8 MiB under way
	}
	body, err := json.Marshal(map[string]any{"deliver_subject": inbox, "no_consumers": true, "chunk_size": snapshotChunk})
	if err != nil {
		return streamBackup{}, err
	}
	// Asked once: a second snapshot would come to the same inbox.
	reply, err := b.calls.request(ctx, &nats.Msg{Subject: "$JS.API.STREAM.SNAPSHOT." + stream, Data: body})
	if err != nil {
		return streamBackup{}, b.explain(err)
	}
	var answer struct {
		Error *natsjs.APIError `json:"error"`
		streamBackup
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return streamBackup{}, fmt.Errorf("answer of the server: %w", err)
	}
	if answer.Error != nil {
		return streamBackup{}, b.explain(answer.Error)
	}
	err = writeFile(path, func(w io.Writer) error {
		for {
			silence, cancel := context.WithTimeout(ctx, snapshotSilent)
			m, err := sub.NextMsgWithContext(silence)
			cancel()
			switch {
			case err != nil:
				return fmt.Errorf("the server sends no more: %w", err)
			case len(m.Data) > 0:
				if _, err := w.Write(m.Data); err != nil {
					return err
				}
				if m.Reply != "" {
					if err := b.nc.Publish(m.Reply, nil); err != nil {
						return b.explain(err)
					}
				}
			case m.Header.Get("Status") == "" || m.Header.Get("Status") == "204":
				return nil
			default:
				return fmt.Errorf("the server gives up: %s %s", m.Header.Get("Status"), m.Header.Get("Description"))
			}
		}
	})
	if err != nil {
		return streamBackup{}, err
	}
	answer.State.Consumers = 0
	return answer.streamBackup, nil
}

// readWhole reads EVENTS to its end into an archive.
func (b *Bus) readWhole(ctx context.Context, stream, path string) (streamBackup, error) {
	info, err := b.streamInfo(ctx, stream, "")
	if err != nil {
		return streamBackup{}, err
	}
	meta := streamBackup{Config: info.Config}
	// An empty stream goes on behind what it once held.
	meta.State.FirstSeq, meta.State.LastSeq, meta.State.LastTime = info.State.FirstSeq, info.State.LastSeq, info.State.LastTime
	err = writeArchive(path, &meta.State, func(each func(message) error) error { return b.readStream(ctx, stream, each) })
	return meta, err
}

// writeArchive writes messages in the server's form, and notes in state what they are. What an archive says first is known
// last: so the messages are written beside it, and put behind it.
func writeArchive(path string, state *archiveState, messages func(each func(message) error) error) error {
	beside := path + ".messages"
	defer func() { _ = os.Remove(beside) }() // it may not be there
	err := writeFile(beside, func(w io.Writer) error {
		return compressed(w, func(w io.Writer) error {
			a := archive.NewWriter(&without{w, len(archive.MagicBytes)}) // they stand behind another's
			if err := messages(func(m message) error { return archiveMessage(a, m, state) }); err != nil {
				return err
			}
			return archived(a, &archive.Header{})
		})
	})
	if err != nil {
		return err
	}
	text, err := json.Marshal(state)
	if err != nil {
		return err
	}
	return writeFile(path, func(w io.Writer) error {
		err := compressed(w, func(w io.Writer) error {
			return archived(archive.NewWriter(w), &archive.Header{Name: stateEntry, PayloadSize: int64(len(text)), Timestamp: time.Now().UnixNano()}, text)
		})
		if err != nil {
			return err
		}
		messages, err := os.Open(beside)
		if err != nil {
			return err
		}
		_, err = io.Copy(w, messages) // one compressed stream after another is one
		return errors.Join(err, messages.Close())
	})
}

func archiveMessage(a *archive.Writer, m message, state *archiveState) error {
	h := encodeHeader(m.Header)
	if state.Messages == 0 {
		state.FirstSeq, state.FirstTime = m.Seq, m.Time
	}
	state.Messages, state.LastSeq, state.LastTime = state.Messages+1, max(state.LastSeq, m.Seq), m.Time
	state.Bytes += uint64(len(m.Subject) + len(h) + len(m.Data))
	return archived(a, &archive.Header{
		Name: m.Subject, Sequence: m.Seq, Timestamp: m.Time.UnixNano(), HeaderSize: int64(len(h)), PayloadSize: int64(len(m.Data)),
	}, h, m.Data)
}

func compressed(w io.Writer, write func(io.Writer) error) error {
	c := s2.NewWriter(w)
	err := write(c)
	return errors.Join(err, c.Close())
}

func archived(a *archive.Writer, h *archive.Header, parts ...[]byte) error {
	if err := a.WriteHeader(h); err != nil {
		return err
	}
	for _, part := range parts {
		if _, err := a.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// without leaves out the first bytes that are written.
type without struct {
	w    io.Writer
	left int
}

func (w *without) Write(p []byte) (int, error) {
	skip := min(w.left, len(p))
	w.left -= skip
	n, err := w.w.Write(p[skip:])
	return skip + n, err
}

// readStream calls each with every message of a stream, up to the end as it is when that is reached. It does not end within
// an atomic batch.
func (b *Bus) readStream(ctx context.Context, stream string, each func(message) error) error {
	r, err := b.newReader(stream, natsjs.DeliverAllPolicy, ">")
	if err != nil {
		return err
	}
	defer r.close()
	end, consumer := uint64(0), "" // end: the leader's, as it was with this consumer, which may sit on a replica that is behind
	for within := false; ; {       // the batch of the last message was not committed yet
		m, err := r.next(ctx, !within)
		drained := errors.Is(err, errDrained)
		if err != nil && !drained {
			return err
		}
		if drained || r.consumer != consumer {
			last, err := b.leaderGet(ctx, stream, getRequest{LastFor: ">"})
			if err != nil && !errors.Is(err, bus.ErrNotFound) {
				return err
			}
			end, consumer = last.Seq, r.consumer
		}
		if !drained {
			if err := each(m); err != nil {
				return err
			}
			within = first(m.Header, headerBatchID) != "" && first(m.Header, headerBatchCommit) == ""
		}
		switch {
		case within:
		case (drained || r.pending == 0) && r.last >= end:
			return nil
		case drained:
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(readAgain):
			}
		}
	}
}

// encodeHeader writes a header as it is stored.
func encodeHeader(h nats.Header) []byte {
	if len(h) == 0 {
		return nil
	}
	names := make([]string, 0, len(h))
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	out := []byte("NATS/1.0\r\n")
	for _, name := range names {
		for _, v := range h[name] {
			out = append(append(append(append(out, name...), ": "...), v...), "\r\n"...)
		}
	}
	return append(out, "\r\n"...)
}
