package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
)

// forge makes a key for every role, and the file that tells the servers of them.
func (h *house) forge() {
	h.t.Helper()
	h.keys = map[bus.Service]string{}
	contracts := bus.Contracts()
	var users strings.Builder
	for _, c := range contracts {
		key, err := nkeys.CreateUser()
		require.NoError(h.t, err)
		seed, err := key.Seed()
		require.NoError(h.t, err)
		public, err := key.PublicKey()
		require.NoError(h.t, err)
		h.keys[c.Service] = filepath.Join(h.dir, string(c.Service)+".nk")
		require.NoError(h.t, os.WriteFile(h.keys[c.Service], seed, 0o600))
		fmt.Fprintf(&users, "  {nkey: %s, permissions: $%s}\n", public, c.Variable())
	}
	conf := bus.RenderPermissions(contracts) + "users: [\n" + users.String() + "]\n"
	require.NoError(h.t, os.WriteFile(filepath.Join(h.dir, "users.conf"), []byte(conf), 0o600))
}

// key is the flags that give a process its key, and its certificate where the servers want one.
func (h *house) key(s bus.Service) []string {
	if h.keys == nil {
		return nil
	}
	flags := []string{"--nkey", h.keys[s]}
	if h.tls != "" {
		own := func(name string) string { return filepath.Join(h.tls, string(s), name) }
		flags = append(flags, "--tlsca", own("ca.pem"), "--tlscert", own("tls.pem"), "--tlskey", own("tls.key"))
	}
	return flags
}

// setUp makes the streams, as an operator does: nobody else may.
func (h *house) setUp(partitions, replicas int) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Minute)
	defer cancel()
	for {
		err := func() error {
			b, err := jetstream.Connect(ctx, jetstream.Options{
				URL: h.url, NKeyFile: h.keys[bus.Operator], InboxPrefix: bus.InboxPrefix(bus.Operator), Name: "operator",
				Partitions: partitions, Replicas: replicas,
			})
			if err != nil {
				return err
			}
			defer func() { _ = b.Close() }()
			_, err = b.Setup(ctx, false)
			return err
		}()
		if err == nil {
			return
		}
		require.True(h.t, pause(ctx, 100*time.Millisecond), "the streams could not be made: %v", err) // a cluster may still elect
	}
}
