// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package composetest

import (
	"context"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/podsync/podsynctest"
)

func TestMain(m *testing.M) {
	// The handlers after the first one are a limiter that goes by real time: in
	// a bubble, which begins in the year 2000, it sleeps for decades. Reflectors
	// call them whenever a watch fails.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	os.Exit(m.Run())
}

// A rig is a node, its API server, and what its pods run in. Everything in it is
// made in the bubble of one test.
type rig struct {
	t       *testing.T
	server  *server
	backend *podsynctest.Backend // in your test: the fake of whatever your provider talks to
	stop    context.CancelFunc
	ended   chan error
}

// bubble runs a test in virtual time. When f has returned, the node is stopped
// if it has not been; a goroutine that is left behind then fails the test.
func bubble(t *testing.T, f func(t *testing.T, r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, server: newServer(), ended: make(chan error, 1)}
		r.backend = podsynctest.NewBackend(podsynctest.Options{StopTime: 2 * time.Second})
		ctx, stop := context.WithCancel(t.Context())
		r.stop = stop
		go func() { r.ended <- Run(ctx, r.server.config(), "n1", r.backend.Connect()) }()
		f(t, r)
		r.end()
		for _, v := range r.backend.Violations() {
			t.Errorf("podsync has broken its contract: %s", v)
		}
	})
}

// pass lets time pass, and everything that is due in it happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// end stops the node as SIGTERM does, and says how long that took.
func (r *rig) end() (took time.Duration) {
	r.t.Helper()
	begin := time.Now()
	r.stop()
	select {
	case err := <-r.ended:
		if err != nil {
			r.t.Errorf("Run returned %v", err)
		}
	case <-time.After(time.Hour): // of virtual time
		r.t.Fatal("Run has not returned")
	}
	r.ended <- nil // for the next call
	return time.Since(begin)
}

// ready returns the Ready condition of the Node, or a zero one.
func (r *rig) ready() corev1.NodeCondition {
	node, _ := get(r.server, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c
		}
	}
	return corev1.NodeCondition{}
}

func nodeLease() *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "n1"}}
}

// bind makes a pod that the scheduler has bound to the node.
func (r *rig) bind(name string) *corev1.Pod {
	return put(r.server, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Generation: 1},
		Spec: corev1.PodSpec{
			NodeName:      "n1",
			RestartPolicy: corev1.RestartPolicyNever,
			Containers:    []corev1.Container{{Name: "app", Image: "app:1"}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	})
}

// phase returns the phase of a pod, "" where it is gone.
func (r *rig) phase(pod *corev1.Pod) corev1.PodPhase {
	now, _ := get(r.server, pod)
	if now == pod {
		return ""
	}
	return now.Status.Phase
}

func TestNodeBecomesReady(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		pass(time.Second)
		if c := r.ready(); c.Status != corev1.ConditionTrue {
			t.Errorf("after a second Ready is %q: %s", c.Status, c.Message)
		}
		node, _ := get(r.server, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
		l, ok := get(r.server, nodeLease())
		if !ok || len(l.OwnerReferences) != 1 || l.OwnerReferences[0].UID != node.UID {
			t.Errorf("the lease is not owned by the Node %s: %v", node.UID, l.OwnerReferences)
		}
	})
}

func TestPodRunsAndEnds(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		pod := r.bind("job")
		pass(time.Second)
		if phase := r.phase(pod); phase != corev1.PodRunning {
			t.Fatalf("after a second the pod is %q", phase)
		}
		r.backend.Exit(pod.UID, 0)
		pass(10 * time.Second)
		if phase := r.phase(pod); phase != corev1.PodSucceeded {
			t.Errorf("ten seconds after the end of its work the pod is %q", phase)
		}

		web := r.bind("web")
		pass(time.Second)
		client := kubernetes.NewForConfigOrDie(r.server.config())
		if err := client.CoreV1().Pods("default").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		if phase := r.phase(web); phase != corev1.PodRunning || !r.backend.Running(web.UID) {
			t.Errorf("the pod is %q, while it takes 2 s to stop", phase)
		}
		pass(2 * time.Second)
		if phase := r.phase(web); phase != "" || r.backend.Running(web.UID) {
			t.Errorf("the pod has stopped and is %q", phase)
		}
	})
}

func TestOutageOfAMinute(t *testing.T) {
	for name, fault := range map[string]func(*http.Request) error{
		"refused": func(*http.Request) error { return syscall.ECONNREFUSED },
		"hanging": func(req *http.Request) error { <-req.Context().Done(); return req.Context().Err() },
	} {
		t.Run(name, func(t *testing.T) { // around the bubble: inside there is no t.Run
			bubble(t, func(t *testing.T, r *rig) {
				job, web := r.bind("job"), r.bind("web")
				pass(time.Minute)
				r.server.fail(fault)
				pass(30 * time.Second)
				r.backend.Exit(job.UID, 3) // nobody can be told
				pass(30 * time.Second)
				// After 50 s without a renewal kube-controller-manager does this:
				edit(r.server, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, func(node *corev1.Node) {
					for i := range node.Status.Conditions {
						node.Status.Conditions[i].Status = corev1.ConditionUnknown
					}
				})
				r.server.fail(nil)
				pass(20 * time.Second)
				// A renewal alone does not make a node Ready: this fails where
				// lease.Hooks.Recovered does not have the status written.
				if c := r.ready(); c.Status != corev1.ConditionTrue {
					t.Errorf("20 s after the outage Ready is %q", c.Status)
				}
				if l, _ := get(r.server, nodeLease()); time.Since(l.Spec.RenewTime.Time) > 20*time.Second {
					t.Errorf("20 s after the outage the lease was last renewed at %v", l.Spec.RenewTime)
				}
				if !r.backend.Running(web.UID) {
					t.Error("the outage has killed a pod")
				}
				pass(time.Minute)
				if phase := r.phase(job); phase != corev1.PodFailed {
					t.Errorf("the pod that failed during the outage is %q", phase)
				}
			})
		})
	}
}

func TestOrderlyShutdown(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		pod := r.bind("web")
		pass(time.Minute)
		if took := r.end(); took > 5*time.Second {
			t.Errorf("the end took %v", took)
		}
		if c := r.ready(); c.Status != corev1.ConditionFalse {
			t.Errorf("after the end Ready is %q", c.Status)
		}
		// Pods are not stopped: the next process finds them.
		if !r.backend.Running(pod.UID) || r.phase(pod) != corev1.PodRunning {
			t.Errorf("after the end the pod is %q", r.phase(pod))
		}
		r.server.counted()
		pass(time.Hour)
		if after := r.server.counted(); len(after) > 0 {
			t.Errorf("requests after the end: %v", after)
		}
	})
}

// The lease ends last: it is renewed while the last status is on its way.
func TestLeaseOutlivesTheLastStatus(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		pass(time.Minute)
		l, _ := get(r.server, nodeLease())
		pass(time.Until(l.Spec.RenewTime.Add(8 * time.Second)))
		r.server.counted()
		r.server.fail(func(req *http.Request) error {
			if req.Method == http.MethodPatch && strings.HasSuffix(req.URL.Path, "/nodes/n1/status") {
				time.Sleep(4 * time.Second)
			}
			return nil
		})
		r.end()
		if got := r.server.counted(); got["PATCH nodes/status"] != 1 || got["PUT leases"] != 1 {
			t.Errorf("requests during the end: %v, want a renewal while the last status was written", got)
		}
	})
}

// What a node costs while nothing happens is a number, and a test of it finds
// the loop that nobody has seen.
func TestAnHourOfNothing(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.bind("web")
		pass(10 * time.Minute)
		r.server.counted()
		pass(time.Hour)
		got := r.server.counted()
		for request, count := range got {
			least, most := 0, 0
			switch {
			case request == "PUT leases":
				least, most = 359, 361 // each 10 s
			case request == "PATCH nodes/status":
				least, most = 11, 13 // each 5 min; the first one at random, so that a fleet spreads
			case strings.HasPrefix(request, "WATCH"):
				most = 20 // each ends after 5 to 10 minutes, on the server's word
			}
			if count < least || count > most {
				t.Errorf("%s: %d in an hour, want %d to %d", request, count, least, most)
			}
		}
		if got["PUT leases"] == 0 || got["PATCH nodes/status"] == 0 {
			t.Errorf("requests in an hour: %v", got)
		}
	})
}
