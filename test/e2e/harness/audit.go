// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"k8s.io/client-go/rest"
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

// barrierPatience bounds the time until the log entry of an answered request appears.
const barrierPatience = 10 * time.Second

// AuditEvents returns every request since the cluster's start once, in the order in which the requests ended. All
// requests that were answered before the call are included. It requires Options.Audit.
func (c *Cluster) AuditEvents(t testing.TB) []AuditEvent {
	t.Helper()
	if c.status.AuditLog == "" {
		t.Fatal("AuditEvents needs Options.Audit")
	}
	events, err := c.auditEvents(t)
	if err != nil {
		t.Fatalf("audit log: %v", err)
	}
	return events
}

func (c *Cluster) auditEvents(t testing.TB) ([]AuditEvent, error) {
	// The server writes an entry after the answer, so the last entries may be missing. They are present if the entry of
	// a later request is.
	barrier := "/version?barrier=" + rand.Text()
	client, err := rest.HTTPClientFor(c.AdminConfig())
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	resp, err := client.Get(c.Server() + barrier)
	if err != nil {
		return nil, err
	}
	resp.Body.Close()
	for deadline := time.Now().Add(barrierPatience); ; time.Sleep(10 * time.Millisecond) {
		data, err := os.ReadFile(c.status.AuditLog)
		if err != nil {
			return nil, err
		}
		if before, _, found := cutLine(data, []byte(barrier)); found {
			return parseAudit(before)
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("a request has no entry %s after its answer", barrierPatience)
		}
	}
}

// cutLine returns the lines of data before and after the first complete one that contains mark.
func cutLine(data, mark []byte) (before, after []byte, found bool) {
	i := bytes.Index(data, mark)
	if i < 0 {
		return nil, nil, false
	}
	end := bytes.IndexByte(data[i:], '\n')
	if end < 0 {
		return nil, nil, false
	}
	return data[:bytes.LastIndexByte(data[:i], '\n')+1], data[i+end+1:], true
}

// auditLine has the fields of an audit.k8s.io/v1 Event that are read.
type auditLine struct {
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

// parseAudit parses the lines of an audit log. A watch has two lines, for its start and its end; only the first one
// counts.
func parseAudit(data []byte) ([]AuditEvent, error) {
	var events []AuditEvent
	seen := map[string]bool{}
	for line := range bytes.Lines(data) {
		var l auditLine
		if err := json.Unmarshal(line, &l); err != nil {
			return nil, fmt.Errorf("%w in %q", err, line)
		}
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
	return events, nil
}
