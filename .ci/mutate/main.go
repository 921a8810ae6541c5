// Mutate plants faults, one at a time, and expects the tests to find each: a test that cannot fail proves nothing. The faults
// are in mutants.txt beside it. The tree is not touched: the compiler is shown the mutant in place of the file (-overlay).
//
//	make mutate [ONLY=NAME,...]
//	go run .ci/mutate/main.go [-only NAME,...] [-list] [-check]
//
// It fails where a fault survives, where one no longer applies or does not compile, and where the tests fail without any.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// testTimeout bounds the tests of one mutant: one that hangs is found too.
const testTimeout = 90 * time.Second

// mutant is one fault: in one file, one or more places that are replaced.
type mutant struct {
	name, reason string
	file         string
	tests        [][]string // arguments of go test, one run each, until one fails
	edits        []edit
}

type edit struct{ search, replace string }

func main() {
	only := flag.String("only", "", "names of mutants, with commas between")
	list := flag.Bool("list", false, "say what there is")
	check := flag.Bool("check", false, "only see whether each still applies")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *only, *list, *check); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, only string, list, check bool) error {
	text, err := os.ReadFile(".ci/mutate/mutants.txt")
	if err != nil {
		return fmt.Errorf("run it in the root of the repository: %w", err)
	}
	mutants, err := parse(string(text))
	if err != nil {
		return err
	}
	if only != "" {
		names := strings.Split(only, ",")
		mutants = slices.DeleteFunc(mutants, func(m mutant) bool { return !slices.Contains(names, m.name) })
		if len(mutants) != len(names) {
			return errors.New("-only: there is no such mutant")
		}
	}
	if list {
		for _, m := range mutants {
			fmt.Printf("%-24s %s\n", m.name, m.reason)
		}
		return nil
	}
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// All that can be said without running a test comes first.
	overlays := make([]string, len(mutants))
	var stale []error
	for i, m := range mutants {
		if overlays[i], err = m.overlay(filepath.Join(dir, m.name)); err != nil {
			stale = append(stale, fmt.Errorf("%s: %w", m.name, err))
		}
	}
	if check || len(stale) > 0 {
		return errors.Join(stale...)
	}
	began := time.Now()
	if err := sound(ctx, mutants); err != nil {
		return err
	}
	var survived, broken []string
	for i, m := range mutants {
		at := time.Now()
		found, err := m.run(ctx, overlays[i])
		took := time.Since(at).Round(100 * time.Millisecond)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			broken = append(broken, m.name)
			fmt.Printf("ERROR     %-24s %6s  %v\n", m.name, took, err)
		case found == "":
			survived = append(survived, m.name)
			fmt.Printf("SURVIVED  %-24s %6s  %s\n", m.name, took, m.reason)
		default:
			fmt.Printf("found     %-24s %6s  by %s\n", m.name, took, found)
		}
	}
	fmt.Printf("%d mutants, %d survived, %d did not run, %s\n", len(mutants), len(survived), len(broken), time.Since(began).Round(time.Second))
	if len(survived)+len(broken) > 0 {
		return fmt.Errorf("survived: %v; did not run: %v", survived, broken)
	}
	return nil
}

// sound runs every test that the mutants name on the sources as they are: what fails anyway finds nothing.
func sound(ctx context.Context, mutants []mutant) error {
	var seen []string
	for _, m := range mutants {
		for _, args := range m.tests {
			key := strings.Join(args, " ")
			if slices.Contains(seen, key) {
				continue
			}
			seen = append(seen, key)
			if out, err := test(ctx, "", args); err != nil {
				return fmt.Errorf("without any fault, go test %s: %w\n%s", key, err, out)
			}
		}
	}
	return nil
}

// parse reads mutants.txt; its head says what it looks like.
func parse(text string) ([]mutant, error) {
	var all []mutant
	for block := range strings.SplitSeq("\n"+text, "\n== ") {
		name, rest, ok := strings.Cut(block, ": ")
		if len(all) == 0 && strings.HasPrefix(block, "\n#") || strings.HasPrefix(block, "#") {
			continue
		}
		reason, rest, ok2 := strings.Cut(rest, "\n")
		if !ok || !ok2 {
			return nil, fmt.Errorf("what is %q?", block)
		}
		m := mutant{name: name, reason: reason}
		head, edits, ok := strings.Cut(rest, "\n-- search\n")
		for line := range strings.SplitSeq(head, "\n") {
			switch key, value, _ := strings.Cut(line, " "); key {
			case "file":
				m.file = value
			case "test":
				m.tests = append(m.tests, strings.Fields(value))
			default:
				return nil, fmt.Errorf("%s: what is %q?", name, line)
			}
		}
		if !ok || m.file == "" || len(m.tests) == 0 {
			return nil, fmt.Errorf("%s: a mutant has a file, tests and edits", name)
		}
		for pair := range strings.SplitSeq(edits, "\n-- search\n") {
			search, replace, ok := strings.Cut(pair, "\n-- replace\n")
			if !ok {
				return nil, fmt.Errorf("%s: a search without a replacement", name)
			}
			m.edits = append(m.edits, edit{search, strings.TrimRight(replace, "\n")})
		}
		if slices.ContainsFunc(all, func(o mutant) bool { return o.name == name }) {
			return nil, fmt.Errorf("%s is there twice", name)
		}
		all = append(all, m)
	}
	if len(all) == 0 {
		return nil, errors.New("no mutants")
	}
	return all, nil
}

// overlay writes the mutant of the file, and what makes the compiler read it.
func (m *mutant) overlay(dir string) (string, error) {
	source, err := os.ReadFile(m.file)
	if err != nil {
		return "", err
	}
	text := string(source)
	for _, e := range m.edits {
		if n := strings.Count(text, e.search); n != 1 {
			return "", fmt.Errorf("it no longer applies: %s holds %d times\n%s", m.file, n, e.search)
		}
		text = strings.Replace(text, e.search, e.replace, 1)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	from, err := filepath.Abs(m.file)
	if err != nil {
		return "", err
	}
	to := filepath.Join(dir, filepath.Base(m.file))
	if err := os.WriteFile(to, []byte(text), 0o644); err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {from: to}})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, overlay, 0o644)
}

var failed = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)

// run says which test found it; empty: none did.
func (m *mutant) run(ctx context.Context, overlay string) (string, error) {
	for _, args := range m.tests {
		out, err := test(ctx, overlay, args)
		switch names := failed.FindAllStringSubmatch(out, -1); {
		case err == nil:
			continue
		case strings.Contains(out, "[build failed]") || strings.Contains(out, "[setup failed]"):
			return "", fmt.Errorf("it does not compile:\n%s", out)
		case len(names) > 0:
			var by []string
			for _, n := range names {
				by = append(by, n[1])
			}
			return strings.Join(slices.Compact(by), ", "), nil
		case strings.Contains(out, "test timed out"):
			return args[0] + ", which hangs", nil
		case strings.Contains(out, "panic:"):
			return args[0] + ", which panics", nil
		default:
			return "", fmt.Errorf("%w\n%s", err, out)
		}
	}
	return "", nil
}

func test(ctx context.Context, overlay string, args []string) (string, error) {
	all := []string{"test", "-short", "-count=1", "-failfast", "-timeout=" + testTimeout.String()}
	if overlay != "" {
		all = append(all, "-overlay="+overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(all, args...)...)
	// An interrupt ends the tests with what they started.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}
