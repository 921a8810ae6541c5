package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/droverproject/drover/pkg/engine/check"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/manifest"
	"github.com/droverproject/drover/pkg/wire"
	"github.com/droverproject/drover/services/drover/internal/render"
)

// ManifestFilesMax is how many files one apply reads.
const ManifestFilesMax = 10_000

func newApply(a *App) *cobra.Command {
	var files []string
	var recursive, dryRun bool
	var send sendFlags
	cmd := &cobra.Command{
		Use:   "apply -f FILE|FOLDER|-",
		Short: "Create or change resources and blueprints",
		Long: `Create or change what manifests describe: YAML or JSON, many documents in a file, "-" for stdin, or a folder with
*.yaml, *.yml and *.json. Nothing is sent unless all of it can be read.

Blueprints are applied first. Applying starts nothing, unless a blueprint's phases have auto_deploy; the verbs of the
lifecycle do.`,
		Example: `  drover apply -f fleet.yaml
  drover apply -f fleet/ -R
  render-fleet | drover apply -f -
  drover apply -f fleet.yaml --dry-run`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.runner(func(ctx context.Context, _ []string) error {
			if len(files) == 0 {
				return usage("name what to apply: -f FILE, -f FOLDER, or -f - for stdin")
			}
			documents, err := a.readManifests(files, recursive)
			if err != nil {
				return err
			}
			if dryRun {
				return a.printDryRun(documents)
			}
			return a.apply(ctx, documents, send)
		}),
	}
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "file, folder, or - for stdin; may be given again")
	cmd.Flags().BoolVarP(&recursive, "recursive", "R", false, "folders with all that is below them")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only check the manifests, and send nothing")
	send.add(cmd)
	_ = cmd.MarkFlagFilename("filename", "yaml", "yml", "json")
	return cmd
}

// document is a manifest and the file that it was found in.
type document struct {
	manifest.Document
	file string
}

func (d *document) target() target { return target{kind: d.Manifest.Kind, name: d.Manifest.Name} }

func (d *document) blueprint() bool { return d.Manifest.Kind == manifest.KindBlueprint }

// project is where it goes: the manifest's own word, or the command line's.
func (d *document) project(a *App) string {
	if d.Manifest.Project != "" {
		return d.Manifest.Project
	}
	return a.project
}

// place is where a field stands, as file:line:column. The server's paths begin with the command's own "resource".
func (d *document) place(field string) string {
	line, column := d.Position(strings.TrimPrefix(field, "resource."))
	return fmt.Sprintf("%s:%d:%d", d.file, line, column)
}

// manifestReader gathers manifests, and the mistakes in them.
type manifestReader struct {
	app       *App
	documents []document
	seen      map[resource.Key]string // where each was given
	mistakes  int
}

// readManifests reads everything, blueprints first. All mistakes are told, each with its place; then it fails.
func (a *App) readManifests(files []string, recursive bool) ([]document, error) {
	sources, err := a.manifestSources(files, recursive)
	if err != nil {
		return nil, err
	}
	r := manifestReader{app: a, seen: map[resource.Key]string{}}
	for _, s := range sources {
		body, err := s.read()
		if err != nil {
			r.mistake("%s", err)
			continue
		}
		r.parse(s.name, body)
	}
	if r.mistakes > 0 {
		a.tell("nothing was sent")
		return nil, exitWith(ExitError)
	}
	if len(r.documents) == 0 {
		return nil, fail(ExitError, "no manifest in %s", strings.Join(files, ", "))
	}
	if len(r.documents) > TargetsMax {
		return nil, fail(ExitError, "%d manifests; one apply takes at most %d", len(r.documents), TargetsMax)
	}
	slices.SortStableFunc(r.documents, func(x, y document) int { return cmp.Compare(rank(&x), rank(&y)) })
	return r.documents, nil
}

// rank orders blueprints before what they define, machines behind the workflows that they are given, and what checks are made
// of before what stands on it.
func rank(d *document) int {
	switch kind := d.Manifest.Kind; {
	case d.blueprint():
		return 0
	case kind == resource.MachineKind:
		return 2
	case kind == check.CheckConfiguration:
		return 3 + check.DepthMax
	case check.HasInstances(kind) || kind == check.Bucket || kind == check.Repository:
		return 2 + strings.Count(d.Manifest.Name, "/")
	default:
		return 1
	}
}

func (r *manifestReader) mistake(format string, args ...any) {
	r.mistakes++
	r.app.tell("%s %s", r.app.errPaint.Bad("error:"), render.Text(fmt.Sprintf(format, args...)))
}

func (r *manifestReader) parse(file string, body []byte) {
	parsed, err := manifest.Parse(body)
	var wrong manifest.Errors
	if errors.As(err, &wrong) {
		for _, e := range wrong {
			e.File = file
			r.mistake("%s", e.Error())
		}
		return
	}
	if err != nil {
		r.mistake("%s: %s", file, err)
		return
	}
	for _, p := range parsed {
		d := document{Document: p, file: file}
		if d.blueprint() {
			r.judge(&d)
		}
		key := d.target().key(d.project(r.app))
		if first, twice := r.seen[key]; twice {
			r.mistake("%s: %s is given twice, first at %s", d.place(""), key, first)
			continue
		}
		r.seen[key] = d.place("")
		r.documents = append(r.documents, d)
	}
}

// judge finds the mistakes of a blueprint before it is sent, as intake would: here they have a line.
func (r *manifestReader) judge(d *document) {
	spec := d.Manifest.Spec
	if spec == nil {
		spec = []byte("{}")
	}
	_, violations := manifest.Blueprint(d.project(r.app), d.Manifest.Name, spec)
	for _, v := range violations {
		r.mistake("%s: %s: %s", d.place(v.Field), v.Field, v.Reason)
	}
}

// manifestSource is one file, or stdin.
type manifestSource struct {
	name string
	read func() ([]byte, error)
}

func (a *App) manifestSources(files []string, recursive bool) ([]manifestSource, error) {
	var sources []manifestSource
	add := func(path string) error {
		sources = append(sources, manifestSource{name: path, read: func() ([]byte, error) { return readBounded(path, ManifestBytesMax) }})
		if len(sources) > ManifestFilesMax {
			return usage("more than %d files", ManifestFilesMax)
		}
		return nil
	}
	stdin := false
	for _, file := range files {
		if file == "-" {
			if stdin {
				return nil, usage("-f - is given twice")
			}
			stdin = true
			sources = append(sources, manifestSource{name: "stdin", read: func() ([]byte, error) { return readAllBounded(a.In, "stdin", ManifestBytesMax) }})
			continue
		}
		info, err := os.Stat(file)
		if err != nil {
			return nil, fail(ExitError, "%w", err)
		}
		if !info.IsDir() {
			if err := add(file); err != nil {
				return nil, err
			}
			continue
		}
		before := len(sources)
		if err := walkManifests(file, recursive, add); err != nil {
			return nil, err
		}
		if len(sources) == before {
			return nil, fail(ExitError, "no *.yaml, *.yml or *.json in folder %s", file)
		}
	}
	return sources, nil
}

func walkManifests(folder string, recursive bool, add func(path string) error) error {
	if to, err := filepath.EvalSymlinks(folder); err == nil { // else WalkDir says what is wrong; it follows no link, not even here
		folder = to
	}
	return filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return fail(ExitError, "%w", err)
		case d.IsDir():
			if path != folder && !recursive {
				return fs.SkipDir
			}
			return nil
		case slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(filepath.Ext(path))):
			return add(path)
		}
		return nil
	})
}

// apply sends the blueprints and then the rest, of which each is judged by the blueprint that is there then; what checks are
// made of goes from the root to the leaves, and configurations last. Machines come behind the definitions that their task lists
// are made of.
func (a *App) apply(ctx context.Context, documents []document, flags sendFlags) error {
	orders := make([]order, len(documents))
	var groups [][]order // of one rank each; documents are in their order
	begin := 0
	for i := range documents {
		d := &documents[i]
		m := d.Manifest
		orders[i] = order{
			target: d.target(), verb: resource.VerbApply, body: wire.Command{Manifest: &m}, project: d.project(a), place: d.place,
		}
		if i+1 == len(documents) || rank(&documents[i+1]) != rank(d) {
			groups = append(groups, orders[begin:i+1])
			begin = i + 1
		}
	}
	return a.carryOut(ctx, groups, flags, len(orders) == 1)
}

func (a *App) printDryRun(documents []document) error {
	items := make([]item, len(documents))
	for i := range documents {
		d := &documents[i]
		items[i] = item{name: d.target().String(), json: jsonOf(map[string]string{
			"resource": d.target().String(), "project": d.project(a), "source": d.place(""), "result": "valid",
		})}
	}
	return a.printItems(items, len(items) == 1, func() error {
		for i := range documents {
			if err := a.printf("%s  valid  %s\n", documents[i].target().safe(), a.paint.Dim(render.Text(documents[i].place("")))); err != nil {
				return err
			}
		}
		return nil
	})
}
