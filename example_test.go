// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kubewright_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/nodestatus"
)

func run(ctx context.Context, client kubernetes.Interface, name string, healthy nodestatus.HealthCheck) error {
	var leases *lease.Controller
	node, err := nodestatus.New(nodestatus.Config{
		Client:       client.CoreV1(),
		NodeName:     name,
		Setters:      []nodestatus.Setter{nodestatus.Capacity(corev1.ResourceList{"pods": resource.MustParse("110")}, nil)},
		HealthChecks: []nodestatus.HealthCheck{healthy},
		Gate:         func(ctx context.Context, name string) error { return leases.Holds(ctx, name) }, // of two processes one writes
		OnShutdown:   nodestatus.ShutdownNotReady,
		Hooks:        nodestatus.Hooks{Registered: func(r nodestatus.Registered) { leases.Trigger(r.NodeName) }},
	})
	if err != nil {
		return err
	}
	leases, err = lease.New(lease.Config{
		Client:   client.CoordinationV1(),
		NodeName: name,
		Owner:    node.OwnerReference, // no lease without its Node
		Gate:     node.Live,           // a stuck process must not look alive
		Hooks: lease.Hooks{
			PhaseChanged: func(p lease.PhaseChanged) { node.Trigger(p.NodeName) }, // the gate may be open
			Recovered:    func(r lease.Recovered) { node.Resync(r.NodeName) },     // after an outage
		},
	})
	if err != nil {
		return err
	}
	go leases.Run(ctx)
	return node.Run(ctx)
}

// A node that registers, stays Ready and renews its Lease, with two independent
// controllers.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	server := apitest.New(apitest.Options{}) // in your program: a real one
	client := server.Client(apitest.NodeUser("n1"))
	go run(ctx, client, "n1", func(context.Context, string) error { return nil })

	w, err := server.Client(apitest.User{}).CoordinationV1().Leases("kube-node-lease").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	<-w.ResultChan() // the lease exists, so the Node does
	node, err := client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	conditions := node.Status.Conditions
	ready := conditions[len(conditions)-1]
	fmt.Println(node.Name, ready.Type, ready.Status)
	// Output: n1 Ready True
}

// TestREADMEShowsTheExample checks that the program in the README is this
// example, which compiles and runs.
func TestREADMEShowsTheExample(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := bytes.Cut(readme, []byte("```go\n"))
	snippet, _, closed := bytes.Cut(rest, []byte("```"))
	if !ok || !closed || !bytes.Contains(source, snippet) {
		t.Errorf("the first program of README.md is not part of example_test.go:\n%s", snippet)
	}
}
