// Package journal is what the tests' workers write down of themselves, beside Drover: the evidence that what the log
// says is held against.
package journal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// Ran is the hand-out that a worker ran under, as it was told.
type Ran struct {
	UID     string `json:"uid"`
	Job     string `json:"job"`
	Phase   string `json:"phase"`
	Attempt uint32 `json:"attempt"`
}

// Line is one begin or end of a run.
type Line struct {
	At     time.Time `json:"at"`
	Begin  bool      `json:"begin,omitempty"`
	Parent int       `json:"parent,omitempty"` // process that started the worker
	Item   string    `json:"item,omitempty"`   // resource, by its name in the tree
	Ran
}

// Append adds a line with one write, so that those of several processes do not mix. A process that is killed has
// written it whole or not at all.
func Append(path string, l Line) error {
	body, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	_, err = f.Write(append(body, '\n'))
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// Read returns all lines, in the order in which they were written.
func Read(path string) ([]Line, error) {
	body, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	var lines []Line
	for text := range bytes.Lines(body) {
		var l Line
		if err := json.Unmarshal(text, &l); err != nil {
			return nil, fmt.Errorf("journal: line %d: %w", len(lines)+1, err)
		}
		lines = append(lines, l)
	}
	return lines, nil
}
