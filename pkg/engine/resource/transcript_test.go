package resource_test

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

var update = flag.Bool("update", false, "rewrite the transcripts in testdata and the table in doc.go")

// TestTranscripts runs the scripts in testdata: blocks of input, a line of four dashes, the output that is expected, an
// empty line. Lines that begin with # are comments, before a block. See interpreter.run for the commands.
func TestTranscripts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			script, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got, err := transcript(string(script))
			if err != nil {
				t.Fatalf("%v", err)
			}
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(script) {
				t.Errorf("%s differs (go test -update rewrites it):\n%s", file, firstDifference(string(script), got))
			}
		})
	}
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return fmt.Sprintf("line %d\n want: %s\n got:  %s", i+1, w[i], g[i])
		}
	}
	return fmt.Sprintf("%d lines wanted, %d got", len(w), len(g))
}

// transcript runs a script and returns it with the output that was really seen.
func transcript(script string) (string, error) {
	it := &interpreter{w: newWorld(), now: began}
	var out strings.Builder
	for n, block := range strings.Split(strings.TrimRight(script, "\n")+"\n", "\n\n") {
		input, _, _ := strings.Cut(strings.TrimRight(block, "\n"), "\n----")
		if n > 0 {
			out.WriteString("\n")
		}
		out.WriteString(input + "\n")
		seen, err := it.block(input)
		if err != nil {
			return "", fmt.Errorf("block %d: %w", n+1, err)
		}
		if seen != "" {
			out.WriteString("----\n" + seen)
		}
	}
	return out.String(), nil
}

// interpreter speaks the language of the scripts.
type interpreter struct {
	w    *world
	now  time.Time
	last resource.Input
	out  strings.Builder
}

func (it *interpreter) block(input string) (string, error) {
	it.out.Reset()
	lines := strings.Split(input, "\n")
	for i := 0; i < len(lines); i++ {
		line := strings.TrimSpace(lines[i])
		if line == "" || line[0] == '#' {
			continue
		}
		if digest, ok := strings.CutPrefix(line, "blueprint "); ok {
			end := i + 1
			for end < len(lines) && strings.HasPrefix(lines[end], "  ") {
				end++
			}
			if err := it.define(digest, lines[i+1:end]); err != nil {
				return "", err
			}
			i = end - 1
			continue
		}
		if err := it.run(line); err != nil {
			return "", fmt.Errorf("%q: %w", line, err)
		}
	}
	return it.out.String(), nil
}

// run takes one line: a time and a command.
//
//	@10s            seconds since the script began; without one, the time stays
//	VERB JOB        a command, whose request id and job id is JOB; body=, spec=, scope=, job=, phase=, message=, polling=PHASE
//	PHASE OUTCOME   a result with the fence of the phase's last hand-out; attempt=, call=, job=, uid= make it another;
//	                retryable, delay=, message=, attr.N=, data.N=, out.N=; a value *N is N bytes long
//	again           the last input once more
//	due, continue   those inputs
//	lost PHASE      that input, with the fence of the phase's last hand-out
//	forget DIGEST   takes a blueprint away
//	show            attributes, data, outputs, ended jobs, deletion, and when it is next due
//
// A step that asks to be continued is continued at once, as the shell does, unless the line ends with "stop".
func (it *interpreter) run(line string) error {
	words := strings.Fields(line)
	if at, ok := strings.CutPrefix(words[0], "@"); ok {
		d, err := time.ParseDuration(at)
		if err != nil {
			return err
		}
		it.now, words = began.Add(d), words[1:]
	}
	switch words[0] {
	case "show":
		it.show()
		return nil
	case "forget":
		delete(it.w.blueprints, words[1])
		return nil
	}
	stop := words[len(words)-1] == "stop" && len(words) > 2
	if stop {
		words = words[:len(words)-1]
	}
	in, err := it.input(words)
	if err != nil {
		return err
	}
	it.last = in
	if err := it.step(in, strings.Join(words, " ")); err != nil {
		return err
	}
	for !stop && it.w.more {
		if err := it.step(resource.Input{Kind: resource.OnContinue, At: it.now}, "continue"); err != nil {
			return err
		}
	}
	return nil
}

func (it *interpreter) input(words []string) (resource.Input, error) {
	in := resource.Input{At: it.now}
	set := map[string]string{}
	for _, w := range words[1:] {
		name, value, _ := strings.Cut(w, "=")
		if n, ok := strings.CutPrefix(value, "*"); ok {
			size, err := strconv.Atoi(n)
			if err != nil {
				return in, err
			}
			value = strings.Repeat("x", size)
		}
		set[name] = value
	}
	switch words[0] {
	case "again":
		again := it.last
		again.At = it.now
		return again, nil
	case "due":
		in.Kind = resource.OnDue
		return in, nil
	case "continue":
		in.Kind = resource.OnContinue
		return in, nil
	}
	if len(words) < 2 {
		return in, fmt.Errorf("too short")
	}
	if words[0] == "lost" {
		f, err := it.fence(words[1], set)
		in.Kind, in.Lost = resource.OnLost, &f
		return in, err
	}
	for _, outcome := range resource.Outcomes() {
		if words[1] == outcome.String() {
			return it.result(in, words[0], outcome, set)
		}
	}
	in.Kind = resource.OnCommand
	if p := set["polling"]; p != "" {
		in.Polling = strings.Split(p, ",")
	}
	in.Command = &resource.Command{
		Key: resource.Key{Project: "default", Kind: "node", Name: "n1"}, Verb: words[0], RequestID: words[1],
		JobID: words[1], Digest: words[0] + set["body"], NewUID: "uid-" + words[1], SpecDigest: set["spec"],
		Scope: set["scope"], Job: set["job"], Phase: set["phase"], Message: strings.ReplaceAll(set["message"], "_", " "), RequestedBy: "ann",
	}
	return in, nil
}

// fence is that of the phase's last hand-out, or of one that set asks for.
func (it *interpreter) fence(phase string, set map[string]string) (resource.Fence, error) {
	f := resource.Fence{UID: it.w.state.UID, Phase: phase}
	for _, past := range it.w.fences {
		if past.Phase == phase {
			f = past
		}
	}
	f.UID, f.JobID = cmp.Or(set["uid"], f.UID), cmp.Or(set["job"], f.JobID)
	for name, field := range map[string]*uint32{"attempt": &f.Attempt, "call": &f.Call} {
		if set[name] != "" {
			n, err := strconv.ParseUint(set[name], 10, 32)
			if err != nil {
				return f, err
			}
			*field = uint32(n)
		}
	}
	return f, nil
}

func (it *interpreter) result(in resource.Input, phase string, outcome resource.Outcome, set map[string]string) (resource.Input, error) {
	f, err := it.fence(phase, set)
	if err != nil {
		return in, err
	}
	r := &resource.Result{Fence: f, Outcome: outcome, Message: strings.ReplaceAll(set["message"], "_", " ")}
	_, r.Retryable = set["retryable"]
	if d := set["delay"]; d != "" {
		if r.Delay, err = time.ParseDuration(d); err != nil {
			return in, err
		}
	}
	for prefix, into := range map[string]*map[string]string{"attr.": &r.Attributes, "data.": &r.Data, "out.": &r.Outputs} {
		for name, value := range set {
			if n, ok := strings.CutPrefix(name, prefix); ok {
				if *into == nil {
					*into = map[string]string{}
				}
				(*into)[n] = value
			}
		}
	}
	in.Kind, in.Result = resource.OnResult, r
	return in, nil
}

// step takes a step and writes what became of it.
func (it *interpreter) step(in resource.Input, title string) error {
	fx, err := it.w.step(in)
	s := &it.w.state
	parts := []string{fmt.Sprintf("@%s %s", it.now.Sub(began), short(title))}
	if e := fx.Event; e != nil {
		cause := e.Cause.Kind
		parts = append(parts, fmt.Sprintf("r%d %s: %s → %s, job %s", s.Revision, cause, orDash(e.From), orDash(e.To), orDash(e.JobID)))
	} else {
		parts = append(parts, "no event")
	}
	if len(s.Phases) > 0 {
		var phases []string
		for i := range s.Phases {
			phases = append(phases, phaseText(s, &s.Phases[i]))
		}
		parts = append(parts, strings.Join(phases, " "))
	}
	if j := s.Job(); j != nil {
		parts = append(parts, jobText(j))
	} else if j := s.FlowJob(); j != nil {
		parts = append(parts, jobText(j))
	}
	if e := fx.Event; e != nil && e.Dispatch != nil {
		d := "out " + fenceText(e.Dispatch.Fence)
		if !e.Dispatch.Deadline.IsZero() {
			d += " until " + since(e.Dispatch.Deadline)
		}
		parts = append(parts, d)
	}
	if fx.Reply != nil {
		if r := fx.Reply.Refused; r != nil {
			text := "refused " + string(r.Code) + ": " + r.Message
			for _, v := range r.Violations {
				text += " [" + v.Field + ": " + v.Reason + "]"
			}
			parts = append(parts, text)
		} else {
			parts = append(parts, "accepted "+fx.Reply.JobID)
		}
	}
	for _, p := range fx.Polls {
		parts = append(parts, "poll "+fenceText(p))
	}
	for _, p := range fx.NextPoll {
		parts = append(parts, "next poll of "+p.Phase+" "+since(p.Due))
	}
	for _, n := range fx.Notes {
		parts = append(parts, strings.TrimSpace("note "+string(n.Code)+" "+n.Of))
	}
	fmt.Fprintln(&it.out, strings.Join(parts, " | "))
	for _, r := range resource.Why(s) {
		until := ""
		if !r.Until.IsZero() {
			until = " until " + since(r.Until)
		}
		fmt.Fprintf(&it.out, "    %s%s: %s\n", r.Code, until, r.Text)
	}
	return err
}

// show writes what a step line leaves out.
func (it *interpreter) show() {
	s := &it.w.state
	fmt.Fprintf(&it.out, "uid=%s generation=%d spec=%s target=%s attributes=%s was_deployed=%t phase_failed=%t",
		s.UID, s.Generation, s.SpecDigest, orDash(s.Target), mapText(s.Attributes), s.WasDeployed, s.PhaseFailed)
	if !s.DeletedAt.IsZero() {
		fmt.Fprintf(&it.out, " deleted %s", since(s.DeletedAt))
	}
	if due := s.NextDue(); !due.IsZero() {
		fmt.Fprintf(&it.out, " due %s", since(due))
	}
	fmt.Fprintln(&it.out)
	for i := range s.Phases {
		if p := &s.Phases[i]; len(p.Data)+len(p.Outputs) > 0 || p.Message != "" {
			fmt.Fprintf(&it.out, "    %s data=%s outputs=%s message=%q\n", p.Name, mapText(p.Data), mapText(p.Outputs), short(p.Message))
		}
	}
	for _, t := range s.Transactions {
		fmt.Fprintf(&it.out, "    transaction %s %d, %s of %s, %d calls, from %s", t.Phase, t.Attempt, t.Verb, t.JobID, t.Calls, since(t.Began))
		if !t.Ended.IsZero() {
			fmt.Fprintf(&it.out, " to %s: %s", since(t.Ended), t.Outcome)
		}
		fmt.Fprintln(&it.out)
	}
	for i := range s.Jobs {
		j := &s.Jobs[i]
		fmt.Fprintf(&it.out, "    %s", jobText(j))
		if j.Message != "" {
			fmt.Fprintf(&it.out, ": %s", j.Message)
		}
		fmt.Fprintln(&it.out)
	}
}

func orDash(s string) string { return cmp.Or(s, "-") }

func short(s string) string {
	if len(s) > 100 {
		return s[:100] + "…"
	}
	return s
}

func since(at time.Time) string { return "@" + at.Sub(began).String() }

func fenceText(f resource.Fence) string {
	return fmt.Sprintf("%s %d.%d of %s", f.Phase, f.Attempt, f.Call, f.JobID)
}

// phaseText is name=Status, with the attempt and call, * where it is in flight, ~ where it waits for an automatic retry,
// and the lifecycle state where that is not the present one.
func phaseText(s *resource.State, p *resource.PhaseRun) string {
	text := p.Name + "=" + p.Status.String()
	if p.Attempt > 0 {
		text += fmt.Sprintf("(%d.%d)", p.Attempt, p.Call)
	}
	if p.InFlight {
		text += "*"
	}
	if p.Retrying {
		text += "~"
	}
	if p.State != s.State {
		text += "/" + p.State
	}
	return text
}

func jobText(j *job.Ref) string {
	text := j.Verb + " " + j.ID + " " + j.State.String()
	if j.Target != "" {
		text = j.Verb + " " + j.ID + " to " + j.Target + " " + j.State.String()
	}
	if j.Canceling {
		text += ", canceling"
	}
	return text
}

func mapText(m map[string]string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, name+":"+short(m[name]))
	}
	return "{" + strings.Join(parts, " ") + "}"
}

// define reads a blueprint: preset NAME, or lifecycle on_target_change= on_failure= delete= rerun= create= skip and flow VERB path= target=
// from= failure=; phase NAME states= dependsOn= when= timeout= interval= lease= retry=N/DELAY auto= idempotent undo, and
// callback where who carries it out calls back.
func (it *interpreter) define(digest string, lines []string) error {
	bp := &blueprint.Blueprint{
		Project: "default", Kind: "node", Digest: digest,
		Lifecycle: blueprint.Lifecycle{Name: "custom", OnTargetChange: blueprint.Cancel, OnFailure: blueprint.Continue},
	}
	for _, line := range lines {
		words := strings.Fields(line)
		set := map[string]string{}
		for _, w := range words {
			name, value, _ := strings.Cut(w, "=")
			set[name] = value
		}
		list := func(name string) []string {
			if set[name] == "" {
				return nil
			}
			return strings.Split(set[name], ",")
		}
		duration := func(text string) (d time.Duration) {
			if text != "" {
				if parsed, err := time.ParseDuration(text); err == nil {
					return parsed
				}
				panic("duration " + text)
			}
			return 0
		}
		switch words[0] {
		case "flow":
			bp.Lifecycle.Flows = append(bp.Lifecycle.Flows, blueprint.Flow{Verb: words[1], From: list("from"), Path: list("path"), Target: set["target"], Failure: set["failure"]})
		case "phase":
			ph := blueprint.Phase{
				Name: words[1], States: list("states"), DependsOn: list("dependsOn"), When: set["when"],
				Timeout: duration(set["timeout"]), Interval: duration(set["interval"]), Lease: duration(set["lease"]),
				Executor: blueprint.Executor{Kind: "plugin"}, Idempotent: slices.Contains(words, "idempotent"),
			}
			if slices.Contains(words, "undo") {
				ph.Undo = &blueprint.Executor{Kind: "plugin", Callback: slices.Contains(words, "callback")}
			}
			ph.Executor.Callback = slices.Contains(words, "callback")
			if auto, ok := set["auto"]; ok {
				yes := auto == "true"
				ph.AutoDeploy = &yes
			}
			if attempts, delay, ok := strings.Cut(set["retry"], "/"); ok {
				n, err := strconv.Atoi(attempts)
				if err != nil {
					return err
				}
				ph.Retry = blueprint.Retry{Attempts: n, Delay: duration(delay)}
			}
			bp.Phases = append(bp.Phases, ph)
		case "preset":
			presets := map[string]func() blueprint.Lifecycle{
				"service": blueprint.Service, "installation": blueprint.Installation, "execution": blueprint.Execution, "deployitem": blueprint.DeployItem,
			}
			bp.Lifecycle = presets[words[1]]()
		case "lifecycle":
			bp.Lifecycle.Delete = set["delete"]
			bp.Lifecycle.OnTargetChange = cmp.Or(blueprint.OnTargetChange(set["on_target_change"]), blueprint.Cancel)
			bp.Lifecycle.Rerun, bp.Lifecycle.OnCreate = blueprint.Rerun(set["rerun"]), set["create"]
			bp.Lifecycle.SkipUnchanged = slices.Contains(words, "skip")
			bp.Lifecycle.OnFailure = cmp.Or(blueprint.OnFailure(set["on_failure"]), blueprint.Continue)
		default:
			return fmt.Errorf("what is %q?", line)
		}
	}
	if wrong := blueprint.Validate(bp); len(wrong) > 0 {
		return fmt.Errorf("blueprint %s: %+v", digest, wrong)
	}
	it.w.define(bp)
	return nil
}
