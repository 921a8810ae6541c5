package authority_test

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/authority"
)

func TestWhatIsIssued(t *testing.T) {
	t.Parallel()
	now := time.Now()
	a, err := authority.New("test", now, time.Hour)
	require.NoError(t, err)
	own, err := a.PEM()
	require.NoError(t, err)
	again, err := authority.Parse(own)
	require.NoError(t, err)

	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(own.Certificate))
	verify := func(p authority.PEM, host string, use x509.ExtKeyUsage) error {
		pair, err := tls.X509KeyPair(p.Certificate, p.Key)
		require.NoError(t, err)
		_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: host, KeyUsages: []x509.ExtKeyUsage{use}})
		return err
	}
	server, err := again.Issue("nats", []string{"nats-1", "127.0.0.1"}, now, 2*time.Hour)
	require.NoError(t, err)
	for _, host := range []string{"nats-1", "127.0.0.1"} {
		require.NoError(t, verify(server, host, x509.ExtKeyUsageServerAuth))
	}
	require.NoError(t, verify(server, "", x509.ExtKeyUsageClientAuth), "servers are clients of each other")
	require.Error(t, verify(server, "nats-2", x509.ExtKeyUsageServerAuth))
	certificate, err := authority.ParseCertificate(server.Certificate)
	require.NoError(t, err)
	require.Equal(t, a.Certificate().NotAfter, certificate.NotAfter, "nothing outlives its authority")

	client, err := a.Issue("runner", nil, now, time.Minute)
	require.NoError(t, err)
	require.NoError(t, verify(client, "", x509.ExtKeyUsageClientAuth))
	require.Error(t, verify(client, "", x509.ExtKeyUsageServerAuth), "a client is no server")

	other, err := authority.New("other", now, time.Hour)
	require.NoError(t, err)
	foreign, err := other.Issue("runner", nil, now, time.Minute)
	require.NoError(t, err)
	require.Error(t, verify(foreign, "", x509.ExtKeyUsageClientAuth))
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, life := range []time.Duration{0, -time.Hour, authority.LifeMax + 1} {
		_, err := authority.New("test", now, life)
		require.ErrorContains(t, err, "life")
	}
	a, err := authority.New("test", now, time.Hour)
	require.NoError(t, err)
	own, err := a.PEM()
	require.NoError(t, err)
	client, err := a.Issue("client", nil, now, time.Hour)
	require.NoError(t, err)
	for name, p := range map[string]authority.PEM{
		"nothing":                {},
		"no key":                 {Certificate: own.Certificate},
		"another key":            {Certificate: own.Certificate, Key: client.Key},
		"no authority":           client,
		"a key as a certificate": {Certificate: own.Key, Key: own.Key},
	} {
		_, err := authority.Parse(p)
		require.Error(t, err, name)
	}
}
