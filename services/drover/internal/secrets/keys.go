package secrets

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nats-io/nkeys"

	"github.com/droverproject/drover/pkg/bus"
)

// KeyOptions say what Keys makes.
type KeyOptions struct {
	// Out is the folder.
	Out      string
	Existing Existing
}

// Keys makes an NKey for each role, the secrets of the machine-agent API, and the servers' authorization.conf, which is
// written in any case but a refusal: an upgrade may bring other permissions. It returns the folders that it wrote.
func Keys(o KeyOptions) (written []string, err error) {
	gateway := folder(filepath.Join(o.Out, string(bus.Gateway)))
	servers := folder(filepath.Join(o.Out, Servers))
	if o.Existing == Refuse {
		for _, role := range roles() {
			if err := folder(filepath.Join(o.Out, string(role))).refuse(fileNKey); err != nil {
				return nil, err
			}
		}
		if err := errors.Join(gateway.refuse(fileToken, filePassword), servers.refuse(fileUsers)); err != nil {
			return nil, err
		}
	}
	public := map[bus.Service]string{}
	for _, role := range roles() {
		f := folder(filepath.Join(o.Out, string(role)))
		var made bool
		if public[role], made, err = o.key(f); err != nil {
			return nil, err
		}
		if made {
			written = append(written, string(f))
		}
	}
	for _, name := range []string{fileToken, filePassword} {
		if o.Existing == Keep && gateway.has(name) {
			continue
		}
		if err := gateway.write(name, []byte(rand.Text()+rand.Text()+"\n")); err != nil {
			return nil, err
		}
	}
	conf, err := bus.RenderAuthorization(bus.Contracts(), public)
	if err != nil {
		return nil, err
	}
	if err := servers.write(fileUsers, []byte(conf)); err != nil {
		return nil, err
	}
	return append(written, string(servers)), nil
}

// key is the public key of a role's seed, which is made where it is not there, or not to stay.
func (o KeyOptions) key(f folder) (public string, made bool, err error) {
	var seed []byte
	if o.Existing == Keep {
		if seed, err = os.ReadFile(f.path(fileNKey)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", false, err
		}
	}
	var key nkeys.KeyPair
	if len(seed) > 0 {
		if key, err = nkeys.ParseDecoratedNKey(seed); err != nil {
			return "", false, fmt.Errorf("%s holds no NKey seed", f.path(fileNKey)) // what it holds is no one's business
		}
	} else if key, err = nkeys.CreateUser(); err != nil {
		return "", false, fmt.Errorf("make an NKey: %w", err)
	}
	defer key.Wipe()
	if public, err = key.PublicKey(); err != nil {
		return "", false, fmt.Errorf("make an NKey: %w", err)
	}
	if len(seed) > 0 {
		return public, false, nil
	}
	if seed, err = key.Seed(); err != nil {
		return "", false, fmt.Errorf("make an NKey: %w", err)
	}
	return public, true, f.write(fileNKey, append(seed, '\n'))
}
