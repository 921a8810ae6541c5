package gateway

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/services/gateway/internal/rebar"
)

// RebarProjectDefault is the project whose machines are served.
const RebarProjectDefault = "default"

// secretBytesMax is the bytes of a file with a secret.
const secretBytesMax = 4096

// RebarOptions are the settings of the machine-agent API (docs/machines.md). Secrets are files, so that no command line shows
// them.
type RebarOptions struct {
	// Address to listen on, with TLS; port 0 is a free one. Empty: it is not served, unless there is a Listener.
	Address string
	// Certificate and CertificateKey are files in PEM; when they are replaced, new connections get the new ones.
	Certificate, CertificateKey string
	// TokenKey is a file with the secret that signs tokens, 32 bytes at least; all gateways of one address have the same.
	TokenKey string
	// Password is a file with the operator's.
	Password string
	// Project whose machines are served: agents know no projects.
	Project string
	// Listener is used instead of Address where it is not nil. Run closes it.
	Listener net.Listener
}

func (o *RebarOptions) flags(fs *flag.FlagSet) {
	fs.StringVar(&o.Address, "rebar", o.Address, "`address` to serve the machine-agent API on, with TLS; empty: none")
	fs.StringVar(&o.Certificate, "rebar-certificate", o.Certificate, "`file` with its certificate (PEM)")
	fs.StringVar(&o.CertificateKey, "rebar-certificate-key", o.CertificateKey, "`file` with the certificate's key (PEM)")
	fs.StringVar(&o.TokenKey, "rebar-token-key", o.TokenKey, "`file` with the secret that signs tokens, 32 bytes at least")
	fs.StringVar(&o.Password, "rebar-password", o.Password, "`file` with the password of "+rebar.Operator)
	fs.StringVar(&o.Project, "rebar-project", o.Project, "`project` whose machines it serves")
}

// prepare reads the files and listens. What it returns serves until ctx ends; nil: the API is not asked for.
func (o *RebarOptions) prepare(ctx context.Context, h *host.Host, b bus.Bus) (serve func(context.Context) error, err error) {
	if o.Address == "" && o.Listener == nil {
		return nil, nil
	}
	certificate, err := certificateOf("rebar-certificate", o.Certificate, o.CertificateKey, h.Log())
	if err != nil {
		return nil, err
	}
	key, err := secret("rebar-token-key", o.TokenKey)
	if err != nil {
		return nil, err
	}
	password, err := secret("rebar-password", o.Password)
	if err != nil {
		return nil, err
	}
	if o.Project == "" {
		o.Project = RebarProjectDefault
	}
	server, err := rebar.New(rebar.Options{
		Bus: b, Log: h.Log(), Version: host.Version(), Project: o.Project, Key: key, Password: string(password), Now: time.Now,
	})
	if err != nil {
		return nil, fmt.Errorf("rebar: %w", err)
	}
	listener := o.Listener
	if listener == nil {
		if listener, err = new(net.ListenConfig).Listen(ctx, "tcp", o.Address); err != nil {
			return nil, fmt.Errorf("listen for the machine-agent API: %w", err)
		}
	}
	h.Log().Info("serving machine agents", host.Address(listener.Addr().String()), zap.String("project", o.Project))
	return func(ctx context.Context) error { return server.Serve(ctx, listener, certificate.GetCertificate) }, nil
}

// secret reads a file with a secret, without the white space around it. Its content is in no error.
func secret(flagName, file string) ([]byte, error) {
	if file == "" {
		return nil, errors.New(flagName + ": is missing")
	}
	info, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flagName, err)
	}
	if info.Size() > secretBytesMax {
		return nil, fmt.Errorf("%s: the file is larger than %d bytes", flagName, secretBytesMax)
	}
	body, err := os.ReadFile(file) //nolint:gosec // the operator names it
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flagName, err)
	}
	return bytes.TrimSpace(body), nil
}
