// Package notice is what a listener is told: the transitions that it listens to, gathered into one message for each
// kind, state and cluster, as CycleCloud's StateEvent does (seed 003, "State Listeners").
package notice

import (
	"encoding/json"
	"strconv"
	"time"
)

// Limits of one message.
const (
	ResourcesMax = 500 // resources in one message; more are told in further ones
)

// Headers of a message.
const (
	HeaderEventID  = "Drover-Event-Id" // project/kind/name/uid/revision of the first resource: equal where it is told again
	HeaderListener = "Drover-Listener" // project/name of the listener
)

// Event is one resource that entered a state.
type Event struct {
	Project, Kind, Name string
	UID                 string
	Revision            uint64
	State               string
	Cluster             string
	JobID               string
	Time                time.Time
	Traceparent         string
}

// ID names the event for all time.
func (e *Event) ID() string {
	return e.Project + "/" + e.Kind + "/" + e.Name + "/" + e.UID + "/" + strconv.FormatUint(e.Revision, 10)
}

// Message is one call or one publication: 1 to ResourcesMax events of one kind, state and cluster, in the order in
// which they came.
type Message struct {
	Events []Event
}

// ID is that of the first event. An event is in one message only, so it names the message too.
func (m *Message) ID() string { return m.Events[0].ID() }

// Traceparent is that of the first event that has one.
func (m *Message) Traceparent() string {
	for i := range m.Events {
		if m.Events[i].Traceparent != "" {
			return m.Events[i].Traceparent
		}
	}
	return ""
}

type body struct {
	Type      string     `json:"type"`
	State     string     `json:"state"`
	Cluster   string     `json:"cluster"`
	Resources []resource `json:"resources"`
}

type resource struct {
	Project  string    `json:"project"`
	Kind     string    `json:"kind"`
	Name     string    `json:"name"`
	UID      string    `json:"uid"`
	Revision uint64    `json:"revision,string"` // as in the events' own JSON
	JobID    string    `json:"jobId"`
	Time     time.Time `json:"time"`
}

// JSON is the body of the message.
func (m *Message) JSON() ([]byte, error) {
	first := &m.Events[0]
	b := body{Type: first.Kind, State: first.State, Cluster: first.Cluster, Resources: make([]resource, len(m.Events))}
	for i := range m.Events {
		e := &m.Events[i]
		b.Resources[i] = resource{e.Project, e.Kind, e.Name, e.UID, e.Revision, e.JobID, e.Time}
	}
	return json.Marshal(b)
}

// Group makes messages of events, in the order of their first events.
func Group(events []Event) []Message {
	type key struct{ kind, state, cluster string }
	var messages []Message
	open := map[key]int{} // index of the message that still takes events
	for _, e := range events {
		k := key{e.Kind, e.State, e.Cluster}
		i, ok := open[k]
		if !ok || len(messages[i].Events) == ResourcesMax {
			i = len(messages)
			messages = append(messages, Message{})
			open[k] = i
		}
		messages[i].Events = append(messages[i].Events, e)
	}
	return messages
}
