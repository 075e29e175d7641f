// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
)

// Two of the next requests for the Node fail, the first in a way that leaves its
// sender in doubt.
func ExampleServer_Inject() {
	ctx := context.Background()
	s := apitest.New(apitest.Options{})
	nodes := s.Client(apitest.User{}).CoreV1().Nodes()

	creations := apitest.Match{Verb: "create", Resource: "nodes"}
	s.Inject(apitest.Fault{Match: creations, Times: 1, LoseResponse: true})
	s.Inject(apitest.Fault{Match: creations, Times: 1, Status: apierrors.NewInternalError(errors.New("out of order"))})

	for range 3 {
		_, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
		fmt.Println(err)
	}
	// Output:
	// Post "http://apitest.invalid/api/v1/nodes": read tcp: read: connection reset by peer
	// Internal error occurred: out of order
	// nodes "n1" already exists
}
