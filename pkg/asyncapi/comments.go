package asyncapi

import (
	"regexp"
	"strings"
)

var (
	packageLine = regexp.MustCompile(`^package ([\w.]+);`)
	messageLine = regexp.MustCompile(`^message (\w+) \{`)
	fieldLine   = regexp.MustCompile(`^(?:repeated )?(?:map<[^>]+>|[\w.]+) (\w+) = \d+`)
)

// Comments reads what .proto files say of their messages and fields, by full name: generated code has no comments. It knows
// as much of the language as `buf format` and `buf lint` leave: one declaration a line, its comment above it.
func Comments(files ...string) map[string]string {
	all := map[string]string{}
	for _, file := range files {
		pkg, message := "", ""
		var comment []string
		for line := range strings.Lines(file) {
			line = strings.TrimSpace(line)
			if text, ok := strings.CutPrefix(line, "//"); ok {
				comment = append(comment, strings.TrimSpace(text))
				continue
			}
			name := ""
			if m := packageLine.FindStringSubmatch(line); m != nil {
				pkg = m[1]
			} else if m := messageLine.FindStringSubmatch(line); m != nil {
				message = pkg + "." + m[1]
				name = message
			} else if m := fieldLine.FindStringSubmatch(line); m != nil && message != "" {
				name = message + "." + m[1]
			}
			if name != "" && len(comment) > 0 {
				all[name] = strings.Join(comment, " ")
			}
			comment = nil
		}
	}
	return all
}
