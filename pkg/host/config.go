package host

import (
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"go.uber.org/zap/zapcore"
)

// Defaults of Config.
const (
	NATSDefault        = "nats://127.0.0.1:4222"
	PartitionsDefault  = 64 // as bus.Partitions, which a test compares
	ReplicasDefault    = 1
	ListenDefault      = "127.0.0.1:0"
	LogLevelDefault    = "info"
	LogFormatDefault   = FormatAuto
	StopTimeoutDefault = 20 * time.Second
	WorkAckWaitDefault = 6 * time.Second // as bus.WorkAckWaitDefault, which a test compares
)

// Limits of Config.
const (
	PartitionsMax = 1024 // partitions of a system
	ReplicasMax   = 5    // copies of a stream; the server's own limit
	IDBytesMax    = 128  // bytes of an id

	WorkAckWaitMin = time.Second
	WorkAckWaitMax = 30 * time.Second // less than drive.Limits.PollLease: else a poll that nobody has acknowledged were sent twice
)

// Config is what every service is told. Each field is a flag, or an environment variable where the flag is missing, or
// its default: see Flags.
type Config struct {
	// NATS is the server's URL, or several with commas between. It may hold a password, so it is never logged as it
	// is: RedactURL. Default NATSDefault.
	NATS string
	// Creds is the path of a credentials file. Empty means none.
	Creds string
	// NKey is the path of a file with an NKey seed. Empty means none; not
	// together with Creds.
	NKey string
	// TLSCA is the path of the authorities (PEM) that the NATS server's certificate is checked against, instead of the
	// system's. Empty means the system's. TLSCert and TLSKey are those of this client's own certificate, where the server
	// wants one; both or none. The three are read anew at each connection.
	TLSCA, TLSCert, TLSKey string
	// ID names this process among those of its service: letters, digits, '-', '_', at most IDBytesMax bytes. Empty
	// means service, host name and a random part.
	ID string
	// Partitions is how many partitions a system gets when it is created, from 1 to PartitionsMax; it is fixed for the
	// system's life. Default PartitionsDefault.
	Partitions int
	// Replicas is how many copies of each stream a system gets, 1 to ReplicasMax and odd. Default ReplicasDefault.
	Replicas int
	// WorkAckWait is how long work may stay unsettled before it is given to another worker, WorkAckWaitMin to WorkAckWaitMax. It
	// is noted in the consumers of phases, which orchestrators make, and which workers read: they say three times as often, for each
	// resource, that they are at it. What tens of thousands of resources are at together wants a longer one. Default WorkAckWaitDefault.
	WorkAckWait time.Duration
	// Listen is the address for /livez, /readyz and /metrics; port 0 is a free one. Empty means no HTTP server.
	// Default ListenDefault.
	Listen string
	// LogLevel is debug, info, warn or error. Default LogLevelDefault.
	LogLevel string
	// LogFormat is FormatAuto, FormatJSON or FormatConsole. Default FormatAuto.
	LogFormat string
	// StopTimeout is how long a graceful stop may take. Default StopTimeoutDefault; above zero. It should be under what
	// the supervisor of the process allows before it kills (Kubernetes: 30 s).
	StopTimeout time.Duration
}

// DefaultConfig is a Config of defaults.
func DefaultConfig() Config {
	return Config{
		NATS:        NATSDefault,
		Partitions:  PartitionsDefault,
		Replicas:    ReplicasDefault,
		WorkAckWait: WorkAckWaitDefault,
		Listen:      ListenDefault,
		LogLevel:    LogLevelDefault,
		LogFormat:   LogFormatDefault,
		StopTimeout: StopTimeoutDefault,
	}
}

// Flags declares the flags of c, with the present values as their defaults.
func (c *Config) Flags(fs *flag.FlagSet) {
	fs.StringVar(&c.NATS, "nats", c.NATS, "`URL` of the NATS server; several with commas between")
	fs.StringVar(&c.NATS, "s", c.NATS, "short for --nats")
	fs.StringVar(&c.Creds, "creds", c.Creds, "`file` of NATS credentials")
	fs.StringVar(&c.NKey, "nkey", c.NKey, "`file` of an NKey seed, instead of credentials")
	fs.StringVar(&c.TLSCA, "tlsca", c.TLSCA, "`file` of the authorities that the NATS server's certificate is checked against (PEM)")
	fs.StringVar(&c.TLSCert, "tlscert", c.TLSCert, "`file` of the certificate to show to the NATS server (PEM)")
	fs.StringVar(&c.TLSKey, "tlskey", c.TLSKey, "`file` of its key (PEM)")
	fs.StringVar(&c.ID, "id", c.ID, "`name` of this process among those of its service (default service-hostname-random)")
	fs.IntVar(&c.Partitions, "partitions", c.Partitions, "`number` of partitions, when a system is created")
	fs.IntVar(&c.Replicas, "replicas", c.Replicas, "`number` of copies of each stream")
	fs.DurationVar(&c.WorkAckWait, "work-ack-wait", c.WorkAckWait, "silence after which work is given to another worker, as a `duration`; orchestrators set it")
	fs.StringVar(&c.Listen, "listen", c.Listen, "`address` for /livez, /readyz and /metrics; port 0 is a free one, empty is none")
	fs.StringVar(&c.LogLevel, "log-level", c.LogLevel, "`level`: debug, info, warn or error")
	fs.StringVar(&c.LogFormat, "log-format", c.LogFormat, "`format`: json, console, or auto (console on a terminal)")
	fs.DurationVar(&c.StopTimeout, "stop-timeout", c.StopTimeout, "longest graceful stop, as a `duration`")
}

// Validate returns an error that names each flag whose value cannot be used.
func (c Config) Validate() error {
	var errs []error
	bad := func(name, reason string) { errs = append(errs, fmt.Errorf("--%s: %s", name, reason)) }
	if c.NATS == "" {
		bad("nats", "must not be empty")
	}
	if c.Creds != "" && c.NKey != "" {
		bad("nkey", "not together with --creds")
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		bad("tlscert", "and --tlskey: both or none")
	}
	if !validID(c.ID) {
		bad("id", fmt.Sprintf("only letters, digits, '-' and '_', at most %d bytes", IDBytesMax))
	}
	if c.Partitions < 1 || c.Partitions > PartitionsMax {
		bad("partitions", fmt.Sprintf("must be 1 to %d", PartitionsMax))
	}
	if c.Replicas < 1 || c.Replicas > ReplicasMax || c.Replicas%2 == 0 {
		bad("replicas", fmt.Sprintf("must be odd and 1 to %d", ReplicasMax))
	}
	if c.WorkAckWait < WorkAckWaitMin || c.WorkAckWait > WorkAckWaitMax {
		bad("work-ack-wait", fmt.Sprintf("must be %s to %s", WorkAckWaitMin, WorkAckWaitMax))
	}
	if level, err := zapcore.ParseLevel(c.LogLevel); err != nil || level > zapcore.ErrorLevel {
		bad("log-level", "must be debug, info, warn or error")
	}
	if c.LogFormat != FormatAuto && c.LogFormat != FormatJSON && c.LogFormat != FormatConsole {
		bad("log-format", "must be auto, json or console")
	}
	if c.StopTimeout <= 0 {
		bad("stop-timeout", "must be above zero")
	}
	return errors.Join(errs...)
}

// MarshalLogObject implements zapcore.ObjectMarshaler without the secrets. It is on the value, so that zap.Any finds it
// whichever way a Config is given.
func (c Config) MarshalLogObject(e zapcore.ObjectEncoder) error {
	e.AddString("nats", RedactURL(c.NATS))
	e.AddString("creds", c.Creds)
	e.AddString("nkey", c.NKey)
	e.AddString("tlsca", c.TLSCA)
	e.AddString("tlscert", c.TLSCert)
	e.AddInt("partitions", c.Partitions)
	e.AddInt("replicas", c.Replicas)
	e.AddDuration("work_ack_wait", c.WorkAckWait)
	e.AddString("listen", c.Listen)
	e.AddDuration("stop_timeout", c.StopTimeout)
	return nil
}

// RedactURL replaces what stands before the '@' in each of the URLs, user name included: a NATS token stands there
// without a password.
func RedactURL(urls string) string {
	var parts []string
	for u := range strings.SplitSeq(urls, ",") {
		if len(parts) > 0 && !strings.Contains(u, "://") {
			parts[len(parts)-1] += "," + u // it may be of a password that holds a comma
			continue
		}
		parts = append(parts, u)
	}
	for i, u := range parts {
		scheme, rest, found := strings.Cut(u, "://")
		if !found {
			scheme, rest = "", u
		} else {
			scheme += "://"
		}
		// The last '@' of all: a password that was not escaped may hold '@' and '/'.
		if at := strings.LastIndexByte(rest, '@'); at >= 0 {
			parts[i] = scheme + "xxxxx" + rest[at:]
		}
	}
	return strings.Join(parts, ",")
}

// aliases are flags that stand for another one.
var aliases = map[string]string{"s": "nats"}

// environment names the variables that a flag may come from, the strongest first.
func environment(flagName string) []string {
	names := []string{"DROVER_" + strings.ToUpper(strings.ReplaceAll(flagName, "-", "_"))}
	if flagName == "nats" {
		names = append(names, "NATS_URL")
	}
	return names
}

// applyEnvironment sets the flags that the command line did not. An empty variable counts as missing. The error names
// the variable and never its value, which may be a secret.
func applyEnvironment(fs *flag.FlagSet, getenv func(string) string) error {
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) {
		given[f.Name] = true
		if of, ok := aliases[f.Name]; ok {
			given[of] = true
		}
	})
	var errs []error
	fs.VisitAll(func(f *flag.Flag) {
		if _, ok := aliases[f.Name]; ok || given[f.Name] || action(f.Name) {
			return
		}
		for _, name := range environment(f.Name) {
			value := getenv(name)
			if value == "" {
				continue
			}
			if err := fs.Set(f.Name, value); err != nil {
				errs = append(errs, fmt.Errorf("%s: not a value of --%s", name, f.Name))
			}
			return
		}
	})
	return errors.Join(errs...)
}

// newID makes an id that is its own even where host names repeat.
func newID(service string) string {
	hostname, err := os.Hostname()
	if err != nil {
		hostname = "unknown"
	}
	hostname, _, _ = strings.Cut(hostname, ".")
	prefix := strings.Map(func(r rune) rune {
		if idRune(r) {
			return r
		}
		return '-'
	}, service+"-"+hostname)
	if room := IDBytesMax - 1 - idRandomBytes; len(prefix) > room {
		prefix = prefix[:room]
	}
	return prefix + "-" + strings.ToLower(rand.Text()[:idRandomBytes])
}

const idRandomBytes = 8 // characters of an id that are drawn; 40 bits

func validID(id string) bool {
	return len(id) <= IDBytesMax && strings.IndexFunc(id, func(r rune) bool { return !idRune(r) }) < 0
}

func idRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_'
}
