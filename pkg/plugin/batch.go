package plugin

import (
	"sync/atomic"
	"time"

	"github.com/droverproject/drover/pkg/engine/resource"
)

// Batch is what one call is given. Its methods are safe for concurrent use; the last answer for a resource counts, and
// none counts after the call has returned. A resource that belongs to another batch is ignored.
type Batch struct {
	resources []*Resource
	exceeded  atomic.Bool
}

// Resources are those that wait for the phase. The slice is the caller's to read, not to change.
func (b *Batch) Resources() []*Resource { return b.resources }

// Completed says that the phase succeeded for these resources.
func (b *Batch) Completed(rs ...*Resource) {
	for _, r := range rs {
		r.decide(b, answer{outcome: resource.OutcomeCompleted})
	}
}

// Failed says that the phase failed for r, until a person retries it. The message is cut at
// resource.MessageBytesMax bytes.
func (b *Batch) Failed(r *Resource, message string) {
	r.decide(b, answer{outcome: resource.OutcomeFailed, message: message})
}

// FailedRetryable says that the phase failed for r in a way that may pass, so that the phase's retry policy applies.
func (b *Batch) FailedRetryable(r *Resource, message string) {
	r.decide(b, answer{outcome: resource.OutcomeFailed, message: message, retryable: true})
}

// Pending says that the phase is to be called again for r after a delay; 0 means the phase's interval. The message says
// what it waits for. It is what happens to a resource without an answer, too.
func (b *Batch) Pending(r *Resource, delay time.Duration, message string) {
	r.decide(b, answer{outcome: resource.OutcomePending, message: message, delay: max(delay, 0)})
}

// NotStarted says that nothing was done for r and that it is to be handed out anew.
func (b *Batch) NotStarted(r *Resource, message string) {
	r.decide(b, answer{outcome: resource.OutcomeNotStarted, message: message})
}

// Release says that nothing was decided for r: the same work is delivered again, here or elsewhere, after a delay.
// A phase fails once its work was delivered bus.WorkDeliveriesMax times.
func (b *Batch) Release(r *Resource, delay time.Duration) {
	r.decide(b, answer{release: true, delay: max(delay, 0)})
}

// Exceeded says that the call has passed a limit of its own and was ended. It decides nothing; it is counted in the phase's
// record.
func (b *Batch) Exceeded() { b.exceeded.Store(true) }

// answer is what is to be said of one hand-out.
type answer struct {
	outcome   resource.Outcome
	message   string
	delay     time.Duration
	retryable bool
	release   bool // no result: deliver the work again after delay
}

func (a answer) given() bool { return a.release || a.outcome != 0 }
