package rebar_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/memory"
	"github.com/droverproject/drover/pkg/catalog"
	"github.com/droverproject/drover/pkg/constraint"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/partition"
	"github.com/droverproject/drover/pkg/rebar/rebartest"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/gateway/internal/rebar"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	partitions = 4
	project    = "default"
	password   = "a password of a test"
)

// house is a gateway over TLS, on a bus in memory whose partitions have owners of the orchestrator's code.
type house struct {
	t      *testing.T
	sys    *memory.System
	bus    bus.Bus
	server *rebar.Server
	url    string
	owners []func() // that stop them
}

func newHouse(t *testing.T, change ...func(*rebar.Server)) *house {
	t.Helper()
	sys := memory.New(memory.Options{Partitions: partitions})
	h := &house{t: t, sys: sys, bus: sys.Connect()}
	t.Cleanup(func() { require.NoError(t, h.bus.Close()) })
	for n := range partitions {
		h.owners = append(h.owners, h.own(n))
	}
	t.Cleanup(func() {
		for _, stop := range h.owners {
			stop()
		}
	})
	var err error
	h.server, err = rebar.New(rebar.Options{
		Bus: h.bus, Log: zap.NewNop(), Version: "1.0.0", Project: project, Key: []byte("0123456789abcdef0123456789abcdef"), Password: password, Now: time.Now,
	})
	require.NoError(t, err)
	for _, c := range change {
		c(h.server)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	h.url = "https://" + listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	certificate := throwaway(t)
	go func() {
		done <- h.server.Serve(ctx, listener, func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &certificate, nil })
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return h
}

// throwaway is a certificate for one test.
func throwaway(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// owner runs one partition.Owner on a goroutine.
type owner struct {
	ctx   context.Context
	calls chan func()
	under sync.WaitGroup
}

func (o *owner) Background(f func()) { o.under.Go(f) }
func (o *owner) Later(f func()) {
	o.under.Go(func() {
		select {
		case o.calls <- f:
		case <-o.ctx.Done():
		}
	})
}
func (o *owner) Sleep(time.Duration)   {}
func (*owner) Appended(bus.Family)     {}
func (*owner) Lost()                   {}
func (*owner) Refused(resource.Code)   {}
func (*owner) SetAside()               {}
func (*owner) Noted(resource.NoteCode) {}
func (*owner) Swept(int, drive.Stats)  {}

func (h *house) own(number int) (stop func()) {
	h.t.Helper()
	conn := h.sys.Connect()
	ctx, cancel := context.WithCancel(context.Background())
	o := &owner{ctx: ctx, calls: make(chan func(), 64)}
	books, err := catalog.New(conn, time.Now, constraint.NewEvaluator())
	require.NoError(h.t, err)
	p := partition.New(ctx, partition.Config{
		Bus: conn, Others: conn, Catalog: books, Now: time.Now, Log: zap.NewNop(), Observer: o, Shell: o, Number: number,
	})
	_, err = p.TakeOver()
	require.NoError(h.t, err)
	stopAsks, err := conn.ServeAsks(number, func(r bus.Request, reply func(map[string]string, []byte)) {
		select {
		case o.calls <- func() { p.Ask(r, reply) }:
		case <-ctx.Done():
		}
	})
	require.NoError(h.t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			p.Answered()
			select {
			case <-ctx.Done():
				return
			case f := <-o.calls:
				f()
			case <-p.Head():
			}
		}
	}()
	return sync.OnceFunc(func() {
		stopAsks()
		cancel()
		<-done
		o.under.Wait()
		require.NoError(h.t, conn.Close())
	})
}

// apply sends a manifest to its owner, as intake does.
func (h *house) apply(kind, name, spec string) wire.Reply {
	h.t.Helper()
	body, err := wire.EncodeCommand("", wire.Command{Manifest: &wire.Manifest{APIVersion: "drover/v1", Kind: kind, Name: name, Spec: []byte(spec)}})
	require.NoError(h.t, err)
	ctx, cancel := context.WithTimeout(h.t.Context(), 10*time.Second)
	defer cancel()
	answer, err := h.bus.Ask(ctx, bus.PartitionOf(project, kind, name, partitions), bus.Request{
		Verb:   "command",
		Header: map[string]string{"Drover-Subject": bus.CommandSubject("cmd", project, kind, name, "apply"), bus.HeaderRequestID: rand.Text()},
		Body:   body,
	})
	require.NoError(h.t, err)
	reply, err := wire.DecodeReply("", answer.Body)
	require.NoError(h.t, err)
	return reply
}

func (h *house) accepted(kind, name, spec string) {
	h.t.Helper()
	reply := h.apply(kind, name, spec)
	require.Nil(h.t, reply.Refused, "%s %s: %+v", kind, name, reply.Refused)
}

// workflow of two stages with three tasks.
func (h *house) definitions() {
	h.t.Helper()
	for _, name := range []string{"a", "b", "c"} {
		h.accepted("Task", name, `{"templates":[{"name":"script","contents":"#!/bin/sh\necho {{.Machine.Name}} {{.Param \"size\"}}\n"}]}`)
	}
	h.accepted("Stage", "first", `{"bootEnv":"local","tasks":["a","b"]}`)
	h.accepted("Stage", "second", `{"tasks":["c"]}`)
	h.accepted("Workflow", "install", `{"stages":["first","second"]}`)
}

// operator is a client with the operator's token.
func (h *house) operator() *rebartest.Client {
	h.t.Helper()
	c := &rebartest.Client{URL: h.url, HTTP: rebartest.NewHTTP()}
	h.t.Cleanup(c.HTTP.CloseIdleConnections)
	c.Token = h.login(c, rebar.Operator, password)
	return c
}

// agentOf is a client with a machine's token.
func (h *house) agentOf(operator *rebartest.Client, uuid string) rebartest.Client {
	h.t.Helper()
	var given struct{ Token string }
	_, err := operator.Do(h.t.Context(), "GET", "/machines/"+uuid+"/token?ttl=3y", nil, &given)
	require.NoError(h.t, err)
	return rebartest.Client{URL: h.url, HTTP: operator.HTTP, Token: given.Token}
}
