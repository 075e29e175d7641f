// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
)

const manifests = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: node-writer}
rules:
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, create]
- apiGroups: [""]
  resources: [nodes/status]
  resourceNames: [mine]
  verbs: [patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: node-writer}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: node-writer}
subjects:
- {kind: ServiceAccount, name: sa, namespace: default}
---
# Not RBAC: passed over.
apiVersion: v1
kind: ServiceAccount
metadata: {name: sa, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: kube-system}
rules:
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [one]
  verbs: [get, list, watch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects:
- {kind: Group, name: "system:serviceaccounts:default"}
`

func TestRBAC(t *testing.T) { bubble(testRBAC)(t) }

func testRBAC(t *testing.T) {
	rbac, err := apitest.RBACFrom([]byte(manifests))
	if err != nil {
		t.Fatal(err)
	}
	s := apitest.New(apitest.Options{Authorizer: rbac})
	ctx, cs := t.Context(), s.Client(apitest.ServiceAccountUser("default", "sa"))
	allowed := func(what string, err error) {
		t.Helper()
		if err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused := func(what string, err error) {
		t.Helper()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `User "system:serviceaccount:default:sa" cannot`) {
			t.Errorf("%s: %v", what, err)
		}
	}
	nodes := cs.CoreV1().Nodes()
	_, err = nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}, metav1.CreateOptions{})
	allowed("create node", err)
	_, err = nodes.Get(ctx, "mine", metav1.GetOptions{})
	allowed("get node", err)
	_, err = nodes.List(ctx, metav1.ListOptions{})
	refused("list nodes", err)
	patch := func(name, sub string) error {
		_, err := nodes.Patch(ctx, name, types.MergePatchType, []byte(`{"status":{}}`), metav1.PatchOptions{}, sub)
		return err
	}
	allowed("patch own status", patch("mine", "status"))
	refused("patch other status", patch("other", "status"))
	refused("patch node", patch("mine", ""))
	refused("delete node", nodes.Delete(ctx, "mine", metav1.DeleteOptions{}))
	maps := func(ns, selector string) error {
		_, err := cs.CoreV1().ConfigMaps(ns).List(ctx, metav1.ListOptions{FieldSelector: selector})
		return err
	}
	allowed("list of one name", maps("kube-system", "metadata.name=one"))
	refused("list of another name", maps("kube-system", "metadata.name=two"))
	refused("list of all", maps("kube-system", ""))
	refused("another namespace", maps("default", "metadata.name=one"))
	if _, err := cs.Discovery().ServerVersion(); err != nil {
		t.Errorf("discovery: %v", err)
	}
	if _, err := s.Client(apitest.User{}).CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("admin: %v", err)
	}
}

func TestRBACRefusesOtherVersions(t *testing.T) {
	if _, err := apitest.RBACFrom([]byte("apiVersion: rbac.authorization.k8s.io/v7\nkind: Role\n")); err == nil {
		t.Error("took a manifest it can't read")
	}
}

// TestAuthorizers checks the authorizers together: node identities are held to the node
// rules unless a test says otherwise.
func TestAuthorizers(t *testing.T) { bubble(testAuthorizers)(t) }

func testAuthorizers(t *testing.T) {
	s := apitest.New(apitest.Options{})
	foreign := func() error {
		_, err := s.Client(apitest.NodeUser("n")).CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "other-"}}, metav1.CreateOptions{})
		return err
	}
	if err := foreign(); !apierrors.IsForbidden(err) {
		t.Errorf("by default: %v", err)
	}
	s.Authorize(apitest.AuthorizerFunc(func(*apitest.Server, apitest.Request) (bool, string) { return true, "" }))
	if err := foreign(); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "is not allowed to modify node") {
		t.Errorf("allowed by the authorizer, and by NodeRestriction: %v", err)
	}
	asked := 0
	s.Authorize(apitest.AnyOf(apitest.NodeRules, apitest.AuthorizerFunc(func(_ *apitest.Server, r apitest.Request) (bool, string) {
		asked++
		return false, "no"
	})))
	if _, err := s.Client(apitest.User{Name: "somebody"}).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) || asked != 1 {
		t.Errorf("asked %d times: %v", asked, err)
	}
}

// A node may read the claim that the scheduler made for extended resources of its pod.
func TestNodeReadsTheClaimOfExtendedResources(t *testing.T) {
	apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		claims := s.Client(apitest.NodeUser("n")).ResourceV1().ResourceClaims("default")
		s.Put(&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "made", Namespace: "default"}})
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"}, Spec: corev1.PodSpec{NodeName: "n"}}
		s.Put(pod)
		if _, err := claims.Get(t.Context(), "made", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("before the pod has the claim: %v", err)
		}
		pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "made"}
		s.Put(pod)
		if _, err := claims.Get(t.Context(), "made", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	})
}
