package memory

import (
	"context"
	"fmt"
	"slices"

	"github.com/droverproject/drover/pkg/bus"
)

// outputLines is the stream OUTPUT.
type outputLines struct {
	seq   uint64
	bytes int
	lines []bus.OutputLine
	more  chan struct{} // closed when a line was added, and replaced
}

// PublishOutput implements bus.Output.
func (c *Conn) PublishOutput(project, kind, name string, body []byte) error {
	if err := c.alive(); err != nil {
		return err
	}
	if len(body) > bus.BodyBytesMax {
		return fmt.Errorf("%w: output of %d bytes, limit %d", bus.ErrTooLarge, len(body), bus.BodyBytesMax)
	}
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	o := &s.output
	o.seq++
	o.bytes += len(body)
	o.lines = append(o.lines, bus.OutputLine{Subject: bus.OutSubject(project, kind, name), Seq: o.seq, Time: s.clock.Now(), Body: slices.Clone(body)})
	for o.bytes > s.options.OutputBytes && len(o.lines) > 1 {
		o.bytes -= len(o.lines[0].Body)
		o.lines = o.lines[1:]
	}
	if o.more != nil {
		close(o.more)
		o.more = nil
	}
	return nil
}

// StoreOutput implements bus.Output.
func (c *Conn) StoreOutput(_ context.Context, project, kind, name string, body []byte) error {
	return c.PublishOutput(project, kind, name, body)
}

// ReadOutput implements bus.Output.
func (c *Conn) ReadOutput(ctx context.Context, project, kind, name string, follow bool, each func(bus.OutputLine) error) error {
	s, subject, last := c.s, bus.OutSubject(project, kind, name), uint64(0)
	for {
		if err := c.alive(); err != nil {
			return err
		}
		s.mu.Lock()
		var fresh []bus.OutputLine
		for _, l := range s.output.lines {
			if l.Seq > last && l.Subject == subject {
				fresh = append(fresh, l)
			}
		}
		last = s.output.seq
		if s.output.more == nil {
			s.output.more = make(chan struct{})
		}
		more := s.output.more
		s.mu.Unlock()
		for _, l := range fresh {
			if err := each(l); err != nil {
				return err
			}
		}
		if !follow {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil
		case <-c.done:
			return bus.ErrClosed
		}
	}
}
