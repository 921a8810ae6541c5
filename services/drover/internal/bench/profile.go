package bench

import (
	"errors"
	"os"
	"path/filepath"
	"runtime/pprof"
)

// EnvProfile names a folder into which each process of a benchmark writes its CPU profile (server.pprof,
// services.pprof, worker.pprof). A profile costs a few percent.
const EnvProfile = "DROVER_BENCH_PROFILE"

func profile(role string) (stop func(), err error) {
	dir := os.Getenv(EnvProfile)
	if dir == "" {
		return func() {}, nil
	}
	f, err := os.Create(filepath.Join(dir, role+".pprof"))
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close() // the profile is an extra
	}, nil
}
