package phase

// Audit returns what is wrong with a record, or with a step from before to it; nil: nothing is known of what was before.
func Audit(before *State, s State) []string {
	a := &auditor{s: &s}
	a.record()
	if before != nil {
		a.step(before)
	}
	return a.wrong
}

type auditor struct {
	s     *State
	wrong []string
}

func (a *auditor) say(bad bool, what string) {
	if bad {
		a.wrong = append(a.wrong, what)
	}
}

func (a *auditor) record() {
	s := a.s
	var out, canceling uint32
	for i, h := range s.Holders {
		a.say(i > 0 && s.Holders[i-1].Worker >= h.Worker, "holders are not sorted")
		a.say(h.Canceling > h.Out, "more calls are canceled than are out")
		a.say(h.Worker == "", "a holder has no name")
		a.say(h.Base.most(h.Counts) != h.Counts, "a holder has counted less than when it began to hold it")
		a.say(h.Since.After(s.UpdatedAt), "a holder holds it since later than now")
		out += h.Out
		canceling += h.Canceling
	}
	a.say(len(s.Holders) > HoldersMax, "too many holders")
	a.say((s.Activity == Running) != (out > canceling), "Running is what has calls that are wanted")
	a.say((s.Activity == Canceling) != (out > 0 && out == canceling), "Canceling is what has only calls that are not wanted")
	a.say(s.Activity == Sleeping && !s.UpdatedAt.Before(s.WakeUntil.Add(Slack)), "a phase sleeps whose last sleeper is long due")
	a.say(s.Activity == Inactive && !s.WakeUntil.IsZero(), "an inactive phase has something to wake for")
	a.say(s.Activity == None || s.ActiveSince.IsZero() || s.ActiveSince.After(s.UpdatedAt), "the activity has no beginning")
}

func (a *auditor) step(before *State) {
	s := a.s
	a.say(s.Revision != before.Revision+1, "a revision is skipped")
	a.say(s.UpdatedAt.Before(before.UpdatedAt), "time runs backwards")
	a.say(s.LastCallAt.Before(before.LastCallAt), "the latest call is an earlier one")
	was, is := before.Counts(), s.Counts()
	a.say(was.most(is) != is, "counts shrink")
	if s.Activity == before.Activity {
		a.say(!s.ActiveSince.Equal(before.ActiveSince), "the activity is the same, and begins anew")
	} else {
		a.say(!s.ActiveSince.Equal(s.UpdatedAt), "the activity is another, and does not begin now")
	}
	// The three ways in which a run ends: it is Inactive only where nothing sleeps, from this call or an earlier one.
	slept := before.WakeUntil.IsZero() || !s.UpdatedAt.Before(before.WakeUntil.Add(Slack))
	a.say(s.Activity == Inactive && !slept, "an inactive phase had something to wake for")
	a.say(s.Activity != Inactive && s.WakeUntil.Before(before.WakeUntil), "the last sleeper is forgotten")
	joined, left := 0, len(before.Holders)
	for i := range s.Holders {
		h := &s.Holders[i]
		k, stays := before.holder(h.Worker)
		if !stays {
			joined++
			a.say(h.Counts != h.Base, "a new holder has counted already")
			continue
		}
		left--
		p := &before.Holders[k]
		a.say(!h.Since.Equal(p.Since) || h.Base != p.Base, "a holder that stays begins anew")
		a.say(p.Counts.most(h.Counts) != h.Counts, "a holder's counts shrink")
	}
	a.say(joined > 1 || joined == 1 && left > 0, "a holder comes, and another comes or goes in the same step")
}
