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
	PresetNode = "node"
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
	}
}
