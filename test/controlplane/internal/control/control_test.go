// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubewright/kubewright/test/controlplane/internal/cluster"
)

func TestServe(t *testing.T) {
	downs := make(chan struct{}, 1)
	s := &Server{Cluster: &cluster.Cluster{}, Down: func() { downs <- struct{}{} }}
	var out bytes.Buffer
	in := `{"id": 1, "op": "dance"}
nonsense
{"id": 2, "op": "kill", "component": "kubelet"}
{"id": 3, "op": "down"}
`
	if err := s.Serve(t.Context(), strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	got := map[int]Response{}
	for dec := json.NewDecoder(&out); dec.More(); {
		var resp Response
		if err := dec.Decode(&resp); err != nil {
			t.Fatal(err)
		}
		got[resp.ID] = resp
	}
	for id, want := range map[int]string{0: "not a request", 1: `unknown operation "dance"`, 2: `no process "kubelet"`} {
		if !strings.Contains(got[id].Error, want) {
			t.Errorf("answer %d: %+v, want %s", id, got[id], want)
		}
	}
	if resp, ok := got[3]; !ok || resp.Error != "" || len(downs) != 1 {
		t.Errorf("down: answered %t %+v, called %d times", ok, resp, len(downs))
	}
}

// TestSocketInADeepDirectory checks a directory whose path is longer than the 108 bytes of a Unix socket address.
func TestSocketInADeepDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := &Server{Cluster: &cluster.Cluster{}}
	if err := s.Listen(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	err := Call(t.Context(), dir, Request{ID: 1, Op: "dance"}, nil)
	if err == nil || err.Error() != `unknown operation "dance"` {
		t.Errorf("answer %v", err)
	}
	if err := Call(t.Context(), filepath.Join(dir, "none"), Request{Op: "status"}, nil); err == nil || err.Error() != "no such cluster" {
		t.Errorf("for a cluster that isn't there: %v", err)
	}
}
