package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/spf13/pflag"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/host"
)

// Connection is how to reach the server.
type Connection struct {
	Server  string // nats://host:port, several by commas; empty: the context's
	Context string // name of a context of the nats CLI; empty: none
	// Paths of files, of which each is read when it is needed. Empty: none, or the context's.
	Creds           string // a user's JWT and NKey; not together with NKey
	NKey            string // an NKey's seed, which is in no argument and no variable itself
	TLSCA           string // authorities that the server's certificate may be of; empty: the machine's
	TLSCert, TLSKey string // the client's own certificate and its key

	// InboxPrefix is where replies come to; empty: the context's, or Role's.
	InboxPrefix string

	Partitions, Replicas int         // of a system that setup makes; 0: the defaults
	Role                 bus.Service // whose replies it awaits (bus.InboxPrefix) where nothing else is said; empty: a user's
	Sync                 string      // the server's sync_interval, always or default, for setup to note; empty: as noted
}

// Address is what to call it in messages: without user and password, which the URL may hold.
func (c Connection) Address() string {
	if c.Server == "" {
		return "context " + c.Context
	}
	return host.RedactURL(c.Server)
}

// Inbox is the first part of the subjects that replies come to. Each role has its own, which the server's permissions keep
// from the others (bus.InboxPrefix); empty: the context says it.
func (c Connection) Inbox() string {
	switch {
	case c.InboxPrefix != "":
		return c.InboxPrefix
	case c.Context != "":
		return ""
	case c.Role != "":
		return bus.InboxPrefix(c.Role)
	case c.NKey != "":
		return bus.InboxPrefix(bus.User)
	default: // who has no NKey is of a system with rules of its own, or with none
		return ""
	}
}

// DefaultServer is where `drover up` listens.
const DefaultServer = "nats://127.0.0.1:4222"

// settings are the flags that every command has, after the environment and the file were asked.
type settings struct {
	Connection
	project string
	output  string
	color   string
	timeout time.Duration // of the whole command; 0: not given
}

// outputs are the values of -o.
var outputs = []string{"table", "wide", "json", "jsonl", "yaml", "name"}

// fileConfig is the configuration file: flags of the same names, below the environment.
type fileConfig struct {
	Server      string `yaml:"server"`
	Context     string `yaml:"context"`
	Creds       string `yaml:"creds"`
	NKey        string `yaml:"nkey"`
	TLSCA       string `yaml:"tlsca"`
	TLSCert     string `yaml:"tlscert"`
	TLSKey      string `yaml:"tlskey"`
	InboxPrefix string `yaml:"inbox-prefix"`
	Project     string `yaml:"project"`
	Output      string `yaml:"output"`
	Color       string `yaml:"color"`
	Timeout     string `yaml:"timeout"`
}

// configBytesMax bounds the configuration file.
const configBytesMax = 64 << 10

func addSettings(flags *pflag.FlagSet) {
	flags.StringP("server", "s", "", "NATS server, several by commas (env DROVER_SERVER, NATS_URL; default "+DefaultServer+")")
	flags.String("context", "", "context of the nats CLI: its server, user, TLS and inbox (env DROVER_CONTEXT, NATS_CONTEXT)")
	flags.String("creds", "", "credentials `FILE` (env DROVER_CREDS, NATS_CREDS)")
	flags.String("nkey", "", "`FILE` of an NKey's seed, instead of credentials (env DROVER_NKEY, NATS_NKEY)")
	flags.String("tlsca", "", "`FILE` of the authorities of the server's certificate (env DROVER_TLSCA, NATS_CA)")
	flags.String("tlscert", "", "`FILE` of this client's certificate (env DROVER_TLSCERT, NATS_CERT)")
	flags.String("tlskey", "", "`FILE` of the certificate's key (env DROVER_TLSKEY, NATS_KEY)")
	flags.String("inbox-prefix", "", "`PREFIX` of the subjects of replies (env DROVER_INBOX_PREFIX; default the context's; with --nkey "+
		bus.InboxPrefix(bus.User)+", or what the command's role has)")
	flags.StringP("project", "p", "", `project (env DROVER_PROJECT; default "default")`)
	flags.StringP("output", "o", "", "table|wide|json|jsonl|yaml|name (env DROVER_OUTPUT; default table)")
	flags.String("color", "", "auto|always|never; auto is on a terminal that is not dumb (env DROVER_COLOR, NO_COLOR; default auto)")
	flags.Duration("timeout", 0, "give the whole command up after this long (env DROVER_TIMEOUT; default 10s a request, none for --wait and -f)")
	flags.String("config", "", "configuration file (env DROVER_CONFIG; default drover/config.yaml in the user's configuration folder)")
}

// layer is one place where settings come from; the first that has a setting decides it.
type layer struct {
	says func(setting string) string // how a user names the setting there
	get  func(setting string) string
}

func ownVariable(name string) string {
	return "DROVER_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// natsVariable is the variable of the nats CLI; empty where it has none.
func natsVariable(name string) string {
	return map[string]string{
		"server": "NATS_URL", "context": "NATS_CONTEXT", "creds": "NATS_CREDS", "nkey": "NATS_NKEY",
		"tlsca": "NATS_CA", "tlscert": "NATS_CERT", "tlskey": "NATS_KEY",
	}[name]
}

func readSettings(flags *pflag.FlagSet, getenv func(string) string) (settings, error) {
	file, path, err := readFile(flags, getenv)
	if err != nil {
		return settings{}, err
	}
	layers := []layer{
		{func(name string) string { return "--" + name }, func(name string) string { return flagValue(flags, name) }},
		{ownVariable, func(name string) string { return getenv(ownVariable(name)) }},
		{natsVariable, func(name string) string {
			if v := natsVariable(name); v != "" {
				return getenv(v)
			}
			return ""
		}},
		{func(name string) string { return path + ": " + name }, file},
	}
	s := settings{}
	if s.Connection, err = connection(layers); err != nil {
		return settings{}, err
	}
	s.project, _ = pick(layers, "project", "default")
	var from string
	if s.output, from = pick(layers, "output", "table"); !slices.Contains(outputs, s.output) {
		return settings{}, usage("%s: %q is none of %s", from, s.output, strings.Join(outputs, ", "))
	}
	if s.color, from = pick(layers, "color", ""); s.color == "" {
		s.color = "auto"
		if getenv("NO_COLOR") != "" {
			s.color = "never"
		}
	}
	if !slices.Contains([]string{"auto", "always", "never"}, s.color) {
		return settings{}, usage("%s: %q is none of auto, always, never", from, s.color)
	}
	if timeout, from := pick(layers, "timeout", ""); timeout != "" {
		if s.timeout, err = time.ParseDuration(timeout); err != nil || s.timeout < 0 {
			return settings{}, usage("%s: %q is no duration such as 30s or 5m", from, timeout)
		}
	}
	return s, nil
}

// connection takes server and context from one layer, so that a flag never mixes with another layer's idea of where
// the server is: --server on top of NATS_CONTEXT means that server, and not that context's user. Who the user is comes with
// a context from its layer or a stronger one, and otherwise from the strongest that says it.
func connection(layers []layer) (Connection, error) {
	c := Connection{Server: DefaultServer}
	whose := layers
	for i, l := range layers {
		if server, context := l.get("server"), l.get("context"); server != "" || context != "" {
			c.Server, c.Context = server, context
			if context != "" {
				whose = layers[:i+1]
			}
			break
		}
	}
	// Two ways to say one thing are taken from one layer, as two halves of one thing are.
	for _, l := range whose {
		if c.Creds, c.NKey = l.get("creds"), l.get("nkey"); c.Creds != "" && c.NKey != "" {
			return Connection{}, usage("%s and %s exclude each other", l.says("creds"), l.says("nkey"))
		}
		if c.Creds != "" || c.NKey != "" {
			break
		}
	}
	for _, l := range whose {
		if c.TLSCert, c.TLSKey = l.get("tlscert"), l.get("tlskey"); (c.TLSCert == "") != (c.TLSKey == "") {
			return Connection{}, usage("%s and %s need each other", l.says("tlscert"), l.says("tlskey"))
		}
		if c.TLSCert != "" {
			break
		}
	}
	c.TLSCA, _ = pick(whose, "tlsca", "")
	c.InboxPrefix, _ = pick(whose, "inbox-prefix", "")
	return c, nil
}

func pick(layers []layer, name, fallback string) (value, from string) {
	for _, l := range layers {
		if v := l.get(name); v != "" {
			return v, l.says(name)
		}
	}
	return fallback, ""
}

func flagValue(flags *pflag.FlagSet, name string) string {
	if f := flags.Lookup(name); f != nil && f.Changed {
		return f.Value.String()
	}
	return ""
}

func readFile(flags *pflag.FlagSet, getenv func(string) string) (func(string) string, string, error) {
	path, asked := flagValue(flags, "config"), true
	if path == "" {
		path = getenv("DROVER_CONFIG")
	}
	if path == "" {
		asked = false
		folder := getenv("XDG_CONFIG_HOME")
		if folder == "" && getenv("HOME") != "" {
			folder = filepath.Join(getenv("HOME"), ".config")
		}
		if folder == "" {
			return func(string) string { return "" }, "", nil
		}
		path = filepath.Join(folder, "drover", "config.yaml")
	}
	body, err := readBounded(path, configBytesMax)
	if errors.Is(err, fs.ErrNotExist) && !asked {
		return func(string) string { return "" }, path, nil
	}
	if err != nil {
		return nil, path, usage("configuration file: %w", err)
	}
	var c fileConfig
	if err := yaml.UnmarshalWithOptions(body, &c, yaml.Strict()); err != nil {
		return nil, path, usage("configuration file %s: %s", path, yaml.FormatError(err, false, false))
	}
	values := map[string]string{
		"server": c.Server, "context": c.Context, "creds": c.Creds, "nkey": c.NKey,
		"tlsca": c.TLSCA, "tlscert": c.TLSCert, "tlskey": c.TLSKey, "inbox-prefix": c.InboxPrefix,
		"project": c.Project, "output": c.Output, "color": c.Color, "timeout": c.Timeout,
	}
	return func(name string) string { return values[name] }, path, nil
}

// readBounded reads a file of at most most bytes.
func readBounded(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return nil, fmt.Errorf("%s is a folder", path)
	}
	return readAllBounded(f, path, most)
}

// endless is for a command that runs until it is stopped: it may not be given a limit, and one of the environment or the file is
// meant for the others.
func (s *settings) endless(flags *pflag.FlagSet, refusal string) error {
	if s.timeout > 0 && flagValue(flags, "timeout") != "" {
		return usage("%s", refusal)
	}
	s.timeout = 0
	return nil
}
