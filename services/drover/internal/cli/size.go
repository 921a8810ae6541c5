package cli

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// byteUnits are the units that sizes are written in, the largest first.
var byteUnits = []struct {
	name  string
	bytes int
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// parseBytes reads a size: a whole number with a unit, or of bytes.
func parseBytes(text string) (int, error) {
	unit := 1
	for _, u := range byteUnits {
		if number, ok := strings.CutSuffix(text, u.name); ok {
			text, unit = number, u.bytes
			break
		}
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, err
	}
	if n < 0 || n > math.MaxInt/unit {
		return 0, errors.New("out of range")
	}
	return n * unit, nil
}

// formatBytes writes a size in the largest unit of which it is a whole number.
func formatBytes(n int) string {
	for _, u := range byteUnits {
		if n >= u.bytes && n%u.bytes == 0 {
			return strconv.Itoa(n/u.bytes) + u.name
		}
	}
	return strconv.Itoa(n)
}
