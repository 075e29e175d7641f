// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The messages are those of Kubernetes 1.37: of the Node authorizer, of the
// admission plugin NodeRestriction, and of RBAC.
func TestExplainForbidden(t *testing.T) {
	const rule = "can only access node lease with the same name as the requesting node"
	for name, test := range map[string]struct {
		reason   string
		wrong    bool
		identity string
		text     string
	}{
		"authorizer": {`User "system:node:a" cannot update resource "leases" in API group "coordination.k8s.io" in the namespace "kube-node-lease": node: ` + rule, true, "system:node:a",
			`lease: the client is "system:node:a" and may write the lease of node "a" only, but the node served is "node-1": the node name or the credentials are wrong: `},
		"admission": {rule, true, "",
			`lease: the client may not write the lease of node "node-1": it has the credentials of another node: `},
		"own name": {`User "system:node:node-1" cannot update resource "leases" in API group "coordination.k8s.io" in the namespace "kube-node-lease": no relationship found`, false, "",
			`lease: node "node-1": `},
		"service account": {`User "system:serviceaccount:a:b" cannot update resource "leases" in API group "coordination.k8s.io" in the namespace "kube-node-lease"`, false, "",
			`lease: node "node-1": `},
		"cut short": {`User "system:node:a`, false, "", `lease: node "node-1": `},
	} {
		t.Run(name, func(t *testing.T) {
			forbidden := apierrors.NewForbidden(schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, "node-1", errors.New(test.reason))
			err := explain("node-1", forbidden)
			wrong, ok := errors.AsType[*IdentityError](err)
			if ok != test.wrong || ok && (wrong.Identity != test.identity || wrong.NodeName != "node-1") {
				t.Errorf("explained as %#v", err)
			}
			want := test.text + forbidden.Error()
			if !test.wrong {
				want += " (examples/rbac/lease.yaml of Kubewright grants a ServiceAccount what is needed)"
			}
			if err.Error() != want {
				t.Errorf("text is\n%s\nwant\n%s", err, want)
			}
			if !apierrors.IsForbidden(err) {
				t.Error("the answer of the API server is not wrapped")
			}
		})
	}
}

func TestExplainNotFound(t *testing.T) {
	namespace := apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "kube-node-lease")
	if err := explain("node-1", namespace); !errors.Is(err, ErrNoNamespace) || !apierrors.IsNotFound(err) {
		t.Errorf("a namespace that is missing is explained as %v", err)
	}
	lease := apierrors.NewNotFound(schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, "node-1")
	if err := explain("node-1", lease); errors.Is(err, ErrNoNamespace) {
		t.Errorf("a lease that is missing is explained as %v", err)
	}
}
