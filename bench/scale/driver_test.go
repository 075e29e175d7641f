// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
)

// TestDriver runs the driver against the in-memory API server. No kubelet runs
// the pods, so deleted pods remain, with their deletion time.
func TestDriver(t *testing.T) {
	for name, registers := range map[string]bool{"Nodes are ours": false, "Nodes are the contender's": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := apitest.New(apitest.Options{})
				p, n := newPods(), newNodes()
				o := options{Nodes: 10, Pods: 50, Rate: 100, PodChurn: 2, NodeChurn: 6}
				d := newDriver(s.Client(apitest.User{}), p, n, o, registers)
				d.createNodes(t.Context())
				for i := range o.Nodes {
					n.observe(time.Now(), nodeView{UID: nodeName(i), Name: nodeName(i), Ready: true})
				}
				d.createPods(t.Context())
				alive, deleted := podsOf(s)
				if len(alive) != 50 || deleted != 0 {
					t.Fatalf("%d pods, and %d deleted; want 50 and none", len(alive), deleted)
				}
				perNode := make(map[string]int)
				for _, pod := range alive {
					perNode[pod.Spec.NodeName]++
				}
				for i := range o.Nodes {
					if perNode[nodeName(i)] != 5 {
						t.Errorf("%d pods on %s, want 5", perNode[nodeName(i)], nodeName(i))
					}
				}

				churning, stop := context.WithTimeout(t.Context(), time.Minute-1)
				defer stop()
				d.churn(churning)
				if alive, deleted := podsOf(s); len(alive) != 50 || deleted != 120 {
					t.Errorf("after a minute %d pods, and %d deleted; want 50 and 120", len(alive), deleted)
				}
				if got := len(s.Requests(apitest.Match{Verb: "delete", Resource: "nodes"})); got != 6 {
					t.Errorf("%d Nodes were deleted, want 6", got)
				}
				d.away.Wait()
				there := len(apitest.List[*corev1.Node](s, ""))
				if want := map[bool]int{true: 4, false: 10}[registers]; there != want {
					t.Errorf("%d Nodes are there, want %d", there, want)
				}

				d.deletePods(t.Context())
				if alive, deleted := podsOf(s); len(alive) != 0 || deleted != 170 {
					t.Errorf("at the end %d pods, and %d deleted; want none and 170", len(alive), deleted)
				}
				if stuck, err := d.forceDelete(t.Context()); stuck != 170 || err != nil {
					t.Errorf("%d pods were deleted by force, %v; want 170", stuck, err)
				}
				d.deleteNodes(t.Context())
				if left, err := look(t.Context(), d.client); left != (survey{}) || err != nil {
					t.Errorf("left: %+v, %v", left, err)
				}
				if f := d.faults(); f.Count != 0 {
					t.Errorf("trouble: %v", f)
				}
			})
		})
	}
}

func TestDriverPersists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		d := newDriver(s.Client(apitest.User{}), newPods(), newNodes(), options{Nodes: 1, Pods: 1, Rate: 1}, true)
		s.Inject(apitest.Fault{Match: apitest.Match{Verb: "create"}, Times: 2, LoseResponse: true})
		d.createPods(t.Context())
		if alive, _ := podsOf(s); len(alive) != 1 || len(d.alive) != 1 || d.alive[0].uid != alive[0].UID {
			t.Errorf("%d pods are there, the driver knows of %v", len(alive), d.alive)
		}
		if d.faults().Count == 0 {
			t.Error("lost answers were not reported")
		}
	})
}

// podsOf returns the pods that have not been deleted, and the number of the
// others.
func podsOf(s *apitest.Server) (alive []*corev1.Pod, deleted int) {
	for _, pod := range apitest.List[*corev1.Pod](s, namespace) {
		if pod.DeletionTimestamp != nil {
			deleted++
		} else {
			alive = append(alive, pod)
		}
	}
	return alive, deleted
}

func TestViews(t *testing.T) {
	ready := []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for _, test := range []struct {
		name string
		pod  corev1.Pod
		want podView
	}{
		{"pending", corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending}}, podView{}},
		{"running, not ready", corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning}}, podView{}},
		{"running", corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: ready}}, podView{Running: true}},
		{"failed", corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, Conditions: ready}}, podView{Ended: true}},
		{"deleted", corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}}}, podView{Deleting: true}},
	} {
		if got := viewPod(&test.pod); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
	node := newNode("n")
	if viewNode(node).Ready {
		t.Error("a Node without conditions is Ready")
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
	if viewNode(node).Ready {
		t.Error("a Node of which nothing is known is Ready")
	}
	node.Status.Conditions[0].Status = corev1.ConditionTrue
	if !viewNode(node).Ready {
		t.Error("a Node that is Ready is not")
	}
}
