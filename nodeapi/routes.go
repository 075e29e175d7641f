// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// An endpoint names the handler of a path.
type endpoint string

const (
	endpointUnknown     endpoint = "unknown"
	endpointHealthz     endpoint = "healthz"
	endpointLivez       endpoint = "livez"
	endpointReadyz      endpoint = "readyz"
	endpointPods        endpoint = "pods"
	endpointRunningPods endpoint = "runningpods"
	endpointLogs        endpoint = "containerlogs"
	endpointExec        endpoint = "exec"
	endpointAttach      endpoint = "attach"
	endpointRun         endpoint = "run"
	endpointPortForward endpoint = "portforward"
	endpointStats       endpoint = "stats"
	endpointResource    endpoint = "metrics-resource"
	endpointMetrics     endpoint = "metrics"
	endpointProbes      endpoint = "metrics-probes"
	endpointConfigz     endpoint = "configz"
	endpointPprof       endpoint = "pprof"
)

// A rule says how an endpoint is reached.
type rule struct {
	// methods are the allowed HTTP methods, the first for the error message.
	methods []string
	// subresource is the fine-grained subresource of nodes that grants access. Empty:
	// only nodes/proxy does.
	subresource string
	// alone is set if nodes/proxy does not grant access, as in a kubelet.
	alone bool
	// create is set if the permission must be for the verb create, whatever the
	// HTTP method: a WebSocket upgrade is a GET, but exec is no read.
	create bool
}

var (
	get    = []string{"GET", "HEAD"}
	stream = []string{"POST", "GET"}
	rules  = map[endpoint]rule{
		endpointUnknown:     {},
		endpointHealthz:     {methods: get, subresource: "healthz"},
		endpointLivez:       {methods: get, subresource: "healthz"},
		endpointReadyz:      {methods: get, subresource: "healthz"},
		endpointPods:        {methods: get, subresource: "pods"},
		endpointRunningPods: {methods: get, subresource: "pods"},
		endpointLogs:        {methods: get, subresource: "log"},
		endpointExec:        {methods: stream, create: true},
		endpointAttach:      {methods: stream, create: true},
		endpointRun:         {methods: []string{"POST"}, create: true},
		endpointPortForward: {methods: stream, create: true},
		endpointStats:       {methods: get, subresource: "stats", alone: true},
		endpointResource:    {methods: get, subresource: "metrics", alone: true},
		endpointMetrics:     {methods: get, subresource: "metrics", alone: true},
		endpointProbes:      {methods: get, subresource: "metrics", alone: true},
		endpointConfigz:     {methods: get, subresource: "configz"},
		endpointPprof:       {methods: []string{"GET", "HEAD", "POST"}},
	}
)

// A route is a parsed path.
type route struct {
	endpoint  endpoint
	container Container // the pod alone for port-forward
	rest      string    // the check of a health endpoint, the profile of pprof
	err       error     // the path is malformed: 400
}

// maxPath is longer than every valid path: five names of at most 253 bytes.
const maxPath = 1400

var uidPattern = regexp.MustCompile(`^[a-zA-Z0-9-]{1,128}$`)

// parsePath parses the path of a request. rawPath is url.URL.RawPath. The
// endpoint is known even if the rest of the path is malformed, so that
// permissions are checked before anything is said about it.
func parsePath(urlPath, rawPath string) route {
	trimmed := strings.TrimSuffix(strings.TrimPrefix(urlPath, "/"), "/")
	parts := strings.Split(trimmed, "/")
	r := route{endpoint: endpointUnknown}
	switch {
	case len(urlPath) > maxPath:
		r.err = badRequest("the path has %d bytes, more than any valid path", len(urlPath))
		return r
	case rawPath != "":
		r.err = badRequest("the path has escaped characters, which no valid path needs")
		return r
	case !strings.HasPrefix(urlPath, "/"):
		r.err = badRequest("the path does not begin with /")
		return r
	}
	for _, part := range parts {
		if part == "." || part == ".." || part == "" && trimmed != "" {
			r.err = badRequest("the path has an element %q", part)
			return r
		}
	}
	switch first, rest := parts[0], parts[1:]; first {
	case "healthz", "livez", "readyz":
		r.endpoint, r.rest = endpoint(first), strings.Join(rest, "/")
	case "pods":
		r.exact(endpointPods, rest)
	case "runningpods":
		r.exact(endpointRunningPods, rest)
	case "configz":
		r.exact(endpointConfigz, rest)
	case "containerLogs":
		r.target(endpointLogs, rest, false)
	case "exec":
		r.target(endpointExec, rest, true)
	case "attach":
		r.target(endpointAttach, rest, true)
	case "run":
		r.target(endpointRun, rest, true)
	case "portForward":
		r.endpoint = endpointPortForward
		switch len(rest) {
		case 3:
			r.uid(rest[2])
			fallthrough
		case 2:
			r.pod(rest[0], rest[1])
		default:
			r.err = badRequest("want /portForward/NAMESPACE/POD or /portForward/NAMESPACE/POD/UID")
		}
	case "stats":
		if len(rest) == 1 && rest[0] == "summary" {
			r.endpoint = endpointStats
		}
	case "metrics":
		switch strings.Join(rest, "/") {
		case "":
			r.endpoint = endpointMetrics
		case "resource":
			r.endpoint = endpointResource
		case "probes":
			r.endpoint = endpointProbes
		}
	case "debug":
		if len(rest) > 0 && rest[0] == "pprof" {
			r.endpoint, r.rest = endpointPprof, strings.Join(rest[1:], "/")
		}
	}
	return r
}

// exact sets the endpoint if the path has no further elements.
func (r *route) exact(e endpoint, rest []string) {
	if len(rest) == 0 {
		r.endpoint = e
	}
}

// target parses NAMESPACE/POD[/UID]/CONTAINER.
func (r *route) target(e endpoint, rest []string, withUID bool) {
	r.endpoint = e
	switch {
	case len(rest) == 4 && withUID:
		r.uid(rest[2])
		r.container.Name = rest[3]
	case len(rest) == 3:
		r.container.Name = rest[2]
	case withUID:
		r.err = badRequest("want /%s/NAMESPACE/POD/CONTAINER or /%s/NAMESPACE/POD/UID/CONTAINER", e, e)
		return
	default:
		r.err = badRequest("want /containerLogs/NAMESPACE/POD/CONTAINER")
		return
	}
	r.pod(rest[0], rest[1])
	r.check("container", r.container.Name, validation.IsDNS1123Label)
}

func (r *route) pod(namespace, name string) {
	r.container.Namespace, r.container.Pod.Name = namespace, name
	r.check("namespace", namespace, validation.IsDNS1123Label)
	r.check("pod", name, validation.IsDNS1123Subdomain)
}

func (r *route) uid(uid string) {
	r.container.UID = types.UID(uid)
	r.check("UID", uid, func(s string) []string {
		if uidPattern.MatchString(s) {
			return nil
		}
		return []string{"must be at most 128 letters, digits and dashes"}
	})
}

func (r *route) check(what, name string, valid func(string) []string) {
	if r.err != nil {
		return
	}
	if problems := append(content.IsPathSegmentName(name), valid(name)...); len(problems) > 0 {
		r.err = badRequest("%s %s is invalid: %s", what, abbreviated(name), strings.Join(problems, "; "))
	}
}

// abbreviated quotes a string for an error message.
func abbreviated(s string) string {
	if len(s) > 64 {
		return fmt.Sprintf("%q…", s[:64])
	}
	return fmt.Sprintf("%q", s)
}
