package engine_test

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The engine must be a pure function of what it is given (design.md section 2, promise 3): the same state and input
// lead to the same state and effects, in whichever process, whenever, however often. This test reads the engine's own
// source and refuses what could break that. Each rule is proved by a fixture that must be found.

const modulePath = "github.com/droverproject/drover/pkg/engine"

// mayImport is everything that the engine may hold, beside itself.
var mayImport = []string{
	"cmp", "errors", "fmt", "iter", "maps", "math/bits", "slices", "strconv", "strings", "time", "unicode/utf8",
}

type rule string

const (
	importRule   rule = "import"
	mapRule      rule = "map order"
	goRule       rule = "concurrency"
	globalRule   rule = "global state"
	clockRule    rule = "clock"
	zoneRule     rule = "time zone"
	outputRule   rule = "output"
	variantsRule rule = "variants"
)

var reasons = map[rule]string{
	importRule:   "what is not listed may hold a clock, chance, or a way out; and the engine requires nothing",
	mapRule:      "Go draws the order of a map anew each time, so two replicas would decide differently; use slices.Sorted(maps.Keys(m))",
	goRule:       "the scheduler would choose the order; the shell runs things at the same time, the engine does not",
	globalRule:   "a step must not see what an earlier one has left behind; tables are written once, in their declaration",
	clockRule:    "time comes in with the input (Input.At), or a replay would decide differently",
	zoneRule:     "the machine's time zone would show in the result; use UTC",
	outputRule:   "effects are data; the shell writes the lines",
	variantsRule: "what is built for one platform only would let replicas differ, and is not seen by this test",
}

// fromClock are the names of package time that read the clock or wait for it.
var fromClock = []string{"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "NewTimer", "NewTicker", "Tick"}

// fromZone are the names of package time whose results depend on the machine's time zone or its files.
var fromZone = []string{"Local", "LoadLocation", "Parse", "Unix", "UnixMilli", "UnixMicro"}

type finding struct {
	at   token.Position
	rule rule
	what string
}

func (f finding) String() string {
	return fmt.Sprintf("%s: %s: %s (%s)", f.at, f.rule, f.what, reasons[f.rule])
}

// house type-checks the engine's packages from source, and those of the standard library that they import.
type house struct {
	fset   *token.FileSet
	std    types.Importer
	loaded map[string]*types.Package
	found  []finding
}

func newHouse() *house {
	fset := token.NewFileSet()
	return &house{fset: fset, std: importer.ForCompiler(fset, "source", nil), loaded: map[string]*types.Package{}}
}

// Import implements types.Importer.
func (h *house) Import(importPath string) (*types.Package, error) {
	if importPath != modulePath && !strings.HasPrefix(importPath, modulePath+"/") {
		return h.std.Import(importPath)
	}
	return h.load(importPath)
}

// load checks one of the engine's packages, once.
func (h *house) load(importPath string) (*types.Package, error) {
	if p := h.loaded[importPath]; p != nil {
		return p, nil
	}
	dir := filepath.FromSlash(strings.TrimPrefix(strings.TrimPrefix(importPath, modulePath), "/"))
	if dir == "" {
		dir = "."
	}
	listed, err := build.ImportDir(dir, 0)
	if err != nil {
		return nil, err
	}
	others := slices.Concat(listed.IgnoredGoFiles, listed.IgnoredOtherFiles, listed.CgoFiles, listed.SFiles, listed.CFiles, listed.SysoFiles)
	for _, name := range others {
		h.found = append(h.found, finding{token.Position{Filename: filepath.Join(dir, name)}, variantsRule, "a file beside plain Go"})
	}
	var files []*ast.File
	for _, name := range listed.GoFiles {
		f, err := parser.ParseFile(h.fset, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return h.check(importPath, files)
}

func (h *house) check(importPath string, files []*ast.File) (*types.Package, error) {
	v := &visitor{fset: h.fset, info: &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
		Selections: map[*ast.SelectorExpr]*types.Selection{},
	}}
	pkg, err := (&types.Config{Importer: h}).Check(importPath, h.fset, files, v.info)
	if err != nil {
		return nil, err
	}
	h.loaded[importPath] = pkg
	for _, f := range files {
		v.file(f)
	}
	h.found = append(h.found, v.found...)
	return pkg, nil
}

type visitor struct {
	fset  *token.FileSet
	info  *types.Info
	found []finding
	// sound are uses of names that would be refused if they stood elsewhere.
	sound map[ast.Node]bool
}

func (v *visitor) report(n ast.Node, r rule, format string, args ...any) {
	v.found = append(v.found, finding{v.fset.Position(n.Pos()), r, fmt.Sprintf(format, args...)})
}

func (v *visitor) file(f *ast.File) {
	v.sound = map[ast.Node]bool{}
	for _, spec := range f.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		engine := name == modulePath || strings.HasPrefix(name, modulePath+"/")
		if err != nil || !engine && !slices.Contains(mayImport, name) {
			v.report(spec, importRule, "%s is not on the list", spec.Path.Value)
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		v.node(n)
		return true
	})
}

// node is called for a node before its children.
func (v *visitor) node(n ast.Node) {
	switch n := n.(type) {
	case *ast.GoStmt:
		v.report(n, goRule, "go statement")
	case *ast.SelectStmt:
		v.report(n, goRule, "select")
	case *ast.ChanType:
		v.report(n, goRule, "channel type")
	case *ast.SendStmt:
		v.report(n, goRule, "send on a channel")
	case *ast.UnaryExpr:
		switch n.Op {
		case token.ARROW:
			v.report(n, goRule, "receive from a channel")
		case token.AND:
			v.written(n, n.X, "its address is taken")
		}
	case *ast.RangeStmt:
		v.ranged(n)
		for _, e := range []ast.Expr{n.Key, n.Value} {
			if n.Tok == token.ASSIGN && e != nil {
				v.written(n, e, "it is assigned")
			}
		}
	case *ast.AssignStmt:
		if n.Tok == token.DEFINE {
			return
		}
		for _, e := range n.Lhs {
			v.written(n, e, "it is assigned")
		}
	case *ast.IncDecStmt:
		v.written(n, n.X, "it is changed")
	case *ast.CallExpr:
		v.called(n)
	case *ast.SelectorExpr:
		v.selected(n)
	}
}

// ranged refuses loops whose order is not that of the program.
func (v *visitor) ranged(n *ast.RangeStmt) {
	t := v.info.TypeOf(n.X)
	if contains(t, func(t types.Type) bool { _, ok := t.(*types.Map); return ok }) {
		v.report(n, mapRule, "range over a %s", t)
	}
	if contains(t, func(t types.Type) bool { _, ok := t.(*types.Chan); return ok }) {
		v.report(n, goRule, "range over a %s", t)
	}
}

// contains reports whether is holds for what t is, or for one of the types that a type parameter may stand for.
func contains(t types.Type, is func(types.Type) bool) bool {
	if t == nil {
		return false
	}
	if is(t.Underlying()) {
		return true
	}
	union, ok := t.Underlying().(*types.Interface)
	if !ok {
		return false
	}
	for i := range union.NumEmbeddeds() {
		switch e := union.EmbeddedType(i).(type) {
		case *types.Union:
			for j := range e.Len() {
				if contains(e.Term(j).Type(), is) {
					return true
				}
			}
		default:
			if contains(e, is) {
				return true
			}
		}
	}
	return false
}

// called refuses built-in functions that write a package's variables or to standard error, and notes where the order
// of a map, or the machine's zone, does no harm.
func (v *visitor) called(n *ast.CallExpr) {
	if name, ok := ast.Unparen(n.Fun).(*ast.Ident); ok {
		if _, builtin := v.info.Uses[name].(*types.Builtin); builtin && len(n.Args) > 0 {
			switch name.Name {
			case "delete", "clear", "copy", "append":
				v.written(n, n.Args[0], "it is given to "+name.Name)
			case "close":
				v.report(n, goRule, "close of a channel")
			case "print", "println":
				v.report(n, outputRule, "%s", name.Name)
			}
		}
	}
	switch pkg, name := v.qualified(n.Fun); {
	case pkg == "slices" && name == "Sorted", pkg == "maps" && (name == "Collect" || name == "Insert"):
		for _, arg := range n.Args {
			if inner, ok := ast.Unparen(arg).(*ast.CallExpr); ok {
				if pkg, _ := v.qualified(inner.Fun); pkg == "maps" {
					v.sound[ast.Unparen(inner.Fun)] = true
				}
			}
		}
	}
	if method, ok := n.Fun.(*ast.SelectorExpr); ok && method.Sel.Name == "UTC" {
		if inner, ok := ast.Unparen(method.X).(*ast.CallExpr); ok {
			if pkg, name := v.qualified(inner.Fun); pkg == "time" && strings.HasPrefix(name, "Unix") {
				v.sound[ast.Unparen(inner.Fun)] = true
			}
		}
	}
}

// selected refuses names of other packages, called or not, and methods that write to a package's variable.
func (v *visitor) selected(n *ast.SelectorExpr) {
	if s := v.info.Selections[n]; s != nil && s.Kind() == types.MethodVal {
		f, ok := s.Obj().(*types.Func)
		if !ok {
			return
		}
		if f.FullName() == "(time.Time).Local" {
			v.report(n, zoneRule, "Time.Local")
		}
		_, byPointer := f.Signature().Recv().Type().(*types.Pointer)
		_, isPointer := v.info.TypeOf(n.X).Underlying().(*types.Pointer)
		if byPointer && !isPointer {
			v.written(n, n.X, "a method may change it")
		}
		return
	}
	if v.sound[n] {
		return
	}
	switch pkg, name := v.qualified(n); pkg {
	case "time":
		if slices.Contains(fromClock, name) {
			v.report(n, clockRule, "time.%s", name)
		}
		if slices.Contains(fromZone, name) {
			v.report(n, zoneRule, "time.%s", name)
		}
	case "maps":
		if name == "Keys" || name == "Values" || name == "All" {
			v.report(n, mapRule, "maps.%s", name)
		}
	case "fmt":
		if strings.HasPrefix(name, "Print") || strings.HasPrefix(name, "Scan") {
			v.report(n, outputRule, "fmt.%s", name)
		}
	}
}

// qualified returns the package and name that an expression such as time.Now stands for, whatever the package is called
// in this file.
func (v *visitor) qualified(e ast.Expr) (pkg, name string) {
	e = ast.Unparen(e)
	switch indexed := e.(type) { // an instantiation
	case *ast.IndexExpr:
		e = ast.Unparen(indexed.X)
	case *ast.IndexListExpr:
		e = ast.Unparen(indexed.X)
	}
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	x, ok := s.X.(*ast.Ident)
	if !ok {
		return "", ""
	}
	if p, ok := v.info.Uses[x].(*types.PkgName); ok {
		return p.Imported().Path(), s.Sel.Name
	}
	return "", ""
}

// written reports the variable of a package that e is, or is a part of.
func (v *visitor) written(at ast.Node, e ast.Expr, how string) {
	for {
		switch x := ast.Unparen(e).(type) {
		case *ast.IndexExpr:
			e = x.X
		case *ast.SliceExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.SelectorExpr:
			if id, ok := x.X.(*ast.Ident); ok {
				if _, ok := v.info.Uses[id].(*types.PkgName); ok {
					v.global(at, x.Sel, how)
					return
				}
			}
			e = x.X
		case *ast.Ident:
			v.global(at, x, how)
			return
		default: // a literal, or what a function returned
			return
		}
	}
}

func (v *visitor) global(at ast.Node, id *ast.Ident, how string) {
	variable, ok := v.info.Uses[id].(*types.Var)
	if ok && variable.Pkg() != nil && variable.Parent() == variable.Pkg().Scope() {
		v.report(at, globalRule, "%s: %s", id.Name, how)
	}
}

func TestTheEngineIsPure(t *testing.T) {
	t.Parallel()
	h := newHouse()
	packages := 0
	err := filepath.WalkDir(".", func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if base := d.Name(); base == "testdata" || dir != "." && strings.HasPrefix(base, ".") {
			return filepath.SkipDir
		}
		if sources, err := filepath.Glob(filepath.Join(dir, "*.go")); err != nil || !slices.ContainsFunc(sources, isSource) {
			return err
		}
		packages++
		_, err = h.load(path.Join(modulePath, filepath.ToSlash(dir)))
		return err
	})
	if err != nil {
		t.Fatalf("the engine cannot be read: %v", err)
	}
	if packages < 3 {
		t.Fatalf("only %d packages were found: the test looks in the wrong place", packages)
	}
	for _, f := range h.found {
		t.Error(f)
	}
}

func isSource(name string) bool { return !strings.HasSuffix(name, "_test.go") }

func TestThePurityRulesFindWhatTheyMust(t *testing.T) {
	t.Parallel()
	h := newHouse() // shared: the standard library is read once
	for _, c := range []struct {
		name string
		want rule // empty: nothing may be found
		src  string
	}{
		{"chance", importRule, `import "math/rand/v2"; func f() int { return rand.Int() }`},
		{"files", importRule, `import "os"; func f() { _ = os.Args }`},
		{"by another name", importRule, `import now "runtime"; func f() { now.GC() }`},
		{"the blank import", importRule, `import _ "sync"`},
		{"more than was listed", importRule, `import "math"; func f() float64 { return math.Pi }`},

		{"map", mapRule, `func f(m map[string]int) (n int) { for _, v := range m { n -= v }; return n }`},
		{"named map", mapRule, `type set map[int]bool; func f(m set) { for range m { } }`},
		{"map as a type parameter", mapRule, `func f[M ~map[K]V, K comparable, V any](m M) { for range m { } }`},
		{"keys", mapRule, `import "maps"; func f(m map[int]int) { for range maps.Keys(m) { } }`},
		{"values, collected", mapRule, `import ("maps"; "slices"); func f(m map[int]int) []int { return slices.Collect(maps.Values(m)) }`},
		{"entries under another name", mapRule, `import m "maps"; var all = m.All[map[int]int]`},
		{"instantiated keys", mapRule, `import "maps"; func f(m map[int]int) { for range maps.Keys[map[int]int](m) { } }`},

		{"goroutine", goRule, `func f() { go f() }`},
		{"select", goRule, `func f() { select {} }`},
		{"channel", goRule, `type c chan int`},
		{"channel as a parameter", goRule, `func f(c <-chan int) {}`},
		{"receive", goRule, `type c chan int; func f(c c) { <-c }`},
		{"send", goRule, `type c chan int; func f(c c) { c <- 1 }`},
		{"close", goRule, `type c chan int; func f(c c) { close(c) }`},
		{"range over a channel", goRule, `type c chan int; func f(c c) { for range c { } }`},

		{"assignment", globalRule, `var n int; func f() { n = 1 }`},
		{"assignment in a literal", globalRule, `var n int; var f = func() { n, _ = 1, 2 }`},
		{"assignment in init", globalRule, `var n int; func init() { n = 1 }`},
		{"sum", globalRule, `var n int; func f() { n += 1 }`},
		{"increment", globalRule, `var n int; func f() { n++ }`},
		{"element", globalRule, `var m = map[int]int{}; func f() { m[1] = 2 }`},
		{"field of an element", globalRule, `var s = []struct{ a [2]int }{{}}; func f() { (s[0]).a[1] = 2 }`},
		{"through a pointer", globalRule, `var p = new(int); func f() { *p = 2 }`},
		{"delete", globalRule, `var m = map[int]int{}; func f() { delete(m, 1) }`},
		{"copy", globalRule, `var s = []int{1}; func f() { copy(s[:1], s) }`},
		{"append in place", globalRule, `var s = []int{1}; func f() []int { return append(s[:0], 2) }`},
		{"loop variable", globalRule, `var i int; func f(s []int) { for i = range s { } }`},
		{"address", globalRule, `var n int; func f() *int { return &n }`},
		{"method by pointer", globalRule, `type c int; func (c *c) add() { *c++ }; var n c; func f() { n.add() }`},
		{"of another package", globalRule, `import "time"; func f() { time.UTC = nil }`},

		{"now", clockRule, `import "time"; func f() time.Time { return time.Now() }`},
		{"since", clockRule, `import "time"; func f(t time.Time) time.Duration { return time.Since(t) }`},
		{"until", clockRule, `import "time"; func f(t time.Time) time.Duration { return time.Until(t) }`},
		{"not called", clockRule, `import "time"; var clock = time.Now`},
		{"under another name", clockRule, `import t "time"; func f() { (t.Sleep)(1) }`},
		{"timer", clockRule, `import "time"; func f() { time.AfterFunc(1, f) }`},

		{"local time", zoneRule, `import "time"; func f(t time.Time) time.Time { return t.Local() }`},
		{"local location", zoneRule, `import "time"; func f(t time.Time) time.Time { return t.In(time.Local) }`},
		{"zone files", zoneRule, `import "time"; func f() { _, _ = time.LoadLocation("x") }`},
		{"seconds since 1970", zoneRule, `import "time"; func f() time.Time { return time.Unix(0, 0) }`},
		{"parsed", zoneRule, `import "time"; func f() { _, _ = time.Parse(time.RFC3339, "") }`},

		{"printed", outputRule, `import "fmt"; func f() { fmt.Println() }`},
		{"built-in print", outputRule, `func f() { println("x") }`},

		{"sorted keys", "", `import ("maps"; "slices"); func f(m map[int]int) { for range slices.Sorted(maps.Keys(m)) { } }`},
		{"a copy of a map", "", `import "maps"; func f(m map[int]int) map[int]int { n := maps.Clone(m); maps.Insert(n, maps.All(m)); maps.Copy(n, m); return n }`},
		{"a loop of another kind", "", `func f(s []int, n int) { for range s { }; for range n { }; for range "x" { } }`},
		{"a local variable", "", `func f() int { n := 0; p := &n; *p = 1; n++; m := map[int]int{}; m[1] = 2; delete(m, 1); return n }`},
		{"a local of the same name", "", `var n = 1; func f() int { n := n; n++; return n }`},
		{"a table that is read", "", `var t = map[int][]int{1: {2}}; func f() []int { s := t[1]; return append([]int(nil), s...) }`},
		{"a declaration", "", `var a, b = 1, []string{"x"}; var _ = a; var _ = b`},
		{"time that is given", "", `import "time"; func f(t time.Time) time.Time { return t.Add(time.Second).In(time.UTC) }`},
		{"seconds in UTC", "", `import "time"; func f() time.Time { return time.Unix(1, 0).UTC() }`},
		{"words", "", `import ("errors"; "fmt"); var e = errors.New("x"); func f() error { return fmt.Errorf("y: %w", e) }`},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := parser.ParseFile(h.fset, c.name+".go", "package p; "+c.src, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			h.found = nil
			if _, err := h.check("p", []*ast.File{f}); err != nil {
				t.Fatal(err)
			}
			if c.want == "" {
				for _, f := range h.found {
					t.Errorf("wrongly found: %s", f)
				}
				return
			}
			if !slices.ContainsFunc(h.found, func(f finding) bool { return f.rule == c.want }) {
				t.Errorf("not found: %s; only %v", c.want, h.found)
			}
			for _, f := range h.found {
				if f.rule != c.want {
					t.Errorf("found for another reason: %s", f)
				}
				if reasons[f.rule] == "" {
					t.Errorf("%s has no reason", f.rule)
				}
			}
		})
	}
}
