package render

import (
	"fmt"
	"time"
)

// Age is how long ago something was, in the two largest units that say something: "0s", "42s", "3m10s", "5h2m", "4d3h".
// A zero time is "-"; a time that is still to come is "0s", for clocks differ.
func Age(now, then time.Time) string {
	if then.IsZero() {
		return "-"
	}
	return Span(now.Sub(then))
}

// Span is a duration as Age writes it; below ten seconds with a tenth where it is not whole.
func Span(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 10*time.Second:
		if d < 50*time.Millisecond {
			return "0s"
		}
		s := fmt.Sprintf("%.1f", d.Seconds())
		if len(s) > 2 && s[len(s)-2:] == ".0" {
			s = s[:len(s)-2]
		}
		return s + "s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return two(d/time.Minute, "m", d%time.Minute/time.Second, "s")
	case d < 24*time.Hour:
		return two(d/time.Hour, "h", d%time.Hour/time.Minute, "m")
	default:
		return two(d/(24*time.Hour), "d", d%(24*time.Hour)/time.Hour, "h")
	}
}

func two(large time.Duration, unit string, small time.Duration, smallUnit string) string {
	if small == 0 {
		return fmt.Sprintf("%d%s", large, unit)
	}
	return fmt.Sprintf("%d%s%d%s", large, unit, small, smallUnit)
}

// Time is a moment for people, in UTC to the millisecond; "-" where there is none.
func Time(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}
