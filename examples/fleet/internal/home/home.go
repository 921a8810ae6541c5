//go:build unix

// Package home is the folder that a fleet lives in, and what is where in it:
//
//	lock            held by whoever keeps the fleet; the nodes end when it is free
//	ports/20001     a reserved port: a link to the folder of the node that has it
//	nodes/web-01/   a node's folder: its configuration, its page, its log, its pid
//	tmp/            temporary files of everything that is started
//	bin/fleet       a link to this program, for the PATH of those who run phases
//	blueprint.yaml, nodes.yaml
package home

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/droverproject/drover/examples/fleet/internal/flock"
)

// Home is the absolute path of a fleet's folder.
type Home string

// Open returns the home at path, which must be absolute and hold a lock file: a wrong path must not have phases make or
// remove folders somewhere.
func Open(path string) (Home, error) {
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("%q is not an absolute path", path)
	}
	h := Home(filepath.Clean(path))
	if _, err := os.Stat(h.LockFile()); err != nil {
		return "", fmt.Errorf("%s is no fleet's home: %w", h, err)
	}
	return h, nil
}

// Make makes a home at path, or takes over one that nobody keeps, and takes its lock: flock.ErrHeld where it is kept.
// Closing the file gives the home up.
func Make(path string) (Home, *os.File, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", nil, err
	}
	h := Home(path)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return "", nil, err
	}
	lock, err := flock.Take(h.LockFile())
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", h.LockFile(), err)
	}
	for _, folder := range []string{h.Ports(), h.Nodes(), h.Tmp(), h.Bin()} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			lock.Close()
			return "", nil, err
		}
	}
	return h, lock, nil
}

// LockFile is held by whoever keeps the fleet.
func (h Home) LockFile() string { return filepath.Join(string(h), "lock") }

// Ports is the folder of the reserved ports.
func (h Home) Ports() string { return filepath.Join(string(h), "ports") }

// Nodes is the folder of the nodes' folders.
func (h Home) Nodes() string { return filepath.Join(string(h), "nodes") }

// Tmp is the folder for temporary files.
func (h Home) Tmp() string { return filepath.Join(string(h), "tmp") }

// Bin is the folder of this program under its name.
func (h Home) Bin() string { return filepath.Join(string(h), "bin") }

// Node is the folder of a node. The name must have passed CheckName.
func (h Home) Node(name string) string { return filepath.Join(h.Nodes(), name) }

// names are those that are safe as the name of a folder, and in a URL.
var names = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)

// CheckName refuses names of nodes that could lead out of the home: the name comes from a manifest.
func CheckName(name string) error {
	if !names.MatchString(name) {
		return fmt.Errorf("%q is not a node's name: 1 to 63 of a-z 0-9 . -, with a letter or digit at both ends", name)
	}
	return nil
}

// Folders lists the folders of nodes by name.
func (h Home) Folders() ([]string, error) { return entries(h.Nodes()) }

func entries(folder string) ([]string, error) {
	found, err := os.ReadDir(folder)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names := make([]string, len(found))
	for i, e := range found {
		names[i] = e.Name()
	}
	return names, nil
}

// Range is ports, both ends included.
type Range struct {
	From int `json:"from"`
	To   int `json:"to"`
}

// Check refuses what holds no port that a user may listen on.
func (r Range) Check() error {
	if r.From < 1024 || r.To > 65535 || r.From > r.To {
		return fmt.Errorf("%d to %d is not a range of ports within 1024 to 65535", r.From, r.To)
	}
	return nil
}

// ErrNoPort means that all ports of a range are reserved or taken.
var ErrNoPort = errors.New("no port is free")

// Reserve reserves a port for a node, or finds the one that it has. A reservation is a symbolic link whose name is the
// port: the kernel makes it whole or not at all, and for one of many who try at once. A port on which a stranger listens
// is passed over.
func (h Home) Reserve(name string, r Range) (int, error) {
	if err := CheckName(name); err != nil {
		return 0, err
	}
	if err := r.Check(); err != nil {
		return 0, err
	}
	reserved, err := h.Reserved()
	if err != nil {
		return 0, err
	}
	for port, owner := range reserved {
		if owner == name && port >= r.From && port <= r.To {
			return port, nil
		}
	}
	size := r.To - r.From + 1
	start := spread(name, size)
	for i := range size {
		port := r.From + (start+i)%size
		if _, taken := reserved[port]; taken {
			continue
		}
		link := h.reservation(port)
		err := os.Symlink(filepath.Join("..", "nodes", name), link)
		if errors.Is(err, os.ErrExist) {
			continue // another one was faster
		}
		if err != nil {
			return 0, err
		}
		if Free(port) {
			return port, nil
		}
		if err := os.Remove(link); err != nil {
			return 0, err
		}
	}
	return 0, fmt.Errorf("%w from %d to %d", ErrNoPort, r.From, r.To)
}

// spread has nodes begin their search at different ports, so that many at once are seldom in each other's way (FNV-1a).
func spread(name string, size int) int {
	hash := uint32(2166136261)
	for i := range len(name) {
		hash = (hash ^ uint32(name[i])) * 16777619
	}
	return int(hash % uint32(size)) //nolint:gosec // a range holds at most 65536 ports
}

// Release gives up the ports of a node and returns how many there were: one, unless an allocation ran twice.
func (h Home) Release(name string) (int, error) {
	reserved, err := h.Reserved()
	if err != nil {
		return 0, err
	}
	released := 0
	for port, owner := range reserved {
		if owner != name {
			continue
		}
		if err := os.Remove(h.reservation(port)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return released, err
		}
		released++
	}
	return released, nil
}

// Reserved lists the reserved ports, with the names of the nodes that have them.
func (h Home) Reserved() (map[int]string, error) {
	links, err := entries(h.Ports())
	if err != nil {
		return nil, err
	}
	reserved := make(map[int]string, len(links))
	for _, link := range links {
		port, err := strconv.Atoi(link)
		if err != nil {
			return nil, fmt.Errorf("%s is no port", filepath.Join(h.Ports(), link))
		}
		target, err := os.Readlink(filepath.Join(h.Ports(), link))
		if errors.Is(err, os.ErrNotExist) {
			continue // released since
		}
		if err != nil {
			return nil, err
		}
		reserved[port] = filepath.Base(target)
	}
	return reserved, nil
}

func (h Home) reservation(port int) string { return filepath.Join(h.Ports(), strconv.Itoa(port)) }

// Free reports whether a port of the loopback address could be listened on just now.
func Free(port int) bool {
	l, err := net.Listen("tcp", Address(port)) //nolint:noctx // nothing is looked up and nothing waits
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// Address is a port of the loopback address, the only one that anything here listens on.
func Address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
