package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
)

// EnvProfile names a folder into which each process of a benchmark writes its CPU profile (server.pprof,
// services.pprof, worker.pprof), and what it holds in memory at its end (server-heap.pprof). One that is started again writes
// services-2.pprof. A profile costs a few percent.
const EnvProfile = "DROVER_BENCH_PROFILE"

// profile begins the CPU profile; heap, while all is still there, and stop, after that, write down the two.
func profile(role string) (heap, stop func(), err error) {
	dir := os.Getenv(EnvProfile)
	if dir == "" {
		return func() {}, func() {}, nil
	}
	create := func(ending string) (*os.File, error) {
		for n := 1; ; n++ {
			name := role + ending + ".pprof"
			if n > 1 {
				name = fmt.Sprintf("%s-%d%s.pprof", role, n, ending)
			}
			f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if !errors.Is(err, fs.ErrExist) {
				return f, err
			}
		}
	}
	f, err := create("")
	if err != nil {
		return nil, nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	heap = func() {
		h, err := create("-heap")
		if err != nil {
			return // profiles are an extra
		}
		runtime.GC() // what is held, and no garbage
		_ = pprof.WriteHeapProfile(h)
		_ = h.Close()
	}
	return heap, func() {
		pprof.StopCPUProfile()
		_ = f.Close()
	}, nil
}
