//go:build unix

package demo

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// How often progress is shown.
const (
	redraw     = 100 * time.Millisecond // of the live line
	lineEvery  = time.Second            // of plain lines
	liveColumn = 79
)

// screen tells the story: lines, and on a terminal a live line below them. Safe for concurrent use.
type screen struct {
	out      io.Writer
	terminal bool
	broken   func(error) // called when nobody reads any more

	mu   sync.Mutex
	live bool // there is a live line
}

// say writes a line.
func (s *screen) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.write(s.cleared() + fmt.Sprintf(format, args...) + "\n")
}

// command writes a command line, as a user would type it.
func (s *screen) command(args ...string) {
	s.say("\n%s", s.bold("$ drover "+strings.Join(args, " ")))
}

// indented writes lines, indented.
func (s *screen) indented(text string) {
	for line := range strings.Lines(text) {
		s.say("  %s", strings.TrimRight(line, "\n"))
	}
}

func (s *screen) bold(text string) string {
	if !s.terminal {
		return text
	}
	return "\x1b[1m" + text + "\x1b[0m"
}

// draw shows a line that the next one replaces.
func (s *screen) draw(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if utf8.RuneCountInString(line) > liveColumn {
		line = string([]rune(line)[:liveColumn-1]) + "…"
	}
	s.write(s.cleared() + line)
	s.live = true
}

func (s *screen) cleared() string {
	if !s.live {
		return ""
	}
	s.live = false
	return "\r\x1b[K"
}

func (s *screen) write(text string) {
	if _, err := io.WriteString(s.out, text); err != nil && s.broken != nil {
		s.broken(err)
	}
}

// follow shows how the feed gets on until it is told to end: on a terminal as a live line, and else as a line every now
// and then.
func (s *screen) follow(f *feed) (end func()) {
	began := time.Now()
	last := ""
	show := func() {
		now := f.summary()
		line := fmt.Sprintf("  %4.1f s  %s", time.Since(began).Seconds(), now)
		switch {
		case s.terminal:
			s.draw(line)
		case now != last:
			s.say("%s", line)
		}
		last = now
	}
	every := lineEvery
	if s.terminal {
		every = redraw
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				show()
			case <-stop:
				return
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
		s.mu.Lock()
		s.write(s.cleared())
		s.mu.Unlock()
	}
}
