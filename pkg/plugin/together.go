package plugin

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/wire"
)

// finishTogether stores the answers of many in one atomic publish, where there are enough of them for it to pay: on a
// server that syncs every write a batch is one sync. It acknowledges their work and returns those that are still to be
// finished alone, for whatever reason. Large batches come up just where the server is slow, so nobody has to choose.
func (s *server) finishTogether(rs []*Resource) (left []*Resource) {
	for chunk := range slices.Chunk(rs, bus.ResultsBatchMax) {
		var stored []*Resource
		var results []bus.ResultMessage
		for _, r := range chunk {
			if r.reporting != nil {
				<-r.reporting // so that Running cannot be stored after the answer
			}
			body, err := wire.EncodeResult("", r.result(r.answer))
			if r.answer.release || err != nil {
				left = append(left, r)
				continue
			}
			stored = append(stored, r)
			results = append(results, bus.ResultMessage{Subject: r.work.ResultSubject, Body: body})
		}
		if len(results) < bus.ResultsBatchMin {
			left = append(left, stored...)
			continue
		}
		ctx, cancel := context.WithTimeout(s.answering, publishTimeout)
		err := s.bus.PublishResults(ctx, results)
		cancel()
		if err != nil {
			s.log.Debug("results are not stored together; they are stored one by one", zap.Int("results", len(results)), zap.Error(err))
			left = append(left, stored...)
			continue
		}
		for _, r := range stored {
			a := r.answer
			s.leave(r, a)
			s.Observe(Answer{Phase: s.phase, Outcome: a.outcome, Took: time.Since(r.begun)})
		}
	}
	return left
}
