package plugin

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/engine/resource"
)

func TestSpecsAreBoundedByBytes(t *testing.T) {
	t.Parallel()
	c := newSpecs(100)
	spec := json.RawMessage(strings.Repeat("x", 40))
	for i := range 5 {
		c.put(specKey{"p", fmt.Sprint(i)}, spec)
		c.put(specKey{"p", fmt.Sprint(i)}, spec)
		_, ok := c.get(specKey{"p", "0"})
		require.True(t, ok, "what is used stays")
	}
	require.Equal(t, 80, c.bytes)
	require.Len(t, c.byKey, 2)
	_, ok := c.get(specKey{"other", "0"})
	require.False(t, ok)
	c.put(specKey{"p", "large"}, json.RawMessage(strings.Repeat("x", 101)))
	require.Len(t, c.byKey, 2)
}

func TestAnsweredForgetsTheOldest(t *testing.T) {
	t.Parallel()
	a := newAnswered(3)
	fence := func(i uint64) resource.Fence { return resource.Fence{UID: fmt.Sprint(i)} }
	for i := range uint64(5) {
		a.add(i, fence(i))
		a.add(i, fence(i))
	}
	require.False(t, a.has(0, fence(0)))
	require.False(t, a.has(1, fence(1)))
	for i := uint64(2); i < 5; i++ {
		require.True(t, a.has(i, fence(i)))
		require.False(t, a.has(i, fence(i+1)))
	}
	require.False(t, a.has(9, resource.Fence{}))
	require.Len(t, a.fence, 3)
}

func TestCut(t *testing.T) {
	t.Parallel()
	require.Equal(t, "short", cut("short", 10))
	long := cut(strings.Repeat("é", 100), 50)
	require.LessOrEqual(t, len(long), 50)
	require.True(t, strings.HasSuffix(long, "[cut]"))
	require.Equal(t, strings.ToValidUTF8(long, "?"), long)
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	require.Equal(t, retryFirst, backoff(1))
	require.Equal(t, 2*retryFirst, backoff(2))
	require.Equal(t, retryLast, backoff(1000))
}
