package rs

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/bus/jetstream"
	"github.com/droverproject/drover/pkg/bus/natsd"
)

func TestRS(t *testing.T) {
	dir := t.TempDir()
	var t0 time.Time
	log := func(l natsd.Level, line string) {
		if (l == natsd.Warn || l == natsd.Error || strings.Contains(line, "ecover") || strings.Contains(line, "estored")|| strings.Contains(line, "eady")) && !t0.IsZero() {
			fmt.Println(time.Since(t0), l, line)
		}
	}
	s, err := natsd.Start(natsd.Options{StoreDir: dir, Port: -1, Log: log})
	require.NoError(t, err)
	addr := s.ClientURL()
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Second)
	defer cancel()
	b, err := jetstream.Connect(ctx, jetstream.Options{URL: addr})
	require.NoError(t, err)
	defer b.Close()
	_, err = b.Setup(ctx, false)
	require.NoError(t, err)
	for i := range 64 {
		in, err := b.Commands(ctx, i)
		require.NoError(t, err)
		defer in.Close()
		in, err = b.Results(ctx, i)
		require.NoError(t, err)
		defer in.Close()
	}
	p := bus.Phase{Project: "p", Kind: "node", Phase: "launch"}
	require.NoError(t, b.EnsurePhase(ctx, p))
	pl, err := b.Pull(ctx, p)
	require.NoError(t, err)
	n := 0
	for range 6 {
		ps := []bus.Pending{}
		for range 20000 {
			n++
			ps = append(ps, b.Append(bus.Append{Entity: bus.Entity{Partition: n % 64, Family: bus.Resource, Project: "p", Kind: "node", Name: fmt.Sprint("n", n)}, Dispatch: "launch", Body: make([]byte, 300)}))
		}
		for _, p := range ps {
			_, err := p.Result()
			require.NoError(t, err)
		}
		got := 0
		for got < 20000 {
			ds, err := pl.Fetch(ctx, 1000, time.Second)
			require.NoError(t, err)
			for _, d := range ds {
				require.NoError(t, d.Ack())
			}
			got += len(ds)
		}
		require.Equal(t, 20000, got)
		if !t0.IsZero() {
			fmt.Println("flows after", time.Since(t0))
		}
		t0 = time.Now()
		s.Shutdown()
		u, _ := url.Parse(addr)
		port, _ := strconv.Atoi(u.Port())
		fmt.Println("down after", time.Since(t0))
		s, err = natsd.Start(natsd.Options{StoreDir: dir, Port: port, Log: log})
		require.NoError(t, err)
		fmt.Println("up after", time.Since(t0)); for b.Healthy(ctx) != nil { time.Sleep(10*time.Millisecond) }
	}
	s.Shutdown()
}
