// Package secrets makes the files by which the processes of one system know each other: certificates of an authority
// that is made for it, NKeys, and what a NATS server needs to hold them against. Each process has a folder of its own, so
// that it can be given just that, as a volume or a mounted secret:
//
//	ca/        ca.pem, ca.key            the authority; only who issues needs it
//	nats/      tls.pem, tls.key, ca.pem  for clients
//	           routes.pem, routes.key, routes-ca.pem
//	                                     between servers: of another authority, whose key is kept nowhere, so that a
//	                                     client's certificate opens no route, on which no permissions hold
//	           authorization.conf        who may what, by NKey
//	<role>/    tls.pem, tls.key, ca.pem  intake, orchestrator, ..., user, operator (bus.Contracts)
//	           nkey                      its seed
//	gateway/   token.key, password       of the machine-agent API
//
// Every file is only its owner's to read (0600), and is there whole or not at all. Nothing is ever printed of a secret.
package secrets

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/droverproject/drover/pkg/bus"
)

// Names of folders and files.
const (
	Authority     = "ca" // folder
	Servers       = "nats"
	fileCA        = "ca.pem"
	fileCAKey     = "ca.key"
	fileTLS       = "tls.pem"
	fileTLSKey    = "tls.key"
	fileRoutes    = "routes.pem"
	fileRoutesKey = "routes.key"
	fileRoutesCA  = "routes-ca.pem"
	fileNKey      = "nkey"
	fileUsers     = "authorization.conf"
	fileToken     = "token.key"
	filePassword  = "password"
)

// Existing is what becomes of files that are there.
type Existing int

// What becomes of them.
const (
	Refuse    Existing = iota // ErrExists, and nothing is written
	Keep                      // what is whole, and valid for a third of its life yet, stays
	Overwrite                 // all of it is made anew
)

// ErrExists says that files are there which were not to be replaced.
var ErrExists = errors.New("is there already")

// roles are the folders of those who connect to the servers.
func roles() []bus.Service {
	contracts := bus.Contracts()
	all := make([]bus.Service, len(contracts))
	for i, c := range contracts {
		all[i] = c.Service
	}
	return all
}

// folder writes files of one process.
type folder string

func (f folder) path(name string) string { return filepath.Join(string(f), name) }

func (f folder) has(names ...string) bool {
	for _, name := range names {
		if _, err := os.Stat(f.path(name)); err != nil {
			return false
		}
	}
	return true
}

// refuse is ErrExists where one of the files is there.
func (f folder) refuse(names ...string) error {
	for _, name := range names {
		switch _, err := os.Lstat(f.path(name)); {
		case err == nil:
			return fmt.Errorf("%s %w", f.path(name), ErrExists)
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	return nil
}

// write puts a file in its place in one step.
func (f folder) write(name string, body []byte) (err error) {
	if err := os.MkdirAll(string(f), 0o700); err != nil {
		return err
	}
	fresh, err := os.CreateTemp(string(f), "."+name+"-*") // 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(fresh.Name()) // the error to know is the first
		}
	}()
	_, err = fresh.Write(body)
	if err == nil {
		err = fresh.Sync()
	}
	if closeErr := fresh.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(fresh.Name(), f.path(name))
	}
	return err
}
