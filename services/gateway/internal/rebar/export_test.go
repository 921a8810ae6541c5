package rebar

import "time"

// SetPace sets how often websockets are pinged, and how long one write may take.
func (s *Server) SetPace(ping, write time.Duration) { s.pace = pace{ping, write} }
