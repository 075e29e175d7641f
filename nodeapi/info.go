// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// servePods serves the pods of the node as a PodList. It collects them first, so that no
// lock of Config.Pods is held while the client reads, and encodes them one by one: the
// memory of an answer that is not read does not grow with the number of pods.
func (s *Server) servePods(w *response, e endpoint) error {
	if s.cfg.Pods == nil {
		return unset("pods", "Pods")
	}
	var pods []*corev1.Pod
	for pod := range s.cfg.Pods {
		if pod != nil && (e == endpointPods || pod.Status.Phase == corev1.PodRunning) {
			pods = append(pods, pod)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	before := `{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[`
	for _, pod := range pods {
		body, err := json.Marshal(pod)
		if err != nil {
			return err
		}
		if _, err := io.WriteString(w, before); err != nil {
			return err
		}
		if _, err := w.Write(body); err != nil {
			return err
		}
		before = ","
	}
	if len(pods) > 0 {
		before = ""
	}
	_, err := io.WriteString(w, before+"]}")
	return err
}

// serveHealth serves all checks, or the one that the path names.
func (s *Server) serveHealth(w *response, r *http.Request, to route) error {
	var (
		report strings.Builder
		failed bool
		found  = to.rest == "" || to.rest == "ping"
	)
	report.WriteString("[+]ping ok\n")
	for _, check := range s.cfg.Checks {
		if to.rest != "" && to.rest != check.Name() {
			continue
		}
		found = true
		if err := guard(func() error { return check.Check(r) }); err != nil {
			failed = true
			fmt.Fprintf(&report, "[-]%s failed: %v\n", check.Name(), err)
		} else {
			fmt.Fprintf(&report, "[+]%s ok\n", check.Name())
		}
	}
	switch {
	case !found:
		return notFound("there is no health check %s", abbreviated(to.rest))
	case failed:
		return &statusError{http.StatusInternalServerError, report.String() + string(to.endpoint) + " check failed"}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if !r.URL.Query().Has("verbose") {
		_, err := w.Write([]byte("ok"))
		return err
	}
	_, err := fmt.Fprintf(w, "%s%s check passed\n", report.String(), to.endpoint)
	return err
}

func (s *Server) serveConfigz(w *response) error {
	if s.cfg.Configz == nil {
		return unset("configz", "Configz")
	}
	var value any
	if err := guard(func() (err error) { value, err = s.cfg.Configz(); return err }); err != nil {
		return err
	}
	return writeJSON(w, value)
}

func (s *Server) servePprof(w *response, r *http.Request, profile string) error {
	if !s.cfg.Pprof {
		return unset("pprof", "Pprof")
	}
	w.end = time.Time{} // a CPU profile takes as long as the client says
	_ = http.NewResponseController(w.w).SetWriteDeadline(w.end)
	switch profile {
	case "":
		pprof.Index(w, r)
	case "cmdline":
		pprof.Cmdline(w, r)
	case "profile":
		pprof.Profile(w, r)
	case "symbol":
		pprof.Symbol(w, r)
	case "trace":
		pprof.Trace(w, r)
	default:
		pprof.Handler(profile).ServeHTTP(w, r)
	}
	return nil
}
