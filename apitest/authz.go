// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/kubewright/kubewright/apitest/internal/store"
)

// AnyOf returns an Authorizer that allows a request if one of list allows it, as
// a server with --authorization-mode=Node,RBAC does.
func AnyOf(list ...Authorizer) Authorizer {
	return AuthorizerFunc(func(s *Server, r Request) (bool, string) {
		reason := ""
		for _, a := range list {
			ok, why := a.Authorize(s, r)
			if ok {
				return true, ""
			}
			if reason == "" {
				reason = why
			}
		}
		return false, reason
	})
}

// trusting applies NodeRules to node identities and allows all other requests.
type trusting struct{}

// Authorize implements Authorizer.
func (trusting) Authorize(s *Server, r Request) (bool, string) {
	if _, ok := r.User.nodeName(); ok {
		return NodeRules.Authorize(s, r)
	}
	return true, ""
}

func (s *Server) authorizerInUse() Authorizer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.authorizer == nil {
		return trusting{}
	}
	return s.authorizer
}

func (s *Server) authorize(c *call) error { return s.authorizeAs(c, c.r.Verb) }

// authorizeCreate authorizes the creation by a PUT of a missing object.
func (s *Server) authorizeCreate(c *call) error { return s.authorizeAs(c, "create") }

func (s *Server) authorizeAs(c *call, verb string) error {
	if c.r.User.in(groupMasters) {
		return nil
	}
	r := *c.r
	r.Verb = verb
	if r.Method == http.MethodPost && r.Subresource == "" {
		r.Name = "" // the real server authorizes before it reads the body
	}
	ok, reason := s.authorizerInUse().Authorize(s, r)
	if ok {
		return nil
	}
	return forbidden(c, r, reason)
}

// forbidden returns a 403 with the message of the real server.
func forbidden(c *call, r Request, reason string) error {
	resource := r.Resource
	if r.Subresource != "" {
		resource += "/" + r.Subresource
	}
	msg := fmt.Sprintf("User %q cannot %s resource %q in API group %q", r.User.Name, r.Verb, resource, r.Group)
	if r.Namespace == "" {
		msg += " at the cluster scope"
	} else {
		msg += fmt.Sprintf(" in the namespace %q", r.Namespace)
	}
	if reason != "" {
		msg += ": " + reason
	}
	return apierrors.NewForbidden(r.groupResource(), r.Name, errors.New(msg))
}

// admit calls the admission plugins for a write. old is nil for a creation.
// The store must be locked.
func (s *Server) admit(c *call, w *write, obj, old runtime.Object) error {
	if c.kind.Admit != nil {
		if err := c.kind.Admit(&w.rules, obj, old); err != nil {
			return err
		}
	}
	return s.nodeRestriction(c, obj, old)
}

// admitDelete is admit for a deletion.
func (s *Server) admitDelete(c *call, old runtime.Object) error {
	return s.nodeRestriction(c, nil, old)
}

// rbac authorizes by roles and bindings, as the RBAC authorizer of a real server
// does. Every user may use discovery.
type rbac struct {
	clusterRoles        map[string][]rbacv1.PolicyRule
	roles               map[store.Key][]rbacv1.PolicyRule
	clusterRoleBindings []rbacv1.ClusterRoleBinding
	roleBindings        []rbacv1.RoleBinding
}

// RBACFrom returns an Authorizer that applies the ClusterRoles, Roles and
// bindings in YAML manifests. It ignores documents of other kinds. A binding to
// a role that is in no manifest grants nothing, as on a real server. It returns
// an error for a manifest that can't be decoded.
func RBACFrom(manifests ...[]byte) (Authorizer, error) {
	a := &rbac{clusterRoles: map[string][]rbacv1.PolicyRule{}, roles: map[store.Key][]rbacv1.PolicyRule{}}
	for _, m := range manifests {
		r := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(m)))
		for {
			doc, err := r.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, err
			}
			if err := a.add(doc); err != nil {
				return nil, err
			}
		}
	}
	return a, nil
}

func (a *rbac) add(doc []byte) error {
	asJSON, err := yaml.ToJSON(doc)
	if err != nil {
		return err
	}
	if len(asJSON) == 0 || string(asJSON) == "null" {
		return nil
	}
	if !bytes.Contains(asJSON, []byte(rbacv1.GroupName)) {
		return nil
	}
	obj, gvk, err := scheme.Codecs.UniversalDeserializer().Decode(asJSON, nil, nil)
	if err != nil {
		return fmt.Errorf("apitest: %w", err)
	}
	switch o := obj.(type) {
	case *rbacv1.ClusterRole:
		a.clusterRoles[o.Name] = o.Rules
	case *rbacv1.Role:
		a.roles[store.Key{Namespace: o.Namespace, Name: o.Name}] = o.Rules
	case *rbacv1.ClusterRoleBinding:
		a.clusterRoleBindings = append(a.clusterRoleBindings, *o)
	case *rbacv1.RoleBinding:
		a.roleBindings = append(a.roleBindings, *o)
	default:
		if gvk.Group == rbacv1.GroupName {
			return fmt.Errorf("apitest: %s can't be used", gvk)
		}
	}
	return nil
}

// Authorize implements Authorizer.
func (a *rbac) Authorize(_ *Server, r Request) (bool, string) {
	if r.Resource == "" {
		return true, ""
	}
	for i := range a.clusterRoleBindings {
		b := &a.clusterRoleBindings[i]
		if appliesTo(b.Subjects, r.User, "") && rulesAllow(a.clusterRoles[b.RoleRef.Name], r) {
			return true, ""
		}
	}
	for i := range a.roleBindings {
		b := &a.roleBindings[i]
		if b.Namespace != r.Namespace || !appliesTo(b.Subjects, r.User, b.Namespace) {
			continue
		}
		rules := a.roles[store.Key{Namespace: b.Namespace, Name: b.RoleRef.Name}]
		if b.RoleRef.Kind == "ClusterRole" {
			rules = a.clusterRoles[b.RoleRef.Name]
		}
		if rulesAllow(rules, r) {
			return true, ""
		}
	}
	return false, ""
}

func appliesTo(subjects []rbacv1.Subject, u User, namespace string) bool {
	return slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool {
		switch s.Kind {
		case rbacv1.UserKind:
			return s.Name == u.Name
		case rbacv1.GroupKind:
			return u.in(s.Name)
		case rbacv1.ServiceAccountKind:
			ns := s.Namespace
			if ns == "" {
				ns = namespace
			}
			return u.Name == serviceAccountUserPrefix+ns+":"+s.Name
		}
		return false
	})
}

// rulesAllow reports whether one of the rules covers the request.
func rulesAllow(rules []rbacv1.PolicyRule, r Request) bool {
	resource := r.Resource
	if r.Subresource != "" {
		resource += "/" + r.Subresource
	}
	has := func(list []string, v string) bool { return slices.Contains(list, "*") || slices.Contains(list, v) }
	for _, rule := range rules {
		if !has(rule.Verbs, r.Verb) || !has(rule.APIGroups, r.Group) {
			continue
		}
		if !has(rule.Resources, resource) && !(r.Subresource != "" && slices.ContainsFunc(rule.Resources, func(pattern string) bool {
			ok, _ := path.Match(pattern, resource)
			return ok && strings.HasPrefix(pattern, "*/")
		})) {
			continue
		}
		if len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, r.Name) {
			return true
		}
	}
	return false
}

// forbidden is the error of an admission plugin.
func (c *call) forbidden(name, format string, args ...any) error {
	return apierrors.NewForbidden(c.resource(), name, fmt.Errorf(format, args...))
}
