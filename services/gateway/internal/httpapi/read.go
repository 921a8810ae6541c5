package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"go.uber.org/zap"

	"github.com/droverproject/drover/pkg/bus"
	"github.com/droverproject/drover/pkg/engine/resource"
	"github.com/droverproject/drover/pkg/wire"
)

// kindBlueprint is the kind under which blueprints are shown; their name is the kind that they define.
const kindBlueprint = "Blueprint"

func (s *Server) get(w http.ResponseWriter, r *http.Request) {
	parts, ok := names(w, r, "project", "kind", "name")
	if !ok {
		return
	}
	e := bus.Entity{Family: bus.Resource, Project: parts[0], Kind: parts[1], Name: parts[2]}
	if e.Kind == kindBlueprint {
		e = bus.Entity{Family: bus.Blueprint, Project: parts[0], Kind: parts[2]}
	}
	s.one(w, r, e, "there is no "+parts[1]+" "+parts[2]+" in project "+parts[0])
}

func (s *Server) job(w http.ResponseWriter, r *http.Request) {
	parts, ok := names(w, r, "project", "id")
	if !ok {
		return
	}
	s.one(w, r, bus.Entity{Family: bus.Job, Project: parts[0], Name: parts[1]}, "there is no job "+parts[1]+" in project "+parts[0])
}

func (s *Server) one(w http.ResponseWriter, r *http.Request, e bus.Entity, absent string) {
	if r.URL.RawQuery != "" {
		invalid(w, "query", "this path takes none")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), ReadTimeout)
	defer cancel()
	stored, err := s.bus.Get(ctx, e)
	switch {
	case errors.Is(err, bus.ErrNotFound), err == nil && stored.Deleted:
		fail(w, http.StatusNotFound, string(resource.NotFound), absent)
		return
	case err != nil:
		s.unread(w, r, err)
		return
	}
	event, err := wire.EventJSON(stored.Body)
	if err != nil {
		s.unreadable(w, e, err)
		return
	}
	send(w, http.StatusOK, event)
}

// errEnough ends a list.
var errEnough = errors.New("enough")

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	parts, ok := names(w, r, "project", "kind")
	if !ok {
		return
	}
	limit, ok := listLimit(w, r.URL.RawQuery)
	if !ok {
		return
	}
	family, kind := bus.Resource, parts[1]
	if kind == kindBlueprint {
		family, kind = bus.Blueprint, ""
	}
	ctx, cancel := context.WithTimeout(r.Context(), ReadTimeout)
	defer cancel()
	answer := struct {
		Items     []json.RawMessage `json:"items"`
		Truncated bool              `json:"truncated"`
	}{Items: []json.RawMessage{}}
	bytes := 0
	var broken bus.Entity
	var brokenErr error
	err := s.bus.List(ctx, family, parts[0], kind, func(stored bus.Stored) error {
		if stored.Deleted {
			return nil
		}
		if len(answer.Items) == limit {
			answer.Truncated = true
			return errEnough
		}
		event, err := wire.EventJSON(stored.Body)
		if err != nil {
			broken, brokenErr = stored.Entity, err
			return err
		}
		if bytes += len(event); bytes > ListBytesMax {
			answer.Truncated = true
			return errEnough
		}
		answer.Items = append(answer.Items, event)
		return nil
	})
	switch {
	case brokenErr != nil:
		s.unreadable(w, broken, brokenErr)
	case err != nil && !errors.Is(err, errEnough):
		s.unread(w, r, err)
	default:
		respond(w, http.StatusOK, answer)
	}
}

func listLimit(w http.ResponseWriter, rawQuery string) (int, bool) {
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		invalid(w, "query", "cannot be read")
		return 0, false
	}
	limit := ListLimitDefault
	for name, values := range query {
		if name != "limit" {
			invalid(w, "query", "only limit is known")
			return 0, false
		}
		n, err := strconv.Atoi(values[0])
		if len(values) != 1 || err != nil || n < 1 || n > ListLimitMax {
			invalid(w, "query.limit", "must be a number from 1 to "+strconv.Itoa(ListLimitMax))
			return 0, false
		}
		limit = n
	}
	return limit, true
}

func (s *Server) unread(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil {
		s.log.Warn("bucket could not be read", zap.Error(err))
	}
	fail(w, http.StatusServiceUnavailable, string(resource.Overloaded), "the server does not answer; try again in a while")
}

func (s *Server) unreadable(w http.ResponseWriter, e bus.Entity, err error) {
	s.log.Error("event cannot be read", zap.String("bucket", e.Family.Bucket()), zap.String("key", e.Key()), zap.Error(err))
	fail(w, http.StatusInternalServerError, "internal", "an event in the bucket cannot be read; it was logged")
}
