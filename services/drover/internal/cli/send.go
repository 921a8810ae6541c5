package cli

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/drover/internal/render"
)

// requestIDs is what intake accepts in Drover-Request-Id.
var requestIDs = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// order is one command for one target.
type order struct {
	target
	verb string
	body wire.Command
	// project of the target; empty means the command line's.
	project string
	// job to wait for instead of the order's own, which is over at once: the one that the order cancels.
	job string
	// tail is put behind the request id, where one command line has several orders for one resource; empty: nothing.
	tail string
	// place says where a field of the body was read from; nil: nowhere that has a name.
	place func(field string) string
}

// answer is what became of an order.
type answer struct {
	order
	jobID string
	err   error
}

// sender sends orders with one request id. The id is scoped to the resource, so one serves all orders of a command
// line, and the whole command line can be repeated with it.
type sender struct {
	app       *App
	bus       Bus
	requestID string
}

func (a *App) newSender(ctx context.Context, requestID string) (*sender, error) {
	if requestID == "" {
		requestID = a.RequestID()
	} else if !requestIDs.MatchString(requestID) {
		return nil, usage("--request-id: %q is not 1 to 64 of A-Z a-z 0-9 _ -", requestID)
	}
	b, err := a.bus(ctx)
	if err != nil {
		return nil, err
	}
	return &sender{app: a, bus: b, requestID: requestID}, nil
}

// send asks for one order and returns the id of its job. ctx bounds the whole; each call is also bounded by
// RequestTimeout unless --timeout was given.
func (s *sender) send(ctx context.Context, o order) (jobID string, err error) {
	ctx, cancel := s.app.bounded(ctx, RequestTimeout)
	defer cancel()
	project := o.project
	if project == "" {
		project = s.app.project
	}
	if o.body.RequestedBy == "" {
		o.body.RequestedBy = s.app.user()
	}
	body, err := wire.EncodeCommand("", o.body)
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", o.verb, o.target, err)
	}
	subject := bus.CommandSubject("api", project, o.kind, o.name, o.verb)
	header := map[string]string{bus.HeaderRequestID: s.idOf(&o)}
	reply, err := s.request(ctx, subject, header, body)
	if err != nil {
		return "", s.explain(err, subject)
	}
	r, err := wire.DecodeReply(reply.Header[bus.HeaderContentType], reply.Body)
	if err != nil {
		return "", fmt.Errorf("reply to %s: %w", subject, err)
	}
	if r.Refused != nil {
		return "", &refusedError{subject: subject, requestID: s.idOf(&o), refusal: *r.Refused}
	}
	return r.JobID, nil
}

// requestIDBytesMax is what intake accepts.
const requestIDBytesMax = 64

// idOf is the request id of one order.
func (s *sender) idOf(o *order) string {
	if o.tail == "" {
		return s.requestID
	}
	return s.requestID[:min(len(s.requestID), requestIDBytesMax-1-len(o.tail))] + "-" + o.tail
}

// request repeats while nobody listens, for OwnerPatience: a service that takes over needs a moment, and a repeated
// request has no second effect.
func (s *sender) request(ctx context.Context, subject string, header map[string]string, body []byte) (bus.Request, error) {
	patience := time.NewTimer(OwnerPatience)
	defer patience.Stop()
	for {
		reply, err := s.bus.Request(ctx, subject, header, body)
		if !errors.Is(err, bus.ErrNoOwner) {
			return reply, err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-patience.C:
			return reply, err
		case <-ctx.Done():
			return reply, err
		}
	}
}

func (s *sender) explain(err error, subject string) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fail(ExitTimeout, "no answer on %s in time; whether it was accepted is not known", subject).
			withHint("repeat it with --request-id %s: what was accepted is not done twice", s.requestID)
	case errors.Is(err, bus.ErrNoOwner):
		return fmt.Errorf("nobody answers on %s: %w", subject, err)
	default:
		return fmt.Errorf("request on %s: %w", subject, err)
	}
}

// sendAll sends orders, RequestsInFlight at once, and calls each with every answer in the order of the orders.
func (s *sender) sendAll(ctx context.Context, orders []order, each func(answer)) {
	answers := make([]chan answer, len(orders))
	for i := range answers {
		answers[i] = make(chan answer, 1)
	}
	places := make(chan struct{}, RequestsInFlight)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for i, o := range orders {
			places <- struct{}{}
			wg.Go(func() {
				defer func() { <-places }()
				jobID, err := s.send(ctx, o)
				answers[i] <- answer{order: o, jobID: jobID, err: err}
			})
		}
	})
	for _, c := range answers {
		each(<-c)
	}
}

// user is who asks: a label for those who read the history, not a proof.
func (a *App) user() string {
	for _, name := range []string{"USER", "LOGNAME", "USERNAME"} {
		if user := a.Getenv(name); user != "" {
			return render.Cut(render.Text(user), 128)
		}
	}
	return "drover"
}
