package wire

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/droverproject/drover/pkg/engine/check"
	"github.com/droverproject/drover/pkg/engine/deployment"
	statev1 "github.com/droverproject/drover/proto/gen/drover/state/v1"
)

func stamped(t *time.Time) {
	if t.IsZero() {
		*t = time.Unix(1, 2).UTC()
	}
}

func drawCheckEvent(t *rapid.T, full bool) CheckEvent {
	e := draw[CheckEvent](t, full)
	stamped(&e.At)
	for i := range e.State.Jobs {
		required(&e.State.Jobs[i].ID)
	}
	return e
}

func drawInstanceEvent(t *rapid.T, full bool) InstanceEvent {
	e := draw[InstanceEvent](t, full)
	stamped(&e.At)
	for i := range e.State.Configurations {
		c := &e.State.Configurations[i]
		*c = deployment.Configuration{ID: c.ID, Version: c.Version, Status: c.Status, BlockedOn: c.BlockedOn, Revision: c.Revision}
	}
	return e
}

func drawDeploymentEvent(t *rapid.T, full bool) DeploymentEvent {
	e := draw[DeploymentEvent](t, full)
	stamped(&e.At)
	return e
}

func TestChecksGoRound(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		for _, full := range []bool{true, false} {
			roundTrip(t, drawCheckEvent(t, full), EncodeCheck, DecodeCheck)
			roundTrip(t, drawInstanceEvent(t, full), EncodeInstance, DecodeInstance)
			roundTrip(t, drawDeploymentEvent(t, full), EncodeDeployment, DecodeDeployment)
		}
	})
}

func TestDeploymentStatuses(t *testing.T) {
	t.Parallel()
	require.Len(t, deploymentStatuses, len(deployment.Statuses()))
	require.Len(t, deploymentStatuses, len(statev1.DeploymentStatus_name))
	for _, s := range deployment.Statuses()[1:] {
		require.Equal(t, "DEPLOYMENT_STATUS_"+strings.ToUpper(s.String()), deploymentStatuses[s].String())
	}
}

// TestANewerVersionsChecksAreNotRead: a state that needs newer rules says so before anything else is believed of it.
func TestANewerVersionsChecksAreNotRead(t *testing.T) {
	t.Parallel()
	body, err := EncodeCheck(CheckEvent{At: at, State: check.State{Kind: check.Node, Name: "n"}})
	require.NoError(t, err)
	_, err = DecodeCheck(body)
	require.NoError(t, err)
	_, err = DecodeCheck(append(body, 0xa2, 0x01, 2, 0x60, 9)) // field 20, min_reader 9: the messages are merged
	require.ErrorIs(t, err, ErrUnknown)
	body, err = EncodeInstance(InstanceEvent{At: at})
	require.NoError(t, err)
	_, err = DecodeInstance(append(body, 0xaa, 0x01, 3, 0x98, 0x01, 9))
	require.ErrorIs(t, err, ErrUnknown)
}

func TestADeploymentIsShown(t *testing.T) {
	t.Parallel()
	body, err := EncodeDeployment(DeploymentEvent{Project: "p", Instance: "i", At: at, From: deployment.Computed, Configuration: deployment.Configuration{
		ID: "c", Version: 2, Status: deployment.Blocked, Next: deployment.AwaitingRollout, BlockedOn: "b", Revision: 1,
		Details: &deployment.Details{Task: "rollout", CheckConfig: deployment.CheckConfig{Interval: 60}},
	}})
	require.NoError(t, err)
	shown, err := EventJSON(body)
	require.NoError(t, err)
	var got struct {
		Family, From, To string
		State            struct {
			Status, NextStatus, BlockedOn string
			Details                       struct {
				Task        string
				CheckConfig struct{ Interval int }
			}
		}
	}
	require.NoError(t, json.Unmarshal(shown, &got))
	require.Equal(t, "deployment computed blocked blocked awaiting_rollout b rollout", strings.Join(
		[]string{got.Family, got.From, got.To, got.State.Status, got.State.NextStatus, got.State.BlockedOn, got.State.Details.Task}, " "))
	require.Equal(t, 60, got.State.Details.CheckConfig.Interval)
}

func FuzzChecks(f *testing.F) {
	for _, add := range []func() ([]byte, error){
		func() ([]byte, error) {
			return EncodeCheck(CheckEvent{At: at, State: check.State{Kind: check.Node, Name: "n", UID: "u"}})
		},
		func() ([]byte, error) { return EncodeInstance(InstanceEvent{At: at, State: deployment.State{ID: "i"}}) },
		func() ([]byte, error) {
			return EncodeDeployment(DeploymentEvent{At: at, Configuration: deployment.Configuration{ID: "c", Status: deployment.Active, Details: &deployment.Details{}}})
		},
	} {
		body, err := add()
		require.NoError(f, err)
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		stable(t, body, DecodeCheck, EncodeCheck)
		stable(t, body, DecodeInstance, EncodeInstance)
		stable(t, body, DecodeDeployment, EncodeDeployment)
		if shown, err := EventJSON(body); err == nil && !json.Valid(shown) {
			t.Fatalf("shown as what is not JSON: %s", shown)
		}
	})
}
