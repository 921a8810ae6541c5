package secrets

import (
	"os"
	"path/filepath"
	"time"

	"github.com/droverproject/drover/pkg/authority"
	"github.com/droverproject/drover/pkg/bus"
)

// CertificateOptions say what Certificates makes.
type CertificateOptions struct {
	// Out is the folder.
	Out string
	// Hosts are the names and addresses by which servers and gateways are called.
	Hosts []string
	// Life of the certificates, from Now on, at most authority.LifeMax; that is the authority's own.
	Life     time.Duration
	Now      time.Time
	Existing Existing
}

// Certificates makes an authority and a certificate for each process, and returns the folders that it wrote. With Keep
// it issues what is missing, or about to end, by the authority that is there: those who run meanwhile go on trusting
// each other.
func Certificates(o CertificateOptions) (written []string, err error) {
	ca, err := o.authority(&written)
	if err != nil {
		return nil, err
	}
	own, err := ca.PEM()
	if err != nil {
		return nil, err
	}
	fresh := len(written) > 0 // a new authority: nothing of the one before is of use
	for _, role := range append([]bus.Service{Servers}, roles()...) {
		f := folder(filepath.Join(o.Out, string(role)))
		if !fresh && o.current(f, fileTLS, role, ca) {
			continue
		}
		var hosts []string
		if role == Servers || role == bus.Gateway {
			hosts = o.Hosts
		}
		leaf, err := ca.Issue("drover-"+string(role), hosts, o.Now, o.Life)
		if err != nil {
			return nil, err
		}
		files := map[string][]byte{fileCA: own.Certificate, fileTLSKey: leaf.Key, fileTLS: leaf.Certificate}
		if role == Servers {
			if err := o.routes(files); err != nil {
				return nil, err
			}
		}
		for name, body := range files {
			if err := f.write(name, body); err != nil {
				return nil, err
			}
		}
		written = append(written, string(f))
	}
	return written, nil
}

// authority takes the one that is there, or makes one.
func (o CertificateOptions) authority(written *[]string) (*authority.Authority, error) {
	f := folder(filepath.Join(o.Out, Authority))
	switch o.Existing {
	case Keep:
		if ca := readAuthority(f); ca != nil && o.lasts(ca.Certificate().NotBefore, ca.Certificate().NotAfter) {
			return ca, nil
		}
	case Refuse:
		if err := f.refuse(fileCA, fileCAKey); err != nil {
			return nil, err
		}
		for _, role := range append([]bus.Service{Servers}, roles()...) {
			if err := folder(filepath.Join(o.Out, string(role))).refuse(certificateFiles(role)...); err != nil {
				return nil, err
			}
		}
	case Overwrite:
	}
	// As long as may be: whoever replaces it replaces all that it issued, in the same instant everywhere.
	ca, err := authority.New("drover", o.Now, authority.LifeMax)
	if err != nil {
		return nil, err
	}
	own, err := ca.PEM()
	if err != nil {
		return nil, err
	}
	if err := f.write(fileCAKey, own.Key); err != nil {
		return nil, err
	}
	if err := f.write(fileCA, own.Certificate); err != nil {
		return nil, err
	}
	*written = append(*written, string(f))
	return ca, nil
}

// routes adds a certificate for the routes between servers, and its authority without the key.
func (o CertificateOptions) routes(files map[string][]byte) error {
	ca, err := authority.New("drover-routes", o.Now, o.Life)
	if err != nil {
		return err
	}
	own, err := ca.PEM()
	if err != nil {
		return err
	}
	leaf, err := ca.Issue("drover-routes", o.Hosts, o.Now, o.Life)
	if err != nil {
		return err
	}
	files[fileRoutesCA], files[fileRoutes], files[fileRoutesKey] = own.Certificate, leaf.Certificate, leaf.Key
	return nil
}

func certificateFiles(role bus.Service) []string {
	if role == Servers {
		return []string{fileCA, fileTLS, fileTLSKey, fileRoutesCA, fileRoutes, fileRoutesKey}
	}
	return []string{fileCA, fileTLS, fileTLSKey}
}

// current reports whether a folder has all of its files, issued by ca, with enough of their life left.
func (o CertificateOptions) current(f folder, name string, role bus.Service, ca *authority.Authority) bool {
	if !f.has(certificateFiles(role)...) {
		return false
	}
	body, err := os.ReadFile(f.path(name))
	if err != nil {
		return false
	}
	c, err := authority.ParseCertificate(body)
	return err == nil && c.CheckSignatureFrom(ca.Certificate()) == nil && o.lasts(c.NotBefore, c.NotAfter)
}

// lasts reports whether a third of a life is left.
func (o CertificateOptions) lasts(from, to time.Time) bool { return to.Sub(o.Now) > to.Sub(from)/3 }

// readAuthority is nil where there is none that can be read.
func readAuthority(f folder) *authority.Authority {
	certificate, err := os.ReadFile(f.path(fileCA))
	if err != nil {
		return nil
	}
	key, err := os.ReadFile(f.path(fileCAKey))
	if err != nil {
		return nil
	}
	ca, err := authority.Parse(authority.PEM{Certificate: certificate, Key: key})
	if err != nil {
		return nil
	}
	return ca
}
