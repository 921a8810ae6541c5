package resource

// transact keeps the record of the attempts (seed 000: "the transaction history"): one for each attempt that began, whoever
// carries it out, closed when the attempt has ended, whatever came of it. It only reads the phases, so that nothing is
// decided by it.
func (x *step) transact() {
	for i := range x.s.Phases {
		p := &x.s.Phases[i]
		t := x.s.transaction(p)
		was := x.before.Phase(p.Name)
		begins := p.InFlight && (was == nil || !was.InFlight || was.Attempt != p.Attempt || was.JobID != p.JobID)
		if t == nil && begins {
			x.s.Transactions = append(x.s.Transactions, Transaction{
				Phase: p.Name, Attempt: p.Attempt, JobID: p.JobID, Verb: x.verbOf(p.JobID), Began: x.at,
			})
			t = &x.s.Transactions[len(x.s.Transactions)-1]
		}
		if t == nil || !t.Ended.IsZero() {
			continue
		}
		t.Calls = max(t.Calls, p.Call)
		ends := p.Status == Completed || p.Status == Undone || p.Status == Failed || p.Status == Canceled ||
			p.Status == Sleeping && p.Retrying
		if ends {
			t.Ended, t.Outcome = x.at, p.Status
		}
	}
	for i := range x.s.Transactions { // given up without an end of its own: dropped, or begun again
		t := &x.s.Transactions[i]
		p := x.s.Phase(t.Phase)
		if t.Ended.IsZero() && (p == nil || !t.is(p) || !p.Status.Active()) {
			t.Ended, t.Outcome = x.at, Canceled
		}
	}
	if over := len(x.s.Transactions) - TransactionsMax; over > 0 {
		x.s.Transactions = append([]Transaction(nil), x.s.Transactions[over:]...)
	}
}

// transaction returns the record of the attempt that a phase is in, or nil.
func (s *State) transaction(p *PhaseRun) *Transaction {
	for i := len(s.Transactions) - 1; i >= 0; i-- {
		if t := &s.Transactions[i]; t.is(p) {
			return t
		}
	}
	return nil
}

// is reports whether it is of the attempt that a phase is in. The job is a part of its name: a phase that leaves the blueprint
// and comes back counts its attempts anew.
func (t *Transaction) is(p *PhaseRun) bool {
	return t.Phase == p.Name && t.Attempt == p.Attempt && t.JobID == p.JobID
}

func (x *step) verbOf(jobID string) string {
	if j := x.s.JobByID(jobID); j != nil {
		return j.Walks()
	}
	return ""
}
