package bus_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
)

func TestTokenTable(t *testing.T) {
	t.Parallel()
	for name, token := range map[string]string{
		"":                 "=",
		"-":                "=2D",
		"--":               "--",
		"web1.example.com": "web1=2Eexample=2Ecom",
		"a=b":              "a=3Db",
		"a b":              "a=20b",
		"*":                "=2A",
		">":                "=3E",
		"é":                "=C3=A9",
		"A_z-9":            "A_z-9",
	} {
		require.Equal(t, token, bus.Token(name))
		back, err := bus.Name(token)
		require.NoError(t, err)
		require.Equal(t, name, back)
	}
	for _, bad := range []string{"", "-", "=2", "=2d", "=41", "a.b", "a b", "==", "=ZZ", "é", "a=", "*", ">"} {
		_, err := bus.Name(bad)
		require.ErrorIs(t, err, bus.ErrToken, "%q", bad)
	}
}

func FuzzToken(f *testing.F) {
	for _, s := range []string{"", "-", "=", "=2D", "web1.example.com", "a b", "\x00\xff", "é", "$JS.API", "a*b>c"} {
		f.Add(s, "web1")
	}
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-="
	f.Fuzz(func(t *testing.T, a, b string) {
		token := bus.Token(a)
		if token == "" || token == "-" || strings.Trim(token, alphabet) != "" {
			t.Fatalf("Token(%q) = %q is no token", a, token)
		}
		if name, err := bus.Name(token); err != nil || name != a {
			t.Fatalf("Name(Token(%q)) = %q, %v", a, name, err)
		}
		if (a == b) != (token == bus.Token(b)) {
			t.Fatalf("%q and %q have the token %q", a, b, token)
		}
		// The other way: what Name accepts, Token returns.
		if name, err := bus.Name(a); err == nil && bus.Token(name) != a {
			t.Fatalf("Token(Name(%q)) = %q", a, bus.Token(name))
		}
	})
}

func FuzzParseSubjects(f *testing.F) {
	for _, s := range []string{
		"drover.log.3.resource.p.node.web1=2Eexample=2Ecom.is.-", "drover.log.63.resource.p.node.x.do.create-volume",
		"drover.log.0.job.p.j1.is.-", "drover.log.0.spec.p.k.n.is.sha256-abc", "drover.log.0.blueprint.p.k.is.d",
		"drover.log.7.machine.p.web1=2Eexample=2Ecom.is.-", "drover.log.0.deployment.p.0000c0de-0000-4000-8000-000000000000.is.-", "drover.log.0.instance.p.k.i.is.-",
		"drover.log.01.job.p.j1.is.-", "drover.log.0.soup.p.k.n.is.-", "drover.log.0.job.p.j.do.x", "drover.log.-1.job.p.j.is.-",
		"drover.log.7.phase.p.node.create-volume.is.-", "drover.phase.3.p.node.create-volume", "drover.phase.03.p.k.x", "drover.door.3.machine", "drover.door.3.a=2Eb",
		"drover.cmd.p.k.n.start", "drover.api.p.k.=2D.start", "drover.result.7.p.k.n", "drover.result.x.p.k.n", "", "....", "p.k.n", "p.k",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if e, dispatch, version, err := bus.ParseLogSubject(s); err == nil {
			if back := (bus.Append{Entity: e, Dispatch: dispatch, Version: version}).Subject(); back != s {
				t.Fatalf("log: %q became %q", s, back)
			}
			if prefix := strings.TrimSuffix(e.Filter(), ">"); !strings.HasPrefix(s, prefix) || strings.Count(s[len(prefix):], ".") != 1 {
				t.Fatalf("filter %q does not cover %q with two tokens", e.Filter(), s)
			}
			if back, err := bus.ParseKey(e.Family, e.Key()); err != nil || back.Key() != e.Key() {
				t.Fatalf("key %q became %v, %v", e.Key(), back, err)
			}
		}
		for _, f := range bus.Families() {
			if e, err := bus.ParseKey(f, s); err == nil && e.Key() != s {
				t.Fatalf("key of %s: %q became %q", f, s, e.Key())
			}
		}
		if project, kind, name, verb, err := bus.ParseCommandSubject(s); err == nil {
			prefix := strings.Split(s, ".")[1]
			if back := bus.CommandSubject(prefix, project, kind, name, verb); back != s {
				t.Fatalf("command: %q became %q", s, back)
			}
		}
		if p, partition, err := bus.ParsePhaseSubject(s); err == nil {
			rest := strings.TrimPrefix(s, "drover.phase."+strconv.Itoa(partition))
			if back := p.AskSubject(1); back != "drover.phase.0"+rest {
				t.Fatalf("phase: %q became %q", s, back)
			}
		}
		if partition, door, err := bus.ParseDoorSubject(s); err == nil {
			if back := bus.DoorSubject(partition, door); back != s {
				t.Fatalf("door: %q became %q", s, back)
			}
		}
		if partition, id, err := bus.ParseCallbackSubject(s); err == nil {
			if back := bus.CallbackSubject(partition, id); back != s {
				t.Fatalf("callback: %q became %q", s, back)
			}
			if _, err := bus.ParseResultSubject(s); err == nil {
				t.Fatalf("%q is a callback and a result", s)
			}
		}
		if e, err := bus.ParseResultSubject(s); err == nil {
			if back := bus.ResultSubject(e.Partition, e.Project, e.Kind, e.Name); back != s {
				t.Fatalf("result: %q became %q", s, back)
			}
		}
	})
}

func TestConsumerNames(t *testing.T) {
	t.Parallel()
	seen := map[string]bus.Phase{}
	long := strings.Repeat("a.", 126)
	for _, p := range []bus.Phase{
		{Project: "p", Kind: "node", Phase: "launch"}, {Project: "p-node", Kind: "launch", Phase: ""}, {Project: "p", Kind: "", Phase: "node"},
		{Project: long, Kind: long, Phase: "a"}, {Project: long, Kind: long, Phase: "b"}, {Project: "a=b"}, {Project: "a+b"}, {Project: "a~b"},
	} {
		name := p.Consumer()
		require.LessOrEqual(t, len(name), 255)
		require.NotContains(t, name, ".")
		require.NotContains(t, seen, name, "%v and %v", seen[name], p)
		seen[name] = p
	}
}

func TestPartitions(t *testing.T) {
	t.Parallel()
	counts := make([]int, 64)
	for i := range 64_000 {
		name := "web" + strings.Repeat("x", i%7) + "-" + string(rune('a'+i%26)) + "-" + string(rune('0'+i/26%10)) + strings.Repeat("y", i/260)
		if len(name) > 253 {
			name = name[:253]
		}
		counts[bus.PartitionOf("default", "node", name, 64)]++
	}
	require.NotContains(t, counts, 0)
	require.Zero(t, bus.PartitionOf("a", "b", "c", 1))
	// What users see of it is frozen: an owner finds its resources again after an upgrade.
	require.Equal(t, 29, bus.PartitionOf("default", "node", "web1.example.com", 64))
	require.Equal(t, 29, bus.PartitionOf("default", "disk", "web1.example.com/data/1", 64), "a tree lives in one partition")
	require.Equal(t, 60, bus.CommandPartition("default", "node", "web1.example.com", 64))
}
