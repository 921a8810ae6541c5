// Package constraint evaluates the constraints of phases ("when"): CEL expressions over one resource.
//
//	has(resource.spec.size) && resource.spec.size == "large"
//	resource.labels.rack in ["a", "b"] || resource.wasDeployed
//
// # The resource
//
//	resource.project, kind, name, uid, state, target, cluster   string
//	resource.labels                                             map of string
//	resource.spec, attributes                                   map of any JSON value; whole numbers are ints
//	resource.wasDeployed                                        bool
//
// Any other field of resource is refused when the expression is compiled. A key that a map lacks is an error when it is
// evaluated ("no such key: size"): ask with has() first.
//
// # Absent on purpose
//
// No clock and no time zones: neither now() nor timestamp() exists, so that every replica, at any time, finds the same
// (design.md, promise 3). No function that anybody could add.
package constraint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/env"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/droverproject/drover/pkg/engine/blueprint"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// Limits of an expression.
const (
	CostMax     = 100_000 // cost units of CEL per evaluation; some milliseconds
	NestingMax  = 32      // nesting of the text
	ProgramsMax = 1024    // compiled expressions that an Evaluator keeps
)

// Compile says what is wrong with an expression, in one line; nil if it can be evaluated.
func Compile(expr string) error {
	_, err := compile(expr)
	return err
}

// ForProvider is a constraint that holds where the resource's provider is the given one and when holds; an empty when
// holds. A resource's provider is its attribute Provider or provider, else that field of its spec; one without any has
// none. when is not evaluated for the resources of other providers.
func ForProvider(provider, when string) string {
	own := "null"
	for _, from := range []string{"spec", "attributes"} { // the last one is asked first
		for _, name := range []string{"provider", "Provider"} {
			own = fmt.Sprintf(`"%[1]s" in resource.%[2]s ? resource.%[2]s.%[1]s : %[3]s`, name, from, own)
		}
	}
	holds := "(" + own + ") == " + strconv.Quote(provider)
	if when == "" {
		return holds
	}
	return "(" + holds + ") ? (" + when + "\n) : false" // on a line of its own: when may end in a comment
}

// Evaluator evaluates expressions and keeps the compiled ones. Safe for concurrent use.
type Evaluator struct {
	programs *lru.Cache[string, cel.Program]
}

// NewEvaluator returns an Evaluator that knows no expression yet.
func NewEvaluator() *Evaluator {
	programs, err := lru.New[string, cel.Program](ProgramsMax)
	if err != nil {
		panic(err) // only a size below 1 is refused
	}
	return &Evaluator{programs: programs}
}

// Eval evaluates an expression over a resource and its spec, which may be empty. The same arguments give the same
// answer, whenever and wherever. Neither s nor specJSON is changed or kept.
func (e *Evaluator) Eval(expr string, specJSON []byte, s *resource.State) (bool, error) {
	program, ok := e.programs.Get(expr)
	if !ok {
		var err error
		if program, err = compile(expr); err != nil {
			return false, err
		}
		e.programs.Add(expr, program)
	}
	value, _, err := program.Eval(&subject{state: s, specJSON: specJSON})
	if err != nil {
		return false, fmt.Errorf("%s: %w", short(expr), plain(err))
	}
	result, ok := value.Value().(bool)
	if !ok {
		return false, fmt.Errorf("%s: is %s, and must be true or false", short(expr), value.Type().TypeName())
	}
	return result, nil
}

// ErrCost says that the evaluation was ended at CostMax.
var ErrCost = fmt.Errorf("costs more than %d units", CostMax)

func plain(err error) error {
	if strings.Contains(err.Error(), "cost limit exceeded") {
		return ErrCost
	}
	return err
}

func short(expr string) string {
	const bytesMax = 80
	if len(expr) > bytesMax {
		expr = strings.ToValidUTF8(expr[:bytesMax], "") + "…"
	}
	return expr
}

func compile(expr string) (cel.Program, error) {
	if len(expr) > blueprint.WhenBytesMax {
		return nil, fmt.Errorf("is longer than %d bytes", blueprint.WhenBytesMax)
	}
	e, err := environment()
	if err != nil {
		return nil, err
	}
	compiling.Lock()
	defer compiling.Unlock()
	ast, issues := e.Compile(expr)
	if issues != nil && issues.Err() != nil {
		var text []string
		for _, i := range issues.Errors() {
			text = append(text, fmt.Sprintf("%s (line %d, column %d)", i.Message, i.Location.Line(), i.Location.Column()+1))
			if len(text) == 3 {
				break
			}
		}
		return nil, errors.New("does not compile: " + strings.ReplaceAll(strings.Join(text, "; "), "\n", " "))
	}
	if t := ast.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("is %s, and must be true or false", t)
	}
	return e.Program(ast, cel.CostLimit(CostMax))
}

// compiling is held while an expression is compiled: cel-go v0.33.2 fills a catalog of the shared environment when it
// first has an error to report, without a lock. Programs are evaluated without it.
var compiling sync.Mutex

var environment = sync.OnceValues(func() (*cel.Env, error) {
	registry, err := types.NewRegistry()
	if err != nil {
		return nil, err
	}
	return cel.NewCustomEnv(
		cel.StdLib(cel.StdLibSubset(env.NewLibrarySubset().AddExcludedFunctions(env.NewFunction("timestamp")))),
		cel.CustomTypeAdapter(registry), cel.CustomTypeProvider(provider{registry}),
		cel.CrossTypeNumericComparisons(true), cel.ParserRecursionLimit(NestingMax),
		cel.ParserExpressionSizeLimit(blueprint.WhenBytesMax),
		cel.Variable("resource", subjectType),
	)
})

const subjectName = "drover.Resource"

var (
	subjectType = types.NewObjectType(subjectName)
	jsonType    = types.NewMapType(types.StringType, types.DynType)
	labelsType  = types.NewMapType(types.StringType, types.StringType)
)

// subject is a resource as an expression sees it: a value of CEL, and the activation that binds it.
type subject struct {
	state    *resource.State
	specJSON []byte
	spec     any
}

func field(t *types.Type, get func(*subject) (any, error)) *types.FieldType {
	return &types.FieldType{
		Type:  t,
		IsSet: func(any) bool { return true },
		GetFrom: func(target any) (any, error) {
			s, ok := target.(*subject)
			if !ok {
				return nil, fmt.Errorf("not a resource: %T", target)
			}
			return get(s)
		},
	}
}

func text(get func(*resource.State) string) *types.FieldType {
	return field(types.StringType, func(s *subject) (any, error) { return get(s.state), nil })
}

var fields = map[string]*types.FieldType{
	"project": text(func(s *resource.State) string { return s.Project }),
	"kind":    text(func(s *resource.State) string { return s.Kind }),
	"name":    text(func(s *resource.State) string { return s.Name }),
	"uid":     text(func(s *resource.State) string { return s.UID }),
	"state":   text(func(s *resource.State) string { return s.State }),
	"target":  text(func(s *resource.State) string { return s.Target }),
	"cluster": text(func(s *resource.State) string { return s.Cluster }),
	"wasDeployed": field(types.BoolType, func(s *subject) (any, error) {
		return s.state.WasDeployed, nil
	}),
	"labels": field(labelsType, func(s *subject) (any, error) {
		if s.state.Labels == nil {
			return map[string]string{}, nil
		}
		return s.state.Labels, nil
	}),
	"spec": field(jsonType, func(s *subject) (any, error) {
		if s.spec == nil {
			spec, err := read(s.specJSON)
			if err != nil {
				return nil, fmt.Errorf("spec: %w", err)
			}
			s.spec = spec
		}
		return s.spec, nil
	}),
	"attributes": field(jsonType, func(s *subject) (any, error) {
		attributes := make(map[string]any, len(s.state.Attributes))
		for _, name := range slices.Sorted(maps.Keys(s.state.Attributes)) { // sorted: the same error everywhere
			v, err := read([]byte(s.state.Attributes[name]))
			if err != nil {
				return nil, fmt.Errorf("attributes.%s: %w", name, err)
			}
			attributes[name] = v
		}
		return attributes, nil
	}),
}

// read decodes JSON so that whole numbers are ints: with doubles, spec.count + 1 would have no meaning.
func read(data []byte) (any, error) {
	if len(data) == 0 {
		return map[string]any{}, nil
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	return numbers(v), nil
}

func numbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i
		}
		f, _ := v.Float64() // out of range is infinite
		return f
	case map[string]any:
		for name, item := range v {
			v[name] = numbers(item)
		}
	case []any:
		for i, item := range v {
			v[i] = numbers(item)
		}
	}
	return v
}

// ResolveName makes it an activation.
func (s *subject) ResolveName(name string) (any, bool) { return s, name == "resource" }

// Parent makes it an activation.
func (s *subject) Parent() cel.Activation { return nil }

// ConvertToNative makes it a value.
func (s *subject) ConvertToNative(t reflect.Type) (any, error) {
	return nil, fmt.Errorf("a resource cannot become a %s", t)
}

// ConvertToType makes it a value.
func (s *subject) ConvertToType(t ref.Type) ref.Val {
	if t == types.TypeType {
		return subjectType
	}
	return types.NewErr("a resource cannot become a %s", t.TypeName())
}

// Equal makes it a value: there is but one resource in an evaluation.
func (s *subject) Equal(other ref.Val) ref.Val { return types.Bool(s == other) }

// Type makes it a value.
func (s *subject) Type() ref.Type { return subjectType }

// Value makes it a value.
func (s *subject) Value() any { return s }

// provider knows the type of the resource beside CEL's own.
type provider struct{ *types.Registry }

// FindStructType makes it a provider of types.
func (p provider) FindStructType(name string) (*types.Type, bool) {
	if name == subjectName {
		return types.NewTypeTypeWithParam(subjectType), true
	}
	return p.Registry.FindStructType(name)
}

// FindStructFieldType makes it a provider of types.
func (p provider) FindStructFieldType(name, fieldName string) (*types.FieldType, bool) {
	if name == subjectName {
		f, ok := fields[fieldName]
		return f, ok
	}
	return p.Registry.FindStructFieldType(name, fieldName)
}
