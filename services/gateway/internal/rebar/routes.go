package rebar

import "net/http"

// Base is where the API stands.
const Base = "/api/v3"

// right is who may.
type right uint8

const (
	anybody  right = iota // who has a token
	operator              // no machine
)

type route struct {
	method, path string
	right        right
	handle       func(w http.ResponseWriter, r *http.Request, c caller)
}

func (s *Server) table() []route {
	return []route{
		{"GET", "/info", anybody, s.info},
		{"GET", "/machines/{id}", anybody, s.getMachine},
		{"PATCH", "/machines/{id}", anybody, s.patchMachine},
		{"GET", "/machines/{id}/token", operator, s.machineToken},
		{"GET", "/machines/{id}/params", anybody, s.getParams},
		{"GET", "/machines/{id}/params/{key...}", anybody, s.getParam},
		{"POST", "/machines/{id}/params/{key...}", anybody, s.setParam},
		{"POST", "/jobs", anybody, s.nextJob},
		{"GET", "/jobs/{id}", anybody, s.getJob},
		{"PATCH", "/jobs/{id}", anybody, s.patchJob},
		{"GET", "/jobs/{id}/actions", anybody, s.actions},
		{"GET", "/jobs/{id}/log", anybody, s.getLog},
		{"PUT", "/jobs/{id}/log", anybody, s.putLog},
		{"GET", "/tasks/{name}", anybody, s.getTask},
		{"GET", "/stages/{name}", anybody, s.getStage},
		{"GET", "/workflows/{name}", anybody, s.getWorkflow},
		{"GET", "/bootenvs/{name}", anybody, s.getBootEnv},
		{"GET", "/ws", anybody, s.websocket},
	}
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	for _, r := range s.table() {
		mux.HandleFunc(r.method+" "+Base+r.path, func(w http.ResponseWriter, request *http.Request) {
			c, ok := s.authenticate(w, request)
			if !ok {
				return
			}
			if r.right == operator && c.machine != "" {
				fail(w, forbidden(request, "a machine's token is for that machine alone"))
				return
			}
			r.handle(w, request, c)
		})
	}
	mux.HandleFunc("GET "+Base+"/users/{name}/token", s.userToken)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if _, ok := s.authenticate(w, r); ok {
			fail(w, problem{Key: r.URL.Path, Type: r.Method, Code: http.StatusNotFound, Messages: []string{"Not Found: this path is not served"}})
		}
	})
	return mux
}
