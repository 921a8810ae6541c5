package ncae

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"

	"github.com/droverproject/drover/services/gateway/internal/httpapi"
)

// Limits of log lines.
const (
	LogTitleBytesMax = 1 << 10 // bytes of a title or a host's name
	LogLinesMax      = 64      // lines of one text; the rest is dropped, and the last line says so
	linesKept        = 1024    // log lines that can be read again, of all
)

// Stream is the stream of a module's lines in OUTPUT, beside stdout, stderr and runner.
const Stream = "module"

// serviceInstanceLog is a log line as NCAE shows it (facts/ncae.md B2; ncae_sdk: ServiceInstanceLog).
type serviceInstanceLog struct {
	ID              uint64    `json:"id"`
	Timestamp       time.Time `json:"timestamp"`
	Status          string    `json:"status"`
	Title           string    `json:"log_title"`
	Hostname        string    `json:"log_hostname"`
	Text            string    `json:"log_text"`
	ServiceInstance uint64    `json:"service_instance_id"`
	Service         uint64    `json:"service_id"`
	PhaseInstance   uint64    `json:"phase_instance_id"`
	Transaction     string    `json:"transaction"`
}

// postLog takes a line for the output of a phase: OUTPUT, which is limited by age and size, and not waited for.
func (d *Door) postLog(w http.ResponseWriter, r *http.Request) {
	transaction, ok := transaction(w, r)
	if !ok {
		return
	}
	line := serviceInstanceLog{Status: "IN"}
	if !read(w, r, &line) {
		return
	}
	switch {
	case line.Status != "DG" && line.Status != "IN" && line.Status != "WA" && line.Status != "ER":
		httpapi.Invalid(w, "status", "is none of DG, IN, WA, ER")
		return
	case len(line.Title) > LogTitleBytesMax:
		httpapi.Invalid(w, "log_title", "at most "+strconv.Itoa(LogTitleBytesMax)+" bytes")
		return
	case len(line.Hostname) > LogTitleBytesMax:
		httpapi.Invalid(w, "log_hostname", "at most "+strconv.Itoa(LogTitleBytesMax)+" bytes")
		return
	case len(line.Transaction) > TransactionBytesMax:
		httpapi.Invalid(w, "transaction", "at most "+strconv.Itoa(TransactionBytesMax)+" bytes")
		return
	case line.ServiceInstance == 0 && line.PhaseInstance == 0:
		httpapi.Invalid(w, "service_instance_id", "is missing")
		return
	}
	if line.Transaction != "" {
		transaction = line.Transaction
	}
	id := line.PhaseInstance
	q := wire.PhaseInstanceQuery{PhaseInstance: id, Transaction: transaction}
	if id == 0 {
		id = line.ServiceInstance
		q = wire.PhaseInstanceQuery{ServiceInstance: id, Transaction: transaction}
	}
	partition, ok := wire.NumberPartition(id, d.bus.Partitions())
	if !ok {
		unknown(w)
		return
	}
	v, err := d.find(r.Context(), partition, q)
	switch {
	case err != nil:
		unanswered(w)
		return
	case !v.Found:
		unknown(w)
		return
	} // a line under an earlier transaction is not refused: it is as true as it was
	line.Timestamp = time.Now().UTC()
	line.ServiceInstance, line.PhaseInstance, line.Transaction = v.ServiceInstance, v.ID, v.Transaction
	line.Service = wire.ServiceID(v.Project, v.Kind)
	for _, text := range printed(&line) {
		body, err := wire.EncodeOutputLine(wire.OutputLine{
			Fence: resource.Fence{UID: v.UID, JobID: v.JobID, Phase: v.Phase, Attempt: v.Attempt},
			Time:  line.Timestamp, Stream: Stream, Text: text,
		})
		if err == nil {
			err = d.bus.PublishOutput(v.Project, v.Kind, v.Name, body)
		}
		if err != nil {
			d.log.Warn("a module's line is lost", zap.Error(err))
			httpapi.Fail(w, http.StatusServiceUnavailable, "overloaded", "the line could not be stored; say it again")
			return
		}
	}
	line.ID = d.lines.keep(line)
	httpapi.Respond(w, http.StatusCreated, line)
}

// printed are the lines of output that a log line becomes.
func printed(l *serviceInstanceLog) []string {
	head := l.Status
	for _, part := range []string{l.Hostname, l.Title} {
		if part = strings.Join(strings.Fields(part), " "); part != "" {
			head += " " + part
		}
	}
	text := strings.Split(strings.TrimRight(strings.ReplaceAll(l.Text, "\r\n", "\n"), "\n"), "\n")
	more := len(text) - LogLinesMax
	text = text[:min(len(text), LogLinesMax)]
	for i := range text {
		text[i] = head + ": " + text[i]
	}
	if more > 0 {
		text[len(text)-1] += " …[" + strconv.Itoa(more) + " lines more]"
	}
	return text
}

// getLog shows a line that this gateway took shortly before: ncae_sdk reads what it has written. Another gateway, or this one
// started anew, does not know it.
func (d *Door) getLog(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseUint(r.PathValue("id"), 10, 64)
	line, ok := d.lines.get(id)
	if err != nil || !ok {
		httpapi.Fail(w, http.StatusNotFound, "not_found", "this gateway does not keep that line; all lines are in the output of the service instance")
		return
	}
	httpapi.Respond(w, http.StatusOK, line)
}

// lines are the log lines that were taken last. Safe for concurrent use.
type lines struct {
	mu   sync.Mutex
	last uint64
	kept [linesKept]serviceInstanceLog // by id
}

// newLines begins at the clock, so that ids of gateways that are started one after another differ.
func newLines() *lines { return &lines{last: uint64(time.Now().UnixMilli())} }

func (l *lines) keep(line serviceInstanceLog) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	line.ID = l.last
	l.kept[l.last%linesKept] = line
	return l.last
}

func (l *lines) get(id uint64) (serviceInstanceLog, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := l.kept[id%linesKept]
	return line, line.ID == id && id != 0
}
