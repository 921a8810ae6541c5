package bus

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
)

// The grammar. Every name below is one Token.
//
//	drover.cmd.<project>.<kind>.<name>.<verb>                            a command, to be captured
//	drover.api.<project>.<kind>.<name>.<verb>                            a command as a request
//	drover.refused.<project>.<request id>                                why a captured command was refused
//	drover.ask.<partition>                                               a request to a partition's owner, not captured
//	drover.door.<partition>.<door>                                       a request of who serves a front door, not captured
//	drover.phase.<partition>.<project>.<kind>.<phase>                    a request of a phase's worker, not captured
//	drover.result.<partition>.<project>.<kind>.<name>                    an executor's answer
//	drover.result.<partition>.-.callback.<id>                            what somebody says who holds an id and no fence
//	drover.log.<partition>.<family>.<entity…>.is.-                       an event
//	drover.log.<partition>.resource.<project>.<kind>.<name>.do.<phase>   an event that hands out a phase
//	drover.log.<partition>.<spec|blueprint>.<entity…>.is.<digest>        an event that brings a version
//	drover.work.<project>.<kind>.<phase>                                 work, derived from the log; and polls
//	drover.evt.<family>.<entity…>                                        the feed, republished from the buckets
//	drover.out.<project>.<kind>.<name>                                   output lines
//	drover.timer.<tick>, drover.tick.<tick>                              a schedule, and what it fires
//	drover.ticked.<tick>                                                 the tick, republished
//	drover.member.<service>.<id>                                         a member's heartbeat, not captured
//	drover.poison.<stream>                                               what was set aside
//
// The two last tokens of a log subject keep one length for all events of an entity, so that one filter (Entity.Filter)
// covers them and one transform makes the bucket's key; the mark "do" is what WORK is derived by.

// Header names.
const (
	HeaderFrom      = "Drover-From"
	HeaderTo        = "Drover-To"
	HeaderJob       = "Drover-Job"
	HeaderRevision  = "Drover-Revision"
	HeaderRequestID = "Drover-Request-Id"
	HeaderReplyTo   = "Drover-Reply-To"
	HeaderPoll      = "Drover-Poll"
	HeaderReason    = "Drover-Reason"
	// HeaderOriginalSubject and HeaderOriginalSeq say where a message that was set aside came from.
	HeaderOriginalSubject = "Drover-Original-Subject"
	HeaderOriginalSeq     = "Drover-Original-Sequence"
	// HeaderVerb is what an uncaptured request asks for (Request.Verb).
	HeaderVerb        = "Drover-Verb"
	HeaderContentType = "Content-Type"
	HeaderTraceparent = "traceparent"
	ContentTypeJSON   = "application/json"
)

// PartitionOf is the partition of a tree, by its root's project and name: FNV-1a (32 bit) over both, joined by "/", modulo
// n. A child's name begins with that of its root and a slash, which no root's name holds, so a name alone says where its
// tree is; the kind has no part in it, as children are of other kinds than their roots.
func PartitionOf(project, _, name string, n int) int {
	root, _, _ := strings.Cut(name, "/")
	h := fnv.New32a()
	for _, part := range []string{project, "/", root} {
		_, _ = h.Write([]byte(part)) // a hash never fails
	}
	return int(h.Sum32() % uint32(n))
}

// CommandPartition is the partition of COMMANDS that holds the commands to a resource, whatever tree it is in: all of
// them in order. The server computes it when it stores one: FNV-1a (32 bit) over the tokens of project, kind and name,
// joined without a separator, modulo n.
func CommandPartition(project, kind, name string, n int) int {
	h := fnv.New32a()
	for _, part := range []string{project, kind, name} {
		_, _ = h.Write([]byte(Token(part))) // a hash never fails
	}
	return int(h.Sum32() % uint32(n))
}

// tokens are the entity's own, joined.
func (e Entity) tokens() string {
	tokens := Token(e.Project)
	if e.Family.HasKind() {
		tokens += "." + Token(e.Kind)
	}
	if e.Family.HasName() {
		tokens += "." + Token(e.Name)
	}
	return tokens
}

// Tokens is how many tokens name an entity of the family.
func (f Family) Tokens() int {
	if f.HasKind() && f.HasName() {
		return 3
	}
	return 2
}

// versioned reports whether the family's events bring versions, each under a subject of its own.
func (f Family) versioned() bool { return f == Spec || f == Blueprint }

// prefix is the subject of the entity in the log, without mark and tail.
func (e Entity) prefix() string {
	return "drover.log." + strconv.Itoa(e.Partition) + "." + string(e.Family) + "." + e.tokens()
}

// Filter is the one filter string of the entity: every append carries exactly this one as
// Nats-Expected-Last-Subject-Sequence-Subject. Two different filters for one entity would let two writers win.
func (e Entity) Filter() string { return e.prefix() + ".>" }

// Subject is where an append goes.
func (a Append) Subject() string {
	switch {
	case a.Dispatch != "":
		return a.Entity.prefix() + ".do." + Token(a.Dispatch)
	case a.Version != "":
		return a.Entity.prefix() + ".is." + Token(a.Version)
	default:
		return a.Entity.prefix() + ".is.-"
	}
}

// VersionSubject is where the event that brought a digest is found.
func (e Entity) VersionSubject(version string) string { return e.prefix() + ".is." + Token(version) }

// Key is the entity's key in its bucket.
func (e Entity) Key() string { return e.tokens() }

// Bucket is the family's bucket.
func (f Family) Bucket() string { return "drover_" + string(f) + "s" }

// EvtSubject is the entity's subject in the feed.
func (e Entity) EvtSubject() string { return "drover.evt." + string(e.Family) + "." + e.tokens() }

// ParseLogSubject is the inverse of Append.Subject.
func ParseLogSubject(subject string) (e Entity, dispatch, version string, err error) {
	bad := func() (Entity, string, string, error) {
		return Entity{}, "", "", fmt.Errorf("not a subject of the log: %q", subject)
	}
	t := strings.Split(subject, ".")
	if len(t) < 7 || t[0] != "drover" || t[1] != "log" {
		return bad()
	}
	partition, perr := strconv.Atoi(t[2])
	if perr != nil || partition < 0 || strconv.Itoa(partition) != t[2] {
		return bad()
	}
	e, ok := entityOf(Family(t[3]), t[4:len(t)-2])
	if !ok {
		return bad()
	}
	e.Partition = partition
	mark, tail := t[len(t)-2], t[len(t)-1]
	if mark == "is" && tail == "-" {
		return e, "", "", nil
	}
	name, nerr := Name(tail)
	if nerr != nil {
		return bad()
	}
	switch {
	case mark == "do" && e.Family == Resource:
		return e, name, "", nil
	case mark == "is" && e.Family.versioned():
		return e, "", name, nil
	}
	return bad()
}

// ParseKey is the inverse of Entity.Key.
func ParseKey(f Family, key string) (Entity, error) {
	e, ok := entityOf(f, strings.Split(key, "."))
	if !ok {
		return Entity{}, fmt.Errorf("not a key of bucket %s: %q", f.Bucket(), key)
	}
	return e, nil
}

func entityOf(f Family, tokens []string) (Entity, bool) {
	names := make([]string, len(tokens))
	for i, t := range tokens {
		name, err := Name(t)
		if err != nil {
			return Entity{}, false
		}
		names[i] = name
	}
	if !f.Known() || len(names) != f.Tokens() {
		return Entity{}, false
	}
	e := Entity{Family: f, Project: names[0]}
	if f.HasKind() {
		e.Kind = names[1]
	}
	if f.HasName() {
		e.Name = names[len(names)-1]
	}
	return e, true
}

// CommandSubject is where a command is published: prefix is "cmd" (captured) or "api" (a request).
func CommandSubject(prefix, project, kind, name, verb string) string {
	return "drover." + prefix + "." + Token(project) + "." + Token(kind) + "." + Token(name) + "." + Token(verb)
}

// ParseCommandSubject is the inverse of CommandSubject, for both prefixes.
func ParseCommandSubject(subject string) (project, kind, name, verb string, err error) {
	t := strings.Split(subject, ".")
	if len(t) != 6 || t[0] != "drover" || t[1] != "cmd" && t[1] != "api" {
		return "", "", "", "", fmt.Errorf("not a subject of a command: %q", subject)
	}
	var names [4]string
	for i := range names {
		if names[i], err = Name(t[i+2]); err != nil {
			return "", "", "", "", fmt.Errorf("not a subject of a command: %q: %w", subject, err)
		}
	}
	return names[0], names[1], names[2], names[3], nil
}

// ResultSubject is where the results of a resource go.
func ResultSubject(partition int, project, kind, name string) string {
	return "drover.result." + strconv.Itoa(partition) + "." + Token(project) + "." + Token(kind) + "." + Token(name)
}

// ParseResultSubject is the inverse of ResultSubject.
func ParseResultSubject(subject string) (Entity, error) {
	t := strings.Split(subject, ".")
	if len(t) == 6 && t[0] == "drover" && t[1] == "result" {
		partition, err := strconv.Atoi(t[2])
		if e, ok := entityOf(Resource, t[3:]); ok && err == nil && partition >= 0 && strconv.Itoa(partition) == t[2] {
			e.Partition = partition
			return e, nil
		}
	}
	return Entity{}, fmt.Errorf("not a subject of a result: %q", subject)
}

// CallbackSubject is where a callback goes: to the partition that its id names, among the results. No project has the token
// "-", so that no result of a resource is there, and who may publish here may publish none.
func CallbackSubject(partition int, id uint64) string {
	return "drover.result." + strconv.Itoa(partition) + ".-.callback." + strconv.FormatUint(id, 10)
}

// CallbackSubjects are all of them.
const CallbackSubjects = "drover.result.*.-.callback.*"

// ParseCallbackSubject is the inverse of CallbackSubject.
func ParseCallbackSubject(subject string) (partition int, id uint64, err error) {
	if rest, ok := strings.CutPrefix(subject, "drover.result."); ok {
		t := strings.Split(rest, ".")
		if len(t) == 4 && t[1] == "-" && t[2] == "callback" {
			partition, perr := strconv.Atoi(t[0])
			id, err := strconv.ParseUint(t[3], 10, 64)
			if perr == nil && err == nil && partition >= 0 && CallbackSubject(partition, id) == subject {
				return partition, id, nil
			}
		}
	}
	return 0, 0, fmt.Errorf("not a subject of a callback: %q", subject)
}

// ResultPartition is the partition to which a result or a callback is published.
func ResultPartition(subject string) (int, error) {
	if partition, _, err := ParseCallbackSubject(subject); err == nil {
		return partition, nil
	}
	e, err := ParseResultSubject(subject)
	return e.Partition, err
}

// WorkSubject is where the work of a phase waits.
func (p Phase) WorkSubject() string {
	return "drover.work." + Token(p.Project) + "." + Token(p.Kind) + "." + Token(p.Phase)
}

// Subjects in RESULTS and WORK that no result, work or consumer has: the bus keeps a message there of its own, so that the
// server need not make a new file whenever nothing else is left.
const (
	KeepResults = "drover.result.keep.-.-.-"
	KeepWork    = "drover.work.keep"
)

// Consumer is the name of the phase's one consumer: its tokens joined by "~", which no token holds. It is at most
// 255 bytes; longer names are cut and end in a hash of the whole.
func (p Phase) Consumer() string {
	name := strings.ReplaceAll(Token(p.Project)+"~"+Token(p.Kind)+"~"+Token(p.Phase), "=", "+")
	if len(name) <= 200 {
		return name
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // a hash never fails
	return name[:180] + "~" + strconv.FormatUint(h.Sum64(), 16)
}

// TaskRunOutput stands for the kind in the subjects of what task runs print; the name is the run's id.
const TaskRunOutput = "taskrun"

// OutSubject is where the output lines of a resource go.
func OutSubject(project, kind, name string) string {
	return "drover.out." + Token(project) + "." + Token(kind) + "." + Token(name)
}

// RefusedSubject is where a refusal is kept.
func RefusedSubject(project, requestID string) string {
	return "drover.refused." + Token(project) + "." + Token(requestID)
}

// AskSubject is where a partition's owner takes requests.
func AskSubject(partition int) string { return "drover.ask." + strconv.Itoa(partition) }

// DoorSubject is where a partition's owner takes requests of those who serve a front door, who may ask for nothing else.
func DoorSubject(partition int, door string) string {
	return "drover.door." + strconv.Itoa(partition) + "." + Token(door)
}

// DoorsSubject is what the owner of a partition subscribes for them.
func DoorsSubject(partition int) string { return "drover.door." + strconv.Itoa(partition) + ".*" }

// ParseDoorSubject is the inverse of DoorSubject.
func ParseDoorSubject(subject string) (partition int, door string, err error) {
	t := strings.Split(subject, ".")
	if len(t) == 4 && t[0] == "drover" && t[1] == "door" {
		partition, err = strconv.Atoi(t[2])
		if door, nameErr := Name(t[3]); nameErr == nil && err == nil && partition >= 0 && strconv.Itoa(partition) == t[2] && Token(door) == t[3] {
			return partition, door, nil
		}
	}
	return 0, "", fmt.Errorf("not a subject of a front door: %q", subject)
}

// Door splits the verb of a request at its first dot: the front door, and what is asked of it.
func (r Request) Door() (door, verb string) {
	door, verb, _ = strings.Cut(r.Verb, ".")
	return door, verb
}

// Partition is the partition of a phase's record, which is that of its kind's blueprint.
func (p Phase) Partition(partitions int) int { return PartitionOf(p.Project, "", p.Kind, partitions) }

// AskSubject is where the owner of the phase's record takes requests of its workers.
func (p Phase) AskSubject(partitions int) string {
	return "drover.phase." + strconv.Itoa(p.Partition(partitions)) + "." + Token(p.Project) + "." + Token(p.Kind) + "." + Token(p.Phase)
}

// PhasesSubject is what the owner of a partition subscribes for them.
func PhasesSubject(partition int) string { return "drover.phase." + strconv.Itoa(partition) + ".>" }

// ParsePhaseSubject is the inverse of Phase.AskSubject.
func ParsePhaseSubject(subject string) (p Phase, partition int, err error) {
	t := strings.Split(subject, ".")
	if len(t) == 6 && t[0] == "drover" && t[1] == "phase" {
		partition, err = strconv.Atoi(t[2])
		if e, ok := entityOf(PhaseRecord, t[3:]); ok && err == nil && partition >= 0 && strconv.Itoa(partition) == t[2] {
			return Phase{Project: e.Project, Kind: e.Kind, Phase: e.Name}, partition, nil
		}
	}
	return Phase{}, 0, fmt.Errorf("not a subject of a phase's workers: %q", subject)
}

// Of is a worker's request as the owner is given it: its verb can name nothing but what workers may ask.
func (r Request) Of(p Phase) Request {
	r.Phase, r.Verb = p, string(PhaseRecord)+"."+r.Verb
	return r
}
