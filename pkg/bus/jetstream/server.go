package jetstream

import (
	"context"
	"fmt"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"
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
