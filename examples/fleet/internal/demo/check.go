//go:build unix

package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/droverproject/drover/examples/fleet"
	"github.com/droverproject/drover/examples/fleet/internal/home"
	"github.com/droverproject/drover/examples/fleet/internal/node"
	"github.com/droverproject/drover/examples/fleet/internal/site"
)

// Limits of the checks.
const (
	askedAtOnce   = 16
	answerTimeout = 5 * time.Second
	answerBytes   = 64 << 10
	goneTimeout   = 5 * time.Second // until what was told to end is gone
	findingsShown = 10
)

// running is a process that was started for a home.
type running struct {
	pid  int
	line string // its command line
}

func (r running) String() string { return fmt.Sprintf("process %d: %s", r.pid, r.line) }

// findings gathers what is wrong. Safe for concurrent use.
type findings struct {
	mu    sync.Mutex
	found []string
}

func (f *findings) add(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.found = append(f.found, fmt.Sprintf(format, args...))
}

func (f *findings) err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.found) == 0 {
		return nil
	}
	slices.Sort(f.found)
	shown := f.found[:min(len(f.found), findingsShown)]
	text := strings.Join(shown, "\n  ")
	if more := len(f.found) - len(shown); more > 0 {
		text += fmt.Sprintf("\n  and %d more", more)
	}
	return errors.New("it is not as it should be:\n  " + text)
}

// nodesOf are those of the processes that are nodes.
func nodesOf(all []running, h home.Home) []running {
	return slices.DeleteFunc(all, func(r running) bool { return !strings.Contains(r.line, " node --folder "+h.Nodes()+"/") })
}

// checkStarted looks for itself whether the nodes are there, and are who Drover says: each is asked over HTTP.
func checkStarted(ctx context.Context, s *site.Site, nodes []fleet.Node, states map[string]state) error {
	var f findings
	client := &http.Client{Timeout: answerTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
	pids, ports := map[int]string{}, map[int]string{}
	var wg sync.WaitGroup
	places := make(chan struct{}, askedAtOnce)
	for _, n := range nodes {
		st, ok := states[n.Name]
		a := st.Attributes
		switch {
		case !ok:
			f.add("%s: drover knows no such node", n.Name)
			continue
		case st.State != "Started":
			f.add("%s: is in state %q, not Started", n.Name, st.State)
			continue
		case pids[a.PID] != "" || ports[a.Port] != "":
			f.add("%s: shares process %d or port %d with %s%s", n.Name, a.PID, a.Port, pids[a.PID], ports[a.Port])
		}
		pids[a.PID], ports[a.Port] = n.Name, n.Name
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			if err := ask(ctx, client, n, a); err != nil {
				f.add("%s: %v", n.Name, err)
			}
		})
	}
	wg.Wait()
	all, err := processes(s.Home)
	if err != nil {
		return err
	}
	if live := nodesOf(all, s.Home); len(live) != len(nodes) {
		f.add("%d processes are nodes, not %d", len(live), len(nodes))
	}
	announced := map[string]string{}
	for _, e := range s.Registry.Entries() {
		announced[e.Name] = e.URL
	}
	for _, n := range nodes {
		if url := "http://" + home.Address(states[n.Name].Attributes.Port); announced[n.Name] != url {
			f.add("%s: the registry says %q, not %s", n.Name, announced[n.Name], url)
		}
	}
	if len(announced) != len(nodes) {
		f.add("the registry holds %d nodes, not %d", len(announced), len(nodes))
	}
	return f.err()
}

// ask asks a node who it is.
func ask(ctx context.Context, client *http.Client, n fleet.Node, a attributes) error {
	base := "http://" + home.Address(a.Port)
	_, body, err := get(ctx, client, base+"/about")
	if err != nil {
		return err
	}
	var about node.About
	if err := json.Unmarshal(body, &about); err != nil {
		return err
	}
	if about != (node.About{Name: n.Name, Rack: n.Rack, PID: a.PID}) {
		return fmt.Errorf("port %d is answered by %+v, not by process %d", a.Port, about, a.PID)
	}
	if _, body, err = get(ctx, client, base+"/"); err != nil {
		return err
	}
	if !strings.Contains(string(body), n.Greeting) {
		return fmt.Errorf("its page %q does not hold its greeting", body)
	}
	status, body, err := get(ctx, client, base+"/motd")
	switch {
	case err != nil:
		return err
	case n.Motd == "" && status != http.StatusNotFound, n.Motd != "" && strings.TrimSpace(string(body)) != n.Motd:
		return fmt.Errorf("its message of the day is %d %q, not %q", status, body, n.Motd)
	}
	return nil
}

func get(ctx context.Context, client *http.Client, url string) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, answerBytes))
	return res.StatusCode, body, err
}

// checkMended says whether a node is Started, and a retry has run again what had failed, and nothing else.
func checkMended(st state) error {
	if st.State != "Started" {
		return fmt.Errorf("is in state %q, not Started", st.State)
	}
	for _, p := range st.Phases {
		want := 1
		switch {
		case p.Name == "configure":
			want = 2
		case p.Status == statusSkipped:
			want = 0
		}
		if p.Attempt != want {
			return fmt.Errorf("phase %s has run %d times, not %d", p.Name, p.Attempt, want)
		}
	}
	return nil
}

// wayBack is the order in which a node is taken down; those of one line may end in any order.
var wayBack = [][]string{{"withdraw"}, {"stop"}, {"release-port", "release-folder"}}

// checkTerminated looks for itself whether nothing is left of the nodes, and whether they were taken down in order.
// ports are those that they had.
func checkTerminated(s *site.Site, nodes []fleet.Node, states map[string]state, ports []int) error {
	var f findings
	for _, n := range nodes {
		st, ok := states[n.Name]
		if !ok || st.State != "Terminated" {
			f.add("%s: is in state %q, not Terminated", n.Name, st.State)
			continue
		}
		if st.Attributes != (attributes{}) {
			f.add("%s: still has %+v", n.Name, st.Attributes)
		}
		if err := inOrder(&st); err != nil {
			f.add("%s: %v", n.Name, err)
		}
	}
	all, err := processes(s.Home)
	if err != nil {
		return err
	}
	for _, p := range nodesOf(all, s.Home) {
		f.add("%s is left", p)
	}
	reserved, err := s.Home.Reserved()
	if err != nil {
		return err
	}
	for port, name := range reserved {
		f.add("port %d is still reserved for %s", port, name)
	}
	folders, err := s.Home.Folders()
	if err != nil {
		return err
	}
	for _, name := range folders {
		f.add("folder %s is left", s.Home.Node(name))
	}
	checkPorts(ports, &f)
	if left := s.Registry.Entries(); len(left) > 0 {
		f.add("the registry still holds %d nodes", len(left))
	}
	return f.err()
}

// inOrder says whether each step of the way back was completed after those before it.
func inOrder(st *state) error {
	var before time.Time
	for _, step := range wayBack {
		latest := before
		for _, name := range step {
			p := st.phase(name)
			if p == nil || p.Status != statusCompleted {
				return fmt.Errorf("phase %s is not completed", name)
			}
			if p.Since.Before(before) {
				return fmt.Errorf("phase %s was completed before the phases of the state before it", name)
			}
			if p.Since.After(latest) {
				latest = p.Since
			}
		}
		before = latest
	}
	return nil
}

func checkPorts(ports []int, f *findings) {
	for _, port := range ports {
		if !home.Free(port) {
			f.add("port %d is in use", port)
		}
	}
}

// checkGone looks whether nothing at all is left that was started for a home, whoever started it. What is there after
// some patience is named and killed.
func checkGone(h home.Home, ports []int, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for {
		left, err := processes(h)
		if err != nil {
			return err
		}
		var f findings
		for _, p := range left {
			f.add("%s is left", p)
		}
		checkPorts(ports, &f)
		err = f.err()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			for _, p := range left {
				kill(p.pid, h)
			}
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// kill kills a process, if the id is still that of one that was started for the home.
func kill(pid int, h home.Home) {
	p, err := os.FindProcess(pid)
	if err != nil {
		return
	}
	defer p.Release() //nolint:errcheck // there is nothing to lose
	left, err := processes(h)
	if err != nil || !slices.ContainsFunc(left, func(r running) bool { return r.pid == pid }) {
		return
	}
	_ = p.Kill() // it may have ended since
}
