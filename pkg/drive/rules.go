//go:build !drover_next

package drive

import "github.com/droverproject/drover/pkg/engine/resource"

// Reader is the version of the rules by which this program decides. What needs a newer one it leaves alone.
const Reader = resource.ReaderVersion

// rules is what every step is told of them.
var rules resource.Env
