package bus

import (
	"fmt"
	"strings"
)

// Service is a role towards the servers. Each process, and each person, has an NKey of its own and one of these.
type Service string

// The services, and the people.
const (
	Intake       Service = "intake"
	Orchestrator Service = "orchestrator"
	Lifecycle    Service = "lifecycle"
	Notifier     Service = "notifier"
	Gateway      Service = "gateway"
	Runner       Service = "runner"   // and every plugin's worker that announces nothing
	Plugin       Service = "plugin"   // a plugin's worker that announces its phases and listeners
	User         Service = "user"     // the CLI and other clients; of one project: ProjectUser
	Operator     Service = "operator" // sets systems up and repairs them
)

// Contract is what a service may publish and subscribe. The server enforces it: see RenderPermissions.
type Contract struct {
	Service   Service
	About     string
	Publish   []string
	Subscribe []string
	// Replies says that it answers requests: once each.
	Replies bool
}

// BenchSubjects are what `drover bench system` publishes to a stream of its own: the server's speed without Drover. They are no part of
// Drover's grammar.
const BenchSubjects = "drover-bench.*"

// InboxPrefix is the first part of the subjects that a service's replies come to. Nobody else may subscribe them.
func InboxPrefix(s Service) string { return "_INBOX_" + string(s) }

// watches lets a client of JetStream go on with what a watch of a stream brings, of which the server sends no more than a MiB or so
// before it is told that it has come. It answers consumers whose names nobody else knows.
func watches(streams ...string) []string {
	return around("$JS.FC.", ".>", streams...)
}

// ends lets it end a watch at once: nats.go waits 5 s for a deletion that is refused. Whoever reads goes on with another consumer.
// A user of one project has no such right, since these subjects name no project.
func ends(streams ...string) []string { return around("$JS.API.CONSUMER.DELETE.", ".*", streams...) }

// Contracts is the one page that says who may say what. In short: commands come from users, results from runners, and
// only the orchestrator appends to the log, from which the server derives everything else.
func Contracts() []Contract {
	// What every process does: connect, ask after streams, look for drift, share partitions, hear ticks.
	service := func(s Service, about string, publish, subscribe []string) Contract {
		member := "drover.member." + string(s) + ".*"
		return Contract{Service: s, About: about,
			Publish:   join([]string{"$JS.API.INFO", "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.MSG.GET.TIMERS", member}, publish),
			Subscribe: join([]string{InboxPrefix(s) + ".>", "drover.ticked.*", member}, subscribe)}
	}
	buckets := make([]string, 0, len(Families()))
	for _, f := range Families() {
		buckets = append(buckets, "KV_"+f.Bucket())
	}
	readBuckets := reads(buckets...)
	versions := []string{"$JS.API.DIRECT.GET.EVENTS", "$JS.API.DIRECT.GET.EVENTS.>", "$JS.API.STREAM.MSG.GET.EVENTS"}

	intake := service(Intake, "takes commands, checks them, asks the partition's owner",
		join(consumes("COMMANDS"), []string{"drover.ask.*", "drover.refused.>", "drover.poison.COMMANDS", "$JS.API.STREAM.MSG.GET.COMMANDS"},
			readBuckets, versions),
		[]string{"drover.api.>", "$SRV.>", "drover.evt.>"})
	intake.Replies = true

	orchestrator := service(Orchestrator, "decides: the only one that appends to the log, makes work consumers and forgets what is gone",
		join([]string{"drover.log.>", "drover.work.>", KeepResults, "drover.ask.*", "drover.refused.>", "drover.poison.RESULTS"}, consumes("RESULTS"),
			reads("EVENTS"), readBuckets, each("$JS.API.STREAM.MSG.GET.", append(buckets, "EVENTS", "RESULTS", "WORK")...),
			each("$JS.API.STREAM.PURGE.", append(buckets, "EVENTS", "WORK")...),
			[]string{"$JS.API.CONSUMER.CREATE.WORK.>", "$JS.API.CONSUMER.DELETE.WORK.*", "$JS.API.CONSUMER.INFO.WORK.*"}),
		[]string{"drover.ask.*", "drover.phase.>", "drover.door.>", "drover.evt.>"})
	orchestrator.Replies = true

	return []Contract{
		intake,
		orchestrator,
		service(Lifecycle, "asks the owners to sweep, and has the streams that stand still derived by another server",
			join([]string{"drover.ask.*", "$JS.API.STREAM.MSG.GET.COMMANDS", "$JS.API.STREAM.MSG.GET.RESULTS", "$JS.API.STREAM.MSG.GET.EVENTS",
				"$JS.API.CONSUMER.INFO.COMMANDS.*", "$JS.API.CONSUMER.INFO.RESULTS.*"}, readBuckets,
				each("$JS.API.STREAM.LEADER.STEPDOWN.", append(buckets, "WORK")...)),
			[]string{"drover.evt.>"}),
		service(Notifier, "tells listeners, and pokes monitoring systems; it can hold nothing up",
			join([]string{"drover.notice.>", "drover.door.*.check"}, readBuckets, versions),
			[]string{"drover.evt.>"}),
		service(Gateway, "turns HTTP into requests and commands, and what modules and agents say into callbacks and lines of output",
			join([]string{"drover.api.>", "drover.cmd.>", "drover.door.*.callback", "drover.door.*.check", "drover.door.*.machine", CallbackSubjects, "drover.out.>"}, readBuckets, versions, reads("OUTPUT")),
			[]string{"drover.evt.>"}),
		service(Runner, "pulls work and answers it; its workers make no consumers",
			join([]string{"drover.result.>", "drover.phase.>", "drover.out.>", "drover.poison.WORK", "$JS.API.CONSUMER.INFO.WORK.*", "$JS.API.CONSUMER.MSG.NEXT.WORK.*", "$JS.ACK.WORK.>"},
				readBuckets, versions),
			[]string{"drover.evt.>"}),
		service(Plugin, "a worker that also announces: it may change any blueprint and listener, so it is trusted as a user is",
			join([]string{"drover.api.*.Blueprint.*.apply", "drover.api.*.Listener.*.apply", "drover.result.>", "drover.phase.>", "drover.out.>", "drover.poison.WORK",
				"$JS.API.CONSUMER.INFO.WORK.*", "$JS.API.CONSUMER.MSG.NEXT.WORK.*", "$JS.ACK.WORK.>"}, readBuckets, versions),
			[]string{"drover.evt.>", "drover.notice.>"}),
		{Service: User, About: "commands, and looks on",
			Publish: join([]string{"drover.cmd.>", "drover.api.>", "$SRV.>", "$JS.API.INFO", "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.MSG.GET.TIMERS",
				"$JS.API.DIRECT.GET.REFUSED.>"}, readBuckets, reads("EVENTS", "OUTPUT"), versions[1:], watches(append(buckets, "EVENTS", "OUTPUT")...),
				ends(append(buckets, "EVENTS", "OUTPUT")...)),
			Subscribe: []string{InboxPrefix(User) + ".>", "drover.evt.>", "drover.notice.>"}},
		{Service: Operator, About: "sets up, repairs, backs up and restores, and looks at everything; appends nothing",
			Publish:   []string{"drover.cmd.>", "drover.api.>", "drover.timer.>", BenchSubjects, "$SRV.>", "$JS.API.>", "$JS.SNAPSHOT.>", "$JS.FC.>"},
			Subscribe: []string{InboxPrefix(Operator) + ".>", "drover.>", "$KV.>", "$JS.EVENT.>"}},
	}
}

// ProjectUser is a user who commands and sees one project only. Its bus must use the inbox prefix
// InboxPrefix(User)+"_"+Token(project).
//
// Names are not kept from it: a client of JetStream asks after streams ($JS.API.STREAM.INFO), and the server's answer lists
// the subjects of a stream, so the keys of all projects, to who asks for them. What the keys hold it cannot read. Whom names
// must be kept from has a system, or a NATS account, of its own.
func ProjectUser(project string) Contract {
	p := Token(project)
	publish := []string{"drover.cmd." + p + ".>", "drover.api." + p + ".>", "$JS.API.INFO", "$JS.API.STREAM.INFO.*", "$JS.API.DIRECT.GET.REFUSED.drover.refused." + p + ".>"}
	subscribe := []string{InboxPrefix(User) + "_" + p + ".>"}
	read := func(stream, subjects string) {
		publish = append(publish, "$JS.API.DIRECT.GET."+stream+"."+subjects, "$JS.API.CONSUMER.CREATE."+stream+".*."+subjects, "$JS.API.CONSUMER.MSG.NEXT."+stream+".*")
		publish = append(publish, watches(stream)...)
	}
	for _, f := range Families() {
		read("KV_"+f.Bucket(), "$KV."+f.Bucket()+"."+p+".>")
		subscribe = append(subscribe, "drover.evt."+string(f)+"."+p+".>")
	}
	read("OUTPUT", "drover.out."+p+".>")
	return Contract{Service: User, About: "commands and sees project " + project, Publish: publish, Subscribe: subscribe}
}

// consumes is what an inbox of a stream takes.
func consumes(stream string) []string {
	return []string{"$JS.API.CONSUMER.CREATE." + stream + ".>", "$JS.API.CONSUMER.INFO." + stream + ".*", "$JS.API.CONSUMER.MSG.NEXT." + stream + ".*", "$JS.ACK." + stream + ".>"}
}

// reads is what looking into streams takes.
func reads(streams ...string) []string {
	var all []string
	for _, s := range streams {
		all = append(all, "$JS.API.DIRECT.GET."+s, "$JS.API.DIRECT.GET."+s+".>", "$JS.API.CONSUMER.CREATE."+s, "$JS.API.CONSUMER.CREATE."+s+".>",
			"$JS.API.CONSUMER.MSG.NEXT."+s+".*")
	}
	return all
}

func each(prefix string, names ...string) []string { return around(prefix, "", names...) }

func around(prefix, suffix string, names ...string) []string {
	all := make([]string, len(names))
	for i, n := range names {
		all[i] = prefix + n + suffix
	}
	return all
}

func join(lists ...[]string) []string {
	var all []string
	seen := map[string]struct{}{}
	for _, l := range lists {
		for _, s := range l {
			if _, ok := seen[s]; !ok {
				seen[s] = struct{}{}
				all = append(all, s)
			}
		}
	}
	return all
}

// Variable is the name under which RenderPermissions defines a service's permissions.
func (c Contract) Variable() string { return "DROVER_" + strings.ToUpper(string(c.Service)) }

// RenderPermissions writes contracts as a part of a NATS server's configuration: a variable each, to be named by users.
func RenderPermissions(contracts []Contract) string {
	var b strings.Builder
	b.WriteString(`# Who may say what: generated from pkg/bus/contract.go, do not edit.
#
# Include it inside the server's "authorization" or account block, and give each user one of the variables:
#
#     authorization {
#       include ./permissions.conf
#       users: [ {nkey: UA..., permissions: $DROVER_RUNNER}, ... ]
#     }
#
# The server refuses variables that no user names: leave out what a system does not have.
`)
	for _, c := range contracts {
		fmt.Fprintf(&b, "\n# %s: %s.\n%s: {\n", c.Service, c.About, c.Variable())
		list := func(what string, subjects []string) {
			fmt.Fprintf(&b, "  %s: {\n    allow: [\n", what)
			for _, s := range subjects {
				fmt.Fprintf(&b, "      %q\n", s)
			}
			b.WriteString("    ]\n  }\n")
		}
		list("publish", c.Publish)
		list("subscribe", c.Subscribe)
		if c.Replies {
			b.WriteString("  allow_responses: {max: 1, expires: \"1m\"}\n")
		}
		b.WriteString("}\n")
	}
	return b.String()
}

// RenderAuthorization writes the "authorization" block of a NATS server's configuration: the permissions, and for each
// service the user who has them, by the public part of its NKey. Every contract needs one.
func RenderAuthorization(contracts []Contract, nkeys map[Service]string) (string, error) {
	var b strings.Builder
	b.WriteString("# Who may connect, and say what: made by `drover keys`, do not edit.\n\nauthorization {\n")
	b.WriteString(RenderPermissions(contracts))
	b.WriteString("\nusers: [\n")
	for _, c := range contracts {
		if nkeys[c.Service] == "" {
			return "", fmt.Errorf("authorization: no NKey for %s", c.Service)
		}
		fmt.Fprintf(&b, "  {nkey: %s, permissions: $%s}\n", nkeys[c.Service], c.Variable())
	}
	b.WriteString("]\n}\n")
	return b.String(), nil
}
