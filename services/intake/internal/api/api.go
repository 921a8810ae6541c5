// Package api answers commands that are sent as requests (drover.api): it checks them, takes them to the owner of their
// partition, and passes the owner's answer on, which follows the commit.
//
// Requests of one client for one resource that are sent without waiting for the answers may be decided in any order.
// Requests above the limits are refused as overloaded at once, so that those under way are answered.
package api

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/check"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/intake/internal/answer"
	"github.com/droverproject/drover/services/intake/internal/forward"
	"github.com/droverproject/drover/services/intake/internal/metrics"
)

// Limits of requests under way.
const (
	RequestsMax          = 1024            // requests
	PartitionRequestsMax = 256             // requests for one partition: an owner that hangs holds up no other
	RequestBytesMax      = 64 << 20        // bytes of their bodies together
	StopTimeout          = 5 * time.Second // for those under way when the service stops
)

// Server answers requests. Make one with New.
type Server struct {
	bus        forward.Asker
	partitions int
	log        *zap.Logger
	metrics    *metrics.Metrics

	ctx    context.Context // ends what is under way
	cancel context.CancelFunc

	mu          sync.Mutex
	requests    int
	byPartition []int
	bytes       int
	bytesMax    int
	stopping    bool
	under       sync.WaitGroup
}

// New returns a Server for a system of so many partitions.
func New(b forward.Asker, partitions int, log *zap.Logger, m *metrics.Metrics) *Server {
	s := &Server{bus: b, partitions: partitions, log: log, metrics: m, byPartition: make([]int, partitions), bytesMax: RequestBytesMax}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Handle is a bus.APIHandler. It returns at once and answers from another goroutine.
func (s *Server) Handle(subject string, r bus.Request, reply func(header map[string]string, body []byte)) {
	a := &answering{
		began: time.Now(), contentType: r.Header[bus.HeaderContentType], requestID: r.Header[bus.HeaderRequestID],
		reply: reply, server: s,
	}
	target, err := check.ParseSubject(subject)
	if err != nil {
		a.refuse(resource.Refusal{
			Code: resource.Invalid, Message: "the subject is not that of a command: drover.api.<project>.<kind>.<name>.<verb>",
			Violations: []resource.Violation{{Field: "subject", Reason: err.Error()}},
		})
		return
	}
	a.verb = target.Verb
	partition := target.Partition(s.partitions)
	if why := s.enter(partition, len(r.Body)); why != "" {
		a.refuse(resource.Refusal{Code: resource.Overloaded, Message: why})
		return
	}
	go func() {
		defer s.leave(partition, len(r.Body))
		s.answer(a, target, partition, r)
	}()
}

func (s *Server) enter(partition, size int) (refused string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopping:
		return "this intake is stopping; send the command again"
	case s.requests >= RequestsMax || s.byPartition[partition] >= PartitionRequestsMax || s.bytes+size > s.bytesMax:
		return "too many requests are under way; nothing was stored; send the command again in a while"
	}
	s.requests++
	s.byPartition[partition]++
	s.bytes += size
	s.under.Add(1)
	s.metrics.Requests.Inc()
	return ""
}

func (s *Server) leave(partition, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests--
	s.byPartition[partition]--
	s.bytes -= size
	s.under.Done()
	s.metrics.Requests.Dec()
}

func (s *Server) answer(a *answering, target check.Target, partition int, r bus.Request) {
	if a.requestID == "" {
		a.requestID = rand.Text() // 26 letters and digits, 128 bits
	}
	refusal := check.Command(check.Message{
		Target: target, RequestID: a.requestID, MessageID: r.Header["Nats-Msg-Id"],
		ContentType: a.contentType, Body: r.Body,
	})
	if refusal != nil {
		a.refuse(*refusal)
		return
	}
	command := &forward.Command{
		Partition: partition, Subject: target.Subject(), RequestID: a.requestID,
		ContentType: a.contentType, Traceparent: r.Header[bus.HeaderTraceparent], Body: r.Body,
	}
	reply, err := forward.Ask(s.ctx, s.bus, command)
	if err != nil {
		a.refuse(resource.Refusal{Code: resource.Overloaded, Message: forward.Reason(command.Partition, err)})
		return
	}
	decoded, err := wire.DecodeReply(reply.Header[bus.HeaderContentType], reply.Body)
	if err != nil {
		s.log.Error("owner's reply cannot be read", zap.Error(err), host.Partition(command.Partition), host.Subject(command.Subject))
		a.refuse(resource.Refusal{Code: resource.Overloaded, Message: "the orchestrator's answer cannot be read; the command may have been accepted"})
		return
	}
	header := map[string]string{bus.HeaderRequestID: a.requestID}
	if form := reply.Header[bus.HeaderContentType]; form != "" {
		header[bus.HeaderContentType] = form
	}
	host.CrashPoint("intake.before-reply")
	a.send(metrics.Answer(decoded), header, reply.Body)
}

// Stop refuses new requests and waits until those under way are answered: at most StopTimeout, then they are refused.
func (s *Server) Stop() {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	late := time.AfterFunc(StopTimeout, s.cancel)
	defer late.Stop()
	s.under.Wait()
	s.cancel()
}

// answering is one request.
type answering struct {
	server                       *Server
	began                        time.Time
	verb, contentType, requestID string
	reply                        func(header map[string]string, body []byte)
}

func (a *answering) refuse(r resource.Refusal) {
	header, body, err := answer.Refusal(a.contentType, a.requestID, r)
	if err != nil {
		a.server.log.Error("refusal cannot be encoded", zap.Error(err), host.Reason(r.Message))
		return
	}
	a.send(string(r.Code), header, body)
}

func (a *answering) send(label string, header map[string]string, body []byte) {
	a.reply(header, body)
	a.server.metrics.Command(metrics.SourceAPI, a.verb, label, time.Since(a.began))
}
