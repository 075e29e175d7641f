// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kubewright_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright"
	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

func serve(ctx context.Context, client kubernetes.Interface, name string, provider podsync.Provider) error {
	leases, err1 := lease.New(lease.Config{Client: client.CoordinationV1(), NodeName: name})
	pods, err2 := podsync.New(podsync.Config{Client: client.CoreV1(), NodeName: name, Provider: provider, Gate: leases.Holds})
	node, err3 := nodestatus.New(nodestatus.Config{
		Client: client.CoreV1(), NodeName: name, Lease: leases,
		Setters:      nodestatus.Standard(),                        // and your own, as arguments
		HealthChecks: []nodestatus.HealthCheck{pods.CheckProvider}, // the pods are known, and the provider answers
		OnShutdown:   nodestatus.ShutdownNotReady,
	})
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	return kubewright.Run(ctx, leases, node, pods) // stops the last one first
}

// A node that runs pods: three controllers, two of which know the lease.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	server := apitest.New(apitest.Options{}) // in your program: a real one
	provider := podsynctest.NewBackend(podsynctest.Options{}).Connect()
	ended := make(chan error)
	go func() { ended <- serve(ctx, server.Client(apitest.NodeUser("n1")), "n1", provider) }()

	server.Put(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "web", Image: "registry.example/web:1"}}},
	})
	w, err := server.Client(apitest.User{}).CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for event := range w.ResultChan() {
		if pod, ok := event.Object.(*corev1.Pod); ok && pod.Status.Phase == corev1.PodRunning {
			fmt.Println("pod", pod.Name, pod.Status.Phase)
			break
		}
	}
	cancel()
	fmt.Println("ended:", <-ended)
	conditions := apitest.Get[*corev1.Node](server, "", "n1").Status.Conditions
	i := slices.IndexFunc(conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	fmt.Println("node Ready:", conditions[i].Status)
	// Output:
	// pod web Running
	// ended: <nil>
	// node Ready: False
}

// TestDocumentsShowTheExample checks that the program in doc.go and in README.md is this
// example, which compiles and runs.
func TestDocumentsShowTheExample(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var comment strings.Builder
	for line := range strings.Lines(string(doc)) {
		if code, ok := strings.CutPrefix(line, "//\t"); ok {
			comment.WriteString(code)
		}
	}
	_, page, _ := strings.Cut(string(readme), "```go\n")
	page, _, _ = strings.Cut(page, "```")
	for file, shown := range map[string]string{"doc.go": comment.String(), "README.md": page} {
		if !strings.HasPrefix(shown, "func serve(") || !bytes.Contains(source, []byte(shown)) {
			t.Errorf("the program in %s is not part of example_test.go:\n%s", file, shown)
		}
	}
}
