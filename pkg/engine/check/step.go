package check

import (
	"slices"
	"time"

	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// Step is all that an object can do.
func Step(before State, in Input) (State, Effects) {
	s := before
	s.Jobs = slices.Clone(before.Jobs)
	at := in.At
	if at.Before(before.UpdatedAt) {
		at = before.UpdatedAt
	}
	var fx Effects
	switch {
	case in.Command != nil:
		fx = command(&s, in.Command, at)
	case in.Walked != nil:
		fx = walked(&s, in.Walked, at)
	case in.Bury && s.Deleted() && len(s.Jobs) == 0:
		fx = Effects{Gone: true}
	}
	if !fx.Changed && !fx.Gone {
		return before, fx
	}
	s.UpdatedAt = at
	s.Revision++
	for i := range fx.Jobs {
		r := &fx.Jobs[i].Record
		root := s.root()
		r.Project, r.Kind, r.Name, r.UID, r.ResourceRevision, r.MinReader = root.Project, root.Kind, root.Name, root.UID, root.Revision, root.MinReader
	}
	return s, fx
}

func refuse(code resource.Code, message string, violations ...resource.Violation) Effects {
	return Effects{Fresh: true, Reply: &resource.Reply{Refused: &resource.Refusal{Code: code, Message: message, Violations: violations}}}
}

func command(s *State, c *Command, at time.Time) Effects {
	// What is stored of the job may be younger than what Known was read from: a command whose answer was lost is decided again.
	known := slices.IndexFunc(s.Jobs, func(r job.Ref) bool { return r.ID == c.JobID })
	digest := c.Digest
	switch {
	case known >= 0:
		digest = s.Jobs[known].Digest
	case c.Known != nil:
		digest = c.Known.Digest
	}
	if digest != c.Digest {
		return refuse(resource.Conflict, "request id "+c.RequestID+" was used before for another command on this resource")
	}
	if known >= 0 || c.Known != nil {
		return Effects{Reply: &resource.Reply{JobID: c.JobID}}
	}
	if len(s.Jobs) >= OpenJobsMax {
		return refuse(resource.Overloaded, "too many commands on this resource are under way; send it again in a while")
	}
	ref := job.Ref{
		ID: c.JobID, RequestID: c.RequestID, Digest: c.Digest, Verb: c.Verb, State: job.Running, AcceptedAt: at, StartedAt: at,
		RequestedBy: c.RequestedBy,
	}
	fx := Effects{Changed: true, Reply: &resource.Reply{JobID: c.JobID}}
	switch c.Verb {
	case resource.VerbApply:
		if refused := apply(s, c, at); refused != nil {
			return *refused
		}
	case resource.VerbDelete:
		switch {
		case s.UID == "":
			return refuse(resource.NotFound, c.Kind+"/"+c.Name+" does not exist")
		case s.Deleted():
			return refuse(resource.Conflict, c.Kind+"/"+c.Name+" is being deleted already")
		case c.Below != "":
			return refuse(resource.Conflict, c.Kind+"/"+c.Name+" cannot be deleted: "+c.Below+" stands on it")
		}
		s.DeletedAt = at
		s.Generation++ // instances are to be looked at
		for i := range s.Jobs {
			s.Jobs[i].Message = "its object was deleted by job " + c.JobID
			fx.Jobs = append(fx.Jobs, end(&s.Jobs[i], job.Canceled, at))
		}
		s.Jobs = nil
		if s.Kind == Node || s.Kind == Group || s.Kind == Cluster || s.Kind == CheckConfiguration {
			break
		}
		s.Observed = s.Generation // nothing can be an instance of it
	default:
		return refuse(resource.Conflict, "a "+c.Kind+" knows apply and delete only")
	}
	ref.Generation = s.Generation
	if s.Observed == s.Generation { // there is nothing to wait for
		ref.State, ref.EndedAt = job.Succeeded, at
		fx.Jobs = append(fx.Jobs, JobMove{From: job.None, Record: job.Record{Ref: ref, Revision: 1}})
		return fx
	}
	s.Jobs = append(s.Jobs, ref)
	fx.Jobs = append(fx.Jobs, JobMove{From: job.None, Record: job.Record{Ref: ref, Revision: 1}})
	return fx
}

func apply(s *State, c *Command, at time.Time) *Effects {
	refused := func(code resource.Code, field, reason string) *Effects {
		fx := refuse(code, field+": "+reason, resource.Violation{Field: field, Reason: reason})
		return &fx
	}
	switch {
	case s.Deleted():
		fx := refuse(resource.Conflict, c.Kind+"/"+c.Name+" is being deleted; apply it again when it is gone")
		return &fx
	case c.Missing != "":
		field := "metadata.name"
		if c.Kind == CheckConfiguration {
			field = "spec.on"
		}
		return refused(resource.Invalid, field, c.Missing)
	case s.UID == "" && c.Full:
		fx := refuse(resource.Conflict, "the partition of this repository holds as many objects as it may")
		return &fx
	case s.UID == "":
		*s = State{Project: c.Project, Kind: c.Kind, Name: c.Name, UID: c.NewUID, CreatedAt: at}
	}
	if s.Spec == c.Spec && s.Pins == c.Pins && s.Generation > 0 {
		return nil
	}
	s.Spec, s.Pins = c.Spec, c.Pins
	s.Generation++
	if s.Kind != CheckConfiguration {
		s.Observed = s.Generation
	}
	return nil
}

// walked ends the jobs up to a generation.
func walked(s *State, w *Walked, at time.Time) Effects {
	if s.UID == "" || w.Deleted != s.Deleted() || w.Generation > s.Generation {
		return Effects{}
	}
	fx := Effects{Changed: s.Observed < w.Generation}
	s.Observed = max(s.Observed, w.Generation)
	s.Jobs = slices.DeleteFunc(s.Jobs, func(r job.Ref) bool {
		if r.Generation > s.Observed {
			return false
		}
		fx.Jobs = append(fx.Jobs, end(&r, job.Succeeded, at))
		fx.Changed = true
		return true
	})
	return fx
}

func end(r *job.Ref, state job.State, at time.Time) JobMove {
	from := r.State
	r.State, r.EndedAt = state, at
	return JobMove{From: from, Record: job.Record{Ref: *r, Revision: 2}}
}
