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

// A watch that breaks, and one that begins at a resourceVersion that the server
// has forgotten.
func ExampleServer_BreakWatches() {
	ctx := context.Background()
	s := apitest.New(apitest.Options{})
	nodes := s.Client(apitest.User{}).CoreV1().Nodes()
	begin := s.ResourceVersion()

	w, err := nodes.Watch(ctx, metav1.ListOptions{ResourceVersion: begin})
	if err != nil {
		fmt.Println(err)
		return
	}
	s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	fmt.Println((<-w.ResultChan()).Type)
	fmt.Println(s.BreakWatches(apitest.Match{Resource: "nodes"}), "watch broken")
	for range w.ResultChan() {
	}

	s.Compact()
	if w, err = nodes.Watch(ctx, metav1.ListOptions{ResourceVersion: begin}); err != nil {
		fmt.Println(err)
		return
	}
	defer w.Stop()
	event := <-w.ResultChan()
	fmt.Println(event.Type, event.Object.(*metav1.Status).Reason)
	// Output:
	// ADDED
	// 1 watch broken
	// ERROR Expired
}
