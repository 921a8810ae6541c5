package httpapi

import (
	"net/http"
	"slices"
	"strings"
)

// Route is one path and what it answers. What GET / shows is made of these.
type Route struct {
	Method string           `json:"method"`
	Path   string           `json:"path"` // as in http.ServeMux
	What   string           `json:"what"`
	Handle http.HandlerFunc `json:"-"`
}

func (s *Server) table() []Route {
	return append([]Route{
		{"GET", "/{$}", "this", s.index},
		{"GET", "/v1/{project}/{kind}", "resources of a kind (kind Blueprint: the blueprints), as their latest events; query: limit", s.list},
		{"GET", "/v1/{project}/{kind}/{name}", "one resource, or blueprint, as its latest event", s.get},
		{"POST", "/v1/{project}/{kind}/{name}/{verb}", "a command; the answer follows the commit", s.command},
		{"GET", "/v1/jobs/{project}/{id}", "one job, as its latest event", s.job},
	}, s.more...)
}

// dispatch takes what is for a door to it. A door sees the path as it was sent: the mux would answer a doubled slash with a
// redirect, which may turn a PATCH into a GET.
func (s *Server) dispatch(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, d := range s.doors {
			if route, ok := d.Serves(r); ok {
				if a, ok := w.(*answerWriter); ok {
					a.route = route
				}
				d.ServeHTTP(w, r)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// routes answers every path: those of the table with the methods that they have, all others with an error in JSON.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	byPath := map[string]map[string]http.HandlerFunc{}
	for _, r := range s.table() {
		if byPath[r.Path] == nil {
			byPath[r.Path] = map[string]http.HandlerFunc{}
		}
		byPath[r.Path][r.Method] = r.Handle
	}
	for path, methods := range byPath {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			if a, ok := w.(*answerWriter); ok {
				a.route = path
			}
			method := r.Method
			if method == http.MethodHead {
				method = http.MethodGet // net/http drops the body
			}
			handle, ok := methods[method]
			if !ok {
				var allow []string
				for m := range methods {
					allow = append(allow, m)
				}
				slices.Sort(allow)
				w.Header().Set("Allow", strings.Join(allow, ", "))
				fail(w, http.StatusMethodNotAllowed, "method_not_allowed", "this path takes "+strings.Join(allow, ", "))
				return
			}
			handle(w, r)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		fail(w, http.StatusNotFound, "not_found", "nothing is served on this path; GET / lists what is")
	})
	return mux
}

// index says what is served: what is true now, and nothing that is planned.
func (s *Server) index(w http.ResponseWriter, _ *http.Request) {
	routes := s.table()
	for i := range routes {
		routes[i].Path = strings.TrimSuffix(routes[i].Path, "{$}")
	}
	for _, d := range s.doors {
		routes = append(routes, d.Routes()...)
	}
	respond(w, http.StatusOK, struct {
		Name    string  `json:"name"`
		Version string  `json:"version"`
		Serves  []Route `json:"serves"`
	}{"drover-gateway", s.version, routes})
}
