// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestShortAgent(t *testing.T) {
	for agent, want := range map[string]string{
		"fleet/v0.0.0 (linux/amd64) kubernetes/$Format/kubewright-examples/fleet":                                                         "kubewright-examples/fleet",
		"fleet/v0.0.0 (linux/amd64) kubernetes/$Format/fleet/v0.0.0 (linux/amd64) kubernetes/$Format/kubewright-examples/fleet/heartbeat": "kubewright-examples/fleet/heartbeat",
		"kube-controller-manager/v1.37.1 (linux/amd64) kubernetes/abc123/system:serviceaccount:kube-system:node-controller":               "system:serviceaccount:kube-system:node-controller",
		"kube-apiserver/v1.37.1 (linux/amd64) kubernetes/abc123":                                                                          "kube-apiserver",
		"kwok/v0.8.0 (linux/amd64)": "kwok",
		"kubewright-scale":          "kubewright-scale",
		"":                          "",
	} {
		if got := shortAgent(agent); got != want {
			t.Errorf("%q: %q, want %q", agent, got, want)
		}
	}
}

const (
	patchLine = `{"auditID":"1","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/default/pods/p/status","verb":"patch","userAgent":"a/v1 (x)","objectRef":{"resource":"pods","subresource":"status"},"responseStatus":{"code":200},"requestReceivedTimestamp":"2026-01-01T00:00:01.000000Z","stageTimestamp":"2026-01-01T00:00:01.004000Z"}`
	watchLine = `{"auditID":"2","stage":"ResponseStarted","requestURI":"/api/v1/pods?watch=true","verb":"watch","userAgent":"a/v1 (x)","objectRef":{"resource":"pods"},"responseStatus":{"code":200},"requestReceivedTimestamp":"2026-01-01T00:00:01Z","stageTimestamp":"2026-01-01T00:00:02Z"}`
	watchEnds = `{"auditID":"2","stage":"ResponseComplete","requestURI":"/api/v1/pods?watch=true","verb":"watch","userAgent":"a/v1 (x)","objectRef":{"resource":"pods"},"responseStatus":{"code":200},"requestReceivedTimestamp":"2026-01-01T00:00:01Z","stageTimestamp":"2026-01-01T00:05:00Z"}`
	received  = `{"auditID":"3","stage":"RequestReceived","requestURI":"/openapi/v3?hash=1","verb":"get","userAgent":"b","requestReceivedTimestamp":"2026-01-01T00:00:03Z","stageTimestamp":"2026-01-01T00:00:03Z"}`
	otherLine = `{"auditID":"3","stage":"ResponseComplete","requestURI":"/openapi/v3?hash=1","verb":"get","userAgent":"b","responseStatus":{"code":200},"requestReceivedTimestamp":"2026-01-01T00:00:03Z","stageTimestamp":"2026-01-01T00:00:03.5Z"}`
)

func TestAuditLogIsFollowed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	write := func(s string) {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(s); err != nil {
			t.Fatal(err)
		}
	}
	a := newAuditLog(path)
	follow := func() {
		t.Helper()
		if err := a.follow(); err != nil {
			t.Fatal(err)
		}
	}
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	count := func() (n int) {
		return total(a.between(begin, begin.Add(time.Hour), func(string) bool { return true }))
	}
	write(patchLine + "\n" + watchLine[:20])
	follow()
	if n := count(); n != 1 {
		t.Errorf("%d requests, want the one whose line is complete", n)
	}
	write(watchLine[20:] + "\n" + received + "\n" + otherLine + "\n")
	follow()
	write(watchEnds + "\n")
	follow()
	follow()
	if n := count(); n != 3 {
		t.Errorf("%d requests, want 3: the end of a watch is no further one", n)
	}

	of := func(agent string) func(string) bool { return func(s string) bool { return s == agent } }
	got := a.between(begin, begin.Add(time.Hour), of("a"))
	want := []requests{
		{request{"a", "watch", "pods", 200}, 1, distribution{1, time.Second, time.Second, time.Second, time.Second}},
		{request{"a", "patch", "pods/status", 200}, 1, distribution{1, 4 * time.Millisecond, 4 * time.Millisecond, 4 * time.Millisecond, 4 * time.Millisecond}},
	}
	if got = sorted(got); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	late := a.between(begin.Add(3*time.Second), begin.Add(4*time.Second), func(string) bool { return true })
	if len(late) != 1 || late[0].Resource != "/openapi" || late[0].Agent != "b" {
		t.Errorf("of the fourth second: %+v, want the request for /openapi", late)
	}

	write("{\n")
	if err := a.follow(); err == nil {
		t.Error("a line that is no JSON was taken")
	}
}
