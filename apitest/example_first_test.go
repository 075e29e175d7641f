// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
)

// A first test: the clientset is the real one, and so are the rules that it
// meets.
func ExampleNew() {
	ctx := context.Background() // in a test: t.Context(), in a bubble
	s := apitest.New(apitest.Options{})
	nodes := s.Client(apitest.NodeUser("n1")).CoreV1().Nodes()

	node, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	// Another client changes the Node.
	apitest.Edit(s, "", "n1", func(n *corev1.Node) { n.Labels = map[string]string{"zone": "a"} })

	node.Labels = map[string]string{"zone": "b"}
	_, err = nodes.Update(ctx, node, metav1.UpdateOptions{})
	fmt.Println("conflict:", apierrors.IsConflict(err))

	_, err = nodes.Get(ctx, "n2", metav1.GetOptions{})
	fmt.Println("forbidden:", apierrors.IsForbidden(err))
	// Output:
	// conflict: true
	// forbidden: true
}
