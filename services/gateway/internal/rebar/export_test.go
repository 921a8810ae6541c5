package rebar

import "time"

// SetPace sets how often websockets are pinged, and how long one write may take.
func (s *Server) SetPace(ping, write time.Duration) { s.pace = pace{ping, write} }

// SetRequests sets how many requests may be under way.
func (s *Server) SetRequests(most int) { s.places = make(chan struct{}, most) }

// SetLimits sets how many connections may be open, and how long a body may take.
func (s *Server) SetLimits(connections int, read time.Duration) { s.limits = limits{connections, read} }

// Stop is what Serve begins with when it is to end.
func (s *Server) Stop() { s.stop() }
