//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// programs builds drover and fleet once; the tests run them as a user would.
var programs = sync.OnceValues(func() (string, error) {
	folder, err := os.MkdirTemp("", "fleet-test-")
	if err != nil {
		return "", err
	}
	for _, build := range []struct{ dir, pkg string }{{".", "."}, {"../../../../services/drover", "./cmd/drover"}} {
		cmd := exec.CommandContext(context.Background(), "go", "build", "-o", folder+"/", build.pkg)
		cmd.Dir = build.dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return folder, errors.Join(err, errors.New(string(out)))
		}
	}
	return folder, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if folder, err := programs(); err == nil {
		_ = os.RemoveAll(folder)
	}
	os.Exit(code)
}

// program is a run of the program, with a temporary folder of its own.
type program struct {
	cmd    *exec.Cmd
	tmp    string
	out    *bufio.Reader
	told   strings.Builder // what was read of its stdout
	stderr bytes.Buffer
}

func launch(t *testing.T, args ...string) *program {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and runs all of Drover")
	}
	bin, err := programs()
	require.NoError(t, err)
	f := &program{tmp: t.TempDir()}
	f.cmd = exec.CommandContext(t.Context(), filepath.Join(bin, "fleet"), args...)
	f.cmd.Env = append(os.Environ(), "TMPDIR="+f.tmp)
	f.cmd.Stderr = &f.stderr
	out, err := f.cmd.StdoutPipe()
	require.NoError(t, err)
	f.out = bufio.NewReader(out)
	require.NoError(t, f.cmd.Start())
	return f
}

// read reads its stdout up to a line that holds text; all of it where the text is empty.
func (f *program) read(t *testing.T, text string) {
	t.Helper()
	for {
		line, err := f.out.ReadString('\n')
		f.told.WriteString(line)
		if text != "" && strings.Contains(line, text) {
			return
		}
		if err != nil {
			if text != "" {
				_ = f.cmd.Wait() // after which its stderr is complete
				t.Fatalf("it has ended before it said %q:\n%s%s", text, f.told.String(), f.stderr.String())
			}
			return
		}
	}
}

// end waits for its end and returns its exit code.
func (f *program) end(t *testing.T) int {
	t.Helper()
	f.read(t, "")
	err := f.cmd.Wait()
	var exit *exec.ExitError
	if err != nil {
		require.ErrorAs(t, err, &exit)
		return exit.ExitCode()
	}
	return 0
}

// left is what runs of all that it has started, by the temporary folder in their environment.
func (f *program) left(t *testing.T) []string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	folders, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	var left []string
	for _, folder := range folders {
		env, err := os.ReadFile(filepath.Join(folder, "environ"))
		if err == nil && bytes.Contains(env, []byte("TMPDIR="+f.tmp)) {
			line, _ := os.ReadFile(filepath.Join(folder, "cmdline"))
			left = append(left, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return left
}

func (f *program) requireNothingLeft(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(f.tmp)
	require.NoError(t, err)
	require.Empty(t, entries)
	require.Empty(t, f.left(t))
}

func TestDemo(t *testing.T) {
	t.Parallel()
	f := launch(t, "demo", "--nodes", "5")
	require.Zero(t, f.end(t), "%s%s", f.told.String(), f.stderr.String())
	require.Empty(t, f.stderr.String())
	for _, text := range []string{
		"4 of 5 nodes are Started after", "node/web-05 has failed, as it was meant to", `spec.page: there is no page "welcom"`,
		"node/web-05 is Started after", "Seen from outside: 5 processes, each of which has answered on its port; 5 entries in the registry.",
		"all 5 nodes are Terminated after", "Seen from outside: no process, no port, no folder, no entry in the registry.",
		"Drover knows none of them any more", "\nweb-04  d     Terminated  ", "5 nodes · ", "Nothing is left after",
	} {
		require.Contains(t, f.told.String(), text)
	}
	f.requireNothingLeft(t)
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	for moment, signal := range map[string]os.Signal{
		"$ drover up":                  syscall.SIGTERM,
		"$ drover apply":               os.Interrupt,
		"$ drover start":               os.Interrupt,
		"$ drover retry":               syscall.SIGHUP,
		"Seen from outside: 6 process": syscall.SIGTERM, // all of them run
		"$ drover terminate":           os.Interrupt,
	} {
		t.Run(moment, func(t *testing.T) {
			t.Parallel()
			f := launch(t, "demo", "--nodes", "6")
			f.read(t, moment)
			require.NoError(t, f.cmd.Process.Signal(signal))
			require.Equal(t, exitInterrupted, f.end(t), "%s%s", f.told.String(), f.stderr.String())
			require.Equal(t, "interrupted; nothing is left running\n", f.stderr.String())
			f.requireNothingLeft(t)
		})
	}
}

// TestKilled: nobody is there any more to end anything.
func TestKilled(t *testing.T) {
	t.Parallel()
	f := launch(t, "demo", "--nodes", "6")
	f.read(t, "Seen from outside: 6 processes")
	require.GreaterOrEqual(t, len(f.left(t)), 7, "drover up and six nodes")
	require.NoError(t, f.cmd.Process.Kill())
	require.Equal(t, -1, f.end(t))
	require.Eventually(t, func() bool { return len(f.left(t)) == 0 }, 30*time.Second, 20*time.Millisecond)
}

func TestNobodyReads(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe()
	require.NoError(t, err)
	bin := launch(t, "help") // for its folders
	require.Zero(t, bin.end(t))
	cmd := exec.CommandContext(t.Context(), bin.cmd.Path, "demo", "--nodes", "2")
	cmd.Env, cmd.Stdout = bin.cmd.Env, write
	require.NoError(t, cmd.Start())
	require.NoError(t, write.Close())
	require.NoError(t, read.Close())
	require.Error(t, cmd.Wait())
	bin.requireNothingLeft(t)
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{}, {"dance"}, {"demo", "--nodes", "1"}, {"demo", "--nodes", "many"}, {"demo", "more"}, {"node"}, {"phase"}, {"phase", "a", "b"},
	} {
		require.Equal(t, exitUsage, run(args), "%v", args)
	}
	require.Equal(t, exitError, run([]string{"demo", "--drover", filepath.Join(t.TempDir(), "nothing")}))
	require.Equal(t, exitError, run([]string{"node", "--folder", t.TempDir()}))
	require.Zero(t, run([]string{"help"}))
	require.Zero(t, run([]string{"demo", "--help"}))
}
