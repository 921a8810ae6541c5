package certfile_test

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/authority"
	"github.com/droverproject/drover/pkg/certfile"
)

func TestReplacedFilesAreServed(t *testing.T) {
	t.Parallel()
	a, err := authority.New("test", time.Now(), time.Hour)
	require.NoError(t, err)
	dir := t.TempDir()
	certificate, key := filepath.Join(dir, "tls.pem"), filepath.Join(dir, "tls.key")
	issue := func(name string) authority.PEM {
		p, err := a.Issue(name, nil, time.Now(), time.Hour)
		require.NoError(t, err)
		return p
	}
	put := func(path string, body []byte) {
		fresh := path + ".new"
		require.NoError(t, os.WriteFile(fresh, body, 0o600))
		require.NoError(t, os.Rename(fresh, path))
	}
	var notices []error
	_, err = certfile.Open(certificate, key, nil)
	require.ErrorIs(t, err, os.ErrNotExist)
	first := issue("first")
	put(certificate, first.Certificate)
	put(key, first.Key)
	p, err := certfile.Open(certificate, key, func(err error) { notices = append(notices, err) })
	require.NoError(t, err)
	served := func() string {
		c, err := p.GetCertificate(nil)
		require.NoError(t, err)
		leaf, err := x509.ParseCertificate(c.Certificate[0])
		require.NoError(t, err)
		return leaf.Subject.CommonName
	}
	require.Equal(t, "first", served())
	require.Empty(t, notices)

	second := issue("second")
	put(certificate, second.Certificate) // its key is not there yet
	require.Equal(t, "first", served())
	require.Equal(t, "first", served())
	require.Len(t, notices, 1, "told once")
	require.Error(t, notices[0])
	put(key, second.Key)
	require.Equal(t, "second", served())
	require.Equal(t, "second", served())
	require.Len(t, notices, 2)
	require.NoError(t, notices[1])

	require.NoError(t, os.Remove(key))
	require.Equal(t, "second", served())
	third := issue("third")
	put(certificate, third.Certificate)
	put(key, third.Key)
	require.Equal(t, "third", served())

	// As Kubernetes turns its links.
	for _, name := range []string{"fourth", "fifth"} {
		version := filepath.Join(dir, name)
		require.NoError(t, os.Mkdir(version, 0o700))
		fresh := issue(name)
		put(filepath.Join(version, "tls.pem"), fresh.Certificate)
		put(filepath.Join(version, "tls.key"), fresh.Key)
		for _, path := range []string{certificate, key} {
			require.NoError(t, os.RemoveAll(path))
			require.NoError(t, os.Symlink(filepath.Join(version, filepath.Base(path)), path))
		}
		require.Equal(t, name, served())
	}
}
