// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
)

// The journal counts the requests of a controller. In a bubble, the time between
// ResetJournal and the count can be an hour.
func ExampleServer_Requests() {
	ctx := context.Background()
	s := apitest.New(apitest.Options{})
	s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	nodes := s.Client(apitest.NodeUser("n1")).CoreV1().Nodes()

	s.ResetJournal()
	for range 3 {
		_, _ = nodes.Get(ctx, "n1", metav1.GetOptions{})
	}
	_, _ = nodes.Patch(ctx, "n1", "application/merge-patch+json", []byte(`{"status":{"phase":"Running"}}`), metav1.PatchOptions{}, "status")

	fmt.Println(len(s.Requests(apitest.Match{Verb: "get"})), "reads")
	for _, r := range s.Requests(apitest.Match{Resource: "nodes/status"}) {
		fmt.Println(r.User.Name, r.Verb, r.Path, r.Code, string(r.Body))
	}
	// Output:
	// 3 reads
	// system:node:n1 patch /api/v1/nodes/n1/status 200 {"status":{"phase":"Running"}}
}
