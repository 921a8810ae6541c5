package blueprint

// Targets of the node preset (seed 003).
const (
	Started     = "Started"
	Off         = "Off"
	Deallocated = "Deallocated"
	Terminated  = "Terminated"
)

// Preset names.
const (
	PresetNode         = "node"
	PresetService      = "service"
	PresetInstallation = "installation"
	PresetExecution    = "execution"
	PresetDeployItem   = "deployitem"
	// Custom is the name of a lifecycle that the blueprint spells out.
	Custom = "custom"
)

// NodePaths are the states that a node walks to each target, from the blueprint. A target without a path is reached at
// once.
type NodePaths struct {
	Started, Off, Deallocated, Terminated []string
}

// Node is the lifecycle of CycleCloud's nodes (seed 003; design.md, section 3): every verb is accepted in any state,
// a new target cancels the flow that runs, and a failed phase leaves the others of its state alone.
//
//	verb        path                  target
//	start       paths of Started      Started
//	shutdown    paths of Off          Off
//	deallocate  paths of Deallocated  Deallocated
//	terminate   paths of Terminated   Terminated     deletion walks it first
func Node(paths NodePaths) Lifecycle {
	return Lifecycle{
		Name: PresetNode,
		Flows: []Flow{
			{Verb: "start", Path: paths.Started, Target: Started},
			{Verb: "shutdown", Path: paths.Off, Target: Off},
			{Verb: "deallocate", Path: paths.Deallocated, Target: Deallocated},
			{Verb: "terminate", Path: paths.Terminated, Target: Terminated},
		},
		Delete:         "terminate",
		OnTargetChange: Cancel,
		OnFailure:      Continue,
		OnCreate:       "start",
	}
}

// States of a phase instance and of a service instance (seed 000, "Default workflows").
const (
	Ready         = "Ready"
	Ordered       = "Ordered"
	Deployed      = "Deployed"
	PendingUpdate = "Pending_Update"
	Updating      = "Updating"
	Retiring      = "Retiring"
	Retired       = "Retired"
	Error         = "Error"
)

// Service is the lifecycle of NCAE's service instances (seed 000). Each phase walks the table by itself, in the phases'
// order: phase 2 stays Ready while phase 1 is Ordered. A phase that is in no state from which the verb may start is left
// as it is; a verb that may start nowhere is refused.
//
//	verb        from                     path                       target    failure  was_deployed
//	deploy      Ready                    Ordered                    Deployed  Error    no
//	deploy      Error (idempotent)       Ordered                    Deployed  Error    by its past
//	redeploy    Deployed                 Ordered                    Deployed  Error    yes
//	update      Deployed, Pending_Update Pending_Update, Updating   Deployed  Error    yes
//	update      Error (idempotent)       Pending_Update, Updating   Deployed  Error    by its past
//	decom       Deployed                 Retiring                   Retired   Error    yes            undo, in reverse
//	decom       Error (idempotent)       Retiring                   Retired   Error    by its past    undo, in reverse
//	reactivate  Retired                  -                          Ready     -        no
//
// The service's state is the first of Error, Ordered, Updating, Retiring, Pending_Update, Ready, Deployed, Retired that any
// of its phases is in: a service is Deployed when every phase is, and Retired when every phase is.
//
// The seed does not say in which order phases are undone: in reverse, so that what a phase built upon is still there.
// A phase that was reactivated and then fails was deployed "by its past", as the seed's words have it.
func Service() Lifecycle {
	flow := func(verb string, from []string, target string, was WasDeployed, path ...string) Flow {
		return Flow{
			Verb: verb, From: from, Path: path, Target: target, Failure: Error, WasDeployed: was,
			Idempotent: from[0] == Error, Undo: target == Retired, Reverse: target == Retired,
		}
	}
	reactivate := flow("reactivate", []string{Retired}, Ready, WasNot)
	reactivate.Failure = ""
	return Lifecycle{
		Name: PresetService,
		Flows: []Flow{
			flow("deploy", []string{Ready}, Deployed, WasNot, Ordered),
			flow("deploy", []string{Error}, Deployed, ByItsPast, Ordered),
			flow("redeploy", []string{Deployed}, Deployed, WasIndeed, Ordered),
			flow("update", []string{Deployed, PendingUpdate}, Deployed, WasIndeed, PendingUpdate, Updating),
			flow("update", []string{Error}, Deployed, ByItsPast, PendingUpdate, Updating),
			flow("decom", []string{Deployed}, Retired, WasIndeed, Retiring),
			flow("decom", []string{Error}, Retired, ByItsPast, Retiring),
			reactivate,
		},
		Delete:         "decom",
		OnTargetChange: Reject,
		OnFailure:      Drain,
		Walk:           Each,
		Initial:        Ready,
		Precedence:     []string{Error, Ordered, Updating, Retiring, PendingUpdate, Ready, Deployed, Retired},
		OnCreate:       "deploy",
		OnChange:       "update",
	}
}

// States of installations, executions and deploy items (seed 001; facts/landscaper.md A2). Gone is no phase there: it is
// where the flow of deletion ends.
const (
	Init            = "Init"
	CleanupOrphaned = "CleanupOrphaned"
	ObjectsCreated  = "ObjectsCreated"
	Progressing     = "Progressing"
	Completing      = "Completing"
	Succeeded       = "Succeeded"
	Failed          = "Failed"
	InitDelete      = "InitDelete"
	TriggerDelete   = "TriggerDelete"
	Deleting        = "Deleting"
	DeleteFailed    = "DeleteFailed"
	Gone            = "Gone"
)

// VerbReconcile starts a job of an installation, an execution or a deploy item.
const VerbReconcile = "reconcile"

// Installation is the lifecycle of Landscaper's installations (facts/landscaper.md A2). Every job begins at the beginning:
// Init, or InitDelete where the object is marked deleted, whatever it ended in before.
//
//	verb       path                                                          target     failure
//	reconcile  Init, CleanupOrphaned, ObjectsCreated, Progressing, Completing  Succeeded  Failed
//	uninstall  InitDelete, TriggerDelete, Deleting                             Gone       DeleteFailed
func Installation() Lifecycle {
	return landscaper(PresetInstallation,
		[]string{Init, CleanupOrphaned, ObjectsCreated, Progressing, Completing}, []string{InitDelete, TriggerDelete, Deleting})
}

// Execution is the lifecycle of Landscaper's executions (seed 001, "Execution Phases").
//
//	verb       path                           target     failure
//	reconcile  Init, Progressing, Completing  Succeeded  Failed
//	uninstall  InitDelete, Deleting           Gone       DeleteFailed
func Execution() Lifecycle {
	return landscaper(PresetExecution, []string{Init, Progressing, Completing}, []string{InitDelete, Deleting})
}

// DeployItem is the lifecycle of Landscaper's deploy items (facts/landscaper.md A2).
//
//	verb       path                  target     failure
//	reconcile  Init, Progressing     Succeeded  Failed
//	uninstall  InitDelete, Deleting  Gone       DeleteFailed
func DeployItem() Lifecycle {
	return landscaper(PresetDeployItem, []string{Init, Progressing}, []string{InitDelete, Deleting})
}

// landscaper is what the three have in common: a new job waits for the one that runs (facts/common-ground.md, conflict 1),
// a failure lets what runs end and starts nothing more (conflict 2), a job id is all that starts a job.
func landscaper(name string, reconcile, uninstall []string) Lifecycle {
	return Lifecycle{
		Name: name,
		Flows: []Flow{
			{Verb: VerbReconcile, Path: reconcile, Target: Succeeded, Failure: Failed},
			{Verb: "uninstall", Path: uninstall, Target: Gone, Failure: DeleteFailed},
		},
		Delete:         "uninstall",
		OnTargetChange: Wait,
		OnFailure:      Drain,
		Rerun:          RerunAll,
		OnCreate:       VerbReconcile,
		OnChange:       VerbReconcile,
		ByMark:         true,
	}
}
