// Package manifest is what users write: files of manifests in YAML or JSON, the Blueprint among them, and the
// configurations of the executors.
//
// Every mistake is named by its field's path, and, in a file, by line and column. What was read here has been checked
// once: the engine and the services rely on it.
package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/check"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/strictjson"
	"github.com/droverproject/drover/pkg/wire"
)

// APIVersion is the one version of manifests.
const APIVersion = "drover/v1"

// KindBlueprint is the kind of the manifests that define kinds.
const KindBlueprint = "Blueprint"

// LabelBytesMax is the bytes of a label's name or value.
const LabelBytesMax = 253

// Canonical returns JSON in its canonical form (compact, keys sorted, numbers with their digits as written) and its
// digest: the first 16 bytes of SHA-256, in hex. The error is a strictjson.Errors.
func Canonical(json []byte) (canonical []byte, digest string, err error) {
	canonical, err = strictjson.Canonical(json)
	if err != nil {
		return nil, "", err
	}
	sum := sha256.Sum256(canonical)
	return canonical, hex.EncodeToString(sum[:16]), nil
}

// Check judges everything of a manifest but the content of its spec.
func Check(m *wire.Manifest) []resource.Violation {
	var found []resource.Violation
	fail := func(field, reason string) {
		found = append(found, resource.Violation{Field: field, Reason: reason})
	}
	switch m.APIVersion {
	case APIVersion:
	case "":
		fail("apiVersion", "is missing: "+APIVersion)
	default:
		fail("apiVersion", "is not "+APIVersion)
	}
	if reason := CheckName(m.Kind); reason != "" {
		fail("kind", reason)
	}
	if reason := CheckName(m.Name); reason != "" {
		fail("metadata.name", reason)
	} else if strings.Contains(m.Name, "/") && !check.IsKind(m.Kind) {
		fail("metadata.name", "holds a slash: names with one are those of children, which their parents make")
	}
	if m.Project != "" {
		if reason := CheckName(m.Project); reason != "" {
			fail("metadata.project", reason)
		}
	}
	if m.Cluster != "" {
		if reason := CheckName(m.Cluster); reason != "" {
			fail("metadata.cluster", reason)
		}
	}
	if len(m.Labels) > resource.LabelsMax {
		fail("metadata.labels", fmt.Sprintf("has more than %d labels", resource.LabelsMax))
	} else {
		for _, name := range slices.Sorted(maps.Keys(m.Labels)) {
			field := strictjson.Field("metadata.labels", name)
			if reason := CheckName(name); reason != "" {
				fail(field, "its name "+reason)
			}
			if value := m.Labels[name]; len(value) > LabelBytesMax || !printable(value) {
				fail(field, fmt.Sprintf("is not printable text of at most %d bytes", LabelBytesMax))
			}
		}
	}
	if len(m.Spec) > resource.SpecBytesMax {
		fail("spec", fmt.Sprintf("is larger than %d bytes", resource.SpecBytesMax))
	}
	return found
}

// CheckName says what is wrong with the name of a resource, kind, project, cluster or label, or "".
func CheckName(name string) string {
	switch {
	case name == "":
		return "is missing"
	case len(name) > blueprint.NameBytesMax:
		return fmt.Sprintf("is longer than %d bytes", blueprint.NameBytesMax)
	case !printable(name):
		return "holds a character that cannot be printed"
	case strings.TrimSpace(name) != name:
		return "begins or ends with a space"
	}
	return ""
}

func printable(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) < 0
}
