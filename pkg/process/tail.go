package process

import (
	"strings"
	"sync"
)

// Limits of a Tail.
const (
	TailLinesMax = 5   // lines
	TailBytesMax = 512 // bytes of all of them
)

// Tail remembers the last lines of an output that were not blank, for the message of a failure. The zero value is empty.
// Safe for concurrent use.
type Tail struct {
	mu    sync.Mutex
	lines []string
}

// Add takes one line, with or without its end.
func (t *Tail) Add(line []byte) {
	text := strings.TrimSpace(string(line[:min(len(line), TailBytesMax)]))
	if text == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lines) == TailLinesMax {
		t.lines = t.lines[1:]
	}
	t.lines = append(t.lines, strings.ToValidUTF8(text, ""))
}

// String is the lines, as the end of a message: ": …", or nothing.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.Join(t.lines, "\n")
	if len(text) > TailBytesMax {
		text = strings.ToValidUTF8(text[len(text)-TailBytesMax:], "")
	}
	if text == "" {
		return ""
	}
	return ": " + text
}

// Reset forgets them.
func (t *Tail) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = nil
}
