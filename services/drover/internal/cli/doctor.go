package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/drover/internal/render"
	"github.com/droverproject/drover/services/drover/internal/up"
)

// ServerInfo is what the CLI can learn of the server.
type ServerInfo struct {
	URL, Name, Cluster, Version string
	RTT                         time.Duration
	APILevel                    int
	StoreBytes                  uint64
	StoreBytesMax               int64 // -1: no limit
	Streams                     int
}

// StreamInfo is how one of the streams stands (jetstream.StreamInfo).
type StreamInfo struct {
	Name      string
	Replicas  int
	Clustered bool
	Leader    string
	Behind    []string
	Lag       uint64
	Full      float64
	Skew      time.Duration
}

// What Drover needs of the server.
const (
	// serverVersionMin is the oldest nats-server that Drover is tested with.
	serverVersionMin = "2.15.2"
	// apiLevelMin is JetStream's API level of schedules and of what else the streams are made of.
	apiLevelMin = 4
	// monitorBytesMax bounds the answer of a server's monitoring address.
	monitorBytesMax = 4 << 20
	// lagMax is how many events a bucket may trail the log by, as it does under load for moments.
	lagMax = 10_000
	// fullMax is how full a stream that refuses what is too much may be.
	fullMax = 0.9
	// skewMax is how far apart the clocks may be. The server's is the clock; this one only shows ages.
	skewMax = 2 * time.Second
)

// verdict is one thing that doctor looked at.
type verdict struct {
	Check  string `json:"check"`
	Status string `json:"status"` // ok, warning, failed, unknown
	Text   string `json:"text"`
	Hint   string `json:"hint,omitempty"`

	exit int
}

// Statuses of a verdict.
const (
	verdictOK      = "ok"
	verdictWarning = "warning" // works, and an operator should know
	verdictFailed  = "failed"
	verdictUnknown = "unknown" // could not be read from here
)

func newDoctor(a *App) *cobra.Command {
	var monitor, data string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the server, the streams, the services and what this user may do",
		Long: `Check what Drover stands on: the server's version and JetStream, whether acknowledged writes are on disk
(sync_interval), whether streams and buckets are as this version makes them, whether their replicas are there and have
caught up, how far the buckets trail the log, how full the inputs are, whether the clocks agree, whether the services
answer, and what this user may read, follow and ask. A right that is missing is named by its subject. It changes nothing,
and it exits with 0 unless a check has failed; a warning works, and an operator should know.

The server does not tell its clients its sync_interval: it is read from its monitoring address (--monitor), or from the
data folder of a ` + "`drover up`" + `.`,
		Example: `  drover doctor
  drover doctor --monitor http://127.0.0.1:8222
  drover doctor -o json | jq '.[] | select(.status != "ok")'`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.runner(func(ctx context.Context, _ []string) error {
			return a.doctor(ctx, monitor, data)
		}),
	}
	cmd.Flags().StringVar(&monitor, "monitor", "", "`URL` of the server's monitoring, as in http://127.0.0.1:8222")
	cmd.Flags().StringVar(&data, "data", "./"+up.DataDefault, "data `FOLDER` of a `drover up`")
	_ = cmd.MarkFlagDirname("data")
	return cmd
}

func (a *App) doctor(ctx context.Context, monitor, data string) error {
	var verdicts []verdict
	b, err := a.bus(ctx)
	if err != nil {
		return err
	}
	info, serverVerdicts := a.checkServer(ctx, b)
	verdicts = append(verdicts, serverVerdicts...)
	verdicts = append(verdicts, checkSync(ctx, info.URL, monitor, data))
	streams, missing := checkStreams(ctx, b)
	verdicts = append(verdicts, streams...)
	verdicts = append(verdicts, a.checkStanding(ctx, b)...)
	verdicts = append(verdicts, a.checkReading(ctx, b, missing)...)
	verdicts = append(verdicts, a.checkHistory(ctx, b, missing), a.checkLogs(ctx, b, missing), a.checkFeed(b), a.checkIntake(ctx, b, missing))

	exit := ExitOK
	items := make([]item, len(verdicts))
	for i, v := range verdicts {
		items[i] = item{name: v.Check, json: jsonOf(v)}
		exit = worse(exit, v.exit)
	}
	err = a.printItems(items, false, func() error {
		t := render.NewTable("CHECK", "STATUS", "FINDING")
		for _, v := range verdicts {
			t.Row(v.Check, a.paintVerdict(v.Status), render.Text(v.Text))
		}
		if err := t.Write(a.Out, ""); err != nil {
			return err
		}
		for _, v := range verdicts {
			if v.Hint != "" {
				a.tell("%s %s: %s", a.errPaint.Dim("hint:"), v.Check, render.Text(v.Hint))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return exitWith(exit)
}

func (a *App) paintVerdict(status string) string {
	switch status {
	case verdictOK:
		return a.paint.Good(status)
	case verdictFailed:
		return a.paint.Bad(status)
	default:
		return a.paint.Warn(status)
	}
}

// failed is a verdict of an error.
func failed(check string, err error) verdict {
	code := codeOf(err)
	if errors.Is(err, context.DeadlineExceeded) {
		code = ExitUnreachable
	}
	v := verdict{Check: check, Status: verdictFailed, Text: err.Error(), Hint: hintOf(err), exit: code}
	if errors.Is(err, bus.ErrDenied) {
		v.Hint = "an operator grants it to this user, as deploy/nats/permissions.conf does to DROVER_USER"
	}
	return v
}

func (a *App) checkServer(ctx context.Context, b Bus) (ServerInfo, []verdict) {
	if a.Server == nil {
		return ServerInfo{}, []verdict{{Check: "server", Status: verdictUnknown, Text: "this connection cannot be asked"}}
	}
	ctx, cancel := a.bounded(ctx, RequestTimeout)
	defer cancel()
	info, err := a.Server(ctx, b)
	if info.Version == "" && err != nil {
		return info, []verdict{failed("server", err)}
	}
	server := verdict{Check: "server", Status: verdictOK, Text: fmt.Sprintf("nats-server %s at %s, %s away", info.Version, info.URL, info.RTT.Round(10*time.Microsecond))}
	if info.Cluster != "" {
		server.Text += ", cluster " + info.Cluster
	}
	if olderThan(info.Version, serverVersionMin) {
		server.Status, server.exit = verdictFailed, ExitError
		server.Hint = "Drover needs nats-server " + serverVersionMin + " or newer"
	}
	if err != nil {
		return info, []verdict{server, failed("jetstream", err)}
	}
	js := verdict{Check: "jetstream", Status: verdictOK, Text: fmt.Sprintf("API level %d, %d streams, %s stored", info.APILevel, info.Streams, bytesText(info.StoreBytes))}
	if info.StoreBytesMax > 0 {
		js.Text += " of " + bytesText(uint64(info.StoreBytesMax))
		if info.StoreBytes > uint64(info.StoreBytesMax)/10*9 {
			js.Status, js.Hint = verdictWarning, "the account's storage is nearly full; past it the server refuses every write"
		}
	}
	if info.APILevel < apiLevelMin {
		js.Status, js.exit = verdictFailed, ExitError
		js.Hint = fmt.Sprintf("Drover needs JetStream API level %d", apiLevelMin)
	}
	return info, []verdict{server, js}
}

// olderThan compares versions of the form 2.15.2; what follows a "-" is not looked at.
func olderThan(version, least string) bool {
	parse := func(s string) (numbers [3]int) {
		s, _, _ = strings.Cut(strings.TrimPrefix(s, "v"), "-")
		_, _ = fmt.Sscanf(s, "%d.%d.%d", &numbers[0], &numbers[1], &numbers[2]) // what cannot be read counts as 0
		return numbers
	}
	x, y := parse(version), parse(least)
	return slices.Compare(x[:], y[:]) < 0
}

func bytesText(n uint64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, prefix := float64(n), ""
	for _, p := range []string{"Ki", "Mi", "Gi", "Ti"} {
		if value < unit {
			break
		}
		value, prefix = value/unit, p
	}
	return fmt.Sprintf("%.1f %sB", value, prefix)
}

// checkSync says whether an acknowledged write survives a loss of power.
func checkSync(ctx context.Context, url, monitor, data string) verdict {
	v := verdict{Check: "sync_interval", Status: verdictUnknown, Text: "the server does not tell its clients",
		Hint: "--monitor URL reads it from the server's monitoring address"}
	if monitor != "" {
		sync, err := readSync(ctx, monitor)
		if err != nil {
			v.Text = err.Error()
			return v
		}
		return syncVerdict(sync)
	}
	if at, err := up.Running(data); err == nil && url != "" && sameServer(at.NATS, url) {
		if at.Sync == up.SyncAlways {
			return syncVerdict("always")
		}
		return syncVerdict("2m0s")
	}
	return v
}

func sameServer(x, y string) bool {
	trim := func(s string) string {
		_, after, found := strings.Cut(s, "://")
		if found {
			return after
		}
		return s
	}
	return trim(x) == trim(y)
}

func syncVerdict(sync string) verdict {
	if sync == "always" {
		return verdict{Check: "sync_interval", Status: verdictOK, Text: "always: what was acknowledged is on disk"}
	}
	return verdict{
		Check: "sync_interval", Status: verdictWarning, Text: sync + ": a loss of power can lose what was acknowledged since",
		Hint: "set jetstream.sync_interval to always in the server's configuration",
	}
}

// readSync asks a server's monitoring address.
func readSync(ctx context.Context, monitor string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(monitor, "/")+"/jsz?config=true", nil)
	if err != nil {
		return "", fmt.Errorf("--monitor: %w", err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: RequestTimeout}
	response, err := client.Do(request)
	if err != nil {
		return "", fmt.Errorf("--monitor: %w", err)
	}
	defer func() { _ = response.Body.Close() }() // only read
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("--monitor: %s answers %s", request.URL.Redacted(), response.Status)
	}
	var jsz struct {
		Config struct {
			SyncInterval time.Duration `json:"sync_interval"`
			SyncAlways   bool          `json:"sync_always"`
		} `json:"config"`
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, monitorBytesMax)).Decode(&jsz); err != nil {
		return "", fmt.Errorf("--monitor: answer of %s: %w", request.URL.Redacted(), err)
	}
	if jsz.Config.SyncAlways {
		return "always", nil
	}
	return jsz.Config.SyncInterval.String(), nil
}

// checkStreams says how streams and buckets differ from what this version makes, and which are missing.
func checkStreams(ctx context.Context, b Bus) (verdicts []verdict, missing []string) {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	drifts, err := b.Check(ctx)
	if errors.Is(err, bus.ErrDenied) { // who works in one project need not see the system
		return []verdict{{Check: "streams", Status: verdictUnknown, Text: err.Error(), Hint: "ask an operator, who may look at streams"}}, nil
	}
	if err != nil {
		return []verdict{failed("streams", err)}, nil
	}
	if len(drifts) == 0 {
		return []verdict{{Check: "streams", Status: verdictOK, Text: "streams and buckets are as this version makes them"}}, nil
	}
	for _, d := range drifts {
		if d.Missing {
			missing = append(missing, strings.TrimSuffix(d.Stream+" "+d.Setting, " "))
			continue
		}
		v := verdict{
			Check: "stream " + render.Text(d.Stream), Status: verdictWarning,
			Text: fmt.Sprintf("%s is %s, and should be %s", d.Setting, orNothing(d.Have), orNothing(d.Want)),
			Hint: "`drover setup` repairs it",
		}
		if !d.Repairable {
			v.Status, v.exit = verdictFailed, ExitError
			v.Hint = "it cannot be changed without loss; an operator must"
		}
		verdicts = append(verdicts, v)
	}
	if len(missing) > 0 {
		verdicts = append(verdicts, verdict{
			Check: "streams", Status: verdictFailed, exit: ExitError, Text: "not there: " + strings.Join(missing, ", "),
			Hint: "`drover setup` makes what is missing; so does a service that may",
		})
	}
	return verdicts, missing
}

func orNothing(s string) string {
	if s == "" {
		return "nothing"
	}
	return s
}

// checkReading reads one key of each bucket. The key need not be there; a bucket that is missing is not asked, because
// nobody would answer.
func (a *App) checkReading(ctx context.Context, b Bus, missing []string) []verdict {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	verdicts := make([]verdict, 0, len(bus.Families()))
	for _, f := range bus.Families() {
		e := bus.Entity{Family: f, Project: a.project}
		if f.HasKind() {
			e.Kind = "doctor"
		}
		if f.HasName() {
			e.Name = "doctor"
		}
		check := "read " + f.Bucket()
		if slices.Contains(missing, "KV_"+f.Bucket()) {
			verdicts = append(verdicts, verdict{Check: check, Status: verdictUnknown, Text: "the bucket is not there"})
			continue
		}
		if _, err := b.Get(ctx, e); err != nil && !errors.Is(err, bus.ErrNotFound) {
			verdicts = append(verdicts, failed(check, err))
			continue
		}
		verdicts = append(verdicts, verdict{Check: check, Status: verdictOK, Text: "this user may read project " + a.project})
	}
	return verdicts
}

// checkStanding says how the streams that are there stand: their copies, what trails the log, what is nearly full, and the
// server's clock.
func (a *App) checkStanding(ctx context.Context, b Bus) []verdict {
	if a.Streams == nil {
		return nil
	}
	ctx, cancel := a.bounded(ctx, RequestTimeout)
	defer cancel()
	streams, err := a.Streams(ctx, b)
	switch {
	case errors.Is(err, bus.ErrDenied):
		return []verdict{{Check: "replicas", Status: verdictUnknown, Text: err.Error(), Hint: "ask an operator, who may look at streams"}}
	case err != nil:
		return []verdict{failed("replicas", err)}
	case len(streams) == 0:
		return nil // said already
	}
	return []verdict{checkReplicas(streams), checkLag(streams), checkRoom(streams), checkClock(streams)}
}

func checkReplicas(streams []StreamInfo) verdict {
	v := verdict{Check: "replicas", Status: verdictOK}
	copies := streams[0].Replicas
	var leaderless, behind []string
	for i := range streams {
		s := &streams[i]
		copies = min(copies, s.Replicas)
		if s.Clustered && s.Leader == "" {
			leaderless = append(leaderless, s.Name)
		}
		for _, peer := range s.Behind {
			behind = append(behind, s.Name+" on "+peer)
		}
	}
	switch {
	case len(leaderless) > 0:
		v.Status, v.exit, v.Text = verdictFailed, ExitUnreachable, "no leader: "+listed(leaderless)
		v.Hint = "most of a stream's servers must be there; what is written meanwhile is refused, and nothing is lost"
	case len(behind) > 0:
		v.Status, v.Text = verdictWarning, "away, or behind: "+listed(behind)
		v.Hint = "until they are back, fewer servers may fail"
	case copies == 1 && streams[0].Clustered:
		v.Status, v.Text = verdictWarning, "one copy of each stream, on a cluster"
		v.Hint = "`drover setup --replicas 3` has streams outlive a server"
	case copies == 1:
		v.Text = "one copy of each stream, on one server"
	default:
		v.Text = fmt.Sprintf("%d copies of each stream, and all have caught up", copies)
	}
	return v
}

// listed names some of many.
func listed(names []string) string {
	const shown = 4
	if len(names) > shown {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
	}
	return strings.Join(names, ", ")
}

func checkLag(streams []StreamInfo) verdict {
	last := slices.MaxFunc(streams, func(x, y StreamInfo) int { return cmp.Compare(x.Lag, y.Lag) })
	v := verdict{Check: "lag", Status: verdictOK, Text: fmt.Sprintf("buckets and work are at most %d events behind the log", last.Lag)}
	if last.Lag > lagMax {
		v.Status, v.Text = verdictWarning, fmt.Sprintf("%s is %d events behind the log", last.Name, last.Lag)
		v.Hint = "what is shown is old by that much; where it does not shrink, the server's log says why"
	}
	return v
}

func checkRoom(streams []StreamInfo) verdict {
	fullest := slices.MaxFunc(streams, func(x, y StreamInfo) int { return cmp.Compare(x.Full, y.Full) })
	v := verdict{Check: "room", Status: verdictOK, Text: fmt.Sprintf("the inputs are at most %.0f %% full", 100*fullest.Full)}
	if fullest.Full > fullMax {
		v.Status, v.Text = verdictWarning, fmt.Sprintf("%s is %.0f %% full", fullest.Name, 100*fullest.Full)
		v.Hint = "past it commands or results are refused (overloaded): are intake and the orchestrator running, and enough of them?"
	}
	return v
}

// checkClock takes the answer that says least against the clocks: each is off by as long as it was under way.
func checkClock(streams []StreamInfo) verdict {
	least := slices.MinFunc(streams, func(x, y StreamInfo) int { return cmp.Compare(x.Skew.Abs(), y.Skew.Abs()) }).Skew
	if least.Abs() <= skewMax {
		return verdict{Check: "clock", Status: verdictOK, Text: "the server's clock and this one agree"}
	}
	word := "ahead of"
	if least < 0 {
		word = "behind"
	}
	return verdict{
		Check: "clock", Status: verdictWarning, Text: fmt.Sprintf("the server's clock is %s %s this one", least.Abs().Round(time.Second), word),
		Hint: "the server's clock is the one that counts; ages and times are shown by this one",
	}
}

// checkHistory reads from the log what was never there.
func (a *App) checkHistory(ctx context.Context, b Bus, missing []string) verdict {
	const check = "history"
	if slices.Contains(missing, "EVENTS") {
		return verdict{Check: check, Status: verdictUnknown, Text: "the log is not there"}
	}
	ctx, cancel := a.bounded(ctx, RequestTimeout)
	defer cancel()
	if _, err := logged(ctx, b, a.project, target{kind: "doctor", name: "doctor"}); err != nil {
		return failed(check, err)
	}
	return verdict{Check: check, Status: verdictOK, Text: "this user may read the log"}
}

// checkLogs reads the output of what was never there.
func (a *App) checkLogs(ctx context.Context, b Bus, missing []string) verdict {
	const check = "logs"
	if slices.Contains(missing, "OUTPUT") {
		return verdict{Check: check, Status: verdictUnknown, Text: "stream OUTPUT is not there"}
	}
	ctx, cancel := a.bounded(ctx, RequestTimeout)
	defer cancel()
	err := b.ReadOutput(ctx, a.project, "doctor", "doctor", false, func(bus.OutputLine) error { return nil })
	if err != nil && !errors.Is(err, bus.ErrNotFound) {
		return failed(check, err)
	}
	return verdict{Check: check, Status: verdictOK, Text: "this user may read what phases print in project " + a.project}
}

// checkFeed subscribes to the feed and stops again.
func (a *App) checkFeed(b Bus) verdict {
	stop, err := b.Follow(bus.Resource, a.project, "", "", func(bus.Stored) {})
	if err != nil {
		return failed("follow", err)
	}
	stop()
	return verdict{Check: "follow", Status: verdictOK, Text: "this user may follow drover.evt.resource." + bus.Token(a.project) + ".>"}
}

// checkIntake asks for what must be refused: a verb on a resource that cannot be, whose name no manifest may have.
func (a *App) checkIntake(ctx context.Context, b Bus, missing []string) verdict {
	if len(missing) > 0 {
		return verdict{Check: "ask", Status: verdictUnknown, Text: "not asked: no service can work without its streams"}
	}
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	subject := bus.CommandSubject("api", a.project, "drover", " doctor ", "ping")
	body, err := wire.EncodeCommand("", wire.Command{RequestedBy: a.user()})
	if err != nil {
		return failed("ask", err)
	}
	began := time.Now()
	reply, err := b.Request(ctx, subject, map[string]string{bus.HeaderRequestID: a.RequestID()}, body)
	if err != nil {
		return failed("ask", fmt.Errorf("request on %s: %w", subject, err))
	}
	took := time.Since(began).Round(10 * time.Microsecond)
	r, err := wire.DecodeReply(reply.Header[bus.HeaderContentType], reply.Body)
	switch {
	case err != nil:
		return failed("ask", fmt.Errorf("reply to %s: %w", subject, err))
	case r.Refused == nil:
		return verdict{Check: "ask", Status: verdictFailed, Text: "intake accepted what it should have refused", exit: ExitError}
	}
	return verdict{Check: "ask", Status: verdictOK, Text: fmt.Sprintf("intake answers in %s", took)}
}
