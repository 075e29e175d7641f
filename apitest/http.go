// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"io"
	"maps"
	"net/http"
)

// Handler returns an http.Handler through which the server can be reached over
// a real connection, every request being user's. It is for tests that run a
// whole program, which has no place for a RoundTripper; it can't be used in a
// synctest bubble.
func (s *Server) Handler(user User) http.Handler {
	user = user.orAdmin()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resp, err := s.roundTrip(user, r)
		if err != nil {
			// The way net/http offers to drop the connection, which is what
			// the injected transport errors stand for.
			panic(http.ErrAbortHandler)
		}
		defer resp.Body.Close()
		maps.Copy(w.Header(), resp.Header)
		w.WriteHeader(resp.StatusCode)
		flusher, _ := w.(http.Flusher)
		if flusher != nil {
			flusher.Flush() // a watch without events has headers all the same
		}
		_, _ = io.Copy(&flushing{w, flusher}, resp.Body) // the client is gone, or the response is over
	})
}

// flushing sends on each piece of a watch when it comes.
type flushing struct {
	w       io.Writer
	flusher http.Flusher
}

func (f *flushing) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if f.flusher != nil {
		f.flusher.Flush()
	}
	return n, err
}
