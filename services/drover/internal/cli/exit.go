package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
)

// Exit codes (contract.md, "CLI").
const (
	ExitOK          = 0
	ExitError       = 1 // anything that no other code names; invalid manifests and arguments of a verb
	ExitUsage       = 2 // the command line is wrong
	ExitNotFound    = 3
	ExitConflict    = 4 // the state does not allow it, or another body under this request id
	ExitFailed      = 5 // the job that was waited for failed
	ExitCanceled    = 6 // the job that was waited for was canceled
	ExitTimeout     = 7
	ExitUnreachable = 8 // no server, no service, overloaded, or not permitted
)

// severity orders the codes for commands that act on several things: the last one that occurred is the exit code.
var severity = []int{
	ExitOK, ExitCanceled, ExitFailed, ExitTimeout, ExitConflict, ExitNotFound, ExitError, ExitUsage, ExitUnreachable,
}

func worse(a, b int) int {
	if slices.Index(severity, b) > slices.Index(severity, a) {
		return b
	}
	return a
}

// failure is an error with its exit code and with what the user can do about it.
type failure struct {
	code int
	err  error
	hint string
	// told is true where the command has already said what is wrong; only the code is left to be given.
	told bool
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func fail(code int, format string, args ...any) *failure {
	return &failure{code: code, err: fmt.Errorf(format, args...)}
}

func (f *failure) withHint(format string, args ...any) *failure {
	f.hint = fmt.Sprintf(format, args...)
	return f
}

func usage(format string, args ...any) *failure { return fail(ExitUsage, format, args...) }

// exitWith ends a command that has told everything.
func exitWith(code int) error {
	if code == ExitOK {
		return nil
	}
	return &failure{code: code, err: errors.New("see above"), told: true}
}

// codeOf is the exit code of an error.
func codeOf(err error) int {
	var f *failure
	var refused *refusedError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &f):
		return f.code
	case errors.As(err, &refused):
		return refused.exit()
	case errors.Is(err, context.DeadlineExceeded):
		return ExitTimeout
	case errors.Is(err, bus.ErrNotFound):
		return ExitNotFound
	case errors.Is(err, bus.ErrLost), errors.Is(err, bus.ErrExists):
		return ExitConflict
	case errors.Is(err, bus.ErrNoOwner), errors.Is(err, bus.ErrDenied), errors.Is(err, bus.ErrFull), errors.Is(err, bus.ErrClosed):
		return ExitUnreachable
	}
	return ExitError
}

// hintOf is what the user can do about an error; empty where nothing is known.
func hintOf(err error) string {
	var f *failure
	var refused *refusedError
	switch {
	case errors.As(err, &f) && f.hint != "":
		return f.hint
	case errors.As(err, &refused):
		return refused.hint()
	case errors.Is(err, bus.ErrNoOwner):
		return "is `drover up`, or intake and the orchestrator, running? `drover doctor` checks"
	case errors.Is(err, bus.ErrDenied):
		return "the server's permissions decide who may say what; `drover doctor` says what this user may, and --creds, --nkey or --context name another"
	case errors.Is(err, context.DeadlineExceeded):
		return "--timeout gives it longer"
	case errors.Is(err, bus.ErrFull):
		return "the system is overloaded; try again later, with the same --request-id"
	}
	return ""
}

// refusedError is a command that left nothing behind.
type refusedError struct {
	subject   string
	requestID string
	refusal   resource.Refusal
}

func (e *refusedError) Error() string { return string(e.refusal.Code) + ": " + e.refusal.Message }

// hint is what can be done about it; a conflict is told with the resource (App.tellRefused).
func (e *refusedError) hint() string {
	names := func(field string) bool {
		return slices.ContainsFunc(e.refusal.Violations, func(v resource.Violation) bool { return v.Field == field })
	}
	switch {
	case e.refusal.Code == resource.NotFound:
		return "`drover get` lists what there is; --project names another project"
	case e.refusal.Code == resource.Overloaded:
		return "the system is overloaded; try again later, with the same --request-id"
	case names("verb"):
		return "`drover get blueprints` shows the verbs of each kind, and `drover graph KIND` where they lead"
	case names("resource.kind"):
		return "`drover get blueprints` lists the kinds; apply a Blueprint of this name first"
	}
	return ""
}

func (e *refusedError) exit() int {
	switch e.refusal.Code {
	case resource.NotFound:
		return ExitNotFound
	case resource.Conflict:
		return ExitConflict
	case resource.Overloaded:
		return ExitUnreachable
	default:
		return ExitError
	}
}
