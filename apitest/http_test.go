// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubewright/kubewright/apitest"
)

func TestHandlerServesReadsWritesAndWatches(t *testing.T) {
	s := apitest.New(apitest.Options{})
	server := httptest.NewServer(s.Handler(apitest.NodeUser("n1")))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	w, err := client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=n1"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if _, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	event := <-w.ResultChan()
	if node, ok := event.Object.(*corev1.Node); event.Type != watch.Added || !ok || node.Name != "n1" {
		t.Errorf("event %v %T, want ADDED of node n1", event.Type, event.Object)
	}
	for _, r := range s.Requests(apitest.Match{}) {
		if r.User.Name != "system:node:n1" {
			t.Errorf("%v was sent as %s", r, r.User.Name)
		}
	}
	s.Inject(apitest.Fault{Err: apitest.ErrConnReset})
	// Not a GET: client-go repeats those for ten seconds.
	if _, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}, metav1.CreateOptions{}); err == nil {
		t.Error("no error from a dropped connection")
	}
}
