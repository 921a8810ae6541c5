// Command relay lets containers reach a server of a test, which listens on no address that they see. The test opens
// connections to --control and says on each, in a line, for which port of the relay it is; whoever connects to that port is
// given one of them, which begins with one byte that says so.
//
//	relay --control :9000
//	relay --healthcheck      whether that is served, as exit status
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	waitMost = 5 * time.Second // of who connects, for the test
	idleMost = 64              // connections of the test that wait at a port
)

type relay struct {
	mu    sync.Mutex
	waits map[string]chan net.Conn // by port
}

func main() {
	control := flag.String("control", ":9000", "`address` to which the test connects")
	check := flag.Bool("healthcheck", false, "see whether it is served, and exit")
	flag.Parse()
	if err := run(*control, *check); err != nil {
		fmt.Fprintln(os.Stderr, "relay:", err)
		os.Exit(1)
	}
}

func run(control string, check bool) error {
	if check {
		conn, err := (&net.Dialer{Timeout: waitMost}).DialContext(context.Background(), "tcp", control)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	r := &relay{waits: map[string]chan net.Conn{}}
	fmt.Println("serving", control)
	return accept(control, r.enlist)
}

func accept(address string, each func(net.Conn)) error {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
	if err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go each(conn)
	}
}

// enlist has a connection of the test wait at the port that it names. The first to name it opens it.
func (r *relay) enlist(conn net.Conn) {
	port, err := bufio.NewReaderSize(conn, 16).ReadString('\n') // nothing follows until it is given away
	if err != nil {
		_ = conn.Close() // a health check
		return
	}
	port = strings.TrimSpace(port)
	r.mu.Lock()
	waits := r.waits[port]
	if waits == nil {
		waits = make(chan net.Conn, idleMost)
		r.waits[port] = waits
		go func() { fmt.Println("port", port, accept(":"+port, func(conn net.Conn) { give(conn, waits) })) }()
	}
	r.mu.Unlock()
	select {
	case waits <- conn:
	default:
		_ = conn.Close() // more than anybody needs
	}
}

// give joins a connection with one of the test's.
func give(conn net.Conn, waits <-chan net.Conn) {
	defer func() { _ = conn.Close() }()
	late := time.After(waitMost)
	for {
		select {
		case own := <-waits:
			if _, err := own.Write([]byte{1}); err != nil {
				_ = own.Close() // the test has closed it
				continue
			}
			join(conn, own)
			return
		case <-late:
			return
		}
	}
}

// join copies both ways until both have ended.
func join(a, b net.Conn) {
	defer func() { _ = b.Close() }()
	var ends sync.WaitGroup
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		ends.Go(func() {
			if _, err := io.Copy(way[0], way[1]); err != nil {
				_ = way[0].Close() // a connection that broke breaks its other half
				return
			}
			if half, ok := way[0].(*net.TCPConn); ok {
				_ = half.CloseWrite() // one that is closed already has nothing more to say
			}
		})
	}
	ends.Wait()
}
