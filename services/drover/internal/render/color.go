package render

// Paint wraps a safe text in a colour, or leaves it as it is.
type Paint bool

// The styles, as SGR parameters.
const (
	green  = "32"
	red    = "31"
	yellow = "33"
	cyan   = "36"
	dim    = "2"
	bold   = "1"
)

func (p Paint) in(style, s string) string {
	if !p || s == "" {
		return s
	}
	return "\x1b[" + style + "m" + s + "\x1b[0m"
}

// Good is for what succeeded.
func (p Paint) Good(s string) string { return p.in(green, s) }

// Bad is for what failed.
func (p Paint) Bad(s string) string { return p.in(red, s) }

// Warn is for what needs a person, or will.
func (p Paint) Warn(s string) string { return p.in(yellow, s) }

// Busy is for what is under way.
func (p Paint) Busy(s string) string { return p.in(cyan, s) }

// Dim is for what matters less.
func (p Paint) Dim(s string) string { return p.in(dim, s) }

// Bold is for headings.
func (p Paint) Bold(s string) string { return p.in(bold, s) }
