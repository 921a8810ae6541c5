package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/engine/selection"
	"github.com/droverproject/drover/pkg/wire"
)

// FleetOptions of RunFleets. Zero values mean the defaults.
type FleetOptions struct {
	// At lists the numbers of resources, one fleet after another, each on a server of its own. Default 1,000, 10,000 and
	// 100,000.
	At []int
	// Sync lists the server's modes. Default "default".
	Sync []string
	// Call is how long each call of the plugin lasts, however many resources it is given. Default 0.
	Call time.Duration
	// Dir is where the server's data goes. Default the system's temporary folder.
	Dir string
	// Progress is told what is being measured. Nil: nobody.
	Progress func(line string)
}

// FleetReport is what was measured of fleets.
type FleetReport struct {
	Machine string        `json:"machine"`
	Version string        `json:"version"`
	Rows    []FleetFigure `json:"rows"`
}

// FleetFigure is one fleet: so many resources of three phases, made one by one, started by one selector command, carried out
// by one plugin. Server, services and plugin are processes of their own.
type FleetFigure struct {
	Sync      string  `json:"sync"`
	Resources int     `json:"resources"`
	Call      float64 `json:"callSeconds"`

	Apply  Millis  `json:"applyMsPerResource"`
	Walked Seconds `json:"walkedSeconds"` // from the acceptance of the selector command until the last resource was asked
	Start  Seconds `json:"startSeconds"`  // until its job has ended
	Each   Millis  `json:"startMsPerResource"`
	Phases float64 `json:"phasesPerSecond"`

	CPU      map[string]float64 `json:"cpuSecondsPer1000Resources"` // of the start, by process
	Peak     map[string]int     `json:"peakMiB"`                    // resident memory since each process began, without the restart
	PeakEach map[string]float64 `json:"peakKiBPerResource"`
	Disk     map[string]float64 `json:"diskMiB"` // by stream, after the start
	DiskEach float64            `json:"diskBytesPerResource"`

	Calls []CallFigure `json:"calls"` // by phase

	Takeover Seconds      `json:"takeoverSeconds"` // a new process of all services: from its start until each partition answers
	Again    int          `json:"restartedMiB"`    // its resident memory then
	Reads    []ReadFigure `json:"reads"`           // what a user asks
}

// Seconds is a duration as JSON and tables show it.
type Seconds float64

func seconds(d time.Duration) Seconds { return Seconds(float64(d.Milliseconds()) / 1000) }

// CallFigure is how the resources of one phase reached the plugin.
type CallFigure struct {
	Phase     string `json:"phase"`
	Calls     int    `json:"calls"`
	Resources int    `json:"resources"` // over all calls
	Largest   int    `json:"largest"`   // resources of a call
	Median    int    `json:"median"`    // resources are halved by it: half of them came in calls at least this large
	Twice     int    `json:"twice"`     // resources that came in more than one call
}

// ReadFigure is one command of a user on the whole fleet, as a process of its own.
type ReadFigure struct {
	Command string  `json:"command"`
	Took    Seconds `json:"seconds"`
	Peak    int     `json:"peakMiB"`
	Bytes   int     `json:"bytes"` // that it printed
}

const (
	fleetEachMax = 100 * time.Millisecond // of one resource, on a machine that is overloaded; past it the measurement is given up
	fleetJobMin  = 2 * time.Minute
	fleetLook    = 5 * time.Second // between two looks at the job, and two lines of progress
	fleetRequest = "start"
)

// RunFleets measures fleets of every size in every sync mode; each has a server of its own.
func RunFleets(ctx context.Context, o FleetOptions) (FleetReport, error) {
	if len(o.At) == 0 {
		o.At = []int{1000, 10_000, 100_000}
	}
	if len(o.Sync) == 0 {
		o.Sync = []string{"default"}
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	r := FleetReport{Machine: fmt.Sprintf("%d cores, %s/%s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())}
	for _, sync := range o.Sync {
		for _, n := range o.At {
			row, err := measureFleet(ctx, o, sync, n)
			if err != nil {
				return r, fmt.Errorf("sync %s, %d resources: %w", sync, n, err)
			}
			r.Rows = append(r.Rows, row)
		}
	}
	return r, nil
}

func measureFleet(ctx context.Context, o FleetOptions, sync string, n int) (f FleetFigure, err error) {
	f = FleetFigure{Sync: sync, Resources: n, Call: o.Call.Seconds()}
	dir, err := os.MkdirTemp(o.Dir, "drover-bench-")
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	m := &fleetLoad{dir: dir, sync: sync, n: n, say: func(format string, args ...any) {
		o.Progress(fmt.Sprintf("sync %s, %d resources: ", sync, n) + fmt.Sprintf(format, args...))
	}}
	m.say("starting")
	if m.fleet, err = startFleet(ctx, dir, sync, true, rolePlugin, m.callsFile(), o.Call.String()); err != nil {
		return f, err
	}
	defer m.fleet.stop()
	b, err := jetstream.Connect(ctx, jetstream.Options{URL: m.fleet.url, Name: "bench"})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	if m.load, err = newLoad(b); err != nil {
		return f, err
	}
	defer m.load.stop()
	for _, step := range []func(context.Context, *FleetFigure) error{m.apply, m.start, m.rest, m.reads, m.takeover} {
		if err := step(ctx, &f); err != nil {
			return f, err
		}
	}
	return f, nil
}

// fleetLoad measures one fleet.
type fleetLoad struct {
	dir, sync string
	n         int
	fleet     *fleet
	load      *load
	say       func(format string, args ...any)
}

func (m *fleetLoad) callsFile() string { return filepath.Join(m.dir, "calls.json") }

func (m *fleetLoad) apply(ctx context.Context, f *FleetFigure) error {
	if err := m.load.apply(ctx, "Blueprint", kind, blueprintJSON, "bp"); err != nil {
		return err
	}
	m.say("applying them")
	began := time.Now()
	if err := m.load.create(ctx, m.n); err != nil {
		return err
	}
	f.Apply = m.each(time.Since(began))
	return nil
}

// each is the share of one resource.
func (m *fleetLoad) each(d time.Duration) Millis {
	return Millis(round(float64(d.Microseconds()) / 1000 / float64(m.n)))
}

// start starts all of them with one command, and waits for its job.
func (m *fleetLoad) start(ctx context.Context, f *FleetFigure) error {
	ctx, cancel := context.WithTimeout(ctx, max(fleetJobMin, time.Duration(m.n)*fleetEachMax))
	defer cancel()
	// The names are read from the bucket, which trails what was just applied.
	if err := m.inBucket(ctx); err != nil {
		return err
	}
	cpu, began := m.fleet.cpu(), time.Now()
	ended := make(chan string, 1)
	if err := m.load.command(ctx, kind, selection.Name, "start", fleetRequest, wire.Command{All: true}, ended); err != nil {
		return err
	}
	record, err := m.end(ctx, ended)
	if err != nil {
		return err
	}
	took := time.Since(began)
	if s := record.Selection; s == nil || record.State != job.Succeeded || int(s.Succeeded) != m.n {
		return fmt.Errorf("the job of the selector command has %s: %+v", record.State, s)
	}
	f.Walked, f.Start, f.Each = seconds(record.Selection.WalkedAt.Sub(record.AcceptedAt)), seconds(took), m.each(took)
	f.Phases = math.Round(float64(m.n*phasesEach) / took.Seconds())
	f.CPU = map[string]float64{}
	for name, used := range m.fleet.cpu() {
		f.CPU[name] = round((used - cpu[name]) / float64(m.n) * 1000)
	}
	return nil
}

// inBucket waits until the bucket has all resources.
func (m *fleetLoad) inBucket(ctx context.Context) error {
	for {
		found := 0
		if err := m.load.bus.List(ctx, bus.Resource, project, kind, func(bus.Stored) error { found++; return nil }); err != nil {
			return err
		}
		if found >= m.n {
			return nil
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("the bucket has %d resources: %w", found, err)
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end waits for the job of the selector command, by the feed and by its record, and says how far it is.
func (m *fleetLoad) end(ctx context.Context, ended <-chan string) (job.Record, error) {
	id := wire.JobID(resource.Key{Project: project, Kind: kind, Name: selection.Name}, fleetRequest)
	tick := time.NewTicker(fleetLook)
	defer tick.Stop()
	soon := (<-chan time.Time)(nil)
	for {
		select {
		case <-ended:
			ended, soon = nil, time.After(0)
		case <-soon:
			soon = time.After(50 * time.Millisecond) // the bucket may trail the feed for a moment
		case <-tick.C:
		case <-ctx.Done():
			return job.Record{}, ctx.Err()
		}
		stored, err := m.load.bus.Get(ctx, bus.Entity{Family: bus.Job, Project: project, Name: id})
		if err != nil {
			continue // the next look may succeed
		}
		e, err := wire.DecodeJob(stored.Body)
		if err != nil {
			return job.Record{}, err
		}
		if e.Record.State.Final() {
			return e.Record, nil
		}
		if s := e.Record.Selection; s != nil && soon == nil {
			m.say("%d asked, %d done", s.Matched, s.Succeeded)
		}
	}
}

// rest is what the processes and the disk hold after the start, and how the resources reached the plugin.
func (m *fleetLoad) rest(_ context.Context, f *FleetFigure) error {
	f.Peak, f.PeakEach = m.fleet.peak(), map[string]float64{}
	for role, mib := range f.Peak {
		f.PeakEach[role] = round(float64(mib) * 1024 / float64(m.n))
	}
	var err error
	if f.Disk, f.DiskEach, err = m.disk(); err != nil {
		return err
	}
	m.fleet.end(rolePlugin) // it writes down its calls
	body, err := os.ReadFile(m.callsFile())
	if err != nil {
		return err
	}
	return json.Unmarshal(body, &f.Calls)
}

// disk is the size of the streams' folders, in MiB, and what all of them take a resource, in bytes.
func (m *fleetLoad) disk() (streams map[string]float64, each float64, err error) {
	streams = map[string]float64{}
	err = filepath.WalkDir(filepath.Join(m.dir, "data"), func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // the server has removed it meanwhile
			return nil
		case err != nil || entry.IsDir():
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		_, of, _ := strings.Cut(path, string(filepath.Separator)+"streams"+string(filepath.Separator))
		stream, _, _ := strings.Cut(of, string(filepath.Separator))
		if stream != "" {
			streams[stream] += float64(info.Size()) / (1 << 20)
			each += float64(info.Size()) / float64(m.n)
		}
		return nil
	})
	for stream, mib := range streams {
		if streams[stream] = math.Round(mib*10) / 10; streams[stream] < 1 {
			delete(streams, stream)
		}
	}
	return streams, math.Round(each), err
}

// reads asks what a user asks, by the command line itself.
func (m *fleetLoad) reads(ctx context.Context, f *FleetFigure) error {
	id := wire.JobID(resource.Key{Project: project, Kind: kind, Name: selection.Name}, fleetRequest)
	for _, command := range [][]string{
		{"get", kind}, {"get", kind, "-o", "name"}, {"get", kind, "-o", "json"}, {"describe", kind + "/" + unit(0)}, {"phases", kind},
		{"jobs", "show", id}, {"jobs", "list"},
	} {
		m.say("drover %s", strings.Join(command, " "))
		read, err := m.read(ctx, command)
		if err != nil {
			return err
		}
		f.Reads = append(f.Reads, read)
	}
	return nil
}

func (m *fleetLoad) read(ctx context.Context, command []string) (ReadFigure, error) {
	self, err := os.Executable()
	if err != nil {
		return ReadFigure{}, err
	}
	read := ReadFigure{Command: strings.Join(command, " ")}
	if strings.HasPrefix(read.Command, "jobs show ") {
		read.Command = "jobs show ID"
	}
	limit := (time.Duration(m.n)*fleetEachMax + fleetJobMin).String()
	cmd := exec.CommandContext(ctx, self, append(command, "--server", m.fleet.url, "--project", project, "--color", "never", "--timeout", limit)...)
	var out count
	var wrong bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &wrong
	began := time.Now()
	if err := cmd.Run(); err != nil {
		return read, fmt.Errorf("drover %s: %w: %s", read.Command, err, wrong.String())
	}
	read.Took, read.Bytes = seconds(time.Since(began)), int(out)
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		read.Peak = int(usage.Maxrss >> 10)
	}
	return read, nil
}

// count counts what is written to it.
type count int

func (c *count) Write(p []byte) (int, error) {
	*c += count(len(p))
	return len(p), nil
}

// takeover ends the services and starts them again: how long until all partitions are served.
func (m *fleetLoad) takeover(ctx context.Context, f *FleetFigure) error {
	m.say("a new process of all services")
	m.fleet.end(roleServices)
	began := time.Now()
	if _, err := m.fleet.start(ctx, roleServices, m.fleet.url, m.sync); err != nil {
		return err
	}
	names := map[int]string{}
	for i := 0; len(names) < partitions; i++ {
		name := "probe-" + strconv.Itoa(i)
		names[bus.PartitionOf(project, kind, name, partitions)] = name
	}
	ctx, cancel := context.WithTimeout(ctx, max(fleetJobMin, time.Duration(m.n)*fleetEachMax))
	defer cancel()
	err := parallel(partitions, partitions, func(i int) error {
		for {
			err := m.load.apply(ctx, kind, names[i], `{"n":1}`, "probe")
			if err == nil || ctx.Err() != nil {
				return err
			}
		}
	})
	f.Takeover = seconds(time.Since(began))
	f.Again = m.fleet.memory()[roleServices]
	return err
}
