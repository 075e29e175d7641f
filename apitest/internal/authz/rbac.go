// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/kubewright/kubewright/apitest/internal/request"
	"github.com/kubewright/kubewright/apitest/internal/store"
)

// RBAC authorizes by roles and bindings, as the RBAC authorizer of a real server
// does. Every user may use discovery.
type RBAC struct {
	clusterRoles        map[string][]rbacv1.PolicyRule
	roles               map[store.Key][]rbacv1.PolicyRule
	clusterRoleBindings []rbacv1.ClusterRoleBinding
	roleBindings        []rbacv1.RoleBinding
}

// RBACFrom reads the roles and bindings in YAML manifests.
func RBACFrom(manifests ...[]byte) (*RBAC, error) {
	a := &RBAC{clusterRoles: map[string][]rbacv1.PolicyRule{}, roles: map[store.Key][]rbacv1.PolicyRule{}}
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

func (a *RBAC) add(doc []byte) error {
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

// Allows reports whether a binding allows r.
func (a *RBAC) Allows(r *request.Request) bool {
	if r.Resource == "" {
		return true
	}
	for i := range a.clusterRoleBindings {
		b := &a.clusterRoleBindings[i]
		if appliesTo(b.Subjects, r.User, "") && rulesAllow(a.clusterRoles[b.RoleRef.Name], r) {
			return true
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
			return true
		}
	}
	return false
}

func appliesTo(subjects []rbacv1.Subject, u request.User, namespace string) bool {
	return slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool {
		switch s.Kind {
		case rbacv1.UserKind:
			return s.Name == u.Name
		case rbacv1.GroupKind:
			return u.In(s.Name)
		case rbacv1.ServiceAccountKind:
			ns := s.Namespace
			if ns == "" {
				ns = namespace
			}
			return u.Name == request.ServiceAccountUserPrefix+ns+":"+s.Name
		}
		return false
	})
}

// rulesAllow reports whether one of the rules covers the request.
func rulesAllow(rules []rbacv1.PolicyRule, r *request.Request) bool {
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
