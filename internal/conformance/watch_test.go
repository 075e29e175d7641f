// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// A real API server sends a bookmark about once a minute, between any two events.
func TestPeriodicBookmarksAreNoEventsOfACase(t *testing.T) {
	const body = `{"type":"ADDED","object":{}}
{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"},"resourceVersion":"1"}}}
{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"2"}}}
{"type":"DELETED","object":{}}
`
	s := &stream{resp: &http.Response{Body: io.NopCloser(strings.NewReader(body))}, events: make(chan event)}
	go s.read(context.Background())
	var got []string
	for ev := range s.events {
		if ev.err == nil {
			got = append(got, ev.typ)
		}
	}
	if want := []string{"ADDED", "BOOKMARK", "DELETED"}; !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
}
