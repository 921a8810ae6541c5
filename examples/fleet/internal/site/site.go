//go:build unix

// Package site is what a fleet needs around it: a home of its own, a block of ports, and the registry.
//
// # Ports
//
// Many fleets may live on a machine, and a port must not be given out twice, nor be taken by a stranger between its
// reservation and the start of the node. So ports come in blocks, and whoever listens on the first port of a block has the
// rest of it: that is the registry's. The kernel lets one do so, and forgets it when that one ends. The blocks lie below
// the ports that systems give to outgoing connections (from 32768 on Linux, from 49152 elsewhere).
package site

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/droverproject/drover/examples/fleet"
	"github.com/droverproject/drover/examples/fleet/internal/home"
	"github.com/droverproject/drover/examples/fleet/internal/registry"
)

// The blocks of ports.
const (
	firstPort  = 20_000
	lastPort   = 32_767
	blockPorts = 128 // in a block: the registry's, and those of fleet.NodesMax nodes with some to spare
)

// Limits of the registry's server.
const (
	requestTimeout = 5 * time.Second
	headerBytesMax = 16 << 10
)

// Site is a home that is kept, and a registry that serves.
type Site struct {
	Home      home.Home
	Registry  *registry.Registry
	URL       string // of the registry
	Ports     home.Range
	Blueprint string // path of its manifest
	Manifests string // path of the nodes'
	Nodes     []fleet.Node
	Broken    int // index of the node that will fail

	lock   *os.File
	server *http.Server
	served chan error
}

// Open makes a home at path and all that is around it, and the manifests of n nodes.
func Open(ctx context.Context, path string, n int) (*Site, error) {
	if n < fleet.NodesMin || n > fleet.NodesMax {
		return nil, fmt.Errorf("%d nodes: there may be %d to %d", n, fleet.NodesMin, fleet.NodesMax)
	}
	h, lock, err := home.Make(path)
	if err != nil {
		return nil, err
	}
	s := &Site{Home: h, lock: lock, Registry: &registry.Registry{}, served: make(chan error, 1)}
	listener, err := s.block(ctx)
	if err != nil {
		lock.Close()
		return nil, err
	}
	s.server = &http.Server{
		Handler: s.Registry, ReadTimeout: requestTimeout, WriteTimeout: requestTimeout, MaxHeaderBytes: headerBytesMax,
	}
	go func() { s.served <- s.server.Serve(listener) }()
	if err := s.lay(n); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// block finds a block of ports that nobody has.
func (s *Site) block(ctx context.Context) (net.Listener, error) {
	for _, i := range rand.Perm((lastPort + 1 - firstPort) / blockPorts) { //nolint:gosec // any order will do
		port := firstPort + i*blockPorts
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", home.Address(port))
		if err == nil {
			s.URL, s.Ports = "http://"+home.Address(port), home.Range{From: port + 1, To: port + blockPorts - 1}
			return listener, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return nil, fmt.Errorf("no block of ports is free from %d to %d", firstPort, lastPort)
}

// lay puts this program and the manifests into the home.
func (s *Site) lay(n int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	link := filepath.Join(s.Home.Bin(), "fleet")
	if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink(self, link); err != nil {
		return err
	}
	s.Blueprint = filepath.Join(string(s.Home), "blueprint.yaml")
	if err := os.WriteFile(s.Blueprint, fleet.Blueprint, 0o600); err != nil {
		return err
	}
	s.Nodes, s.Broken = fleet.Nodes(n)
	s.Manifests, err = s.Write("nodes.yaml", s.Nodes)
	return err
}

// Write writes the manifests of nodes into a file in the home, and returns its path.
func (s *Site) Write(name string, nodes []fleet.Node) (string, error) {
	path := filepath.Join(string(s.Home), name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return "", err
	}
	plan := fleet.Plan{Home: string(s.Home), Registry: s.URL, Ports: fleet.Ports(s.Ports)}
	return path, errors.Join(plan.Write(f, nodes), f.Close())
}

// Served ends when the registry has stopped to serve by itself, and says why.
func (s *Site) Served() <-chan error { return s.served }

// Close ends the registry and gives up the home, whereupon nodes that still run end. The home's files stay.
func (s *Site) Close() error {
	return errors.Join(s.server.Close(), s.lock.Close())
}
