package jetstream_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/bus/natsd"
)

// TestLooksAtWhatIsThere: who names no number of replicas finds a system of three as it should be, and leaves it so.
func TestLooksAtWhatIsThere(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cluster, err := natsd.StartCluster(3, natsd.Options{StoreDir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cluster.Shutdown()) })
	connect := func(replicas int) *jetstream.Bus {
		b, err := jetstream.Connect(ctx, jetstream.Options{URL: cluster.ClientURL(), Partitions: 2, Replicas: replicas})
		require.NoError(t, err)
		t.Cleanup(func() { _ = b.Close() })
		return b
	}
	maker := connect(3)
	_, err = maker.Setup(ctx, true)
	require.NoError(t, err)
	looker := connect(0)
	drifts, err := looker.Check(ctx)
	require.NoError(t, err)
	require.Empty(t, drifts)
	_, err = looker.Setup(ctx, true)
	require.NoError(t, err)
	require.Eventually(t, func() bool { // replicas catch up
		streams, err := looker.Streams(ctx)
		require.NoError(t, err)
		require.NotEmpty(t, streams)
		current := true
		for _, s := range streams {
			require.Equal(t, 3, s.Replicas, "%s: repaired into fewer copies", s.Name)
			require.True(t, s.Clustered)
			require.Less(t, s.Skew.Abs(), time.Minute, "it is one machine")
			current = current && s.Leader != "" && len(s.Behind) == 0
		}
		return current
	}, time.Minute, 100*time.Millisecond)

	require.NoError(t, cluster.Stop(2))
	require.Eventually(t, func() bool {
		streams, err := looker.Streams(ctx)
		if err != nil {
			return false // it elects
		}
		behind := 0
		for _, s := range streams {
			behind += len(s.Behind)
		}
		return behind > 0
	}, time.Minute, 100*time.Millisecond, "a server that is gone is not current")
}
