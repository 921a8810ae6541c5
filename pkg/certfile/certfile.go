// Package certfile serves a TLS certificate from files that may be replaced while the process runs.
//
// The files are looked at in each handshake, which costs two calls of stat: no goroutine, nothing to stop, and it does
// not matter how they are replaced (written over, renamed, or behind a symbolic link that is turned, as Kubernetes does
// it). Connections that are open keep the certificate that they began with.
//
// NATS connections need none of this: nats.go reads its files anew whenever it connects.
package certfile

import (
	"crypto/tls"
	"fmt"
	"os"
	"sync"
)

// Pair is a certificate with its key. Safe for concurrent use.
type Pair struct {
	certificate, key string
	notice           func(err error)

	mu     sync.Mutex
	seen   [2]os.FileInfo // of the files, when they were last read
	loaded *tls.Certificate
}

// Open reads a certificate, with whatever chain follows it, and its key, both PEM. notice is told when the files have
// been replaced: nil where the new certificate is now served, else why the old one still is, once for each such change.
// It is called during a handshake, so it must be quick; nil means nobody is told.
func Open(certificate, key string, notice func(err error)) (*Pair, error) {
	if notice == nil {
		notice = func(error) {}
	}
	p := &Pair{certificate: certificate, key: key, notice: notice}
	seen, err := p.look()
	if err == nil {
		err = p.load(seen)
	}
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	return p, nil
}

// GetCertificate is tls.Config.GetCertificate. It never fails: while the files are gone, half written or do not belong
// together, it is the certificate that was there before.
func (p *Pair) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	seen, err := p.look()
	if err != nil || same(p.seen, seen) {
		return p.loaded, nil // files that are gone for a moment are being replaced
	}
	if err = p.load(seen); err != nil {
		p.seen = seen // told once
	}
	p.notice(err)
	return p.loaded, nil
}

func (p *Pair) look() (seen [2]os.FileInfo, err error) {
	for i, path := range []string{p.certificate, p.key} {
		if seen[i], err = os.Stat(path); err != nil {
			return seen, err
		}
	}
	return seen, nil
}

// load reads the files as they are after they were looked at: what is replaced in between is seen next time.
func (p *Pair) load(seen [2]os.FileInfo) error {
	loaded, err := tls.LoadX509KeyPair(p.certificate, p.key)
	if err != nil {
		return err
	}
	p.loaded, p.seen = &loaded, seen
	return nil
}

func same(x, y [2]os.FileInfo) bool {
	for i := range x {
		if !os.SameFile(x[i], y[i]) || !x[i].ModTime().Equal(y[i].ModTime()) || x[i].Size() != y[i].Size() {
			return false
		}
	}
	return true
}
