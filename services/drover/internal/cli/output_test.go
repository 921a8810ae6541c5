package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/services/drover/internal/render"
)

// An array that is printed one thing after another is what it would be if it were printed at once.
func TestArrays(t *testing.T) {
	t.Parallel()
	for _, values := range [][]any{{}, {1}, {map[string]any{}, []int{}}, {map[string]any{"a": []int{1, 2}, "b": "<\n>"}, nil, "x"}} {
		whole, err := render.Marshal(values)
		require.NoError(t, err)
		want, err := render.Indent(whole)
		require.NoError(t, err)
		items := make([]item, len(values))
		for i, v := range values {
			items[i] = item{json: jsonOf(v)}
		}
		var out bytes.Buffer
		require.NoError(t, (&App{Out: &out}).printArray(items))
		require.Equal(t, string(want)+"\n", out.String())
		require.True(t, json.Valid(out.Bytes()))
	}
	require.EqualError(t, (&App{Out: full{}}).printArray(nil), "full", "what is buffered must be written too")
}

// full is a writer that takes nothing.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("full") }
