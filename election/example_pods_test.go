// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election"
)

// labelled returns a LeadFunc that labels the Pod of the leader while lead runs.
// A Service with the selector role=leader then routes to the leader. The label is
// removed before the lease is given away, so no two Pods have it, unless a leader
// crashes: then its Pod is not ready.
func labelled(clients kubernetes.Interface, pod types.NamespacedName, lead election.LeadFunc) election.LeadFunc {
	label := func(ctx context.Context, role any) error {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{"role": role}}})
		if err == nil {
			_, err = clients.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		return err
	}
	return func(ctx context.Context, term election.Term) error {
		if err := label(ctx, "leader"); err != nil {
			return err
		}
		err := lead(ctx, term)
		_ = label(context.WithoutCancel(ctx), nil) // the next term of this replica sets it again
		return err
	}
}

// The leader's Pod has the label role=leader, so that a Service can route to it.
func Example_labelThePodOfTheLeader() {
	server := apitest.New(apitest.Options{})
	clientset := server.Client(apitest.User{}) // in a program kubernetes.NewForConfig
	server.Put(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "agent-0"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: "agent:1"}}},
	})
	self := types.NamespacedName{Namespace: "default", Name: "agent-0"}
	role := func() string { return apitest.Get[*corev1.Pod](server, "default", "agent-0").Labels["role"] }

	candidate, err := election.New(election.Config{
		Client: clientset.CoordinationV1(),
		Lease:  types.NamespacedName{Namespace: "default", Name: "agent"},
		Self:   election.Peer{Identity: self.Name},
		Lead: labelled(clientset, self, func(context.Context, election.Term) error {
			fmt.Printf("while it leads: %q\n", role())
			return nil
		}),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := candidate.Run(context.Background()); err != nil {
		fmt.Println(err)
	}
	fmt.Printf("afterwards: %q\n", role())
	// Output:
	// while it leads: "leader"
	// afterwards: ""
}

// A standby watches the Pod of the leader, and takes over at once when its
// containers have terminated.
func ExampleCandidate_HolderGone() {
	server := apitest.New(apitest.Options{})
	clientset := server.Client(apitest.User{}) // in a program kubernetes.NewForConfig
	server.Put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "agent-0"}})
	now, seconds, holder := metav1.NowMicro(), int32(15), "agent-0"
	server.Put(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "agent"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &now},
	})

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	candidate, err := election.New(election.Config{
		Client: clientset.CoordinationV1(),
		Lease:  types.NamespacedName{Namespace: "default", Name: "agent"},
		Self:   election.Peer{Identity: "agent-1"},
		Lead: func(context.Context, election.Term) error {
			fmt.Println("agent-1 leads")
			return nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	pods, err := clientset.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", "agent-0").String()})
	if err != nil {
		fmt.Println(err)
		return
	}
	var running sync.WaitGroup
	running.Go(func() {
		for event := range pods.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			// The kubelet sets these phases when all containers have terminated. A
			// Pod that was deleted may still run if the deletion was forced.
			if ok && event.Type != watch.Deleted && (pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded) {
				candidate.HolderGone(pod.Name)
			}
		}
	})
	running.Go(func() {
		if err := candidate.Run(ctx); err != nil {
			fmt.Println(err)
		}
		stop()
	})
	<-candidate.Ready().Done()
	apitest.Edit(server, "default", "agent-0", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
	running.Wait()
	// Output: agent-1 leads
}
