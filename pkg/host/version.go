package host

import (
	"runtime/debug"
	"strings"
)

// version is set by the linker (see the Makefile).
var version string

// Version of this build: a semantic version without a leading 'v'. A build without the Makefile says 0.0.0-dev, with
// the revision where Go has recorded it.
func Version() string {
	if version != "" {
		return strings.TrimPrefix(version, "v")
	}
	const unknown = "0.0.0-dev"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return unknown
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && s.Value != "" {
			return unknown + "+" + s.Value[:min(len(s.Value), 12)]
		}
	}
	return unknown
}
