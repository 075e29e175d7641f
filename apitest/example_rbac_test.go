// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
)

// The manifest that a controller ships decides which of its requests are
// allowed.
func ExampleRBACFrom() {
	rbac, err := apitest.RBACFrom([]byte(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reader}
rules:
- {apiGroups: [""], resources: [nodes], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}
subjects: [{kind: ServiceAccount, name: sa, namespace: default}]
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	s := apitest.New(apitest.Options{Authorizer: rbac})
	nodes := s.Client(apitest.ServiceAccountUser("default", "sa")).CoreV1().Nodes()
	_, err = nodes.Get(context.Background(), "n1", metav1.GetOptions{})
	fmt.Println(err)
	_, err = nodes.List(context.Background(), metav1.ListOptions{})
	fmt.Println(err)
	// Output:
	// nodes "n1" not found
	// nodes is forbidden: User "system:serviceaccount:default:sa" cannot list resource "nodes" in API group "" at the cluster scope
}
