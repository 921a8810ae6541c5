// Package gateway is the service that speaks HTTP, for those who do not speak NATS: commands, and the present state of
// resources and jobs. docs/http.md describes it to users; GET / lists what is served.
//
// A command over HTTP is the command API (drover.api) and nothing else: the gateway sends the request to intake and
// turns the answer into a status. Reads come from the buckets, which trail the log by milliseconds.
//
// Start more of it behind a load balancer: it has no state. Kill it, and a client that got no answer sends its command
// again with the same Drover-Request-Id.
//
// # Who may
//
// The gateway has no users of its own: whoever reaches its port acts with the gateway's permissions on NATS. So it
// listens on loopback unless told otherwise; there it answers only to local host names, and to no page of another
// origin, so that a web page in a local browser cannot use it.
//
// # Absent on purpose
//
// Of the front doors of the systems that Drover unites (contract.md, "HTTP"), /api/v3 is served on a listener of its own with
// TLS and tokens (rebar.go, docs/machines.md); internal/ncae is what NCAE's modules call, and internal/soma SOMA's deployment
// API. No events over HTTP: the feed is on NATS. No pagination: a list is cut at its limit and says so. On the listener of
// --http no authentication and no CORS: a proxy's work. It has TLS where it is given a certificate (--http-certificate).
package gateway

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"net"
	"strings"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/certfile"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/services/gateway/internal/httpapi"
	"github.com/droverproject/drover/services/gateway/internal/ncae"
	"github.com/droverproject/drover/services/gateway/internal/soma"
)

// Service is the service's name.
const Service = "gateway"

// HTTPDefault is where it listens.
const HTTPDefault = "127.0.0.1:8092"

// ChecksProjectDefault is the project whose check instances monitoring systems deal with.
const ChecksProjectDefault = "default"

// RunOptions are the service's own settings.
type RunOptions struct {
	// HTTP is the address to listen on; port 0 is a free one. Default HTTPDefault.
	HTTP string
	// Hosts are host names, with commas between, by which it may be called beside localhost and IP addresses. Empty:
	// none on a loopback address, any on another.
	Hosts string
	// Certificate and CertificateKey are files in PEM, with which it is HTTPS; when they are replaced, new connections get
	// the new ones. Empty: plain HTTP.
	Certificate, CertificateKey string
	// ChecksProject is the project whose check instances monitoring systems deal with: their API knows no projects.
	ChecksProject string
	// Listener is used instead of HTTP where it is not nil. Run closes it.
	Listener net.Listener
	// Rebar is the machine-agent API; it is served where its address is set.
	Rebar RebarOptions
}

// DefaultRunOptions is RunOptions of defaults.
func DefaultRunOptions() RunOptions {
	return RunOptions{HTTP: HTTPDefault, ChecksProject: ChecksProjectDefault, Rebar: RebarOptions{Project: RebarProjectDefault}}
}

// Flags declares the options as flags.
func (o *RunOptions) Flags(fs *flag.FlagSet) {
	fs.StringVar(&o.HTTP, "http", o.HTTP, "`address` to serve HTTP on; port 0 is a free one")
	fs.StringVar(&o.Hosts, "http-hosts", o.Hosts, "host `names`, with commas between, by which it may be called")
	fs.StringVar(&o.Certificate, "http-certificate", o.Certificate, "`file` with a certificate (PEM), to serve HTTPS; empty: plain HTTP")
	fs.StringVar(&o.CertificateKey, "http-certificate-key", o.CertificateKey, "`file` with the certificate's key (PEM)")
	fs.StringVar(&o.ChecksProject, "checks-project", o.ChecksProject, "`project` whose check instances monitoring systems deal with")
	o.Rebar.flags(fs)
}

// Run runs the service on a connected bus until ctx ends. It does not close the bus.
func (o RunOptions) Run(ctx context.Context, h *host.Host, b bus.Bus) error {
	listener := o.Listener
	if listener == nil {
		var err error
		if listener, err = new(net.ListenConfig).Listen(ctx, "tcp", o.HTTP); err != nil {
			return fmt.Errorf("listen for HTTP: %w", err)
		}
	}
	local := loopback(listener.Addr())
	if o.Certificate != "" || o.CertificateKey != "" {
		certificate, err := certificateOf("http-certificate", o.Certificate, o.CertificateKey, h.Log())
		if err != nil {
			_ = listener.Close() // nothing was served on it
			return err
		}
		listener = tls.NewListener(listener, &tls.Config{
			GetCertificate: certificate.GetCertificate, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		})
	}
	project := o.ChecksProject
	if project == "" {
		project = ChecksProjectDefault
	}
	server, err := httpapi.New(httpapi.Options{
		Routes: ncae.New(crashing{b}, h.Log()).Routes(), Doors: []httpapi.Door{soma.New(b, project, host.Version(), h.Log())},
		Bus: b, Log: h.Log(), Metrics: h.Metrics(), Version: host.Version(), Hosts: names(o.Hosts), Local: local,
	})
	if err != nil {
		_ = listener.Close() // nothing was served on it
		return err
	}
	serveRebar, err := o.Rebar.prepare(ctx, h, b)
	if err != nil {
		_ = listener.Close() // nothing was served on it
		return err
	}
	h.ReadyWhen("bus", b.Healthy)
	h.Log().Info("serving HTTP", host.Address(listener.Addr().String()))
	if !local {
		h.Log().Warn("HTTP is served beyond this machine: whoever reaches it acts with this gateway's permissions",
			zap.String(host.KeyAddress, listener.Addr().String()))
	}
	h.Go("http", func(ctx context.Context) error { return server.Serve(ctx, listener) })
	if serveRebar != nil {
		h.Go("rebar", serveRebar)
	}
	return h.Wait(ctx)
}

// certificateOf opens the files of a certificate. Each time they are replaced is logged.
func certificateOf(flagName, certificate, key string, log *zap.Logger) (*certfile.Pair, error) {
	pair, err := certfile.Open(certificate, key, func(err error) {
		if err != nil {
			log.Error("the new certificate cannot be used; the one before is still served", zap.String("flag", flagName), zap.Error(err))
			return
		}
		log.Info("a new certificate is served", zap.String("flag", flagName))
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flagName, err)
	}
	return pair, nil
}

func loopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

func names(list string) []string {
	var names []string
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	return names
}
