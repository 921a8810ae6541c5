package partition

import (
	"bytes"
	"errors"

	"github.com/droverproject/drover/pkg/bus"
)

// inquiry is a bus.Pending of an append whose answer was lost: the log is asked whether it is stored. Without that its input would
// be decided anew, on what it has changed itself, and be refused: a command by its own job, a success that was reported by the
// state that it has led to. Where the log does not say, that is what happens.
type inquiry struct {
	done chan struct{}
	seq  uint64
	err  error // at first that of the append
}

// Done implements bus.Pending.
func (q *inquiry) Done() <-chan struct{} { return q.done }

// Result implements bus.Pending.
func (q *inquiry) Result() (uint64, error) {
	<-q.done
	return q.seq, q.err
}

// inquire asks for all that are out and were answered by nothing. No append is asked for twice.
func (p *port) inquire() {
	var asked []*inquiry
	var sent []bus.Append
	for i := range p.out {
		o := &p.out[i]
		if !o.unknown() {
			continue
		}
		_, err := o.pending.Result()
		q := &inquiry{done: make(chan struct{}), err: err}
		o.pending = q
		asked, sent = append(asked, q), append(sent, o.sent)
	}
	p.c.Shell.Background(func() {
		for i, seq := range p.found(sent) {
			q := asked[i]
			if seq > 0 {
				q.seq, q.err = seq, nil
			}
			close(q.done)
		}
		p.c.Shell.Later(func() {}) // the Owner looks at what is answered
	})
}

// found is the sequence of each append that is stored, as far as the log says; 0: it does not, or not yet. What any replica holds is
// stored; the leader, who knows better what is not, cannot be asked while nobody leads all servers (nats-server 2.15.2).
func (p *port) found(sent []bus.Append) []uint64 {
	seqs := make([]uint64, len(sent))
	for _, fresh := range []bool{false, true} {
		var left []int
		var entities []bus.Entity
		for i, a := range sent {
			if seqs[i] == 0 {
				left, entities = append(left, i), append(entities, a.Entity)
			}
		}
		if len(left) == 0 {
			break
		}
		stored, err := p.read(entities, fresh)
		for n, i := range left {
			if err == nil && is(stored[n], sent[i]) {
				seqs[i] = stored[n].Seq
			}
		}
	}
	return seqs
}

// unknown reports whether the answer is that there is none, and the log was not asked.
func (o *outcome) unknown() bool {
	if _, asked := o.pending.(*inquiry); asked {
		return false
	}
	select {
	case <-o.pending.Done():
		_, err := o.pending.Result()
		return errors.Is(err, bus.ErrUnknownOutcome)
	default:
		return false
	}
}

// is reports whether what the log holds is what was sent: an event says when it was made, or the how-manieth of its entity it is.
func is(stored bus.Stored, sent bus.Append) bool {
	return stored.Seq > sent.Expect && bytes.Equal(stored.Body, sent.Body)
}
