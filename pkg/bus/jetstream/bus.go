package jetstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/natscontext"

	"github.com/droverproject/drover/pkg/bus"
)

const (
	// apiTry is how long one try of a JetStream API request may take. A request that meets an election is dropped
	// silently, so tries are short and repeated.
	apiTry = 2500 * time.Millisecond
	// apiPause is between tries.
	apiPause = 100 * time.Millisecond
	// connectWait is how long Connect tries if its context has no deadline.
	connectWait = 10 * time.Second
	// closeWait is how long Close waits for what was published to reach the server.
	closeWait = 2 * time.Second
)

// Bus is a bus.Bus over one connection. Safe for concurrent use.
type Bus struct {
	options Options
	nc      *nats.Conn
	calls   *calls

	partitions atomic.Int64           // 0: not known yet
	replicas   atomic.Int64           // of EVENTS; 0: not known yet
	asked      int                    // Options.Replicas as it was given
	sync       atomic.Pointer[string] // what the system notes of the server; nil: not known
	appends    *gatherer              // of EVENTS
	recent     recent

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	closed sync.Once
	wg     sync.WaitGroup // what must have ended before Close returns

	mu          sync.Mutex
	reconnected chan struct{}          // closed at each reconnect, and replaced
	ensured     map[bus.Phase]struct{} // phases whose consumers were made here; see watchLeftovers

	reconnectedAt atomic.Int64 // Unix nanoseconds; 0: never

	rederive struct {
		mu      sync.Mutex
		streams map[string]*deriving
	}
}

// Connect connects, trying until the server answers or ctx ends (10 s if it has no deadline). It makes nothing on the
// server: see Setup.
func Connect(ctx context.Context, o Options) (*Bus, error) {
	asked := o.Replicas
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	opts, err := o.connection()
	if err != nil {
		return nil, err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, connectWait)
		defer cancel()
	}
	b := &Bus{options: o, asked: asked, reconnected: make(chan struct{})}
	b.rederive.streams = map[string]*deriving{}
	opts = append(opts,
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { b.asyncError(err) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			b.recent.lost()
			o.Notice("disconnected", err)
		}),
		nats.ReconnectHandler(func(*nats.Conn) { b.onReconnect() }))
	if b.nc, err = connect(ctx, o, opts); err != nil {
		return nil, err
	}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	fail := func(err error) (*Bus, error) {
		b.cancel()
		b.nc.Close()
		return nil, err
	}
	if b.calls, err = newCalls(b.nc); err != nil {
		return fail(fmt.Errorf("connect: %w", err))
	}
	b.appends = b.newGatherer()
	// Where replies may not come to this user, every request would time out, and nobody would know why.
	err = b.taken(ctx, b.calls.prefix+"*")
	if err == nil {
		err = b.learn(ctx)
	}
	if err != nil {
		b.calls.close()
		return fail(fmt.Errorf("connect: %w", err))
	}
	return b, nil
}

// Dial connects as Connect does, to the server alone: for what a Bus has no words for.
func Dial(ctx context.Context, o Options) (*nats.Conn, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	opts, err := o.connection()
	if err != nil {
		return nil, err
	}
	return connect(ctx, o, opts)
}

func connect(ctx context.Context, o Options, opts []nats.Option) (*nats.Conn, error) {
	for {
		var nc *nats.Conn
		var err error
		if o.Context != "" {
			if o.URL != "" {
				opts = append(opts, func(n *nats.Options) error { n.Url = o.URL; return nil })
			}
			nc, _, err = natscontext.Connect(o.Context, opts...)
		} else {
			nc, err = nats.Connect(o.URL, opts...)
		}
		if err == nil {
			return nc, nil
		}
		// The URL is left out: it may hold a password. So is what is wrong with one that cannot be read, which quotes from it.
		if unread := new(url.Error); errors.As(err, &unread) {
			return nil, errUnreadable
		}
		err = fmt.Errorf("connect: %w", err)
		if errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked) {
			return nil, fmt.Errorf("%w: %w", bus.ErrDenied, err)
		}
		if hopeless(err) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(apiPause):
		}
	}
}

var errUnreadable = errors.New("connect: the server's URL cannot be read: in a user or password write /, ?, #, % and @ as %2F, %3F, %23, %25 and %40")

// hopeless says whether another try would meet the same: files that cannot be read, certificates that do not fit, contexts
// that are not there.
func hopeless(err error) bool {
	var file *fs.PathError
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &file), errors.As(err, &certificate):
		return true
	case errors.Is(err, nats.ErrSecureConnRequired), errors.Is(err, nats.ErrSecureConnWanted), errors.Is(err, nats.ErrNkeyAndUser):
		return true
	}
	// natscontext and the alerts of TLS have no errors of their own, only these words.
	return slices.ContainsFunc([]string{"unknown context ", "invalid context name ", "tls: certificate required"},
		func(words string) bool { return strings.Contains(err.Error(), words) })
}

// learn asks the system with how many partitions it was created, and whether it is dear to store a message alone.
func (b *Bus) learn(ctx context.Context) error {
	info, err := b.streamInfo(ctx, streamEvents, "")
	if errors.Is(err, bus.ErrNotFound) {
		return nil // Setup will decide
	}
	if err != nil {
		return err
	}
	// A stream that does not say it is found by Setup.
	if n, err := strconv.Atoi(info.Config.Metadata[metaPartitions]); err == nil && n >= 1 {
		b.partitions.Store(int64(n))
	}
	b.replicas.Store(int64(info.Config.Replicas))
	noted := info.Config.Metadata[metaSync]
	b.sync.Store(&noted)
	b.appends.together.Store(noted == SyncAlways && info.Config.Replicas == 1)
	return nil
}

// layout is the options with as many replicas as the system has, where none were asked for: who looks at a system, or
// repairs it, must not take the default for a wish.
func (b *Bus) layout() Options {
	o := b.options
	if n := int(b.replicas.Load()); b.asked == 0 && n > 0 {
		o.Replicas = n
	}
	return o
}

// Replicas is how many of each stream the system has; 0: none of it is there yet.
func (b *Bus) Replicas() int { return int(b.replicas.Load()) }

// noted is Options.Sync as the system notes it; empty: it does not.
func (b *Bus) noted() string {
	if s := b.sync.Load(); s != nil {
		return *s
	}
	return ""
}

// Partitions implements bus.Bus.
func (b *Bus) Partitions() int {
	if n := b.partitions.Load(); n > 0 {
		return int(n)
	}
	return or(b.options.Partitions, bus.Partitions)
}

// Healthy implements bus.Bus. It wants an answer from the leader of EVENTS; a system that was not set up is healthy.
func (b *Bus) Healthy(ctx context.Context) error {
	if b.ctx.Err() != nil {
		return bus.ErrClosed
	}
	if !b.nc.IsConnected() {
		return fmt.Errorf("the bus is not connected: %s", b.nc.Status())
	}
	ctx, cancel := context.WithTimeout(ctx, apiTry)
	defer cancel()
	info, err := b.streamInfo(ctx, streamEvents, "")
	switch {
	case errors.Is(err, bus.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("the bus does not answer: %w", err)
	}
	if c := info.Cluster; c != nil && c.Leader == "" {
		return fmt.Errorf("stream %s has no leader at present", streamEvents)
	}
	return nil
}

// Close implements bus.Bus.
func (b *Bus) Close() error {
	var err error
	b.closed.Do(func() {
		b.cancel()
		b.wg.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), closeWait)
		defer cancel()
		if b.nc.IsConnected() {
			err = b.nc.FlushWithContext(ctx)
		}
		b.calls.close()
		b.nc.Close()
	})
	if err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

func (b *Bus) onReconnect() {
	b.reconnectedAt.Store(time.Now().UnixNano())
	b.mu.Lock()
	close(b.reconnected)
	b.reconnected = make(chan struct{})
	b.mu.Unlock()
	b.options.Notice("reconnected", nil)
	go b.sayAgain()
}

// onceReconnected is closed at the next reconnect: what was asked of the old connection must be asked again.
func (b *Bus) onceReconnected() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reconnected
}

var deniedPublish = regexp.MustCompile(`(?i)permissions violation for publish to "([^"]+)"`)

// asyncError hears what the server says without being asked. It sends no reply to a publish that it denies.
func (b *Bus) asyncError(err error) {
	if errors.Is(err, nats.ErrPermissionViolation) {
		if m := deniedPublish.FindStringSubmatch(err.Error()); m != nil {
			b.calls.denied(m[1])
		}
		b.options.Notice("denied", err)
		return
	}
	b.options.Notice("connection", err)
}

// subscribed waits until the server has taken a subscription. A denied one is not refused by a reply: the client knows
// of it once the server has answered what was sent after it.
func (b *Bus) subscribed(subject string) error {
	ctx, cancel := context.WithTimeout(b.ctx, connectWait)
	defer cancel()
	return b.taken(ctx, subject)
}

// taken is subscribed, until ctx ends.
func (b *Bus) taken(ctx context.Context, subject string) error {
	err := b.retry(ctx, func(ctx context.Context) error {
		err := b.nc.FlushWithContext(ctx)
		if errors.Is(err, nats.ErrConnectionClosed) && !b.nc.IsClosed() {
			return nats.ErrDisconnected // nats.go's word for a connection that breaks while it is flushed
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := b.nc.LastError(); errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), `Subscription to "`+subject+`"`) {
		return fmt.Errorf("%w: subscribe %s", bus.ErrDenied, subject)
	}
	return nil
}

// explain turns an error of nats.go, or of the server, into one of the bus's.
func (b *Bus) explain(err error) error {
	var api *natsjs.APIError
	switch {
	case errors.Is(err, nats.ErrConnectionClosed):
		return bus.ErrClosed
	case errors.As(err, &api):
		return apiError(api)
	}
	return err
}

// retry repeats a JetStream API request while the server does not answer, until ctx ends.
func (b *Bus) retry(ctx context.Context, request func(ctx context.Context) error) error {
	for {
		if b.ctx.Err() != nil {
			return bus.ErrClosed
		}
		try, cancel := context.WithTimeout(ctx, apiTry)
		err := b.explain(request(try))
		cancel()
		if err == nil || !passing(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-b.ctx.Done():
			return bus.ErrClosed
		case <-time.After(apiPause):
		}
	}
}

// passing says whether a try that failed so may succeed when repeated.
func passing(err error) bool {
	var api *natsjs.APIError
	if errors.As(err, &api) {
		// 10008 no leader at present, and its like; 10005 no peers, while a cluster forms. What names a code of ours was
		// turned into a bus error before.
		return api.Code == 503 || api.ErrorCode == codeNoPeers
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, errTimeout) ||
		errors.Is(err, errNoResponders) || errors.Is(err, nats.ErrNoResponders) || errors.Is(err, natsjs.ErrNoStreamResponse) ||
		errors.Is(err, nats.ErrDisconnected) || errors.Is(err, nats.ErrConnectionReconnecting)
}

// tokenOrAny is the name's token, or a wildcard for an empty one.
func tokenOrAny(name string) string {
	if name == "" {
		return "*"
	}
	return bus.Token(name)
}

// header builds a NATS header without canonicalizing names: Drover's and NATS's are sent as they are written.
func header(h map[string]string) nats.Header {
	out := make(nats.Header, len(h)+2)
	for k, v := range h {
		if v != "" {
			out[k] = []string{clean(v)}
		}
	}
	return out
}

// clean keeps a value from ending its line in the header block.
func clean(v string) string {
	if !strings.ContainsAny(v, "\r\n") {
		return v
	}
	return strings.NewReplacer("\r", " ", "\n", " ").Replace(v)
}
