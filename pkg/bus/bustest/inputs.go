package bustest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
)

// commandPartition is where the commands to a resource of this test are.
func commandPartition(t *testing.T, name string) int {
	return bus.CommandPartition(t.Name(), "node", name, Partitions)
}

func (s *suite) command(t *testing.T, name, body string) {
	t.Helper()
	seq, err := s.b.PublishCommand(within(t), bus.CommandSubject("cmd", t.Name(), "node", name, "start"),
		map[string]string{bus.HeaderRequestID: "id-" + body, bus.HeaderContentType: bus.ContentTypeJSON}, []byte(body))
	require.NoError(t, err)
	require.NotZero(t, seq)
}

func (s *suite) commands(t *testing.T, partition int) bus.Inbox {
	t.Helper()
	in, err := s.b.Commands(within(t), partition)
	require.NoError(t, err)
	t.Cleanup(in.Close)
	return in
}

func (s *suite) commandsInOrder(t *testing.T) {
	names := []string{"a", "b", "web1.example.com", "-"}
	const each = 12
	for i := range each {
		for _, name := range names {
			s.command(t, name, fmt.Sprint(name, i))
		}
	}
	got := map[string][]string{}
	for p := range Partitions {
		in := s.commands(t, p)
		var want int
		for _, name := range names {
			if commandPartition(t, name) == p {
				want += each
			}
		}
		eventually(t, func() bool { // the consumer may be led by a server that is behind
			n, oldest, err := s.b.Backlog(within(t), "COMMANDS", p)
			require.NoError(t, err)
			require.LessOrEqual(t, n, uint64(want))
			return n == uint64(want) && oldest.IsZero() == (want == 0)
		}, "all of it waits")
		for range want {
			d := receive(t, in.C(), "a command")
			_, _, name, verb, err := bus.ParseCommandSubject(d.Subject())
			require.NoError(t, err, "the subject is as it was published")
			require.Equal(t, "start", verb)
			require.Equal(t, "id-"+string(d.Body()), d.Header(bus.HeaderRequestID))
			require.Equal(t, bus.ContentTypeJSON, d.Header(bus.HeaderContentType))
			require.EqualValues(t, 1, d.Delivered())
			require.Equal(t, p, commandPartition(t, name), "the command came from a partition that is not its own")
			got[name] = append(got[name], string(d.Body()))
			require.NoError(t, d.Ack())
		}
		silent(t, in.C(), "a command too many")
		eventually(t, func() bool { n, _, err := s.b.Backlog(within(t), "COMMANDS", p); return err == nil && n == 0 }, "no backlog")
	}
	for _, name := range names {
		require.Len(t, got[name], each)
		for i, body := range got[name] {
			require.Equal(t, fmt.Sprint(name, i), body, "out of order")
		}
	}
	_, err := s.b.PublishCommand(within(t), "drover.log.0.resource.a.b.c.is.-", nil, nil)
	require.Error(t, err, "only commands are published as commands")
	_, err = s.b.PublishCommand(within(t), bus.CommandSubject("cmd", "p", "k", "n", "start"), nil, make([]byte, bus.CommandBytesMax+1))
	require.ErrorIs(t, err, bus.ErrTooLarge)
	_, err = s.b.Commands(within(t), Partitions)
	require.Error(t, err)
	_, _, err = s.b.Backlog(within(t), "EVENTS", 0)
	require.Error(t, err)
}

func (s *suite) inputRedelivery(t *testing.T) {
	p := commandPartition(t, "r")
	in := s.commands(t, p)
	s.command(t, "r", "1")
	d := receive(t, in.C(), "the command")
	require.NoError(t, d.Retry(0))
	d = receive(t, in.C(), "the command again")
	require.EqualValues(t, 2, d.Delivered())
	seq := d.Seq()
	require.NoError(t, d.Retry(200*time.Millisecond))
	s.command(t, "r", "2")
	second := receive(t, in.C(), "the one behind it")
	require.Equal(t, "2", string(second.Body()))
	require.NoError(t, second.Ack())
	d = receive(t, in.C(), "the first, after its delay")
	require.Equal(t, seq, d.Seq())
	require.EqualValues(t, 3, d.Delivered())
	// Unsettled, it comes again.
	d = receive(t, in.C(), "the first, after the ack wait")
	require.EqualValues(t, 4, d.Delivered())
	require.NoError(t, d.Ack())
	silent(t, in.C(), "it came again although it was settled")
}

func (s *suite) poison(t *testing.T) {
	p := commandPartition(t, "r")
	in := s.commands(t, p)
	for _, body := range []string{"1", "poison", "3"} {
		s.command(t, "r", body)
	}
	var bodies []string
	for range 3 {
		d := receive(t, in.C(), "a command")
		bodies = append(bodies, string(d.Body()))
		if string(d.Body()) == "poison" {
			require.NoError(t, d.Reject(within(t), "cannot be\r\nread"))
			require.Error(t, d.Ack(), "settled twice")
			continue
		}
		require.NoError(t, d.Ack())
	}
	require.Equal(t, []string{"1", "poison", "3"}, bodies, "it blocks nothing behind it")
	eventually(t, func() bool { n, _, err := s.b.Backlog(within(t), "COMMANDS", p); return err == nil && n == 0 }, "it is not delivered again")
	aside := s.Stored(t, "POISON", "drover.poison.COMMANDS")
	i := slices.IndexFunc(aside, func(m Message) bool { return m.Header[bus.HeaderRequestID] == "id-poison" })
	require.GreaterOrEqual(t, i, 0, "it was set aside")
	require.Equal(t, "poison", string(aside[i].Body))
	require.Contains(t, aside[i].Header[bus.HeaderReason], "cannot be")
	require.Equal(t, bus.CommandSubject("cmd", t.Name(), "node", "r", "start"), aside[i].Header[bus.HeaderOriginalSubject])
	require.NotEmpty(t, aside[i].Header[bus.HeaderOriginalSeq])
}

// foreignHeaders: whoever publishes gives a message any header, and no body; it is a message all the same.
func (s *suite) foreignHeaders(t *testing.T) {
	in := s.commands(t, commandPartition(t, "r"))
	for _, status := range []string{"100", "404", "408", "409", "503"} {
		_, err := s.b.PublishCommand(within(t), bus.CommandSubject("cmd", t.Name(), "node", "r", "start"),
			map[string]string{"Status": status, "Description": "Consumer Deleted"}, nil)
		require.NoError(t, err)
		d := receive(t, in.C(), "a command with status "+status)
		require.Equal(t, status, d.Header("Status"))
		require.NoError(t, d.Ack())
	}
}

// inboxPutsBack: what an inbox held when it was closed comes to the next at once, and what it had handed out does too,
// after the ack wait.
func (s *suite) inboxPutsBack(t *testing.T) {
	p := commandPartition(t, "r")
	in, err := s.b.Commands(within(t), p)
	require.NoError(t, err)
	const n = 20
	for i := range n {
		s.command(t, "r", fmt.Sprint(i))
	}
	require.NotNil(t, receive(t, in.C(), "the first"))
	in.Close()
	in.Close()
	_, open := <-in.C()
	require.False(t, open)
	require.NoError(t, in.Err())
	began := time.Now()
	next := s.commands(t, p)
	var first time.Duration
	seen := map[string]bool{}
	for len(seen) < n {
		d := receive(t, next.C(), "what was put back")
		if first == 0 {
			first = time.Since(began)
		}
		seen[string(d.Body())] = true
		require.NoError(t, d.Ack())
	}
	require.Less(t, first, InputAckWait, "what was not taken waited for the ack wait")
}

func (s *suite) results(t *testing.T) {
	ctx := within(t)
	const p, n = 3, 150 // more than an inbox holds
	subject := bus.ResultSubject(p, t.Name(), "node", "web1.example.com")
	for i := range n {
		require.NoError(t, s.b.PublishResult(ctx, subject, map[string]string{bus.HeaderTraceparent: "t"}, fmt.Append(nil, i)))
	}
	count, oldest, err := s.b.Backlog(ctx, "RESULTS", p)
	require.NoError(t, err)
	require.EqualValues(t, n, count)
	require.WithinDuration(t, time.Now(), oldest, time.Minute)
	in, err := s.b.Results(ctx, p)
	require.NoError(t, err)
	defer in.Close()
	for i := range n {
		d := receive(t, in.C(), "a result")
		require.Equal(t, fmt.Sprint(i), string(d.Body()), "out of order")
		require.Equal(t, subject, d.Subject())
		require.Equal(t, "t", d.Header(bus.HeaderTraceparent))
		require.NoError(t, d.Ack())
	}
	require.Error(t, s.b.PublishResult(ctx, "drover.result.x.a.b.c", nil, nil))
	require.ErrorIs(t, s.b.PublishResult(ctx, subject, nil, make([]byte, bus.BodyBytesMax+1)), bus.ErrTooLarge)

	// Many at once, each acknowledged.
	var wg sync.WaitGroup
	errs := make([]error, 50)
	for i := range errs {
		wg.Go(func() { errs[i] = s.b.PublishResult(ctx, subject, nil, fmt.Append(nil, i)) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	seen := map[string]bool{}
	for range errs {
		d := receive(t, in.C(), "a result")
		seen[string(d.Body())] = true
		require.NoError(t, d.Ack())
	}
	require.Len(t, seen, len(errs))
}

func (s *suite) refusals(t *testing.T) {
	require.NoError(t, s.b.PublishRefusal(within(t), t.Name(), "id-1", map[string]string{bus.HeaderReason: "no such kind"}, []byte("why")))
	var all []Message
	eventually(t, func() bool { // a follower may be behind
		all = s.Stored(t, "REFUSED", bus.RefusedSubject(t.Name(), "id-1"))
		return len(all) > 0
	}, "the refusal")
	require.Len(t, all, 1)
	require.Equal(t, "why", string(all[0].Body))
	require.Equal(t, "no such kind", all[0].Header[bus.HeaderReason])
}

func (s *suite) asks(t *testing.T) {
	asker := s.Connect(t)
	began := time.Now()
	_, err := asker.Ask(within(t), 1, bus.Request{Verb: "sweep"})
	require.ErrorIs(t, err, bus.ErrNoOwner)
	require.Less(t, time.Since(began), 2*time.Second, "nobody serves: known at once")

	stop, err := s.b.ServeAsks(1, func(r bus.Request, reply func(map[string]string, []byte)) {
		go func() { // from any goroutine
			reply(map[string]string{"Re": r.Header["X"], bus.HeaderContentType: "text/plain"}, append([]byte("re "+r.Verb+" "), r.Body...))
			reply(nil, []byte("the second reply counts nothing"))
		}()
	})
	require.NoError(t, err)
	s.reached(t, asker, 1)
	for i := range 50 {
		got, err := asker.Ask(within(t), 1, bus.Request{Verb: "command", Header: map[string]string{"X": fmt.Sprint(i)}, Body: []byte("body")})
		require.NoError(t, err)
		require.Equal(t, "re command body", string(got.Body))
		require.Equal(t, fmt.Sprint(i), got.Header["Re"])
		require.Equal(t, "text/plain", got.Header[bus.HeaderContentType])
	}
	_, err = asker.Ask(within(t), 2, bus.Request{Verb: "sweep"})
	require.ErrorIs(t, err, bus.ErrNoOwner, "another partition")

	// A handover: the new owner serves before the old one stops.
	newer := s.Connect(t)
	stopNewer, err := newer.ServeAsks(1, func(_ bus.Request, reply func(map[string]string, []byte)) { reply(nil, []byte("newer")) })
	require.NoError(t, err)
	stop()
	stop()
	eventually(t, func() bool {
		short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		got, err := asker.Ask(short, 1, bus.Request{Verb: "sweep"})
		return err == nil && string(got.Body) == "newer"
	}, "the newer owner answers")
	stopNewer()
	eventually(t, func() bool {
		// Between servers the word spreads; until then a request is left without an answer.
		short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := asker.Ask(short, 1, bus.Request{Verb: "sweep"})
		return errors.Is(err, bus.ErrNoOwner)
	}, "nobody serves any more")

	// Who does not answer in time.
	stop, err = s.b.ServeAsks(1, func(bus.Request, func(map[string]string, []byte)) {})
	require.NoError(t, err)
	defer stop()
	s.reached(t, asker, 1)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = asker.Ask(short, 1, bus.Request{Verb: "sweep"})
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// reached waits until the word that a partition is served has spread between servers: until then nobody is found there. It
// spreads in the order of the subscriptions, of which that for doors is the last.
func (s *suite) reached(t *testing.T, asker bus.Bus, partition int) {
	t.Helper()
	eventually(t, func() bool {
		short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := asker.AskDoor(short, partition, bus.Request{Verb: "callback.find"})
		return !errors.Is(err, bus.ErrNoOwner)
	}, "the owner is found")
}

// asksOfPhases: a phase's workers reach the owner of its record, with the verbs of workers only.
func (s *suite) asksOfPhases(t *testing.T) {
	asker := s.Connect(t)
	p := bus.Phase{Project: t.Name(), Kind: "Cloud.Node", Phase: "Acme.CreateInstance"}
	partition := p.Partition(s.b.Partitions())
	_, err := asker.AskPhase(within(t), p, bus.Request{Verb: "hold"})
	require.ErrorIs(t, err, bus.ErrNoOwner)
	stop, err := s.b.ServeAsks(partition, func(r bus.Request, reply func(map[string]string, []byte)) {
		reply(nil, []byte(r.Verb+" "+r.Phase.Phase+" of "+r.Phase.Kind+" "+string(r.Body)))
	})
	require.NoError(t, err)
	defer stop()
	s.reached(t, asker, partition)
	for _, verb := range []string{"hold", "command"} {
		got, err := asker.AskPhase(within(t), p, bus.Request{Verb: verb, Body: []byte("body"), Phase: bus.Phase{Project: "other"}})
		require.NoError(t, err)
		require.Equal(t, "phase."+verb+" Acme.CreateInstance of Cloud.Node body", string(got.Body))
	}
	got, err := asker.Ask(within(t), partition, bus.Request{Verb: "sweep"})
	require.NoError(t, err)
	require.Equal(t, "sweep  of  ", string(got.Body), "no request of a worker")
	// Those who serve a front door ask for nothing but what is its own.
	for _, verb := range []string{"callback.find", "machine.next", "machine.command.x"} {
		got, err := asker.AskDoor(within(t), partition, bus.Request{Verb: verb, Body: []byte("body")})
		require.NoError(t, err)
		require.Equal(t, verb+"  of  body", string(got.Body))
	}
	for _, verb := range []string{"command", "sweep", "phase.hold", ".command", "machine.", ""} {
		_, err := asker.AskDoor(within(t), partition, bus.Request{Verb: verb})
		require.ErrorContains(t, err, "no front door has the verb", verb)
	}
	_, err = asker.AskDoor(within(t), (partition+1)%s.b.Partitions(), bus.Request{Verb: "callback.find"})
	require.ErrorIs(t, err, bus.ErrNoOwner)
}

// callbacks are among the results of the partition that their subject names.
func (s *suite) callbacks(t *testing.T) {
	const p = 2
	results, err := s.b.Results(within(t), p)
	require.NoError(t, err)
	t.Cleanup(results.Close)
	subject := bus.CallbackSubject(p, 1<<43|5)
	require.NoError(t, s.b.PublishResult(within(t), subject, nil, []byte("DE")))
	d := receive(t, results.C(), "a callback")
	require.Equal(t, []string{subject, "DE"}, []string{d.Subject(), string(d.Body())})
	require.NoError(t, d.Ack())
	for _, wrong := range []string{subject + "x", "drover.result.2.-.callback.01", "drover.result.2.-.-.7", "drover.result.-1.-.callback.7"} {
		require.Error(t, s.b.PublishResult(within(t), wrong, nil, nil), wrong)
	}
}

func (s *suite) api(t *testing.T) {
	subject := bus.CommandSubject("api", t.Name(), "node", "web1.example.com", "start")
	asker := s.Connect(t)
	began := time.Now()
	_, err := asker.Request(within(t), subject, nil, nil)
	require.ErrorIs(t, err, bus.ErrNoOwner)
	require.Less(t, time.Since(began), 2*time.Second, "nobody serves: known at once")
	var mu sync.Mutex
	served := map[int]int{}
	var stops []func()
	for i, b := range []bus.Bus{s.b, s.Connect(t)} {
		stop, err := b.ServeAPI("v1.2.3-dev", func(subject string, r bus.Request, reply func(map[string]string, []byte)) {
			mu.Lock()
			served[i]++
			mu.Unlock()
			reply(map[string]string{"Re": r.Header[bus.HeaderRequestID]}, append([]byte(subject+" "), r.Body...))
		})
		require.NoError(t, err)
		stops = append(stops, stop)
	}
	const n = 200
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() {
			id := fmt.Sprint("id-", i)
			got, err := asker.Request(within(t), subject, map[string]string{bus.HeaderRequestID: id}, []byte("{}"))
			if err == nil && (got.Header["Re"] != id || string(got.Body) != subject+" {}") {
				err = fmt.Errorf("another's reply: %v", got)
			}
			errs[i] = err
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	require.Equal(t, n, served[0]+served[1], "each was served once")
	require.Positive(t, served[0])
	require.Positive(t, served[1])
	for _, stop := range stops {
		stop()
		stop()
	}
	eventually(t, func() bool {
		short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := asker.Request(short, subject, nil, nil)
		return errors.Is(err, bus.ErrNoOwner)
	}, "nobody serves any more")
	_, err = asker.Request(within(t), "drover.log.0.resource.a.b.c.is.-", nil, nil)
	require.Error(t, err)
	_, err = asker.Request(within(t), subject, nil, make([]byte, bus.CommandBytesMax+1))
	require.ErrorIs(t, err, bus.ErrTooLarge)
}

func (s *suite) notify(t *testing.T) {
	if s.OnNotice == nil {
		t.Skip("cannot listen to notices")
	}
	got := make(chan Message, 1000)
	s.OnNotice(t, func(m Message) { got <- m })
	// Nothing keeps a notice for a listener whose interest has not yet reached the publisher's server.
	var m Message
	eventually(t, func() bool {
		require.NoError(t, s.b.Notify("drover.notice.team.web", map[string]string{"X": "y"}, []byte("body")))
		select {
		case m = <-got:
			return true
		case <-time.After(50 * time.Millisecond):
			return false
		}
	}, "the notice")
	require.Equal(t, Message{Subject: "drover.notice.team.web", Header: map[string]string{"X": "y"}, Body: []byte("body")}, m)
	for _, subject := range []string{"", "drover.notice", "drover.notice.", "drover.notice.a..b", "drover.notice.*", "drover.notice.>",
		"drover.notice.a b", "drover.log.0.resource.a.b.c.is.-", "drover.noticed.a", "xdrover.notice.a", "drover.notice.a\r\nPUB x"} {
		require.ErrorIs(t, s.b.Notify(subject, nil, nil), bus.ErrDenied, "%q", subject)
	}
	require.ErrorIs(t, s.b.Notify("drover.notice.a", nil, make([]byte, bus.BodyBytesMax+1)), bus.ErrTooLarge)
}

// Of those that name one group, one gets each notice; each group gets all.
func (s *suite) notices(t *testing.T) {
	const subject, enough = "drover.notice.plugin.x=2Ey", 40
	var mu sync.Mutex
	got := map[string]map[string]int{} // how often, by listener and body
	listen := func(who, subject, group string) {
		stop, err := s.b.Notices(subject, group, func(h map[string]string, body []byte) {
			mu.Lock()
			defer mu.Unlock()
			if got[who] == nil {
				got[who] = map[string]int{}
			}
			if h["X"] == "y" {
				got[who][string(body)]++
			}
		})
		require.NoError(t, err)
		t.Cleanup(stop)
	}
	listen("a1", subject, "a")
	listen("a2", subject, "a")
	listen("b", subject, "b")
	listen("other", subject+".z", "a")
	sum := func(who ...string) (n int) {
		mu.Lock()
		defer mu.Unlock()
		for _, w := range who {
			for _, times := range got[w] {
				n += times
			}
		}
		return n
	}
	// The first ones may be lost: see notify.
	eventually(t, func() bool {
		require.NoError(t, s.b.Notify(subject, map[string]string{"X": "y"}, []byte("begin")))
		time.Sleep(5 * time.Millisecond)
		return sum("a1", "a2") > 0 && sum("b") > 0
	}, "interest")
	for i := range enough {
		require.NoError(t, s.b.Notify(subject, map[string]string{"X": "y"}, fmt.Append(nil, i)))
	}
	each := func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		all := map[string]int{}
		for _, who := range []string{"a1", "a2"} {
			for body, n := range got[who] {
				all[body] += n
			}
		}
		delete(all, "begin")
		return all
	}
	eventually(t, func() bool { return len(each()) == enough }, "all of them")
	for body, n := range each() {
		require.Equal(t, 1, n, body)
	}
	eventually(t, func() bool { return sum("b") >= enough+1 }, "the other group")
	require.Zero(t, sum("other"))
	for _, wrong := range [][2]string{{"drover.evt.>", "a"}, {"drover.notice.>", "a"}, {subject, ""}, {subject, "a b"}} {
		_, err := s.b.Notices(wrong[0], wrong[1], func(map[string]string, []byte) {})
		require.ErrorIs(t, err, bus.ErrDenied)
	}
}

func (s *suite) fullStream(t *testing.T) {
	ctx := within(t)
	subject := bus.CommandSubject("cmd", t.Name(), "node", "r", "start")
	taken := 0
	var err error
	for ; taken <= 2*CommandMessages; taken++ {
		if _, err = s.b.PublishCommand(ctx, subject, nil, []byte("x")); err != nil {
			break
		}
	}
	require.ErrorIs(t, err, bus.ErrFull)
	require.Equal(t, CommandMessages, taken, "all that fit were taken, and no more")
	// The flood drowns nothing else.
	require.NoError(t, s.b.PublishResult(ctx, bus.ResultSubject(0, t.Name(), "node", "r"), nil, []byte("result")))
	results, err := s.b.Results(ctx, 0)
	require.NoError(t, err)
	defer results.Close()
	require.NoError(t, receive(t, results.C(), "a result").Ack())
	s.append(t, bus.Append{Entity: resource(t, "r")})
	// Once something was taken, there is room.
	in := s.commands(t, commandPartition(t, "r"))
	for range taken {
		require.NoError(t, receive(t, in.C(), "a command").Ack())
	}
	eventually(t, func() bool { _, err := s.b.PublishCommand(ctx, subject, nil, []byte("y")); return err == nil }, "room again")
	d := receive(t, in.C(), "the command")
	require.Equal(t, "y", string(d.Body()))
	require.NoError(t, d.Ack())
}
