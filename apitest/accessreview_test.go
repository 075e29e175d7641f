// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"context"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
)

func TestAccessReviewsAskTheAuthorizer(t *testing.T) {
	ctx := context.Background()
	s := apitest.New(apitest.Options{})
	node := apitest.NodeUser("n1")
	administrator := apitest.User{Name: "kubernetes-admin", Groups: []string{"system:masters"}}
	for _, test := range []struct {
		name      string
		user      apitest.User
		resource  *authorizationv1.ResourceAttributes
		path      *authorizationv1.NonResourceAttributes
		allowed   bool
		isInvalid bool
	}{
		{name: "a node reads its Node", user: node, allowed: true,
			resource: &authorizationv1.ResourceAttributes{Verb: "get", Version: "v1", Resource: "nodes", Name: "n1"}},
		{name: "a node deletes a namespace", user: node,
			resource: &authorizationv1.ResourceAttributes{Verb: "delete", Version: "v1", Resource: "namespaces", Name: "x"}},
		{name: "an administrator execs", user: administrator, allowed: true,
			resource: &authorizationv1.ResourceAttributes{Verb: "create", Version: "v1", Resource: "nodes", Subresource: "proxy", Name: "n1"}},
		{name: "a path", user: administrator, allowed: true, path: &authorizationv1.NonResourceAttributes{Verb: "get", Path: "/metrics"}},
		{name: "neither", user: node, isInvalid: true},
		{name: "both", user: node, isInvalid: true,
			resource: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "nodes"}, path: &authorizationv1.NonResourceAttributes{Verb: "get", Path: "/"}},
		{name: "no subject", isInvalid: true, resource: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "nodes"}},
	} {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: test.user.Name, Groups: test.user.Groups, ResourceAttributes: test.resource, NonResourceAttributes: test.path,
		}}
		got, err := s.Client(node).AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if apierrors.IsInvalid(err) != test.isInvalid || err != nil && !test.isInvalid {
			t.Errorf("%s: %v", test.name, err)
		} else if err == nil && got.Status.Allowed != test.allowed {
			t.Errorf("%s: allowed is %t (%s), want %t", test.name, got.Status.Allowed, got.Status.Reason, test.allowed)
		}
	}
}

func TestSelfAccessReviewIsAboutTheClient(t *testing.T) {
	s := apitest.New(apitest.Options{})
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "delete", Version: "v1", Resource: "nodes", Name: "n2"},
	}}
	for user, want := range map[string]bool{"admin": true, "node": false} {
		client := s.Client(apitest.User{})
		if user == "node" {
			s.Authorize(apitest.AnyOf(apitest.NodeRules, apitest.AuthorizerFunc(func(_ *apitest.Server, r apitest.Request) (bool, string) {
				return r.Resource == "selfsubjectaccessreviews", ""
			})))
			client = s.Client(apitest.NodeUser("n1"))
		}
		got, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(context.Background(), review, metav1.CreateOptions{})
		if err != nil {
			t.Errorf("%s: %v", user, err)
		} else if got.Status.Allowed != want {
			t.Errorf("%s: allowed is %t, want %t", user, got.Status.Allowed, want)
		}
	}
}

func TestAccessReviewsCanOnlyBeCreated(t *testing.T) {
	s := apitest.New(apitest.Options{})
	err := s.Client(apitest.User{}).AuthorizationV1().RESTClient().Get().Resource("subjectaccessreviews").Do(context.Background()).Error()
	if !apierrors.IsMethodNotSupported(err) {
		t.Errorf("a list: %v, want 405", err)
	}
}
