// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"slices"
	"strings"
)

// Match selects requests. Each field that is not empty must match.
type Match struct {
	User, Verb, Group, Resource, Namespace, Name string
	Func                                         func(*Request) bool // called last; may be nil
}

// Matches reports whether m selects r.
func (m *Match) Matches(r *Request) bool {
	switch {
	case m.User != "" && m.User != r.User.Name,
		m.Namespace != "" && m.Namespace != r.Namespace,
		m.Name != "" && m.Name != r.Name,
		m.Group == "core" && r.Group != "",
		m.Group != "" && m.Group != "core" && m.Group != r.Group:
		return false
	}
	if m.Verb != "" && m.Verb != r.Verb && !(strings.Contains(m.Verb, ",") && slices.Contains(strings.Split(m.Verb, ","), r.Verb)) {
		return false
	}
	if m.Resource != "" {
		resource, sub, _ := strings.Cut(m.Resource, "/")
		if resource != r.Resource || sub != "*" && sub != r.Subresource {
			return false
		}
	}
	return m.Func == nil || m.Func(r)
}
