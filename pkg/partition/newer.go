package partition

import (
	"errors"
	"fmt"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/drive"
	"github.com/droverproject/drover/pkg/wire"
)

// ErrNewer says that something which is needed here was written by a newer Drover: this process must leave the partition
// to one of that version (design.md section 3, "Upgrades").
var ErrNewer = errors.New("the partition needs a newer version of Drover")

// Newer is nil, or an ErrNewer that says what was met: then nothing more may be decided here, and the partition is to be
// left. What was asked meanwhile was handed back.
func (o *Owner) Newer() error { return o.port.newer }

// beyond is an ErrNewer where an entity needs a newer reader. It is asked before an error of decoding is looked at: what
// a newer version writes may hold what this one cannot read.
func beyond(s bus.Stored, minReader uint32) error {
	if minReader <= drive.Reader {
		return nil
	}
	return fmt.Errorf("%w: %s %s needs version %d of the rules, and this one has %d",
		ErrNewer, s.Entity.Family, s.Entity.Key(), minReader, drive.Reader)
}

// meet notes an ErrNewer, and returns the error. A blueprint's decoder says in its own words that it is of a newer
// version: no other event of a sound log holds what is not known here.
func (p *port) meet(err error) error {
	if errors.Is(err, wire.ErrUnknown) && !errors.Is(err, ErrNewer) {
		err = fmt.Errorf("%w: %w", ErrNewer, err)
	}
	if p.newer == nil && errors.Is(err, ErrNewer) {
		p.newer = err
	}
	return err
}
