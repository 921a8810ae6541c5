package drive

import (
	"errors"
	"time"

	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// BlueprintKind is the kind of the manifests that define kinds. The name of such a manifest is the kind that it
// defines.
const BlueprintKind = "Blueprint"

// applyBlueprint records a blueprint. It is immutable by digest: the same one again is no event.
func (l *Loop) applyBlueprint(ln *lane, it *item) {
	c := it.Input.Input.Command
	at := it.Input.Input.At
	refuse := func(code resource.Code, message string) {
		l.pop(ln)
		it.Reply(resource.Reply{Refused: &resource.Refusal{Code: code, Message: message}})
	}
	if c.Verb != resource.VerbApply {
		refuse(resource.Invalid, "a blueprint has the verb apply only in this version; one without resources does no harm")
		return
	}
	back := func(err error) {
		l.pop(ln)
		it.back(err)
	}
	_, jobs, err := l.port.Load(nil, []JobKey{{c.Key.Project, c.JobID}}, true)
	if err != nil {
		back(err)
		return
	}
	if prior := known(jobs[0]); prior != nil {
		if prior.Digest != c.Digest {
			refuse(resource.Conflict, "request id "+c.RequestID+" was used before for another blueprint")
			return
		}
		l.pop(ln)
		it.Reply(resource.Reply{JobID: c.JobID})
		return
	}
	bp := it.Blueprint
	present, err := l.port.PresentBlueprint(c.Key.Project, c.Key.Name, true)
	if err != nil {
		back(err)
		return
	}
	record := func() {
		l.recordBlueprintJob(ln, it, jobs[0].Seq, at)
	}
	if present.Blueprint != nil && present.Blueprint.Digest == bp.Digest {
		l.port.EnsurePhases(bp)
		record()
		return
	}
	ln.busy = true
	l.send(Record{Expect: present.Seq, Blueprint: &BlueprintRecord{
		Blueprint: bp, JSON: string(it.Spec), Generation: present.Generation + 1, At: at,
	}}, func(_ uint64, err error) {
		ln.busy = false
		switch {
		case errors.Is(err, ErrRefused):
			l.pop(ln)
			it.aside(err.Error())
		case err == nil:
			l.port.EnsurePhases(bp)
			record()
			return
		}
		l.run(ln)
	})
}

// recordBlueprintJob answers the command and appends the record of its job, by which the same request is known again.
func (l *Loop) recordBlueprintJob(ln *lane, it *item, expect uint64, at time.Time) {
	c := it.Input.Input.Command
	ln.busy = true
	ref := job.Ref{
		ID: c.JobID, RequestID: c.RequestID, Digest: c.Digest, Verb: c.Verb, State: job.Succeeded,
		AcceptedAt: at, StartedAt: at, EndedAt: at, RequestedBy: c.RequestedBy,
	}
	root := job.Root{Project: c.Key.Project, Kind: c.Key.Kind, Name: c.Key.Name, Revision: 1, MinReader: resource.ReaderVersion}
	record, _ := job.Derive(root, ref, nil)
	l.send(Record{Expect: expect, Job: &JobRecord{Record: record, At: at}}, func(seq uint64, err error) {
		ln.busy = false
		if err == nil {
			l.pop(ln)
			l.ended.add(at.Add(l.limits.JobRetention), JobKey{c.Key.Project, c.JobID}, seq)
			it.Reply(resource.Reply{JobID: c.JobID})
		}
		l.run(ln)
	})
}
