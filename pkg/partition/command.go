package partition

import (
	"errors"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/catalog"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/engine/selection"
	"github.com/droverproject/drover/pkg/host"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/wire"
)

// headerSubject is the header in which intake passes a command's subject on.
const headerSubject = "Drover-Subject"

// headerSelection is the header in which a selection says that the job will be its own. Only orchestrators send it: intake
// passes on no header that it does not know.
const headerSelection = "Drover-Selection"

// command turns a request of intake into an input. Intake has checked its form; what is checked again here is what the
// log must never hold.
func (o *Owner) command(r bus.Request, reply Reply) {
	h := r.Header
	invalid := func(field, reason string) {
		o.refuseWith(reply, h, refusal(resource.Invalid, field, reason))
	}
	project, kind, name, verb, err := bus.ParseCommandSubject(h[headerSubject])
	if err != nil {
		invalid("subject", err.Error())
		return
	}
	requestID := h[bus.HeaderRequestID]
	if requestID == "" {
		invalid(bus.HeaderRequestID, "missing")
		return
	}
	body, err := wire.DecodeCommand(h[bus.HeaderContentType], r.Body)
	if err != nil {
		field := "body"
		var fe *wire.FieldError
		if errors.As(err, &fe) && fe.Field != "" {
			field = fe.Field
		}
		invalid(field, err.Error())
		return
	}
	key := resource.Key{Project: project, Kind: kind, Name: name}
	if name == selection.Name {
		o.selections.command(selection.Command{
			Project: project, Kind: kind, Verb: verb, ID: wire.JobID(key, requestID), RequestID: requestID,
			Digest: wire.BodyDigest(verb, body), RequestedBy: body.RequestedBy, Selector: body.Selector, Args: body.Args,
		}, body.Args["job"], body.Args[selection.ArgCascade] == "true", func(decided resource.Reply) {
			o.decided(reply, h, key, requestID, decided)
		})
		return
	}
	for _, d := range o.doors {
		if t, ok := d.(commander); ok && t.takes(kind) {
			t.command(doorCommand{Key: key, verb: verb, requestID: requestID, body: body}, func(decided resource.Reply) {
				o.decided(reply, h, key, requestID, decided)
			})
			return
		}
	}
	at := o.c.Now()
	c := resource.Command{
		Key: key, Verb: verb, RequestID: requestID, JobID: wire.JobID(key, requestID), Digest: wire.BodyDigest(verb, body),
		NewUID: wire.UID(key, requestID, at), RequestedBy: body.RequestedBy,
		Selection: h[headerSelection], Scope: body.Args["scope"], Job: body.Args["job"], Message: body.Args["message"], Phase: body.Args["phase"],
	}
	in := drive.Input{Key: key, Input: resource.Input{
		Kind: resource.OnCommand, At: at, Command: &c, Traceparent: h[bus.HeaderTraceparent],
	}}
	if verb == resource.VerbApply {
		var r *resource.Refusal
		if in.Spec, c.SpecDigest, r = appliedSpec(body); r != nil {
			o.refuseWith(reply, h, r)
			return
		}
		c.Labels, c.Cluster = body.Manifest.Labels, body.Manifest.Cluster
		if kind == drive.BlueprintKind {
			bp, violations := manifest.Blueprint(project, name, in.Spec)
			if len(violations) > 0 {
				o.refuseWith(reply, h, &resource.Refusal{Code: resource.Invalid, Message: "the blueprint is not valid", Violations: violations})
				return
			}
			bp.Digest = c.SpecDigest
			in.Blueprint, in.IfDigest = bp, body.Args[drive.ArgIfDigest]
		}
	}
	in.Reply = func(decided resource.Reply) { o.decided(reply, h, key, requestID, decided) }
	in.Back = func(err error) {
		o.c.Log.Warn("a command could not be decided now", host.Resource(project, kind, name), zap.Error(err))
		o.refuse(reply, h, resource.Overloaded, "the command could not be decided now; try again: "+err.Error())
	}
	in.Aside = func(reason string) { o.refuse(reply, h, resource.TooLarge, reason) }
	o.loop.Offer([]drive.Input{in})
}

// decided answers with what was decided.
func (o *Owner) decided(reply Reply, h map[string]string, key resource.Key, requestID string, r resource.Reply) {
	host.CrashPoint("orchestrator.before-reply")
	if r.Refused != nil {
		o.refuseWith(reply, h, r.Refused)
		return
	}
	accepted := func() { o.send(reply, h, wire.Reply{JobID: r.JobID, Resource: key.String(), RequestID: requestID}) }
	if key.Kind == drive.BlueprintKind {
		o.c.Shell.Background(func() { // who is answered meets no earlier one any more
			o.c.Shell.Sleep(catalog.PresentFor)
			o.c.Shell.Later(accepted)
		})
		return
	}
	accepted()
}

func (o *Owner) refuse(reply Reply, h map[string]string, code resource.Code, message string) {
	o.refuseWith(reply, h, refusal(code, "", message))
}

func (o *Owner) refuseWith(reply Reply, h map[string]string, r *resource.Refusal) {
	o.c.Observer.Refused(r.Code)
	o.send(reply, h, wire.Reply{RequestID: h[bus.HeaderRequestID], Refused: r})
}

// send answers in the form in which the command came.
func (o *Owner) send(reply Reply, h map[string]string, r wire.Reply) {
	contentType := h[bus.HeaderContentType]
	body, err := wire.EncodeReply(contentType, r)
	if err != nil {
		o.c.Log.Error("a reply could not be written", zap.Error(err))
		return
	}
	reply(map[string]string{bus.HeaderContentType: contentType, bus.HeaderRequestID: r.RequestID}, body)
}
