// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"os"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// TestWhoAmI checks every kind of identity, by its client configuration and by its kubeconfig file.
func TestWhoAmI(t *testing.T) {
	t.Parallel()
	c := shared.Cluster(t)
	for name, tc := range map[string]struct {
		config     *rest.Config
		kubeconfig string
		user       string
		group      string
	}{
		"admin": {c.AdminConfig(), c.AdminKubeconfig(), "kubewright-admin", "system:masters"},
		"node":  {c.NodeConfig(t, "who"), c.NodeKubeconfig(t, "who"), "system:node:who", "system:nodes"},
		"ServiceAccount": {
			c.ServiceAccountConfig(t, "default", "who"), c.ServiceAccountKubeconfig(t, "default", "who"),
			"system:serviceaccount:default:who", "system:serviceaccounts:default",
		},
		"user": {c.UserConfig(t, "alice", "ops", "dev"), c.UserKubeconfig(t, "alice", "ops", "dev"), "alice", "ops"},
	} {
		review, err := newClient(t, tc.config).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := review.Status.UserInfo; got.Username != tc.user || !strings.Contains(strings.Join(got.Groups, " ")+" ", tc.group+" ") {
			t.Errorf("%s: user %s in %q, want %s in %s", name, got.Username, got.Groups, tc.user, tc.group)
		}
		if got := c.Kubectl(t, "--kubeconfig="+tc.kubeconfig, "auth", "whoami", "-o=jsonpath={.status.userInfo.username}"); got != tc.user {
			t.Errorf("%s: by its kubeconfig it is %s", name, got)
		}
		if info, err := os.Stat(tc.kubeconfig); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: kubeconfig's mode %v, %v", name, info.Mode(), err)
		}
	}
}

// TestNodeIdentity checks the rules of the Node authorizer and of NodeRestriction on the cluster. Without them,
// end-to-end tests would prove nothing about a kubelet's credentials.
func TestNodeIdentity(t *testing.T) {
	t.Parallel()
	c := shared.Cluster(t)
	admin := newClient(t, c.AdminConfig())
	node := newClient(t, c.NodeConfig(t, "mine"))
	for _, name := range []string{"mine", "other"} {
		// This identity may not create the second one.
		client := map[string]interface {
			Create(context.Context, *corev1.Node, metav1.CreateOptions) (*corev1.Node, error)
		}{"mine": node.CoreV1().Nodes(), "other": admin.CoreV1().Nodes()}[name]
		if _, err := client.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	status := []byte(`{"status":{"phase":"Running"}}`)
	lease := func(name string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	slice := func(nodeName string) *resourcev1.ResourceSlice {
		return &resourcev1.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "slice-"},
			Spec: resourcev1.ResourceSliceSpec{
				Driver: "gpu.example.com", NodeName: &nodeName,
				Pool: resourcev1.ResourcePool{Name: nodeName, Generation: 1, ResourceSliceCount: 1},
			},
		}
	}
	for name, tc := range map[string]struct {
		do        func(ctx context.Context) error
		forbidden string // part of the answer; "" if allowed
	}{
		"list all nodes": {func(ctx context.Context) error {
			_, err := node.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
			return err
		}, "cannot read all nodes"},
		"list itself": {func(ctx context.Context) error {
			_, err := node.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=mine"})
			return err
		}, ""},
		"patch its status": {func(ctx context.Context) error {
			_, err := node.CoreV1().Nodes().Patch(ctx, "mine", types.StrategicMergePatchType, status, metav1.PatchOptions{}, "status")
			return err
		}, ""},
		"get its status": {func(ctx context.Context) error {
			return node.CoreV1().RESTClient().Get().Resource("nodes").Name("mine").SubResource("status").Do(ctx).Error()
		}, "cannot get"},
		"patch another's status": {func(ctx context.Context) error {
			_, err := node.CoreV1().Nodes().Patch(ctx, "other", types.StrategicMergePatchType, status, metav1.PatchOptions{}, "status")
			return err
		}, "is not allowed to modify node"},
		"delete itself": {func(ctx context.Context) error {
			return node.CoreV1().Nodes().Delete(ctx, "mine", metav1.DeleteOptions{})
		}, "cannot delete"},
		"list all pods": {func(ctx context.Context) error {
			_, err := node.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
			return err
		}, "can only list/watch pods with spec.nodeName field selector"},
		"list its pods": {func(ctx context.Context) error {
			_, err := node.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=mine"})
			return err
		}, ""},
		"create its lease": {func(ctx context.Context) error {
			_, err := node.CoordinationV1().Leases("kube-node-lease").Create(ctx, lease("mine"), metav1.CreateOptions{})
			return err
		}, ""},
		"create another's lease": {func(ctx context.Context) error {
			_, err := node.CoordinationV1().Leases("kube-node-lease").Create(ctx, lease("other"), metav1.CreateOptions{})
			return err
		}, "can only access node lease with the same name as the requesting node"},
		"create a lease elsewhere": {func(ctx context.Context) error {
			_, err := node.CoordinationV1().Leases("default").Create(ctx, lease("mine"), metav1.CreateOptions{})
			return err
		}, `can only access leases in the "kube-node-lease" system namespace`},
		"list leases": {func(ctx context.Context) error {
			_, err := node.CoordinationV1().Leases("kube-node-lease").List(ctx, metav1.ListOptions{})
			return err
		}, "cannot list"},
		"create its slice": {func(ctx context.Context) error {
			_, err := node.ResourceV1().ResourceSlices().Create(ctx, slice("mine"), metav1.CreateOptions{})
			return err
		}, ""},
		"create another's slice": {func(ctx context.Context) error {
			_, err := node.ResourceV1().ResourceSlices().Create(ctx, slice("other"), metav1.CreateOptions{})
			return err
		}, "can only create ResourceSlice with the same NodeName as the requesting node"},
	} {
		err := tc.do(t.Context())
		switch {
		case tc.forbidden == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case tc.forbidden != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), tc.forbidden)):
			t.Errorf("%s: %v, want 403 that says %q", name, err, tc.forbidden)
		}
	}
}

// TestServiceAccountHasNoRights: a ServiceAccount has no permissions except those that an example's manifest grants.
func TestServiceAccountHasNoRights(t *testing.T) {
	t.Parallel()
	c := shared.Cluster(t)
	client := newClient(t, c.ServiceAccountConfig(t, "default", "powerless"))
	if _, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("listing ConfigMaps: %v, want 403", err)
	}
	// At the second call the ServiceAccount exists.
	again := newClient(t, c.ServiceAccountConfig(t, "default", "powerless"))
	if _, err := again.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("listing ConfigMaps: %v, want 403", err)
	}
}
