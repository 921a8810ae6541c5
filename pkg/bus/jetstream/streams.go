package jetstream

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/droverproject/drover/pkg/bus"
)

// The streams. Buckets are streams too: see bucketStream.
const (
	streamEvents   = "EVENTS"
	streamWork     = "WORK"
	streamCommands = "COMMANDS"
	streamResults  = "RESULTS"
	streamTimers   = "TIMERS"
	streamOutput   = "OUTPUT"
	streamRefused  = "REFUSED"
	streamPoison   = "POISON"
)

const (
	metaPartitions = "drover.partitions"
	metaSync       = "drover.sync"
	// eventsPerSubject is how much history EVENTS keeps.
	eventsPerSubject = 8
	// headerBytes is the room for headers beside a body of the largest size.
	headerBytes = 16 << 10
	// dedupeWindow is how long a poll's key is remembered. It is the server's own default.
	dedupeWindow = 2 * time.Minute
	// unlimited as the server writes it.
	unlimited = -1
)

func bucketStream(f bus.Family) string { return "KV_" + f.Bucket() }

// streams is what Setup makes, in this order. Every field that the server would fill in is filled in here, so that the
// two can be compared.
func (o Options) streams(partitions int, sync string) []natsjs.StreamConfig {
	base := func(name, about string, subjects ...string) natsjs.StreamConfig {
		return natsjs.StreamConfig{
			Name: name, Description: about, Subjects: subjects,
			Retention: natsjs.LimitsPolicy, Discard: natsjs.DiscardOld, Storage: natsjs.FileStorage, Replicas: o.Replicas,
			MaxConsumers: unlimited, MaxMsgs: unlimited, MaxBytes: unlimited, MaxMsgsPerSubject: unlimited,
			MaxMsgSize: bus.BodyBytesMax + headerBytes, Duplicates: dedupeWindow, AllowDirect: true,
		}
	}
	// What the server derives from EVENTS need not be synced before it is acknowledged: it would be derived again.
	derived := func(c natsjs.StreamConfig) natsjs.StreamConfig {
		c.MaxMsgSize = unlimited // the source adds a header
		if o.Replicas == 1 {
			c.PersistMode = natsjs.AsyncPersistMode
		}
		return c
	}
	var all []natsjs.StreamConfig
	add := func(c natsjs.StreamConfig) { all = append(all, c) }

	events := base(streamEvents, "Drover: the log. Only the orchestrator appends.", "drover.log.>")
	events.MaxMsgsPerSubject = eventsPerSubject
	events.AllowAtomicPublish, events.AllowMsgTTL, events.DenyDelete = true, true, true
	events.Metadata = map[string]string{metaPartitions: strconv.Itoa(partitions)}
	if sync != "" {
		events.Metadata[metaSync] = sync
	}
	add(events)

	for _, f := range bus.Families() {
		kv := derived(base(bucketStream(f), "Drover: the last event of every "+string(f)+", derived from EVENTS."))
		kv.MaxMsgsPerSubject, kv.Discard = 1, natsjs.DiscardNew
		kv.AllowMsgTTL, kv.AllowRollup, kv.DenyDelete = true, true, true
		kv.Sources = []*natsjs.StreamSource{{Name: streamEvents, SubjectTransforms: bucketTransforms(f)}}
		kv.RePublish = &natsjs.RePublish{Source: "$KV." + f.Bucket() + ".>", Destination: "drover.evt." + string(f) + ".>"}
		add(kv)
	}

	work := derived(base(streamWork, "Drover: what executors pull, derived from EVENTS; and polls.", "drover.work.>"))
	work.Retention = natsjs.WorkQueuePolicy
	work.Sources = []*natsjs.StreamSource{{Name: streamEvents, SubjectTransforms: []natsjs.SubjectTransformConfig{{
		Source:      "drover.log.*.resource.*.*.*.do.*",
		Destination: "drover.work.{{wildcard(2)}}.{{wildcard(3)}}.{{wildcard(5)}}"}}}}
	work.AllowRollup = true // for keep
	add(work)

	// Subjects of any other shape are refused to the publisher: no partition's consumer would ever find them.
	commands := base(streamCommands, "Drover: commands that were published, until intake has taken them.", "drover.cmd.*.*.*.*")
	commands.Retention, commands.Discard = natsjs.WorkQueuePolicy, natsjs.DiscardNew
	commands.MaxBytes, commands.MaxMsgs = o.Limits.CommandBytes, o.Limits.CommandMessages
	commands.MaxMsgSize = bus.CommandBytesMax + headerBytes
	commands.SubjectTransform = &natsjs.SubjectTransformConfig{
		Source:      "drover.cmd.*.*.*.*",
		Destination: fmt.Sprintf("drover.cmds.{{partition(%d,1,2,3)}}.{{wildcard(1)}}.{{wildcard(2)}}.{{wildcard(3)}}.{{wildcard(4)}}", partitions)}
	add(commands)

	results := base(streamResults, "Drover: answers of executors, until the orchestrator has applied them.", "drover.result.*.*.*.*")
	results.Retention, results.Discard = natsjs.WorkQueuePolicy, natsjs.DiscardNew
	results.MaxBytes, results.MaxMsgs = o.Limits.ResultBytes, o.Limits.ResultMessages
	results.AllowRollup = true // for keep
	if o.Replicas == 1 {
		// A result that a killed server forgets is sent again (see recent). One that goes down with the power is found
		// missing by a sweep, if its work does not come again by itself: to an executor that is the same as a power cut
		// just before its answer. On disk at once, each result would cost two writes, its removal being the second, and
		// with sync always two syncs.
		results.PersistMode = natsjs.AsyncPersistMode
	}
	add(results)

	timers := base(streamTimers, "Drover: schedules and what they fire.", "drover.timer.>", "drover.tick.>")
	timers.MaxMsgsPerSubject, timers.AllowMsgSchedules, timers.AllowMsgTTL, timers.AllowRollup = 1, true, true, true
	timers.RePublish = &natsjs.RePublish{Source: "drover.tick.>", Destination: "drover.ticked.>"}
	add(timers)

	output := base(streamOutput, "Drover: what phases print.", "drover.out.>")
	output.MaxBytes, output.MaxAge = o.Limits.OutputBytes, o.Limits.OutputAge
	add(output)

	refused := base(streamRefused, "Drover: why published commands were refused.", "drover.refused.>")
	refused.MaxBytes, refused.MaxAge = o.Limits.RefusedBytes, o.Limits.RefusedAge
	add(refused)

	poison := base(streamPoison, "Drover: messages that were set aside.", "drover.poison.>")
	poison.MaxBytes, poison.MaxAge = o.Limits.PoisonBytes, o.Limits.PoisonAge
	poison.MaxMsgSize = bus.BodyBytesMax + 2*headerBytes // the original and why
	add(poison)
	return all
}

// bucketTransforms turn the subjects of a family into its bucket's keys.
func bucketTransforms(f bus.Family) []natsjs.SubjectTransformConfig {
	tokens := f.Tokens()
	key := make([]string, tokens)
	for i := range key {
		key[i] = fmt.Sprintf("{{wildcard(%d)}}", i+2)
	}
	// One transform covers both marks: the server writes all of them into a header of each derived message.
	return []natsjs.SubjectTransformConfig{{
		Source:      "drover.log.*." + string(f) + strings.Repeat(".*", tokens) + ".*.*",
		Destination: "$KV." + f.Bucket() + "." + strings.Join(key, "."),
	}}
}

// schedules are kept in TIMERS under drover.timer.<tick>.
var schedules = map[bus.Tick]string{bus.TickSecond: "@every 1s", bus.TickSweep: "@every 20s"}

func ticks() []bus.Tick {
	var all []bus.Tick
	for t := range schedules {
		all = append(all, t)
	}
	slices.Sort(all)
	return all
}
