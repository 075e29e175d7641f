// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/kubernetes/scheme"
)

// OfRequest returns the place of a request without its program and number, named by
// the URL conventions of the Kubernetes API. The name of a created object is taken from
// body. The target of a path that is no resource, such as /version, is the path, and the
// verb is the HTTP method in lower case.
func OfRequest(req *http.Request, body []byte) Place {
	path := strings.Trim(req.URL.Path, "/")
	parts := strings.Split(path, "/")
	switch {
	case parts[0] == "api" && len(parts) > 2:
		parts = parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		parts = parts[3:]
	default:
		return Place{Verb: strings.ToLower(req.Method), Target: "/" + path}
	}
	namespace := ""
	if parts[0] == "namespaces" && len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
		namespace, parts = parts[1]+"/", parts[2:]
	}
	resource, name := parts[0], ""
	if len(parts) > 1 {
		name = parts[1]
	}
	if len(parts) > 2 {
		resource += "/" + strings.Join(parts[2:], "/")
	}
	verb := ""
	switch req.Method {
	case http.MethodGet, http.MethodHead:
		verb = "get"
		if name == "" {
			verb = "list"
			if w := req.URL.Query().Get("watch"); w != "" && w != "0" && w != "false" {
				verb = "watch"
			}
		}
	case http.MethodPost:
		verb = "create"
		if name == "" {
			name = created(body)
		}
	case http.MethodPut:
		verb = "update"
	case http.MethodPatch:
		verb = "patch"
	case http.MethodDelete:
		verb = "delete"
		if name == "" {
			verb = "deletecollection"
		}
	default:
		verb = strings.ToLower(req.Method)
	}
	return Place{Verb: verb, Target: strings.TrimSpace(resource + " " + strings.TrimSuffix(namespace+name, "/"))}
}

// created returns the name of an object: "web-*" for the generateName web-, or "".
func created(body []byte) string {
	m, _ := metaOf(body)
	if m.Name != "" || m.GenerateName == "" {
		return m.Name
	}
	return m.GenerateName + "*"
}

// IsUnconditional reports whether body is an object without a resourceVersion. An update with it
// replaces whatever is stored.
func IsUnconditional(body []byte) bool {
	m, ok := metaOf(body)
	return ok && m.ResourceVersion == ""
}

// metaOf returns metadata of an object in JSON, or in protobuf if client-go knows its kind.
func metaOf(body []byte) (m struct{ Name, GenerateName, ResourceVersion string }, ok bool) {
	obj := struct{ Metadata any }{&m}
	if json.Unmarshal(body, &obj) == nil {
		return m, true
	}
	decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return m, false
	}
	of, err := meta.Accessor(decoded)
	if err != nil {
		return m, false
	}
	m.Name, m.GenerateName, m.ResourceVersion = of.GetName(), of.GetGenerateName(), of.GetResourceVersion()
	return m, true
}

// IsWrite reports whether requests of the verb change objects. It also does for "call".
func (p Place) IsWrite() bool {
	switch p.Verb {
	case "create", "update", "patch", "delete", "deletecollection", "call":
		return true
	}
	return false
}
