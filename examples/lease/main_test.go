// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
)

// identities run the example: a ServiceAccount with the manifests, or a
// kubelet.
var identities = map[string]apitest.User{
	"ServiceAccount": apitest.ServiceAccountUser("kubewright", "virtual-node"),
	"Node":           apitest.NodeUser("n1"),
}

func TestLeaseFollowsItsNode(t *testing.T) {
	for name, user := range identities {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, "rbac/lease.yaml", "rbac/node-reader.yaml")
			program := startProgram(t, "--kubeconfig", kubeconfig(t, s, user), "--node-name", "n1", "--lease-duration", "2s")
			leases := func() []*coordinationv1.Lease {
				return apitest.List[*coordinationv1.Lease](s, corev1.NamespaceNodeLease)
			}

			eventually(t, s, "the program to say that there is no Node", func() bool {
				return strings.Contains(program.Output(), "lease of node n1: NoOwner")
			})
			if n := len(leases()); n != 0 {
				t.Errorf("%d leases without a Node", n)
			}
			node := s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}).(*corev1.Node)
			eventually(t, s, "three renewals", func() bool {
				return len(s.Requests(apitest.Match{Verb: "update", Resource: "leases"})) >= 3
			})
			got := leases()
			if len(got) != 1 || len(got[0].OwnerReferences) != 1 || got[0].OwnerReferences[0].UID != node.UID {
				t.Errorf("leases %v, want one that the Node with UID %s owns", got, node.UID)
			}
			if err := program.Stop(); err != nil {
				t.Errorf("the program ended with %v", err)
			}
			nothingRefused(t, s)
		})
	}
}

func TestWrongFlags(t *testing.T) {
	for _, args := range [][]string{{"--no-such-flag"}, {"leftover"}, {"--lease-duration", "soon"}} {
		if err := startProgram(t, args...).Wait(); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
	s := newServer(t)
	err := startProgram(t, "--kubeconfig", kubeconfig(t, s, apitest.User{}), "--node-name", "Not A Name", "--lease-duration", "1500ms").Wait()
	for _, field := range []string{"NodeName", "Duration"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name %s", err, field)
		}
	}
}
