package machine

import "maps"

// Step is all that a machine can do. It is pure: the same state and input lead to the same state and effects.
func Step(s State, in Input) (State, Effects) {
	if in.Caller != "" && in.Caller != s.UUID {
		return s, refuse(Forbidden, "", "a machine's token is for that machine alone")
	}
	switch {
	case in.Apply != nil:
		return apply(s, in.Apply, in)
	case in.Next != nil:
		return next(s, in.Next, in.At)
	case in.Report != nil:
		return report(s, in.Report, in)
	case !s.Exists():
		return s, refuse(NotFound, "", "there is no such machine")
	case in.Patch != nil:
		return patch(s, in.Patch, in)
	default:
		return s, Effects{Run: s.Run}
	}
}

func apply(s State, a *Apply, in Input) (State, Effects) {
	if a.RequestID != "" && s.RequestID == a.RequestID {
		if s.RequestDigest != a.Digest {
			return s, refuse(Conflict, "", "request id "+a.RequestID+" was used before for another command on this machine")
		}
		return s, Effects{Again: true}
	}
	after, creates := s, !s.Exists()
	if creates {
		after = State{
			Key: s.Key, UUID: a.UUID, CurrentTask: -1, Runnable: true, Available: true, Stage: StageNone, CreatedAt: in.At, UpdatedAt: in.At,
			Revision: s.Revision, Run: nil,
		}
	}
	after.RequestID, after.RequestDigest = a.RequestID, a.Digest
	after.Description, after.Meta, after.Params = a.Description, merge(s.Meta, a.Meta), merge(s.Params, a.Params)
	if creates {
		after.Context = after.baseContext()
	}
	if a.Available != nil {
		after.Available = *a.Available
	}
	if a.Runnable != nil {
		after.Runnable = *a.Runnable
	}
	if r := move(&s, &after, a.Workflow, a.Stage, a.BootEnv, a.Definitions, creates); r != nil {
		return s, Effects{Refused: r}
	}
	if r := checkLimits(&after); r != nil {
		return s, Effects{Refused: r}
	}
	return commit(after, nil, nil, in.At, Effects{Cause: "apply"})
}

// merge is what a machine has, with what its manifest says of it: what its tasks have set stays.
func merge(has, said map[string]string) map[string]string {
	if len(said) == 0 {
		return has
	}
	all := make(map[string]string, len(has)+len(said))
	maps.Copy(all, has)
	maps.Copy(all, said)
	return all
}

// move changes the workflow, the stage or the boot environment of a machine; nil is as it is.
func move(before, after *State, workflow, stage, bootEnv *string, defs Definitions, creates bool) *Refusal {
	changed := func(to *string, from string) bool {
		return to != nil && (*to != from || creates && *to != "" && *to != StageNone)
	}
	hadBootEnv := after.BootEnv
	switch {
	case changed(workflow, before.Workflow):
		if changed(stage, before.Stage) || changed(bootEnv, before.BootEnv) {
			return &Refusal{Code: Invalid, Field: "Workflow", Message: "excludes Stage and BootEnv: a workflow sets those"}
		}
		if *workflow == "" {
			after.Workflow, after.Stage, after.Tasks, after.CurrentTask = "", StageNone, nil, -1
			after.Context = after.baseContext()
			return nil
		}
		tasks, r := expand(*workflow, defs)
		if r != nil {
			return r
		}
		after.Workflow, after.Tasks, after.CurrentTask = *workflow, tasks, -1
		after.Context = after.baseContext()
		return nil
	case changed(stage, before.Stage):
		if before.Workflow != "" {
			return &Refusal{Code: Invalid, Field: "Stage", Message: "is read-only while workflow " + before.Workflow + " is set"}
		}
		if *stage == "" || *stage == StageNone {
			after.Stage, after.Tasks = StageNone, nil
		} else {
			st, ok := defs.Stages[*stage]
			if !ok {
				return &Refusal{Code: Invalid, Field: "Stage", Message: "there is no stage " + *stage}
			}
			after.Stage, after.Tasks = *stage, st.Tasks
			if st.BootEnv != "" {
				after.BootEnv = st.BootEnv
			}
		}
		after.CurrentTask, after.Context = -1, after.baseContext()
		if bootEnv != nil && *bootEnv != before.BootEnv {
			after.BootEnv = *bootEnv
		}
	case changed(bootEnv, before.BootEnv):
		if before.Workflow != "" {
			return &Refusal{Code: Invalid, Field: "BootEnv", Message: "is read-only while workflow " + before.Workflow + " is set"}
		}
		after.BootEnv = *bootEnv
	}
	if !creates && after.BootEnv != hadBootEnv {
		after.Runnable = false
	}
	return nil
}

// expand is the task list of a workflow (seed 004, "Changing the Workflow on a Machine").
func expand(workflow string, defs Definitions) ([]string, *Refusal) {
	stages, ok := defs.Workflows[workflow]
	if !ok {
		return nil, &Refusal{Code: Invalid, Field: "Workflow", Message: "there is no workflow " + workflow}
	}
	var tasks []string
	for _, name := range stages {
		st, ok := defs.Stages[name]
		if !ok {
			return nil, &Refusal{Code: Invalid, Field: "Workflow", Message: "workflow " + workflow + " names stage " + name + ", and there is none"}
		}
		tasks = append(tasks, prefixStage+name)
		if st.BootEnv != "" {
			tasks = append(tasks, prefixBootEnv+st.BootEnv)
		}
		tasks = append(tasks, st.Tasks...)
	}
	return tasks, nil
}
