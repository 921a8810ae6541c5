package jetstream

import (
	"context"
	"errors"
	"fmt"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/droverproject/drover/pkg/bus"
)

// ServerInfo is what a client can learn of the server that it is connected to.
type ServerInfo struct {
	URL     string // without credentials
	Name    string
	Cluster string // empty: none
	Version string
	// RTT is the time of one ping.
	RTT time.Duration
	// APILevel is JetStream's; Drover needs 4 (nats-server 2.14).
	APILevel int
	// StoreBytes and StoreBytesMax are what the account's streams take on disk, and may; -1: no limit.
	StoreBytes    uint64
	StoreBytesMax int64
	Streams       int
}

// Server asks about the server. What is known without JetStream is filled in also where JetStream does not answer.
func (b *Bus) Server(ctx context.Context) (ServerInfo, error) {
	info := ServerInfo{
		URL: b.nc.ConnectedUrlRedacted(), Name: b.nc.ConnectedServerName(), Cluster: b.nc.ConnectedClusterName(),
		Version: b.nc.ConnectedServerVersion(),
	}
	var err error
	if info.RTT, err = b.nc.RTT(); err != nil {
		return info, fmt.Errorf("ping the server: %w", err)
	}
	var account natsjs.AccountInfo
	if err := b.api(ctx, "INFO", nil, &account); err != nil {
		return info, fmt.Errorf("JetStream account: %w", err)
	}
	info.APILevel, info.Streams = account.API.Level, account.Streams
	info.StoreBytes, info.StoreBytesMax = account.Store, account.Limits.MaxStore
	return info, nil
}

// StreamInfo is how one of Drover's streams stands.
type StreamInfo struct {
	Name     string
	Replicas int
	// Clustered says that the server is one of a cluster; Leader is then the one that decides, or empty while there is none.
	Clustered bool
	Leader    string
	// Behind are the replicas that are away or have not caught up.
	Behind []string
	// Lag is how many events a derived stream has yet to take from the log.
	Lag uint64
	// Full is how much of what the stream may hold is taken, 0 to 1; past 1 it refuses what is published. 0 for those that
	// have no limit, or drop the oldest.
	Full float64
	// Skew is by how much the server's clock is ahead of this machine's. It is off by as much as the answer was under way.
	Skew time.Duration
}

// Streams asks after those of Drover's streams that are there. It changes nothing.
func (b *Bus) Streams(ctx context.Context) ([]StreamInfo, error) {
	var all []StreamInfo
	for _, c := range b.layout().streams(b.Partitions(), b.noted()) {
		asked := time.Now()
		info, err := b.streamInfo(ctx, c.Name, "")
		if errors.Is(err, bus.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("stream %s: %w", c.Name, err)
		}
		answered := time.Now()
		s := StreamInfo{
			Name: c.Name, Replicas: info.Config.Replicas, Skew: info.TimeStamp.Sub(asked.Add(answered.Sub(asked) / 2)),
		}
		if cluster := info.Cluster; cluster != nil && cluster.Name != "" {
			s.Clustered, s.Leader = true, cluster.Leader
			for _, peer := range cluster.Replicas {
				if peer.Offline || !peer.Current {
					s.Behind = append(s.Behind, peer.Name)
				}
			}
		}
		for _, source := range info.Sources {
			s.Lag += source.Lag
		}
		if info.Config.Discard == natsjs.DiscardNew {
			if most := info.Config.MaxMsgs; most > 0 {
				s.Full = float64(info.State.Msgs) / float64(most)
			}
			if most := info.Config.MaxBytes; most > 0 {
				s.Full = max(s.Full, float64(info.State.Bytes)/float64(most))
			}
		}
		all = append(all, s)
	}
	return all, nil
}
