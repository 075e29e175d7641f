// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"
)

// AuditEvent is a request that the API server has answered, or a watch that it has started.
type AuditEvent struct {
	ID          string
	User        string
	UserAgent   string
	Verb        string // get, list, watch, create, update, patch, delete, deletecollection; the method in lower case for non-resource paths
	URI         string // path and query, with the selectors
	APIGroup    string // "" for the core group and for non-resource paths
	Resource    string // plural; "" for non-resource paths
	Subresource string
	Namespace   string
	Name        string // "" if the server generated it, or there is none
	Code        int
	Time        time.Time // when the request was received; microseconds
}

// requestTimeout is the API server's --request-timeout with a margin. A request that has not ended then has lost its
// server; long-running ones, such as a watch, are recorded at their start.
const requestTimeout = 65 * time.Second

// AuditEvents returns every request since the cluster's start once, in the order in which the requests ended. It waits
// for the requests under way, so those whose effect was seen are included, answered or not. It requires Options.Audit.
func (c *Cluster) AuditEvents(t testing.TB) []AuditEvent {
	t.Helper()
	if c.status.AuditLog == "" {
		t.Fatal("AuditEvents needs Options.Audit")
	}
	// The server writes a line before it handles a request. Other clients send requests all the time, so wait only for
	// those that the first look shows.
	var awaited []string
	for first := true; ; first = false {
		data, err := os.ReadFile(c.status.AuditLog)
		if err != nil {
			t.Fatalf("audit log: %v", err)
		}
		events, underWay, err := parseAudit(data)
		if err != nil {
			t.Fatalf("audit log: %v", err)
		}
		if first {
			awaited = slices.Collect(maps.Keys(underWay))
		}
		if !slices.ContainsFunc(awaited, func(id string) bool {
			received, ok := underWay[id]
			return ok && time.Since(received) < requestTimeout
		}) {
			return events
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// auditLine has the fields of an audit.k8s.io/v1 Event that are read.
type auditLine struct {
	Stage      string `json:"stage"`
	AuditID    string `json:"auditID"`
	Verb       string `json:"verb"`
	RequestURI string `json:"requestURI"`
	UserAgent  string `json:"userAgent"`
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		APIGroup    string `json:"apiGroup"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	RequestReceivedTimestamp time.Time `json:"requestReceivedTimestamp"`
}

// parseAudit parses the lines of an audit log. The last one may be incomplete, and so may be the last one of a server
// that was killed: then it continues with the first line of the next server. A request has a line when it is
// received and a line when it ends. A watch has a line for the start of its answer too; only that one counts. The
// second result has the times at which the requests under way were received, by ID.
func parseAudit(data []byte) ([]AuditEvent, map[string]time.Time, error) {
	var events []AuditEvent
	seen, underWay := map[string]bool{}, map[string]time.Time{}
	for line := range bytes.Lines(data[:bytes.LastIndexByte(data, '\n')+1]) {
		var l auditLine
		err := json.Unmarshal(line, &l)
		if i := bytes.LastIndex(line, []byte(`{"kind":"Event"`)); err != nil && i > 0 {
			l = auditLine{}
			err = json.Unmarshal(line[i:], &l)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%w in %q", err, line)
		}
		if l.Stage == "RequestReceived" {
			underWay[l.AuditID] = l.RequestReceivedTimestamp
			continue
		}
		delete(underWay, l.AuditID)
		if seen[l.AuditID] {
			continue
		}
		seen[l.AuditID] = true
		events = append(events, AuditEvent{
			ID: l.AuditID, User: l.User.Username, UserAgent: l.UserAgent, Verb: l.Verb, URI: l.RequestURI,
			APIGroup: l.ObjectRef.APIGroup, Resource: l.ObjectRef.Resource, Subresource: l.ObjectRef.Subresource,
			Namespace: l.ObjectRef.Namespace, Name: l.ObjectRef.Name,
			Code: l.ResponseStatus.Code, Time: l.RequestReceivedTimestamp,
		})
	}
	return events, underWay, nil
}
