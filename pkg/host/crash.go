package host

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
)

// CrashVariable is the environment variable that arms a crash point: "name:n".
const CrashVariable = "DROVER_CRASH_AT"

// crash is the armed point. It is set once, before main, and nil in any process that a test has not chosen.
var crash, errCrash = parseCrash(os.Getenv(CrashVariable))

type crashPoint struct {
	name string
	left atomic.Int64
}

// CrashPoint is a facility of tests. Where the environment says DROVER_CRASH_AT=name:n, the n-th call with that name
// kills the process as SIGKILL does, in the middle of what it was doing, and does not return; in every other process it
// is one comparison. A name tells what has just happened, as in "append-acknowledged". Names are looked up by nobody:
// one that no code reaches never fires, so a test that arms one must see the process die.
func CrashPoint(name string) {
	if crash == nil {
		return
	}
	crash.hit(name)
}

func (c *crashPoint) hit(name string) {
	if name != c.name || c.left.Add(-1) != 0 {
		return
	}
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Kill() // it cannot fail for the process itself, and if it did the panic would tell
		select {}
	}
	panic("crash point " + name + ": the process could not be killed")
}

// parseCrash returns nil where nothing is armed.
func parseCrash(value string) (*crashPoint, error) {
	if value == "" {
		return nil, nil
	}
	name, count, _ := strings.Cut(value, ":")
	n, err := strconv.ParseInt(count, 10, 64)
	if name == "" || err != nil || n < 1 {
		return nil, errors.New(CrashVariable + ": must be name:n with n from 1")
	}
	c := &crashPoint{name: name}
	c.left.Store(n)
	return c, nil
}
