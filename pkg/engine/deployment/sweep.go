package deployment

// sweep is one pass of the lifecycle component over one instance, in seed 002's order (facts/soma.md section 2.1). A poke is
// no part of it: who is to be poked is Pending's to say, of the state that was stored.
//
// Each pass looks at the configurations as the pass before it left them, so that one sweep may both release a
// configuration and take back another. A later sweep finds the same things to do as this one would have.
func (x *step) sweep() {
	x.ghosts()
	x.discardBlocked()
	x.unblock()
	x.takeBackBlocking()
	x.withdraw()
	if !x.fx.Changed {
		x.prune()
	}
}

func (x *step) each(do func(c *Configuration)) {
	for i := range x.s.Configurations {
		do(&x.s.Configurations[i])
	}
}

// ghosts: "ghost removal", rows 17 to 19.
func (x *step) ghosts() {
	if !x.s.Deleted {
		return
	}
	x.each(func(c *Configuration) {
		switch c.Status { //nolint:exhaustive // the others are not ghosts
		case AwaitingRollout:
			if x.s.UpdateAvailable { // the monitoring system has not picked it up
				x.move(c, Discard)
			}
		case RolloutFailed, Deprovisioned:
			x.move(c, Discard)
		}
	})
}

// discardBlocked: "remove blocked deleted", row 20.
func (x *step) discardBlocked() {
	if !x.s.Deleted {
		return
	}
	x.each(func(c *Configuration) {
		if c.Status == Blocked {
			x.move(c, Discard)
			c.BlockedOn = ""
		}
	})
}

// unblock: "unblock configurations", row 7. The blocking configuration must be the present one.
func (x *step) unblock() {
	blocking := x.s.Present()
	if blocking == nil || blocking.Status != Deprovisioned {
		return
	}
	if c := x.s.behind(blocking.ID); c != nil && x.move(c, Unblock) {
		c.BlockedOn = ""
		x.s.Current = c.ID
	}
}

// takeBackBlocking: rows 6 and, unless the policy is Queued, what an order would have done: a configuration that was
// blocked when its successor came is present now.
func (x *step) takeBackBlocking() {
	c := x.s.Present()
	if c == nil || x.s.behind(c.ID) == nil {
		return
	}
	if c.Status == Active || c.Status == RolloutFailed && !x.s.Policy.Queued {
		x.move(c, Supersede)
	}
}

// withdraw: "active deletions", row 21.
func (x *step) withdraw() {
	if !x.s.Deleted {
		return
	}
	x.each(func(c *Configuration) {
		if c.Status == Active {
			x.move(c, Withdraw)
			x.s.Current = c.ID
		}
	})
}

// prune buries what nobody needs any more, one entity at a time.
func (x *step) prune() {
	s := &x.s
	if s.Ended() {
		if x.at.Before(s.UpdatedAt.Add(DeletedKept)) {
			return
		}
		if len(s.Configurations) > 0 {
			x.drop(0)
			return
		}
		x.fx.Gone = true
		return
	}
	done := 0
	for i := range s.Configurations {
		if s.superseded(i) {
			done++
		}
	}
	for i := 0; i < len(s.Configurations) && done > DoneKept; i++ {
		if s.superseded(i) {
			x.drop(i)
			return
		}
	}
}

// superseded reports whether a configuration is deprovisioned, and a later one present.
func (s *State) superseded(i int) bool {
	c := &s.Configurations[i]
	return c.Status == Deprovisioned && c.ID != s.Current && s.behind(c.ID) == nil
}

func (x *step) drop(i int) {
	x.fx.Bury, x.fx.Again = x.s.Configurations[i].ID, true
	x.s.Configurations = append(x.s.Configurations[:i:i], x.s.Configurations[i+1:]...)
}

// Sweepable reports whether a sweep at any time from now on would change the instance as it is, apart from what is Due.
func (s *State) Sweepable() bool {
	if s.ID == "" {
		return false
	}
	_, fx := Step(*s, Input{Kind: OnSweep, At: s.UpdatedAt}, Env{})
	return fx.Changed || fx.Bury != "" || fx.Gone
}
