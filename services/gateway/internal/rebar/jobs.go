package rebar

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/machine"
	"github.com/droverproject/drover/pkg/wire"
)

const modelJobs = "jobs"

// nextJob answers POST /jobs.
func (s *Server) nextJob(w http.ResponseWriter, r *http.Request, c caller) {
	body, ok := s.readBody(w, r, modelJobs, BodyBytesMax)
	if !ok {
		return
	}
	var asked struct{ Machine, Context string } // only these count (facts, 2.3)
	if err := json.Unmarshal(body, &asked); err != nil || asked.Machine == "" {
		fail(w, problem{Model: modelJobs, Type: r.Method, Code: http.StatusBadRequest, Messages: []string{"Machine: is missing, or the body is no job"}})
		return
	}
	partition, ok := wire.RoutedPartition(asked.Machine, s.Bus.Partitions())
	if !ok {
		fail(w, problem{Model: modelJobs, Type: r.Method, Code: http.StatusUnprocessableEntity, Messages: []string{"Machine: there is no such machine"}})
		return
	}
	a := s.ask(c)
	a.UUID, a.Context = asked.Machine, asked.Context
	answer, err := s.decide(r.Context(), partition, wire.MachineNext, a)
	switch {
	case err != nil:
		s.unanswered(w, r, modelJobs, err)
		return
	case answer.Code != "":
		refused(w, r, modelJobs, "", answer, nil)
		return
	case answer.Outcome == wire.OutcomeNothing:
		send(w, http.StatusNoContent, nil)
		return
	}
	e, err := wire.DecodeTaskRun(answer.Run)
	if err != nil {
		s.unreadable(w, r, modelJobs, err)
		return
	}
	s.jobs.put(e.Run.ID, e.Run.MachineUUID)
	status := http.StatusCreated
	if answer.Outcome == wire.OutcomeGoesOn {
		status = http.StatusAccepted
	}
	respond(w, status, jobOf(&e.Run, true))
}

// askJob sends a request about the run of the path.
func (s *Server) askJob(ctx context.Context, id, verb string, a wire.MachineAsk) (e wire.TaskRunEvent, answer wire.MachineAnswer, err error) {
	a.Run = id
	partition, ok := wire.RoutedPartition(id, s.Bus.Partitions())
	if !ok {
		return e, wire.MachineAnswer{Code: string(machine.NotFound), Message: "there is no such job"}, nil
	}
	if answer, err = s.decide(ctx, partition, verb, a); err != nil || answer.Code != "" {
		return e, answer, err
	}
	e, err = wire.DecodeTaskRun(answer.Run)
	return e, answer, err
}

// oneJob answers with a run as it is after a request.
func (s *Server) oneJob(w http.ResponseWriter, r *http.Request, verb string, a wire.MachineAsk) (wire.TaskRunEvent, wire.MachineAnswer, bool) {
	id := r.PathValue("id")
	e, answer, err := s.askJob(r.Context(), id, verb, a)
	switch {
	case err != nil:
		s.unanswered(w, r, modelJobs, err)
	case answer.Code != "":
		refused(w, r, modelJobs, id, answer, a.Ops)
	default:
		return e, answer, true
	}
	return e, answer, false
}

func (s *Server) getJob(w http.ResponseWriter, r *http.Request, c caller) {
	if e, _, ok := s.oneJob(w, r, wire.MachineRun, s.ask(c)); ok {
		respond(w, http.StatusOK, jobOf(&e.Run, false))
	}
}

// patchJob answers with the whole job: an agent replaces its own by it (facts, 2.5).
func (s *Server) patchJob(w http.ResponseWriter, r *http.Request, c caller) {
	ops, ok := s.readPatch(w, r, modelJobs)
	if !ok {
		return
	}
	a := s.ask(c)
	a.Ops = ops
	if e, _, ok := s.oneJob(w, r, wire.MachineReport, a); ok {
		respond(w, http.StatusOK, jobOf(&e.Run, true))
	}
}

// mayLog says whether a caller may write and read a run's log; where not it answers. An error says that nobody could be asked
// about the run: then it does not.
func (s *Server) mayLog(w http.ResponseWriter, r *http.Request, c caller) (bool, error) {
	id := r.PathValue("id")
	owner, ok := s.jobs.get(id)
	if !ok {
		e, answer, err := s.askJob(r.Context(), id, wire.MachineTask, s.ask(c))
		switch {
		case err != nil:
			return false, err
		case answer.Code != "":
			refused(w, r, modelJobs, id, answer, nil)
			return false, nil
		}
		owner = e.Run.MachineUUID
		s.jobs.put(id, owner)
	}
	if c.machine != "" && c.machine != owner {
		fail(w, forbidden(r, "a machine's token is for that machine alone"))
		return false, nil
	}
	return true, nil
}

// putLog stores a piece of a log. It comes late, and again, and is taken all the same: an agent whose log is refused kills the
// task (facts, section 4, 1 and 2). So it is held while the server is away, and dropped where that lasts too long, whoever is
// away: the server, or the owner who knows whose run it is.
func (s *Server) putLog(w http.ResponseWriter, r *http.Request, c caller) {
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/octet-stream" {
		fail(w, problem{Model: modelJobs, Key: r.PathValue("id"), Type: r.Method, Code: http.StatusUnsupportedMediaType,
			Messages: []string{"a log is sent as application/octet-stream"}})
		return
	}
	may, unknown := s.mayLog(w, r, c)
	if !may && unknown == nil {
		return
	}
	id := r.PathValue("id")
	body, cut, err := s.readAll(w, r.Body, LogBytesMax)
	switch {
	case err != nil:
		fail(w, problem{Model: modelJobs, Key: id, Type: r.Method, Code: http.StatusBadRequest, Messages: []string{"the body could not be read"}})
		return
	case unknown != nil:
		s.Log.Warn("a piece of a log was dropped", zap.String("job", id), zap.Int("bytes", len(body)), zap.Error(unknown))
		send(w, http.StatusNoContent, nil)
		return
	case cut > 0:
		s.Log.Warn("a piece of a log was over its limit, and was cut", zap.String("job", id), zap.Int64("bytes", cut))
	}
	for _, piece := range pieces(body) {
		line, err := wire.EncodeOutputLine(wire.OutputLine{Time: s.Now(), Stream: "log", Text: string(piece)})
		if err == nil {
			err = s.hold(r.Context(), func(ctx context.Context) error {
				return s.Bus.StoreOutput(ctx, s.Project, bus.TaskRunOutput, id, line)
			})
		}
		if err != nil {
			s.Log.Warn("a piece of a log was dropped", zap.String("job", id), zap.Int("bytes", len(piece)), zap.Error(err))
		}
	}
	send(w, http.StatusNoContent, nil)
}

// pieces cuts a log to what one line of output may hold, between characters.
func pieces(body []byte) (all [][]byte) {
	for len(body) > wire.OutputTextBytesMax {
		end := wire.OutputTextBytesMax
		for end > wire.OutputTextBytesMax-utf8.UTFMax && !utf8.RuneStart(body[end]) {
			end--
		}
		all, body = append(all, body[:end]), body[end:]
	}
	if len(body) > 0 {
		all = append(all, body)
	}
	return all
}

// getLog answers with what was stored of a run's log.
func (s *Server) getLog(w http.ResponseWriter, r *http.Request, c caller) {
	may, err := s.mayLog(w, r, c)
	if err != nil {
		s.unanswered(w, r, modelJobs, err)
	}
	if !may {
		return
	}
	id := r.PathValue("id")
	var log bytes.Buffer
	log.WriteString("Log for Job: " + id + "\n")
	enough := errors.New("enough")
	err = s.Bus.ReadOutput(r.Context(), s.Project, bus.TaskRunOutput, id, false, func(l bus.OutputLine) error {
		line, err := wire.DecodeOutputLine(l.Body)
		if err != nil {
			return nil //nolint:nilerr // a line that is not ours is no reason to hide the others
		}
		log.WriteString(line.Text)
		if log.Len() > 8*LogBytesMax {
			return enough
		}
		return nil
	})
	if err != nil && !errors.Is(err, enough) {
		s.unanswered(w, r, modelJobs, err)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(log.Bytes()) // the caller is gone: nobody is left to tell
}
