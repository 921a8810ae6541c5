package e2e_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"

	"github.com/droverproject/drover/pkg/bus"
)

// stages are the instructions of each stage of a Dockerfile, without comments.
func stages(t *testing.T, body string) map[string][]string {
	t.Helper()
	all, name := map[string][]string{}, ""
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(line)
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if words[0] == "FROM" {
			name = words[len(words)-1]
			require.Empty(t, all[name])
		}
		if name != "" {
			all[name] = append(all[name], line)
		}
	}
	return all
}

// TestImagesAreTheSameWithoutARegistry: what `make images` gives to docker is the Dockerfile, but for the stage that
// builds: it copies the same files to the same places, and says the same of them.
func TestImagesAreTheSameWithoutARegistry(t *testing.T) {
	t.Parallel()
	body, err := os.ReadFile("../images/Dockerfile")
	require.NoError(t, err)
	ordinary := stages(t, string(body))
	images := []string{"cli", "nats"}
	for _, s := range services {
		images = append(images, strings.TrimPrefix(s[0], "../../services/"))
	}
	require.Len(t, ordinary, len(images)+2, "an image for each program, the base and the build")
	require.Contains(t, ordinary["base"], "FROM scratch AS base")
	require.Contains(t, ordinary["base"], "USER 65532:65532")
	for _, image := range images {
		out, err := exec.Command("../images/make", "--dockerfile", image).Output()
		require.NoError(t, err)
		prepared := stages(t, string(out))
		require.Len(t, prepared, 2, image)
		for _, stage := range []string{"base", image} {
			require.NotEmpty(t, ordinary[stage], stage)
			var want []string
			for _, line := range ordinary[stage] {
				if rest, ok := strings.CutPrefix(line, "COPY --from=build "); ok {
					line = "COPY " + strings.ReplaceAll(rest, "/out/", "")
				}
				want = append(want, line)
			}
			require.Equal(t, want, prepared[stage])
		}
		if image != "cli" { // which is no service
			require.True(t, slices.ContainsFunc(prepared[image], func(line string) bool { return strings.HasPrefix(line, "HEALTHCHECK ") }), image)
		}
	}
}

// TestComposeGivesEachItsOwn: a container mounts the secrets of its role and no others, and may no more than it must.
func TestComposeGivesEachItsOwn(t *testing.T) {
	t.Parallel()
	body, err := os.ReadFile("../../docker-compose.yml")
	require.NoError(t, err)
	var file struct {
		Services map[string]struct {
			Volumes     []string          `yaml:"volumes"`
			Networks    []string          `yaml:"networks"`
			ReadOnly    bool              `yaml:"read_only"`
			CapDrop     []string          `yaml:"cap_drop"`
			SecurityOpt []string          `yaml:"security_opt"`
			Ports       []string          `yaml:"ports"`
			Environment map[string]string `yaml:"environment"`
			Name        string            `yaml:"container_name"`
		} `yaml:"services"`
	}
	require.NoError(t, yaml.UnmarshalWithOptions(body, &file, yaml.AllowDuplicateMapKey())) // merged ones are over-written
	roles := map[string]string{"cli": string(bus.User), "setup": string(bus.Operator), "nats-1": "nats", "nats-2": "nats", "nats-3": "nats"}
	for _, s := range services {
		name := strings.TrimPrefix(s[0], "../../services/")
		roles[name] = name
	}
	require.Len(t, file.Services, len(roles)+2, "and the two that make the secrets")
	for name, s := range file.Services {
		require.True(t, s.ReadOnly, name)
		require.Equal(t, []string{"ALL"}, s.CapDrop, name)
		require.Equal(t, []string{"no-new-privileges:true"}, s.SecurityOpt, name)
		require.Empty(t, s.Name, "%s could not be scaled", name)
		for _, port := range s.Ports {
			require.True(t, strings.HasPrefix(port, "127.0.0.1::"), "%s publishes %s", name, port)
		}
		if name == "certs" || name == "keys" {
			require.Empty(t, s.Networks, name)
			continue
		}
		var secrets []string
		for _, v := range s.Volumes {
			if strings.HasPrefix(v, "secrets-") {
				secrets = append(secrets, v)
			}
		}
		require.Equal(t, []string{"secrets-" + roles[name] + ":/run/drover:ro"}, secrets, name)
		require.Equal(t, strings.HasPrefix(name, "nats-"), slices.Contains(s.Networks, "routes"), "%s and the routes", name)
	}
}
