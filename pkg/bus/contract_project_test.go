package bus_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
)

// theirs is a project that the user of "team.a" has nothing to do with.
const theirs = "team-b"

// shared are the subjects of the contracts that name no project, and that the user of one project has too: what a client of
// JetStream needs. A consumer has a name that nobody else knows, and can only be made with a filter of the user's own.
func shared(subject string) bool {
	return subject == "$JS.API.INFO" || strings.HasPrefix(subject, "$JS.API.STREAM.INFO.") ||
		strings.HasPrefix(subject, "$JS.API.CONSUMER.MSG.NEXT.KV_") || strings.HasPrefix(subject, "$JS.API.CONSUMER.MSG.NEXT.OUTPUT.") ||
		strings.HasPrefix(subject, "$JS.FC.KV_") || strings.HasPrefix(subject, "$JS.FC.OUTPUT.")
}

// inTheirs is what a pattern becomes with the other project wherever there is room for one.
func inTheirs(pattern string) []string {
	pattern = strings.ReplaceAll(pattern, "*", theirs)
	head, open := strings.CutSuffix(pattern, ">")
	if !open {
		return []string{pattern}
	}
	all := []string{head + theirs, head + theirs + ".x.y", head + "x." + theirs + ".y", head + "1.x." + theirs + ".y.z"}
	for _, f := range bus.Families() {
		all = append(all, head+string(f)+"."+theirs+".x", head+"$KV."+f.Bucket()+"."+theirs+".x", head+"n.$KV."+f.Bucket()+"."+theirs+".x")
	}
	return all
}

// reachesInto are the ways into a stream, to what is in it of the other project.
func reachesInto(s *natsjs.StreamInfo) []string {
	name := s.Config.Name
	patterns := slices.Clone(s.Config.Subjects)
	if bucket, ok := strings.CutPrefix(name, "KV_"); ok {
		patterns = append(patterns, "$KV."+bucket+".>")
	}
	all := []string{
		"$JS.API.STREAM.MSG.GET." + name, "$JS.API.DIRECT.GET." + name, "$JS.API.CONSUMER.CREATE." + name, "$JS.API.CONSUMER.CREATE." + name + ".n",
		"$JS.API.CONSUMER.DURABLE.CREATE." + name + ".n", "$JS.API.CONSUMER.DELETE." + name + ".n", "$JS.API.CONSUMER.INFO." + name + ".n",
		"$JS.API.CONSUMER.LIST." + name, "$JS.API.CONSUMER.NAMES." + name, "$JS.API.STREAM.PURGE." + name, "$JS.API.STREAM.DELETE." + name,
		"$JS.API.STREAM.UPDATE." + name, "$JS.API.STREAM.SNAPSHOT." + name, "$JS.API.STREAM.MSG.DELETE." + name, "$JS.ACK." + name + ".n.1.1.1.1.1",
	}
	for _, p := range patterns {
		for _, subject := range append(inTheirs(p), p) {
			all = append(all, subject, "$JS.API.DIRECT.GET."+name+"."+subject, "$JS.API.CONSUMER.CREATE."+name+".n."+subject)
		}
	}
	return all
}

// refusals notes what the server has refused.
type refusals struct {
	mu   sync.Mutex
	said []string
}

func (r *refusals) hear(_ *nats.Conn, _ *nats.Subscription, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said = append(r.said, err.Error())
}

// of returns the subjects that were refused; what is publish or subscription.
func (r *refusals) of(what string) map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string]bool{}
	for _, s := range r.said {
		if _, subject, ok := strings.Cut(s, "Permissions Violation for "+what+" to \""); ok {
			subject, _, _ = strings.Cut(subject, "\"")
			all[subject] = true
		}
	}
	return all
}

func (h *house) raw(t *testing.T, variable, inbox string, heard nats.ErrHandler) *nats.Conn {
	t.Helper()
	key, err := nats.NkeyOptionFromSeed(h.keys[variable])
	require.NoError(t, err)
	nc, err := nats.Connect(h.url, key, nats.CustomInboxPrefix(inbox), nats.ErrorHandler(heard))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}

// TestAUserOfOneProjectReachesNoOther: whatever any role may say or hear, and whatever way there is into any stream, the user of
// one project is refused it where it is another's. The subjects are those of the contracts and of the streams that Setup
// makes: a new one is tried without a word here.
func TestAUserOfOneProjectReachesNoOther(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	operator := h.as(t, bus.Operator)
	_, err := operator.Setup(t.Context(), false)
	require.NoError(t, err)
	js, err := natsjs.New(h.raw(t, bus.Contract{Service: bus.Operator}.Variable(), bus.InboxPrefix(bus.Operator), nil))
	require.NoError(t, err)

	var publish, subscribe []string
	buckets := 0
	streams := js.ListStreams(t.Context())
	for s := range streams.Info() {
		publish = append(publish, reachesInto(s)...)
		if strings.HasPrefix(s.Config.Name, "KV_") {
			buckets++
		}
	}
	require.NoError(t, streams.Err())
	require.Equal(t, len(bus.Families()), buckets)
	for _, c := range bus.Contracts() {
		for _, p := range c.Publish {
			publish = append(publish, inTheirs(p)...)
		}
		for _, p := range c.Subscribe {
			subscribe = append(append(subscribe, p), inTheirs(p)...)
		}
		subscribe = append(subscribe, bus.InboxPrefix(c.Service)+".>")
	}
	subscribe = append(subscribe, ">", "*.>", "drover.>", "$KV.>", "_INBOX.>", bus.InboxPrefix(bus.User)+"_"+theirs+".>")
	for _, f := range bus.Families() {
		subscribe = append(subscribe, "drover.evt."+string(f)+".>", "drover.evt."+string(f)+".*.>", "$KV."+f.Bucket()+".>")
	}
	publish = slices.DeleteFunc(publish, shared)
	slices.Sort(publish)
	publish = slices.Compact(publish)
	slices.Sort(subscribe)
	subscribe = slices.Compact(subscribe)

	said := &refusals{}
	inbox := bus.InboxPrefix(bus.User) + "_" + bus.Token("team.a")
	nc := h.raw(t, "DROVER_TEAM_A", inbox, said.hear)
	left := func(all []string, what string) (left []string) {
		refused := said.of(what)
		return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return refused[s] })
	}
	for _, s := range publish {
		require.NoError(t, nc.Publish(s, nil))
	}
	for _, s := range subscribe {
		_, err := nc.SubscribeSync(s)
		require.NoError(t, err)
	}
	require.NoError(t, nc.Flush())
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Empty(c, left(publish, "Publish"), "published")
		assert.Empty(c, left(subscribe, "Subscription"), "subscribed")
	}, 30*time.Second, 50*time.Millisecond)

	// Its own are not refused, so that the list above says something.
	mine := bus.ProjectUser("team.a")
	for _, p := range mine.Publish {
		p = strings.ReplaceAll(p, "*", "x")
		if head, open := strings.CutSuffix(p, ">"); open {
			p = head + "x"
		}
		require.NoError(t, nc.Publish(p, nil))
	}
	for _, p := range mine.Subscribe {
		_, err := nc.SubscribeSync(p)
		require.NoError(t, err)
	}
	require.NoError(t, nc.Publish("the.end", nil)) // refused too, and after all that was
	require.Eventually(t, func() bool { return said.of("Publish")["the.end"] }, 30*time.Second, 20*time.Millisecond)
	require.Len(t, said.of("Publish"), len(publish)+1)
	require.Len(t, said.of("Subscription"), len(subscribe))
	t.Logf("%d subjects to publish and %d to subscribe were refused", len(publish), len(subscribe))
}

// TestAFilterOfOnesOwnHoldsNoOther: permissions see the subject of a request and not its body, so the server must take the
// body by the subject's word.
func TestAFilterOfOnesOwnHoldsNoOther(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	_, err := h.as(t, bus.Operator).Setup(t.Context(), false)
	require.NoError(t, err)
	orchestrator := h.as(t, bus.Orchestrator)
	for _, project := range []string{"team.a", theirs} {
		_, err = orchestrator.Append(bus.Append{Entity: bus.Entity{Family: bus.Resource, Project: project, Kind: "node", Name: "x"}, Body: []byte(project)}).Result()
		require.NoError(t, err)
	}
	stream, bucket := "KV_"+bus.Resource.Bucket(), bus.Resource.Bucket()
	own, other := "$KV."+bucket+"."+bus.Token("team.a")+".>", "$KV."+bucket+"."+theirs+".>"
	nc := h.raw(t, "DROVER_TEAM_A", bus.InboxPrefix(bus.User)+"_"+bus.Token("team.a"), nil)
	ask := func(subject string, body any) *nats.Msg {
		t.Helper()
		text, err := json.Marshal(body)
		require.NoError(t, err)
		m, err := nc.Request(subject, text, 30*time.Second)
		require.NoError(t, err)
		return m
	}
	type object = map[string]any
	create := func(config object) (problem string) {
		config["ack_policy"], config["name"] = "none", "n"
		var answer struct {
			Error *struct {
				Description string `json:"description"`
			} `json:"error"`
		}
		m := ask("$JS.API.CONSUMER.CREATE."+stream+".n."+own, object{"stream_name": stream, "config": config})
		require.NoError(t, json.Unmarshal(m.Data, &answer), string(m.Data))
		if answer.Error == nil {
			return ""
		}
		return answer.Error.Description
	}
	for name, config := range map[string]object{
		"another's": {"filter_subject": other}, "both": {"filter_subjects": []string{own, other}}, "one and both": {"filter_subject": own, "filter_subjects": []string{own, other}},
		"none": {}, "all": {"filter_subject": ">"}, "another's in a list": {"filter_subjects": []string{other}},
	} {
		require.NotEmpty(t, create(config), "%s was made", name)
	}
	require.Empty(t, create(object{"filter_subject": own}))

	key := "$KV." + bucket + "." + bus.Token("team.a") + ".node.x"
	get := "$JS.API.DIRECT.GET." + stream + "." + key
	require.Eventually(t, func() bool { return string(ask(get, nil).Data) == "team.a" }, 30*time.Second, 20*time.Millisecond)
	for _, body := range []object{
		{"seq": 1}, {"seq": 2}, {"last_by_subj": "$KV." + bucket + "." + theirs + ".node.x"}, {"multi_last": []string{other}}, {"next_by_subj": other, "batch": 9},
	} {
		m := ask(get, body)
		require.NotContains(t, string(m.Data), theirs, fmt.Sprint(body))
	}
}

// TestUsersWatchWhatIsLarge: the server waits for who watches to have taken what it was sent, so who may not say so hears no more.
func TestUsersWatchWhatIsLarge(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	_, err := h.as(t, bus.Operator).Setup(t.Context(), false)
	require.NoError(t, err)
	const n = 64 // of 100 KiB
	orchestrator := h.as(t, bus.Orchestrator)
	for i := range n {
		_, err := orchestrator.Append(bus.Append{
			Entity: bus.Entity{Partition: 1, Family: bus.Resource, Project: "team.a", Kind: "node", Name: fmt.Sprint(i)}, Body: make([]byte, 100<<10),
		}).Result()
		require.NoError(t, err)
	}
	for variable, inbox := range map[string]string{
		bus.Contract{Service: bus.User}.Variable():     bus.InboxPrefix(bus.User),
		bus.Contract{Service: bus.Operator}.Variable(): bus.InboxPrefix(bus.Operator),
		"DROVER_TEAM_A": bus.InboxPrefix(bus.User) + "_" + bus.Token("team.a"),
	} {
		t.Run(variable, func(t *testing.T) {
			t.Parallel()
			js, err := natsjs.New(h.raw(t, variable, inbox, nil))
			require.NoError(t, err)
			kv, err := js.KeyValue(t.Context(), bus.Resource.Bucket())
			require.NoError(t, err)
			require.Eventually(t, func() bool { s, err := kv.Status(t.Context()); return err == nil && s.Values() == n }, 30*time.Second, 10*time.Millisecond)
			w, err := kv.Watch(t.Context(), bus.Token("team.a")+".>")
			require.NoError(t, err)
			defer func() { _ = w.Stop() }() // a user of one project waits for nothing there
			for got := range n {
				select {
				case e := <-w.Updates():
					require.NotNil(t, e)
				case <-time.After(30 * time.Second):
					t.Fatalf("%d of %d come", got, n)
				}
			}
		})
	}
}
