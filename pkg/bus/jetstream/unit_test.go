package jetstream

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
)

func TestParsePubAck(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]struct {
		seq uint64
		err error
	}{
		`{"stream":"EVENTS","seq":17}`:                           {seq: 17},
		`{"stream":"EVENTS","seq":17,"batch":"b","count":3}`:     {seq: 17},
		`{"stream":"EVENTS", "seq": 17}`:                         {seq: 17},
		`{"seq":17,"stream":"EVENTS","duplicate":true}`:          {seq: 17},
		`{"error":{"code":400,"err_code":10071},"stream":"E"}`:   {err: bus.ErrLost},
		`{"error":{"code":400,"err_code":10164},"stream":"E"}`:   {err: bus.ErrLost},
		`{"error":{"code":400,"err_code":10054},"stream":"E"}`:   {err: bus.ErrTooLarge},
		`{"error":{"code":503,"err_code":10077},"stream":"E"}`:   {err: bus.ErrFull},
		`{"error":{"code":429,"err_code":10167},"stream":"E"}`:   {err: bus.ErrFull},
		`{"error":{"code":404,"err_code":10059},"stream":"E"}`:   {err: bus.ErrNotFound},
		`{"stream":"EVENTS","error":{"err_code":10071},"seq":0}`: {err: bus.ErrLost},
	} {
		p := &call{msg: &nats.Msg{Data: []byte(body)}}
		parsePubAck(p)
		if want.err != nil {
			require.ErrorIs(t, p.err, want.err, body)
			continue
		}
		require.NoError(t, p.err, body)
		require.Equal(t, want.seq, p.seq, body)
	}
	for _, body := range []string{"", "{}", "hello", `{"stream":""}`, `{"stream":"E","seq":"x"}`, `{"stream":"E","seq":-1}`} {
		p := &call{msg: &nats.Msg{Data: []byte(body)}}
		parsePubAck(p)
		require.Error(t, p.err, body)
	}
}

func FuzzParsePubAck(f *testing.F) {
	f.Add([]byte(`{"stream":"EVENTS","seq":17}`))
	f.Add([]byte(`{"stream":"EVENTS","seq":`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p := &call{msg: &nats.Msg{Data: data}}
		parsePubAck(p)
		var ack struct {
			Stream string `json:"stream"`
			Seq    uint64 `json:"seq"`
		}
		// Where both ways of reading it find a sequence, it is the same.
		if p.err == nil && json.Unmarshal(data, &ack) == nil && ack.Seq > 0 && p.seq != ack.Seq {
			t.Fatalf("%q: %d, not %d", data, p.seq, ack.Seq)
		}
	})
}

func TestAppendErrors(t *testing.T) {
	t.Parallel()
	for _, known := range []error{bus.ErrLost, bus.ErrTooLarge, bus.ErrFull, bus.ErrClosed, bus.ErrDenied, bus.ErrBatch, bus.ErrEntity,
		bus.ErrUnknownOutcome} {
		require.Equal(t, known, appendError(known))
	}
	for _, unknown := range []error{errTimeout, errNoResponders, nats.ErrReconnectBufExceeded, context.Canceled, &natsjs.APIError{Code: 500}} {
		require.ErrorIs(t, appendError(unknown), bus.ErrUnknownOutcome)
		require.ErrorIs(t, appendError(unknown), unknown)
	}
	require.NotErrorIs(t, appendError(&natsjs.APIError{Code: 400, ErrorCode: 10175}), bus.ErrUnknownOutcome)
	require.NoError(t, appendError(nil))
}

func TestMatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		filter, subject string
		want            bool
	}{
		{"a.b", "a.b", true}, {"a.b", "a.c", false}, {"a.*", "a.b", true}, {"a.*", "a", false}, {"a.*", "a.b.c", false},
		{"a.>", "a.b.c", true}, {"a.>", "b.c", false}, {"a.>", "a", false}, {"drover.log.1.job.>", "drover.log.12.job.p.j.is.-", false},
		{"drover.log.1.job.>", "drover.log.1.job.p.j.is.-", true},
	} {
		require.Equal(t, c.want, matches(c.filter, c.subject), "%v", c)
	}
}

func TestPublished(t *testing.T) {
	t.Parallel()
	require.Equal(t, "drover.cmd.p.k.n.start", published("drover.cmds.17.p.k.n.start"))
	require.Equal(t, "drover.result.1.p.k.n", published("drover.result.1.p.k.n"))
	require.Equal(t, "drover.cmds.", published("drover.cmds."))
}

func TestClean(t *testing.T) {
	t.Parallel()
	require.Equal(t, "plain", clean("plain"))
	require.Equal(t, "a  Nats-Rollup: all", clean("a\r\nNats-Rollup: all"))
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for about, o := range map[string]Options{
		"partitions":      {Partitions: -1},
		"many partitions": {Partitions: PartitionsMax + 1},
		"replicas":        {Replicas: 2},
		"two identities":  {CredentialsFile: "a", NKeyFile: "b"},
		"half a key pair": {TLSCertFile: "a"},
		"tombstone TTL":   {TombstoneTTL: time.Millisecond},
		"NKey file":       {NKeyFile: "/does/not/exist"},
		"unknown context": {Context: "no-such-context-here"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, err := Connect(ctx, o)
		require.Error(t, err, about)
		require.NoError(t, ctx.Err(), "%s: another try would meet the same", about)
		cancel()
	}
}

func TestEveryStreamSaysEverything(t *testing.T) {
	t.Parallel()
	o, err := Options{}.withDefaults()
	require.NoError(t, err)
	names := map[string]bool{}
	for _, c := range o.streams(64, "") {
		require.False(t, names[c.Name], "two streams %s", c.Name)
		names[c.Name] = true
		require.NotEmpty(t, c.Description)
		async := c.PersistMode == natsjs.AsyncPersistMode
		require.Equal(t, len(c.Sources) > 0 || c.Name == streamResults, async, "%s: only what comes again may be async", c.Name)
		drift, err := compare(c, c)
		require.NoError(t, err)
		require.Empty(t, drift)
	}
	o.Replicas = 3
	for _, c := range o.streams(64, "") {
		require.NotEqual(t, natsjs.AsyncPersistMode, c.PersistMode, "%s: async is for one replica", c.Name)
	}
}

func TestDrift(t *testing.T) {
	t.Parallel()
	o, err := Options{}.withDefaults()
	require.NoError(t, err)
	want := o.streams(64, "")[0]
	for setting, c := range map[string]struct {
		change     func(have *natsjs.StreamConfig)
		repairable bool
	}{
		"max_msgs_per_subject": {func(c *natsjs.StreamConfig) { c.MaxMsgsPerSubject = 3 }, true},
		"retention":            {func(c *natsjs.StreamConfig) { c.Retention = natsjs.WorkQueuePolicy }, false},
		"storage":              {func(c *natsjs.StreamConfig) { c.Storage = natsjs.MemoryStorage }, false},
		"subjects":             {func(c *natsjs.StreamConfig) { c.Subjects = []string{"else"} }, false},
		"metadata":             {func(c *natsjs.StreamConfig) { c.Metadata = map[string]string{metaPartitions: "7"} }, false},
		"num_replicas":         {func(c *natsjs.StreamConfig) { c.Replicas = 3 }, true},
		"allow_msg_ttl":        {func(c *natsjs.StreamConfig) { c.AllowMsgTTL = false }, true},
		"mirror_direct":        {func(c *natsjs.StreamConfig) { c.MirrorDirect = true }, true},
		"max_msgs":             {func(c *natsjs.StreamConfig) { c.MaxMsgs = 10 }, true},
		"max_age":              {func(c *natsjs.StreamConfig) { c.MaxAge = time.Hour }, true},
		"sources":              {func(c *natsjs.StreamConfig) { c.Sources = []*natsjs.StreamSource{{Name: "X"}} }, false},
	} {
		have := want
		have.Metadata = map[string]string{metaPartitions: "64", "_nats.ver": "2.15.2"}
		drift, err := compare(want, have)
		require.NoError(t, err)
		require.Empty(t, drift, "the server's own metadata is no drift")
		c.change(&have)
		drift, err = compare(want, have)
		require.NoError(t, err)
		require.Len(t, drift, 1, setting)
		require.Equal(t, setting, drift[0].Setting)
		require.Equal(t, want.Name, drift[0].Stream)
		require.Equal(t, c.repairable, drift[0].Repairable, setting)
		mended, err := mend(have, want, drift)
		require.NoError(t, err)
		drift, err = compare(want, mended)
		require.NoError(t, err)
		require.Equal(t, c.repairable, len(drift) == 0, setting)
	}
	// To lower a limit can drop what is stored.
	lower := want
	lower.MaxMsgsPerSubject = 100
	drift, err := compare(want, lower)
	require.NoError(t, err)
	require.False(t, drift[0].Repairable)
}

// A stream is handed over when its leader has not heard of the log for a while, and ever seldomer where that does not help.
func TestWhenAStreamIsHandedOver(t *testing.T) {
	t.Parallel()
	at := time.Now()
	d := &deriving{}
	look := func(after time.Duration, leader string, active time.Duration) bool {
		at = at.Add(after)
		return d.silent(leader, []*natsjs.StreamSourceInfo{{Active: active}}, at) && d.move(at)
	}
	require.False(t, look(0, "a", 0))
	require.False(t, look(time.Second, "a", sourceSilence), "the log's server says every second that it is there")
	require.True(t, look(time.Second, "a", sourceSilence+1))
	require.False(t, look(time.Second, "b", -1), "a new one begins")
	require.False(t, look(sourceUnsaid, "b", -1))
	require.False(t, look(time.Millisecond, "b", -1), "it was handed over a moment ago")
	require.True(t, look(rederiveAgain, "b", -1))
	for range 10 {
		look(rederiveSeldom, "b", -1)
	}
	require.False(t, look(rederiveSeldom-1, "b", -1), "another leader is not what it lacks")
	require.True(t, look(1, "b", -1))
	require.False(t, look(time.Second, "b", 0), "it is heard")
	require.True(t, look(time.Second, "b", time.Minute), "and at once where that ends")
	require.False(t, look(rederiveAgain, "c", -1))
	require.False(t, look(sourceUnsaid, "d", -1), "each leader has its time")
	require.True(t, look(sourceUnsaid+1, "d", -1))

	// What is seen while the log has no leader counts: who has asked in vain is handed over as soon as it has one.
	d = &deriving{}
	asked := []*natsjs.StreamSourceInfo{{Active: -1}}
	require.False(t, d.silent("a", asked, at))
	require.True(t, d.silent("a", asked, at.Add(sourceUnsaid+1)))
	require.True(t, d.move(at.Add(sourceUnsaid+2)))
}
