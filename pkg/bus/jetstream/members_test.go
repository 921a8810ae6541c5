package jetstream_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
)

// joined is a member that has its share.
func joined(t *testing.T, b *jetstream.Bus, id string) bus.Membership {
	t.Helper()
	m, err := b.Join(t.Context(), "orchestrator", id)
	require.NoError(t, err)
	t.Cleanup(m.Leave)
	require.NotEmpty(t, <-m.Changes())
	return m
}

func lapses(t *testing.T, m bus.Membership, why string) {
	t.Helper()
	select {
	case <-m.Lapses():
	case <-time.After(20 * time.Second):
		require.Fail(t, "it is not told", why)
	}
}

// TestWhoWasNotHeardIsTold: a process that was cut off for so long that it was dead to the others is told so, though its share is
// the same: what others did with it meanwhile it has not seen.
func TestWhoWasNotHeardIsTold(t *testing.T) {
	t.Parallel()
	s := start(t)
	m := joined(t, open(t, s, jetstream.Options{Partitions: 4}), "a")
	require.NoError(t, s.Shutdown())
	<-time.After(2500 * time.Millisecond) // it is dead after 2 s
	s.up(t)
	lapses(t, m, "it was not heard")
}

// TestWhoWasNotSeenIsToldOf: two halves of a cluster that did not hear each other have each served all.
func TestWhoWasNotSeenIsToldOf(t *testing.T) {
	t.Parallel()
	s := start(t)
	m := joined(t, open(t, s, jetstream.Options{Partitions: 4}), "a")
	nc, err := nats.Connect(s.ClientURL())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	say := func(id, word string) {
		require.NoError(t, nc.Publish("drover.member.orchestrator."+id, []byte(word)))
	}
	say("new", "join")
	require.Less(t, len(<-m.Changes()), 4)
	select {
	case <-m.Lapses():
		require.Fail(t, "who is new has served nothing")
	default:
	}
	say("unseen", "here")
	lapses(t, m, "it has lived all the time")
}
