package wire

import (
	"github.com/droverproject/drover/pkg/engine/deployment"
	"github.com/droverproject/drover/pkg/engine/job"
	"github.com/droverproject/drover/pkg/engine/phase"
	"github.com/droverproject/drover/pkg/engine/resource"
	commandv1 "github.com/droverproject/drover/proto/gen/drover/command/v1"
	statev1 "github.com/droverproject/drover/proto/gen/drover/state/v1"
)

// The enums, each listed once: the position is the engine's value. TestEnums holds them to both sides.

var statuses = [...]statev1.PhaseStatus{
	resource.NoStatus:  statev1.PhaseStatus_PHASE_STATUS_UNSPECIFIED,
	resource.Blocked:   statev1.PhaseStatus_PHASE_STATUS_BLOCKED,
	resource.Waiting:   statev1.PhaseStatus_PHASE_STATUS_WAITING,
	resource.Running:   statev1.PhaseStatus_PHASE_STATUS_RUNNING,
	resource.Sleeping:  statev1.PhaseStatus_PHASE_STATUS_SLEEPING,
	resource.Completed: statev1.PhaseStatus_PHASE_STATUS_COMPLETED,
	resource.Failed:    statev1.PhaseStatus_PHASE_STATUS_FAILED,
	resource.Canceling: statev1.PhaseStatus_PHASE_STATUS_CANCELING,
	resource.Gated:     statev1.PhaseStatus_PHASE_STATUS_GATED,
	resource.Skipped:   statev1.PhaseStatus_PHASE_STATUS_SKIPPED,
	resource.Undone:    statev1.PhaseStatus_PHASE_STATUS_UNDONE,
	resource.Canceled:  statev1.PhaseStatus_PHASE_STATUS_CANCELED,
}

var jobStates = [...]statev1.JobState{
	job.None:      statev1.JobState_JOB_STATE_UNSPECIFIED,
	job.Pending:   statev1.JobState_JOB_STATE_PENDING,
	job.Running:   statev1.JobState_JOB_STATE_RUNNING,
	job.Succeeded: statev1.JobState_JOB_STATE_SUCCEEDED,
	job.Failed:    statev1.JobState_JOB_STATE_FAILED,
	job.Canceled:  statev1.JobState_JOB_STATE_CANCELED,
}

var stages = [...]statev1.SelectionStage{
	job.NoStage:   statev1.SelectionStage_SELECTION_STAGE_UNSPECIFIED,
	job.Accepted:  statev1.SelectionStage_SELECTION_STAGE_ACCEPTED,
	job.Walking:   statev1.SelectionStage_SELECTION_STAGE_WALKING,
	job.Waiting:   statev1.SelectionStage_SELECTION_STAGE_WAITING,
	job.Canceling: statev1.SelectionStage_SELECTION_STAGE_CANCELING,
	job.Ended:     statev1.SelectionStage_SELECTION_STAGE_ENDED,
}

var deploymentStatuses = [...]statev1.DeploymentStatus{
	deployment.None:                  statev1.DeploymentStatus_DEPLOYMENT_STATUS_UNSPECIFIED,
	deployment.AwaitingComputation:   statev1.DeploymentStatus_DEPLOYMENT_STATUS_AWAITING_COMPUTATION,
	deployment.Computed:              statev1.DeploymentStatus_DEPLOYMENT_STATUS_COMPUTED,
	deployment.AwaitingRollout:       statev1.DeploymentStatus_DEPLOYMENT_STATUS_AWAITING_ROLLOUT,
	deployment.RolloutInProgress:     statev1.DeploymentStatus_DEPLOYMENT_STATUS_ROLLOUT_IN_PROGRESS,
	deployment.RolloutFailed:         statev1.DeploymentStatus_DEPLOYMENT_STATUS_ROLLOUT_FAILED,
	deployment.Active:                statev1.DeploymentStatus_DEPLOYMENT_STATUS_ACTIVE,
	deployment.AwaitingDeprovision:   statev1.DeploymentStatus_DEPLOYMENT_STATUS_AWAITING_DEPROVISION,
	deployment.DeprovisionInProgress: statev1.DeploymentStatus_DEPLOYMENT_STATUS_DEPROVISION_IN_PROGRESS,
	deployment.DeprovisionFailed:     statev1.DeploymentStatus_DEPLOYMENT_STATUS_DEPROVISION_FAILED,
	deployment.Deprovisioned:         statev1.DeploymentStatus_DEPLOYMENT_STATUS_DEPROVISIONED,
	deployment.AwaitingDeletion:      statev1.DeploymentStatus_DEPLOYMENT_STATUS_AWAITING_DELETION,
	deployment.Blocked:               statev1.DeploymentStatus_DEPLOYMENT_STATUS_BLOCKED,
}

var outcomes = [...]commandv1.Outcome{
	0:                          commandv1.Outcome_OUTCOME_UNSPECIFIED,
	resource.OutcomeCompleted:  commandv1.Outcome_OUTCOME_COMPLETED,
	resource.OutcomeFailed:     commandv1.Outcome_OUTCOME_FAILED,
	resource.OutcomePending:    commandv1.Outcome_OUTCOME_PENDING,
	resource.OutcomeRunning:    commandv1.Outcome_OUTCOME_RUNNING,
	resource.OutcomeNotStarted: commandv1.Outcome_OUTCOME_NOT_STARTED,
}

var activities = [...]statev1.PhaseActivity{
	phase.None:      statev1.PhaseActivity_PHASE_ACTIVITY_UNSPECIFIED,
	phase.Inactive:  statev1.PhaseActivity_PHASE_ACTIVITY_INACTIVE,
	phase.Running:   statev1.PhaseActivity_PHASE_ACTIVITY_RUNNING,
	phase.Canceling: statev1.PhaseActivity_PHASE_ACTIVITY_CANCELING,
	phase.Sleeping:  statev1.PhaseActivity_PHASE_ACTIVITY_SLEEPING,
}

// toEnum is the protobuf value of an engine's value. The unspecified one is never sent.
func toEnum[E ~uint8, P ~int32](field string, table []P, value E) (P, error) {
	if value == 0 {
		return 0, missing(field)
	}
	if int(value) >= len(table) {
		return 0, unknown(field, int32(value))
	}
	return table[value], nil
}

// fromEnum is its inverse.
func fromEnum[E ~uint8, P ~int32](field string, table []P, value P) (E, error) {
	if value == 0 {
		return 0, missing(field)
	}
	for i := 1; i < len(table); i++ {
		if table[i] == value {
			return E(i), nil
		}
	}
	return 0, unknown(field, int32(value))
}

func jobState(field, name string) (job.State, error) {
	for _, s := range job.States() {
		if s.String() == name {
			return s, nil
		}
	}
	return 0, malformed(field, "is not the name of a job's state")
}
