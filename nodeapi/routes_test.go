// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

func TestPathsAreParsed(t *testing.T) {
	long := strings.Repeat("a", 254)
	for _, c := range []struct {
		path, raw string
		want      endpoint
		target    string // container, rest
		uid       string
		bad       bool
	}{
		{path: "/", want: endpointUnknown},
		{path: "/pods", want: endpointPods},
		{path: "/pods/", want: endpointPods},
		{path: "/runningpods/", want: endpointRunningPods},
		{path: "/pods/x", want: endpointUnknown},
		{path: "/healthz", want: endpointHealthz},
		{path: "/healthz/ping", want: endpointHealthz},
		{path: "/stats/summary", want: endpointStats},
		{path: "/stats", want: endpointUnknown},
		{path: "/metrics", want: endpointMetrics},
		{path: "/metrics/resource", want: endpointResource},
		{path: "/metrics/probes", want: endpointProbes},
		{path: "/metrics/cadvisor", want: endpointUnknown},
		{path: "/configz", want: endpointConfigz},
		{path: "/debug/pprof/heap", want: endpointPprof},
		{path: "/containerLogs/ns/pod.x/c", want: endpointLogs, target: "ns/pod.x/c"},
		{path: "/containerLogs/ns/pod/uid/c", want: endpointLogs, bad: true},
		{path: "/exec/ns/pod/c", want: endpointExec, target: "ns/pod/c"},
		{path: "/exec/ns/pod/0a-1b/c", want: endpointExec, target: "ns/pod/c", uid: "0a-1b"},
		{path: "/attach/ns/pod/c", want: endpointAttach, target: "ns/pod/c"},
		{path: "/run/ns/pod/u/c", want: endpointRun, target: "ns/pod/c", uid: "u"},
		{path: "/portForward/ns/pod", want: endpointPortForward, target: "ns/pod/"},
		{path: "/portForward/ns/pod/u", want: endpointPortForward, target: "ns/pod/", uid: "u"},
		{path: "/portForward/ns", want: endpointPortForward, bad: true},
		{path: "/exec/ns/pod", want: endpointExec, bad: true},
		{path: "/exec/NS/pod/c", want: endpointExec, bad: true},
		{path: "/exec/ns/pod_x/c", want: endpointExec, bad: true},
		{path: "/exec/ns/pod/C", want: endpointExec, bad: true},
		{path: "/exec/ns/pod/u_/c", want: endpointExec, bad: true},
		{path: "/exec/ns/pod/" + strings.Repeat("u", 128) + "/c", want: endpointExec, target: "ns/pod/c", uid: strings.Repeat("u", 128)},
		{path: "/exec/ns/pod/" + strings.Repeat("u", 129) + "/c", want: endpointExec, bad: true},
		{path: "/exec/ns/" + long + "/c", want: endpointExec, bad: true},
		{path: "/containerLogs/" + strings.Repeat("a", 64) + "/pod/c", want: endpointLogs, bad: true},
		{path: "/exec/ns/../c", want: endpointUnknown, bad: true},
		{path: "/./pods", want: endpointUnknown, bad: true},
		{path: "//pods", want: endpointUnknown, bad: true},
		{path: "/exec//pod/c", want: endpointUnknown, bad: true},
		{path: "pods", want: endpointUnknown, bad: true},
		{path: "/exec/ns/a/b/c", raw: "/exec/ns/a%2Fb/c", want: endpointUnknown, bad: true},
		{path: "/" + strings.Repeat("a", maxPath), want: endpointUnknown, bad: true},
	} {
		r := parsePath(c.path, c.raw)
		if r.endpoint != c.want || (r.err != nil) != c.bad {
			t.Errorf("%.80s: %s, %v", c.path, r.endpoint, r.err)
		}
		if c.target != "" && (r.container.String() != c.target || string(r.container.UID) != c.uid) {
			t.Errorf("%s: %s with UID %q", c.path, r.container, r.container.UID)
		}
	}
}

func TestEveryEndpointHasARule(t *testing.T) {
	for e, rule := range rules {
		if e != endpointUnknown && len(rule.methods) == 0 {
			t.Errorf("%s has no methods", e)
		}
		attrs := attributes(nodeName, nil, http.MethodGet, "/", e)
		if last := attrs[len(attrs)-1]; (last.Subresource == "proxy") == rule.alone || len(attrs) > 2 || last.Name != nodeName || last.Resource != "nodes" || !last.ResourceRequest {
			t.Errorf("%s is allowed by %+v", e, last)
		}
		for _, a := range attrs {
			if want := map[bool]string{true: "create", false: "get"}[rule.create]; a.Verb != want {
				t.Errorf("%s needs %s", e, a.Verb)
			}
		}
	}
	if a := attributes(nodeName, nil, "BREW", "/pods", endpointPods); a[0].Verb != "create" {
		t.Errorf("an unknown method needs %q", a[0].Verb)
	}
}

func TestMalformedRequestsAre400(t *testing.T) {
	r := startEverything(t, nil)
	for _, path := range []string{
		"/containerLogs/default/..%2f..%2fetc/main", "/containerLogs/default/%2e%2e/main", "/exec/default/web/main/../../x?command=a&output=1",
		"/containerLogs/default/" + strings.Repeat("a", 300) + "/main", "/containerLogs/default/web/main?tailLines=x",
		"/containerLogs/default/web/main?a=%zz", "/containerLogs/default/web/main?follow=perhaps", "/containerLogs/default/web/main?sinceTime=yesterday",
		"/containerLogs/default/web/main?a;b", "/exec/default/web/main?output=1", "/exec/default/web/main?command=a", "/stats/summary?only_cpu_and_memory=x",
		"/containerLogs/default/web/main?x=" + strings.Repeat("a", maxQuery),
	} {
		if code, body := r.get(path); code != 400 || len(body) > 1000 {
			t.Errorf("GET %.80s: %d %.200q", path, code, body)
		}
	}
}

func FuzzPaths(f *testing.F) {
	for _, seed := range []string{"/exec/ns/pod/uid/c", "/containerLogs/a/b/c", "/portForward/a/b", "/..", "//", "", "/%2e", "/debug/pprof/heap"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		u, err := url.Parse(raw)
		if err != nil {
			return
		}
		r := parsePath(u.Path, u.RawPath)
		if _, ok := rules[r.endpoint]; !ok {
			t.Fatalf("%q has the endpoint %q", raw, r.endpoint)
		}
		if r.err != nil {
			if code, sentence := answerTo(r.err); code != 400 || len(sentence) > 4096 {
				t.Fatalf("%q: %d %q", raw, code, sentence)
			}
			return
		}
		for _, part := range []string{r.container.Namespace, r.container.Pod.Name, r.container.Name, string(r.container.UID)} {
			if strings.ContainsAny(part, "/\\.%\x00") && part != r.container.Pod.Name || strings.Contains(part, "..") || strings.Contains(part, "/") || len(part) > 253 {
				t.Fatalf("%q has the name %q", raw, part)
			}
		}
	})
}

func FuzzQueries(f *testing.F) {
	for _, seed := range []string{"tailLines=5&follow=true", "sinceTime=2026-01-01T00:00:00Z", "limitBytes=-1", "stream=Stdout", "a=%zz", "port=80,81", "command=a&tty=1&error=1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		check := func(err error) {
			if err == nil {
				return
			}
			if code, sentence := answerTo(err); code != 400 && code != 422 || len(sentence) > 8192+len(raw) {
				t.Fatalf("%q: %d %q", raw, code, sentence)
			}
		}
		query, err := parseQuery(raw)
		check(err)
		if err != nil {
			return
		}
		opts, err := parseLogOptions(query)
		check(err)
		if err == nil && (opts.TailLines != nil && *opts.TailLines < 0 || opts.LimitBytes != nil && *opts.LimitBytes < 1 || opts.Stream == nil) {
			t.Fatalf("%q: %+v", raw, opts)
		}
		remote, err := remoteOptions(query)
		check(err)
		if err == nil && remote.tty && remote.stderr {
			t.Fatalf("%q: %+v", raw, remote)
		}
		ports, err := parsePorts(query["port"])
		check(err)
		for _, port := range ports {
			if port < 1 || port > 65535 {
				t.Fatalf("%q: %d", raw, port)
			}
		}
	})
}
