package jetstream

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/natsd"
)

// TestReadStreamMissesNothingThatMoves: an entity that moves on while the stream is read, so often that nothing is left of
// what it was when that began, is read as it has become; and what is read does not end within a batch.
func TestReadStreamMissesNothingThatMoves(t *testing.T) {
	t.Parallel()
	server, err := natsd.Start(natsd.Options{StoreDir: t.TempDir(), Port: -1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Shutdown()) })
	b, err := Connect(t.Context(), Options{URL: server.ClientURL(), Partitions: 1})
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() })
	_, err = b.Setup(t.Context(), false)
	require.NoError(t, err)
	entity := func(name string) bus.Entity {
		return bus.Entity{Family: bus.Resource, Project: "p", Kind: "node", Name: name}
	}
	var pending []bus.Pending
	for i := range 4 * readBatch { // more than a reader has on its way
		pending = append(pending, b.Append(bus.Append{Entity: entity(fmt.Sprint("rest", i))}))
	}
	for _, p := range pending {
		_, err := p.Result()
		require.NoError(t, err)
	}
	seqs := map[string]uint64{}
	move := func(name string, times int) {
		for range times {
			seq, err := b.Append(bus.Append{Entity: entity(name), Expect: seqs[name]}).Result()
			require.NoError(t, err)
			seqs[name] = seq
		}
	}
	move("moving", 1)

	read := map[string]uint64{}
	n := 0
	require.NoError(t, b.readStream(t.Context(), streamEvents, func(m message) error {
		s, err := logged(m)
		require.NoError(t, err)
		require.Greater(t, m.Seq, read["last"])
		read[s.Entity.Name], read["last"] = m.Seq, m.Seq
		switch n++; n {
		case 1:
			move("moving", eventsPerSubject+1)
		case 4 * readBatch: // at what was the end
			_, err := b.AppendBatch(t.Context(), []bus.Append{{Entity: entity("one")}, {Entity: entity("two")}, {Entity: entity("three")}})
			require.NoError(t, err)
		}
		return nil
	}))
	require.Equal(t, seqs["moving"], read["moving"])
	if read["one"]+read["two"]+read["three"] > 0 {
		require.Equal(t, []uint64{read["one"] + 1, read["one"] + 2}, []uint64{read["two"], read["three"]})
	}
}
