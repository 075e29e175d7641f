// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// request is a kind of request.
type request struct {
	Agent    string `json:"agent"`
	Verb     string `json:"verb"`
	Resource string `json:"resource"` // with the subresource; for a path without a resource, its first element
	Code     int    `json:"code"`
}

// auditLine has the fields of an audit.k8s.io/v1 Event that are read.
type auditLine struct {
	AuditID    string `json:"auditID"`
	Stage      string `json:"stage"`
	Verb       string `json:"verb"`
	RequestURI string `json:"requestURI"`
	UserAgent  string `json:"userAgent"`
	ObjectRef  *struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	Received time.Time `json:"requestReceivedTimestamp"`
	Done     time.Time `json:"stageTimestamp"`
}

// kind returns the kind of request that a line records.
func (l *auditLine) kind() request {
	r := request{Agent: shortAgent(l.UserAgent), Verb: l.Verb, Code: l.ResponseStatus.Code}
	if l.ObjectRef == nil || l.ObjectRef.Resource == "" {
		path, _, _ := strings.Cut(strings.TrimPrefix(l.RequestURI, "/"), "?")
		first, _, _ := strings.Cut(path, "/")
		r.Resource = "/" + first
		return r
	}
	r.Resource = l.ObjectRef.Resource
	if l.ObjectRef.Subresource != "" {
		r.Resource += "/" + l.ObjectRef.Subresource
	}
	return r
}

// shortAgent returns a User-Agent without the machine and build that client-go
// adds: "fleet/v0.0.0 (linux/amd64) kubernetes/$Format/examples/fleet" becomes
// "examples/fleet", or "fleet" without the last part. If the User-Agent
// consists of several such agents, the last one counts.
func shortAgent(agent string) string {
	const build = ") kubernetes/"
	if i := strings.LastIndex(agent, build); i >= 0 {
		if _, own, found := strings.Cut(agent[i+len(build):], "/"); found {
			return own
		}
	}
	name, _, _ := strings.Cut(agent, "/")
	return name
}

// auditLog reads an API server's audit log while the server writes it. It is
// safe for concurrent use.
type auditLog struct {
	path string

	mu      sync.Mutex
	offset  int64
	rest    []byte          // a line that is not complete yet
	watches map[string]bool // by audit ID: a watch has one line at its start and one at its end
	took    map[request][]span
}

func newAuditLog(path string) *auditLog {
	return &auditLog{path: path, watches: make(map[string]bool), took: make(map[request][]span)}
}

// follow reads the lines written since the last call.
func (a *auditLog) follow() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	f, err := os.Open(a.path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Seek(a.offset, io.SeekStart); err != nil {
		return err
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	a.offset += int64(len(data))
	return a.add(data)
}

// add parses a further part of the log.
func (a *auditLog) add(data []byte) error {
	data = append(a.rest, data...)
	for {
		line, rest, complete := bytes.Cut(data, []byte("\n"))
		if !complete {
			a.rest = bytes.Clone(line)
			return nil
		}
		data = rest
		var l auditLine
		if err := json.Unmarshal(line, &l); err != nil {
			return fmt.Errorf("audit log: %w in %q", err, line)
		}
		if l.Stage == "RequestReceived" {
			continue
		}
		if l.Verb == "watch" {
			if a.watches[l.AuditID] {
				continue
			}
			a.watches[l.AuditID] = true
		}
		kind := l.kind()
		a.took[kind] = append(a.took[kind], span{End: l.Done, Took: l.Done.Sub(l.Received)})
	}
}

// requests counts the requests of one kind in a period.
type requests struct {
	request
	Count int `json:"count"`
	// Took is the API server's latency: for a watch, until its start.
	Took distribution `json:"took"`
}

// between returns the requests that were answered in [from, to) for the
// matching agents, in no particular order.
func (a *auditLog) between(from, to time.Time, match func(agent string) bool) (all []requests) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for kind, spans := range a.took {
		if !match(kind.Agent) {
			continue
		}
		if times := within(spans, from, to); len(times) > 0 {
			all = append(all, requests{kind, len(times), distribute(times)})
		}
	}
	return all
}
