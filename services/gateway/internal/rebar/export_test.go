package rebar

import (
	"context"
	"strings"
	"text/template"
	"time"
)

// SetPace sets how often websockets are pinged, and how long one write may take.
func (s *Server) SetPace(ping, write time.Duration) { s.pace = pace{ping, write} }

// SetRequests sets how many requests may be under way.
func (s *Server) SetRequests(most int) { s.places = make(chan struct{}, most) }

// SetLimits sets how many connections may be open, and how long a body may take.
func (s *Server) SetLimits(connections int, read time.Duration) { s.limits = limits{connections, read} }

// Stop is what Serve begins with when it is to end.
func (s *Server) Stop() { s.stop() }

// Expand renders templates one after the other, as those of one task, and returns what the last one renders to.
func Expand(ctx context.Context, params map[string]string, texts ...string) (out string, err error) {
	x := &expander{ctx: ctx, in: &scope{params: params, read: map[string]any{}, Machine: machineScope{Name: "m"}, Task: taskScope{"t"}}}
	for _, text := range texts {
		if out, err = x.expand("x", text); err != nil {
			return "", err
		}
	}
	return out, nil
}

// Plainly is the same by text/template alone.
func Plainly(params map[string]string, text string) (string, error) {
	t, err := template.New("x").Option("missingkey=error").Parse(text)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	err = t.Execute(&out, &scope{params: params, read: map[string]any{}, Machine: machineScope{Name: "m"}, Task: taskScope{"t"}})
	return out.String(), err
}

// Formatted is the most bytes that are expected of a format.
func Formatted(format string, args ...any) int { return formatted(format, args) }

// Texts is what each function makes of values, and the most bytes that are expected of it.
func Texts(args ...any) (made map[string]string, expected map[string]int) {
	made, expected = map[string]string{}, map[string]int{}
	for name, f := range textual {
		made[name], expected[name] = f.of(args...), f.times*listed(args)
	}
	return made, expected
}
