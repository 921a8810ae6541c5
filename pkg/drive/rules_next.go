//go:build drover_next

package drive

import "github.com/droverproject/drover/pkg/engine/resource"

// Reader is that of a pretended next version, which only the tests of upgrades build. The engine itself may not differ by
// a tag (engine/purity_test.go), so a step is told.
const Reader = resource.ReaderVersion + 1

// NextLabel is the pretended new feature: only the next version can decide on a resource that has this label.
const NextLabel = "drover.next"

var rules = resource.Env{Reader: Reader, Needs: func(s *resource.State) uint32 {
	if _, ok := s.Labels[NextLabel]; ok {
		return Reader
	}
	return resource.ReaderFirst
}}
