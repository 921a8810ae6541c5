package api

// LimitBytes stands in for RequestBytesMax, which takes long to fill.
func (s *Server) LimitBytes(n int) { s.bytesMax = n }
