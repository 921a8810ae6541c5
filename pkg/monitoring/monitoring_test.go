package monitoring_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/engine/check"
	"github.com/droverproject/drover/pkg/monitoring"
)

const configuration = `{"on": "prod/live", "capability": "eye.cpu", "interval": "60s",
	"thresholds": [{"predicate": ">=", "level": {"name": "critical", "shortName": "crit", "numeric": 2}, "value": 95}]}`

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ kind, name, spec, field string }{
		{check.Repository, "prod", `{"team": "ops"}`, ""},
		{check.Repository, "prod/x", `{}`, "metadata.name"},
		{check.Repository, "prod", `{"teams": "ops"}`, "spec.teams"},
		{check.Bucket, "prod/live", `{"environment": "live"}`, ""},
		{check.Bucket, "live", `{}`, "metadata.name"},
		{check.Bucket, "prod//x", `{}`, "metadata.name"},
		{check.Group, "prod/live/web", `{}`, ""},
		{check.Group, "prod/live/web", `{"assetId": 1}`, "spec.assetId"},
		{check.Group, "prod/live", `{}`, "metadata.name"},
		{check.Node, "prod/live/web/n", `{"assetId": 1, "properties": {"fqdn": "x"}}`, ""},
		{check.Node, "prod/live/web/n", `{}`, "spec.assetId"},
		{check.Node, "a/b/c/d/e/f/g/h/i", `{"assetId": 1}`, "metadata.name"},
		{check.Node, "prod/live/n", `{"assetId": 1, "datacenter": "` + strings.Repeat("x", 254) + `"}`, "spec.datacenter"},
		{check.MonitoringSystem, "eye", `{}`, ""},
		{check.MonitoringSystem, "eye", `{"callback": "http://127.0.0.1:1/x", "generation": "0.9", "path": "/x", "ordering": "queued", "pokesMax": 64, "timeout": "30s"}`, ""},
		{check.MonitoringSystem, "eye", `{"callback": "http://u:p@x/"}`, "spec.callback"},
		{check.MonitoringSystem, "eye", `{"generation": "1"}`, "spec.generation"},
		{check.MonitoringSystem, "eye", `{"path": "x"}`, "spec.path"},
		{check.MonitoringSystem, "eye", `{"ordering": "x"}`, "spec.ordering"},
		{check.MonitoringSystem, "eye", `{"pokesMax": 65}`, "spec.pokesMax"},
		{check.MonitoringSystem, "eye", `{"timeout": "31s"}`, "spec.timeout"},
		{check.Capability, "eye.cpu", `{"system": "eye", "metric": {"path": "cpu"}}`, ""},
		{check.Capability, "eye.cpu", `{"metric": {"path": "cpu"}}`, "spec.system"},
		{check.Capability, "eye.cpu", `{"system": "eye", "metric": {"path": "cpu"}, "thresholds": 17}`, "spec.thresholds"},
		{check.CheckConfiguration, "prod/cpu", configuration, ""},
		{check.CheckConfiguration, "prod/cpu", `{"interval": "1s"}`, "spec.on"},
		{check.CheckConfiguration, "test/cpu", configuration, "spec.on"},
		{check.CheckConfiguration, "cpu", configuration, "metadata.name"},
		{check.CheckConfiguration, "prod/cpu", strings.Replace(configuration, "60s", "1500ms", 1), "spec.interval"},
		{check.CheckConfiguration, "prod/cpu", strings.Replace(configuration, ">=", "=>", 1), "spec.thresholds[0].predicate"},
		{check.CheckConfiguration, "prod/cpu", strings.Replace(configuration, `"numeric": 2`, `"numeric": 65536`, 1), "spec.thresholds[0].level.numeric"},
		{check.CheckConfiguration, "prod/cpu", strings.Replace(configuration, `"on"`, `"objectTypes": ["Bucket"], "on"`, 1), "spec.objectTypes[0]"},
	} {
		found := monitoring.Check(c.kind, c.name, []byte(c.spec))
		if c.field == "" {
			require.Empty(t, found, "%s %s %s", c.kind, c.name, c.spec)
			continue
		}
		require.NotEmpty(t, found, "%s %s %s", c.kind, c.name, c.spec)
		require.Equal(t, c.field, found[0].Field, "%v", found)
		require.NotEmpty(t, found[0].Reason)
	}
}

func read(t require.TestingT, spec, system string) *monitoring.Configuration {
	pins, err := monitoring.Pin("eye.cpu", []byte(`{"system": "eye", "metric": {"path": "cpu", "unit": "%"}}`), "eye", []byte(system))
	require.NoError(t, err)
	c, err := monitoring.Read(&check.State{Name: "prod/cpu", UID: "c", Spec: spec, Pins: pins})
	require.NoError(t, err)
	return c
}

// TestDetails: what real clients need is there, what stands nearer to the object holds, and nothing of it is a version's own.
func TestDetails(t *testing.T) {
	t.Parallel()
	way := []monitoring.Placed{
		{Kind: check.Repository, Name: "prod", UID: "r", Spec: `{}`},
		{Kind: check.Bucket, Name: "prod/live", UID: "b", Spec: `{"environment": "live"}`},
		{Kind: check.Group, Name: "prod/live/web", UID: "g", Spec: `{"datacenter": "de.fra", "properties": {"a": "1", "b": "2"}}`},
		{Kind: check.Node, Name: "prod/live/web/n", UID: "n", Spec: `{"assetId": 7, "properties": {"b": "3"}}`},
	}
	d, err := read(t, configuration, `{"callback": "http://x/"}`).Details("i", way)
	require.NoError(t, err)
	require.Equal(t, "prod live live node de.fra cpu eye http://x/ prod n crit", strings.Join([]string{
		d.Repository, d.Environment, d.Bucket, d.ObjectType, d.Datacenter, d.Metric.Path, d.MonitoringSystem.Name, d.MonitoringSystem.Callback,
		d.OrganizationalTeam.Name, d.Node.Name, d.CheckConfig.Thresholds[0].Level.ShortName,
	}, " "))
	require.EqualValues(t, 7, d.Node.AssetID)
	require.EqualValues(t, 60, d.CheckConfig.Interval)
	require.Equal(t, "web", d.Group.Name)
	require.Equal(t, "b", d.Check.InheritedFrom)
	properties, err := json.Marshal(d.Properties)
	require.NoError(t, err)
	require.JSONEq(t, `[{"name": "a", "value": "1"}, {"name": "b", "value": "3"}]`, string(properties))
	require.Empty(t, d.Task+d.CheckInstance.InstanceConfigID)

	require.False(t, read(t, configuration, `{}`).Policy().Queued)
	newer := read(t, configuration, `{"generation": "0.9", "ordering": "queued"}`).Policy()
	require.True(t, newer.Queued && newer.TaskDelete)
	_, err = read(t, configuration, `{}`).Details("i", nil)
	require.Error(t, err)
}

// FuzzCheck: what passes can be read and assembled; nothing panics.
func FuzzCheck(f *testing.F) {
	f.Add(uint8(5), "prod/cpu", configuration)
	f.Add(uint8(4), "prod/live/n", `{"assetId": 1}`)
	f.Add(uint8(6), "eye", `{"callback": "http://x"}`)
	f.Fuzz(func(t *testing.T, n uint8, name, spec string) {
		kind := check.Kinds()[int(n)%len(check.Kinds())]
		if len(monitoring.Check(kind, name, []byte(spec))) > 0 {
			return
		}
		switch kind {
		case check.CheckConfiguration:
			c := read(t, spec, `{}`)
			_, err := c.Details("i", []monitoring.Placed{{Kind: check.Repository, Name: "prod", Spec: `{}`}})
			require.NoError(t, err)
		case check.MonitoringSystem:
			s, err := monitoring.System([]byte(spec))
			require.NoError(t, err)
			require.Positive(t, s.PokesMax)
			require.Positive(t, s.Timeout)
		case check.Node, check.Group, check.Cluster, check.Repository, check.Bucket:
			_, err := read(t, configuration, `{}`).Details("i", []monitoring.Placed{{Kind: kind, Name: name, Spec: spec}})
			require.NoError(t, err)
		}
	})
}
