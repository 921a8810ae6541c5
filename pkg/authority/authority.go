// Package authority is a certificate authority to throw away: for a demonstration, for a compose file, for tests. It
// issues what a NATS cluster and its clients need, valid for days, and knows no revocation.
//
// For anything that lasts, take certificates from where yours come from: Drover reads files in PEM and asks nothing of
// who made them.
package authority

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"
)

// Limits of a certificate's life.
const (
	LifeDefault = 30 * 24 * time.Hour
	LifeMax     = 398 * 24 * time.Hour // what browsers take
	// backdate makes up for clocks that differ.
	backdate = 5 * time.Minute
)

// Authority signs certificates. Safe for concurrent use.
type Authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

// PEM is a certificate and its key, as they are written to files.
type PEM struct{ Certificate, Key []byte }

// New makes an authority that is valid for life from now on.
func New(name string, now time.Time, life time.Duration) (*Authority, error) {
	if life <= 0 || life > LifeMax {
		return nil, fmt.Errorf("authority: life %s: must be above zero and at most %s", life, LifeMax)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	template, err := template(name, now, now.Add(life))
	if err != nil {
		return nil, err
	}
	template.IsCA, template.MaxPathLenZero = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	return &Authority{certificate: certificate, key: key}, nil
}

// Parse reads an authority that PEM wrote.
func Parse(p PEM) (*Authority, error) {
	certificate, err := ParseCertificate(p.Certificate)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	block, _ := pem.Decode(p.Key)
	if block == nil {
		return nil, errors.New("authority: the key is no PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("authority: the key cannot be read") // what is wrong with it would be part of it
	}
	signer, ok := key.(crypto.Signer)
	if !ok || !certificate.IsCA {
		return nil, errors.New("authority: the certificate is no authority's, or the key signs nothing")
	}
	public, err := x509.MarshalPKIXPublicKey(signer.Public())
	if err != nil || !bytes.Equal(public, certificate.RawSubjectPublicKeyInfo) {
		return nil, errors.New("authority: the key is not that of the certificate")
	}
	return &Authority{certificate: certificate, key: signer}, nil
}

// ParseCertificate reads the first certificate of a PEM.
func ParseCertificate(body []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(body)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("no certificate in PEM")
	}
	return x509.ParseCertificate(block.Bytes)
}

// PEM is the authority itself. Its key is not needed to trust it: only who issues has it.
func (a *Authority) PEM() (PEM, error) { return encode(a.certificate.Raw, a.key) }

// Certificate is the authority's own.
func (a *Authority) Certificate() *x509.Certificate { return a.certificate }

// Issue makes a certificate that ends with the authority at the latest. One with hosts (names, or IP addresses) is a
// server's, and a client's too, as routes between servers want it; one without is a client's alone.
func (a *Authority) Issue(name string, hosts []string, now time.Time, life time.Duration) (PEM, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return PEM{}, fmt.Errorf("authority: %w", err)
	}
	end := now.Add(life)
	if end.After(a.certificate.NotAfter) {
		end = a.certificate.NotAfter
	}
	template, err := template(name, now, end)
	if err != nil {
		return PEM{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return PEM{}, fmt.Errorf("authority: %w", err)
	}
	return encode(der, key)
}

func template(name string, now, end time.Time) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{Organization: []string{"Drover, to throw away"}, CommonName: name},
		NotBefore: now.Add(-backdate), NotAfter: end, BasicConstraintsValid: true,
	}, nil
}

func encode(der []byte, key crypto.Signer) (PEM, error) {
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return PEM{}, fmt.Errorf("authority: %w", err)
	}
	return PEM{
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}, nil
}
