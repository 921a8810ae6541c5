package jetstream

import (
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/droverproject/drover/pkg/bus"
)

// Options say which server to talk to, as whom, and how a system is laid out. The zero value of each field is as its
// comment says.
type Options struct {
	// URL of the server, or several, separated by commas. Empty: nats://127.0.0.1:4222, unless Context names others.
	URL string
	// Context is the name of one of the `nats` CLI's contexts, whose server, user, TLS and inbox prefix are used; what is
	// given here takes precedence over the context's. Empty: none.
	Context string
	// InProcess is a server in this process (natsd.Server), to be reached without a socket; URL is then not used. Nil:
	// none.
	InProcess nats.InProcessConnProvider
	// Name that the server shows for this connection. Empty: drover.
	Name string
	// InboxPrefix is the first part of the subjects that replies come to. Permissions give each service one of its
	// own, so that no other can read its replies (see bus.Contract). Empty: _INBOX.
	InboxPrefix string
	// CredentialsFile holds a user JWT and its NKey; NKeyFile holds an NKey seed. At most one of them.
	CredentialsFile, NKeyFile string
	// User and Password, or Token, for servers that want them.
	User, Password, Token string
	// TLSCAFile, TLSCertFile and TLSKeyFile are for servers that want TLS; a certificate needs its key.
	TLSCAFile, TLSCertFile, TLSKeyFile string

	// Partitions is the number of partitions of a system, 1 to 1,024; it cannot be changed after Setup. Zero: as the
	// system was created, or bus.Partitions.
	Partitions int
	// Replicas of every stream: 1, 3 or 5. Zero: as the system was created, or 1.
	Replicas int
	// Sync is the server's sync_interval as far as it matters here: SyncAlways or SyncDefault. Setup notes it in the
	// system, and every client acts on what is noted there, because a server does not tell its own: where it is always,
	// what would wait for the disk is stored together. A wrong word costs speed and nothing else. Empty: as it is noted.
	Sync string
	// Limits of the streams.
	Limits Limits

	// InputAckWait is how long an input may stay unsettled before it is delivered again; so long do the inputs wait
	// that a killed process held. Zero: 5 s.
	InputAckWait time.Duration
	// WorkAckWait is the same for work: so long waits what a killed worker had, or what was lost on its way to one. Whoever carries
	// work out says three times as often that it is in progress, for each resource. It is a setting of the phases' consumers, which
	// workers read there; whoever makes those sets it, again at each takeover. Zero: bus.WorkAckWaitDefault.
	WorkAckWait time.Duration
	// TombstoneTTL is how long Forget's last trace is kept, so that every derived stream sees it. Zero: 1 h; at least
	// 1 s.
	TombstoneTTL time.Duration
	// SourceSettle is how old the last dispatch of a phase must be before Outstanding trusts that WORK has it. Zero:
	// 2 s, with replicas 15 s (longer than it takes to lose a quorum and elect a leader).
	SourceSettle time.Duration
	// Notice is told of what the connection meets: disconnected, reconnected, denied. It must be quick and safe for
	// concurrent use. Nil: nobody is told.
	Notice func(event string, err error)
}

// Limits of the streams. The server reserves the bytes when a stream is made. Zero: the default in the comment.
type Limits struct {
	CommandBytes, CommandMessages int64         // 256 MiB, 1,000,000; then ErrFull
	ResultBytes, ResultMessages   int64         // 256 MiB, 1,000,000; then ErrFull
	OutputBytes                   int64         // 256 MiB; then the oldest go
	OutputAge                     time.Duration // 7 days
	RefusedBytes                  int64         // 64 MiB; then the oldest go
	RefusedAge                    time.Duration // 3 days
	PoisonBytes                   int64         // 64 MiB; then the oldest go
	PoisonAge                     time.Duration // 30 days
}

// Values of Options.Sync.
const (
	SyncAlways  = "always"  // a write is acknowledged after it reached the disk
	SyncDefault = "default" // before
)

// PartitionsMax is the largest number of partitions of a system.
const PartitionsMax = 1024

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

func (o Options) withDefaults() (Options, error) {
	o.Name = or(o.Name, "drover")
	if o.Context == "" {
		o.URL = or(o.URL, nats.DefaultURL)
	}
	o.Replicas = or(o.Replicas, 1)
	o.InputAckWait = or(o.InputAckWait, 5*time.Second)
	o.WorkAckWait = or(o.WorkAckWait, bus.WorkAckWaitDefault)
	o.TombstoneTTL = or(o.TombstoneTTL, time.Hour)
	settle := 2 * time.Second
	if o.Replicas > 1 {
		settle = 15 * time.Second
	}
	o.SourceSettle = or(o.SourceSettle, settle)
	if o.Notice == nil {
		o.Notice = func(string, error) {}
	}
	l := &o.Limits
	l.CommandBytes, l.CommandMessages = or(l.CommandBytes, 256<<20), or(l.CommandMessages, 1_000_000)
	l.ResultBytes, l.ResultMessages = or(l.ResultBytes, 256<<20), or(l.ResultMessages, 1_000_000)
	l.OutputBytes, l.OutputAge = or(l.OutputBytes, 256<<20), or(l.OutputAge, 7*24*time.Hour)
	l.RefusedBytes, l.RefusedAge = or(l.RefusedBytes, 64<<20), or(l.RefusedAge, 3*24*time.Hour)
	l.PoisonBytes, l.PoisonAge = or(l.PoisonBytes, 64<<20), or(l.PoisonAge, 30*24*time.Hour)
	switch {
	case o.Partitions < 0 || o.Partitions > PartitionsMax:
		return o, fmt.Errorf("bus options: partitions %d: must be 1 to %d", o.Partitions, PartitionsMax)
	case o.Sync != "" && o.Sync != SyncAlways && o.Sync != SyncDefault:
		return o, fmt.Errorf("bus options: sync %q: must be %s or %s", o.Sync, SyncAlways, SyncDefault)
	case o.Replicas != 1 && o.Replicas != 3 && o.Replicas != 5:
		return o, fmt.Errorf("bus options: replicas %d: must be 1, 3 or 5", o.Replicas)
	case o.CredentialsFile != "" && o.NKeyFile != "":
		return o, errors.New("bus options: a credentials file and an NKey file exclude each other")
	case (o.TLSCertFile == "") != (o.TLSKeyFile == ""):
		return o, errors.New("bus options: a TLS certificate needs its key, and a key its certificate")
	case o.TombstoneTTL < time.Second:
		return o, fmt.Errorf("bus options: tombstone TTL %s: must be at least 1s", o.TombstoneTTL)
	}
	return o, nil
}

// connection is what nats.go is told.
func (o Options) connection() ([]nats.Option, error) {
	opts := []nats.Option{
		nats.Name(o.Name),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(), // rights are mended while this process runs, too
		nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond),
		// A server that is gone without a word is noticed after three of these.
		nats.PingInterval(1500 * time.Millisecond),
		nats.MaxPingsOutstanding(2),
		nats.Timeout(2 * time.Second),
	}
	if o.InProcess != nil {
		opts = append(opts, nats.InProcessServer(o.InProcess))
	}
	if o.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(o.InboxPrefix))
	}
	if o.Context != "" && (o.CredentialsFile != "" || o.NKeyFile != "" || o.Token != "" || o.User != "") {
		opts = append(opts, withoutUser)
	}
	switch {
	case o.CredentialsFile != "":
		opts = append(opts, nats.UserCredentials(o.CredentialsFile))
	case o.NKeyFile != "":
		nkey, err := nats.NkeyOptionFromSeed(o.NKeyFile)
		if err != nil {
			return nil, fmt.Errorf("bus options: NKey file: %w", err)
		}
		opts = append(opts, nkey)
	case o.Token != "":
		opts = append(opts, nats.Token(o.Token))
	case o.User != "":
		opts = append(opts, nats.UserInfo(o.User, o.Password))
	}
	if o.TLSCAFile != "" {
		opts = append(opts, nats.RootCAs(o.TLSCAFile))
	}
	if o.TLSCertFile != "" {
		opts = append(opts, nats.ClientCert(o.TLSCertFile, o.TLSKeyFile))
	}
	return opts, nil
}

// withoutUser takes back what a context says of who connects: nats.go refuses two identities.
func withoutUser(n *nats.Options) error {
	n.User, n.Password, n.Token, n.Nkey = "", "", "", ""
	n.UserJWT, n.SignatureCB = nil, nil
	return nil
}

var _ bus.Bus = (*Bus)(nil)
