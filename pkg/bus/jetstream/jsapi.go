package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/droverproject/drover/pkg/bus"
)

// api makes a request to JetStream's API and reads the answer into response, unless that is nil. It repeats it while
// the server does not answer, until ctx ends; so only what may be repeated is asked. nats.go's own calls are not used,
// because they cannot tell a request that was denied from one that was lost.
func (b *Bus) api(ctx context.Context, subject string, request, response any) error {
	return b.apiBy(ctx, b.calls.repeat, subject, request, response)
}

// apiBy is api, where ask sends the request and waits for its answer.
func (b *Bus) apiBy(ctx context.Context, ask func(context.Context, *nats.Msg) (*nats.Msg, error), subject string, request, response any) error {
	var body []byte
	if request != nil {
		var err error
		if body, err = json.Marshal(request); err != nil {
			return fmt.Errorf("$JS.API.%s: %w", subject, err)
		}
	}
	err := b.retry(ctx, func(ctx context.Context) error {
		reply, err := ask(ctx, &nats.Msg{Subject: "$JS.API." + subject, Data: body})
		if err != nil {
			return err
		}
		var failure struct {
			Error *natsjs.APIError `json:"error"`
		}
		if err := json.Unmarshal(reply.Data, &failure); err != nil {
			return fmt.Errorf("answer of the server: %w", err)
		}
		if failure.Error != nil {
			return failure.Error
		}
		if response == nil {
			return nil
		}
		if err := json.Unmarshal(reply.Data, response); err != nil {
			return fmt.Errorf("answer of the server: %w", err)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("$JS.API.%s: %w", subject, err)
	}
	return nil
}

// streamInfo asks the leader; subjects, if not empty, has it count the messages of the subjects under that filter.
func (b *Bus) streamInfo(ctx context.Context, name, subjects string) (*natsjs.StreamInfo, error) {
	var request any
	if subjects != "" {
		request = struct {
			Filter string `json:"subjects_filter"`
		}{subjects}
	}
	info := new(natsjs.StreamInfo)
	return info, b.api(ctx, "STREAM.INFO."+name, request, info)
}

// createConsumer makes a consumer, or changes it to be as given. pending is how many messages it has to deliver.
func (b *Bus) createConsumer(ctx context.Context, stream string, c natsjs.ConsumerConfig) (pending uint64, err error) {
	if c.Durable != "" {
		c.Name = c.Durable
	}
	subject := "CONSUMER.CREATE." + stream + "." + c.Name
	if c.FilterSubject != "" {
		subject += "." + c.FilterSubject
	}
	var made struct {
		Pending uint64 `json:"num_pending"`
	}
	for try := 1; ; try++ {
		err = b.api(ctx, subject, struct {
			Stream string                `json:"stream_name"`
			Config natsjs.ConsumerConfig `json:"config"`
		}{stream, c}, &made)
		if !wasDeleted(err) || try == createTries {
			return made.Pending, err
		}
		if strings.Contains(err.Error(), withoutFiles) {
			if err := b.deleteConsumer(ctx, stream, c.Name); err != nil && !errors.Is(err, bus.ErrNotFound) {
				return 0, err
			}
		}
		select {
		case <-ctx.Done():
			return 0, err
		case <-b.ctx.Done():
			return 0, bus.ErrClosed
		case <-time.After(apiPause):
		}
	}
}

const (
	// createTries is how often a consumer is made whose name another had. What the server says of that it says of mistakes
	// too, so it is not asked until ctx ends.
	createTries = 10
	// withoutFiles is what the server says of a consumer whose files were removed with those of the one before it. It works,
	// cannot be changed, not even to what it is, and is not there after a restart; so it is made anew.
	withoutFiles = "no such file or directory"
)

// wasDeleted reports whether the server may have refused to make a consumer because one of that name is going or was (nats-server
// 2.15.2): it is closed and not yet forgotten ("consumer does not exist"), or it is forgotten and its files are being removed
// ("error creating store for consumer"), or they were when the new one had written its own (withoutFiles).
func wasDeleted(err error) bool {
	var api *natsjs.APIError
	return errors.As(err, &api) && (api.ErrorCode == natsjs.JSErrCodeConsumerDoesNotExist || api.ErrorCode == natsjs.JSErrCodeConsumerCreate)
}

// deleteConsumer is ErrNotFound if there is none.
func (b *Bus) deleteConsumer(ctx context.Context, stream, name string) error {
	return b.api(ctx, "CONSUMER.DELETE."+stream+"."+name, nil, nil)
}

// consumerInfo is ErrNotFound if there is none.
func (b *Bus) consumerInfo(ctx context.Context, stream, name string) (*natsjs.ConsumerInfo, error) {
	info := new(natsjs.ConsumerInfo)
	return info, b.api(ctx, "CONSUMER.INFO."+stream+"."+name, nil, info)
}

// unsettled is how many messages a consumer has not settled, as the server that leads it knows: that may be behind the stream's.
func unsettled(info *natsjs.ConsumerInfo) uint64 { return info.NumPending + uint64(info.NumAckPending) }

// purge removes what a filter covers, below a sequence; 0: all of it.
func (b *Bus) purge(ctx context.Context, stream, filter string, below uint64) error {
	return b.api(ctx, "STREAM.PURGE."+stream, struct {
		Filter string `json:"filter"`
		Seq    uint64 `json:"seq,omitempty"`
	}{filter, below}, nil)
}
