package cli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSizes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"0": 0, "17": 17, "17B": 17, "1KiB": 1 << 10, "16MiB": 16 << 20, "2GiB": 2 << 30} {
		got, err := parseBytes(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, wrong := range []string{"", "MiB", "-1", "-1KiB", "1.5MiB", "1MB", "1 MiB", "9999999999GiB", "99999999999999999999"} {
		_, err := parseBytes(wrong)
		require.Error(t, err, wrong)
	}
	for want, n := range map[string]int{"0": 0, "1B": 1, "1025B": 1025, "1KiB": 1 << 10, "16MiB": 16 << 20, "1536KiB": 1536 << 10} {
		require.Equal(t, want, formatBytes(n))
	}
}
