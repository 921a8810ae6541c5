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

// ArgIfDigest is the argument of an apply of a blueprint that is for those who change what they have read: another change
// in between is a conflict, and not lost. IfDigestField is its path, by which the refusal tells this conflict.
const (
	ArgIfDigest   = "ifDigest"
	IfDigestField = "args." + ArgIfDigest
)

// blueprint takes one input of a blueprint. It is never stepped: it has no phases, only a present version, and perhaps a
// job that deletes it.
func (l *Loop) blueprint(ln *lane, it *item) {
	if it.own {
		l.concludeDeletion(ln, it)
		return
	}
	c := it.Input.Input.Command
	back := func(err error) {
		l.pop(ln)
		it.back(err)
	}
	if c.Verb != resource.VerbApply && c.Verb != resource.VerbDelete {
		l.refuseBlueprint(ln, it, resource.Invalid, "a blueprint knows apply and delete only")
		return
	}
	_, jobs, err := l.port.Load(nil, []JobKey{{c.Key.Project, c.JobID}}, true)
	if err != nil {
		back(err)
		return
	}
	present, err := l.port.PresentBlueprint(c.Key.Project, c.Key.Name, true)
	if err != nil {
		back(err)
		return
	}
	prior := known(jobs[0])
	known, digest := prior != nil, ""
	if known {
		digest = prior.Digest
	} else if d := present.Deletion; d != nil && d.ID == c.JobID {
		known, digest = true, d.Digest // its record is about to follow
	}
	switch {
	case known && digest != c.Digest:
		l.refuseBlueprint(ln, it, resource.Conflict, "request id "+c.RequestID+" was used before for another command on this blueprint")
		return
	case known:
		l.pop(ln)
		it.Reply(resource.Reply{JobID: c.JobID})
		return
	case present.Retired():
		l.refuseBlueprint(ln, it, resource.Conflict, "job "+present.Deletion.ID+" is deleting it")
		return
	}
	switch recorded, err := l.deletionRecorded(ln.key, &present); {
	case err != nil:
		back(err)
	case !recorded:
		// What comes now would take the place of the only event that tells how that job ended.
		l.AdoptBlueprint(ln.key, present)
		l.tendDeletion(ln.key)
		back(errors.New("the end of job " + present.Deletion.ID + " is not recorded yet"))
	case c.Verb == resource.VerbApply:
		l.applyBlueprint(ln, it, present, jobs[0].Seq)
	default:
		l.deleteBlueprint(ln, it, present)
	}
}

func (l *Loop) refuseBlueprint(ln *lane, it *item, code resource.Code, message string) {
	l.pop(ln)
	it.Reply(resource.Reply{Refused: &resource.Refusal{Code: code, Message: message}})
}

// applyBlueprint records a blueprint. It is immutable by digest: the same one again is no event.
func (l *Loop) applyBlueprint(ln *lane, it *item, present LoadedBlueprint, jobSeq uint64) {
	at, bp := it.Input.Input.At, it.Blueprint
	if present.Blueprint != nil && present.Blueprint.Digest == bp.Digest {
		l.port.EnsurePhases(bp)
		l.recordBlueprintJob(ln, it, jobSeq, at)
		return
	}
	if it.IfDigest != "" && (present.Blueprint == nil || present.Blueprint.Digest != it.IfDigest) {
		have := "there is none"
		if present.Blueprint != nil {
			have = "it has " + present.Blueprint.Digest
		}
		l.pop(ln)
		it.Reply(resource.Reply{Refused: &resource.Refusal{
			Code: resource.Conflict, Message: "the blueprint was changed: " + have + ", and not the digest " + it.IfDigest,
			Violations: []resource.Violation{{Field: IfDigestField, Reason: "is not the present digest"}},
		}})
		return
	}
	l.appendBlueprint(ln, it, present.Seq, BlueprintRecord{
		Blueprint: bp, JSON: string(it.Spec), Generation: present.Generation + 1, At: at,
	}, func(uint64) {
		l.port.EnsurePhases(bp)
		l.recordBlueprintJob(ln, it, jobSeq, at)
	})
}

// appendBlueprint records what became of a blueprint; an input that was not the first is taken again.
func (l *Loop) appendBlueprint(ln *lane, it *item, expect uint64, r BlueprintRecord, stored func(seq uint64)) {
	ln.busy = true
	l.send(Record{Expect: expect, Blueprint: &r}, func(seq uint64, err error) {
		ln.busy = false
		switch {
		case errors.Is(err, ErrRefused):
			l.pop(ln)
			it.aside(err.Error())
		case err == nil:
			stored(seq)
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
	record, _ := job.Derive(blueprintRoot(c.Key), ref, nil)
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

// blueprintRoot is what a job's record says of a blueprint.
func blueprintRoot(key resource.Key) job.Root {
	return job.Root{Project: key.Project, Kind: key.Kind, Name: key.Name, Revision: 1, MinReader: resource.ReaderFirst}
}
