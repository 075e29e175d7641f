// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package composetest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// A rig is a node, its API server and the backend that runs its pods. All of it
// is created in the bubble of one test.
type rig struct {
	t       *testing.T
	server  *apitest.Server
	backend *podsynctest.Backend // in your test: a fake of your provider's backend
	stop    context.CancelFunc
	ended   chan error
}

// bubble runs a test in virtual time. After f, it stops the node unless f has
// done so. A goroutine that is still running then fails the test.
func bubble(t *testing.T, f func(t *testing.T, r *rig)) {
	apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		r := &rig{t: t, server: s, ended: make(chan error, 1)}
		r.backend = podsynctest.NewBackend(podsynctest.Options{StopTime: 2 * time.Second})
		ctx, stop := context.WithCancel(t.Context())
		r.stop = stop
		// The node has a kubelet's credentials, so the server also checks its
		// permissions.
		go func() { r.ended <- Run(ctx, s.Config(apitest.NodeUser("n1")), "n1", r.backend.Connect()) }()
		f(t, r)
		r.end()
		for _, v := range r.backend.Violations() {
			t.Errorf("podsync broke its contract: %s", v)
		}
		for _, request := range s.Requests(apitest.Match{Func: func(r apitest.Request) bool { return r.Code == 403 }}) {
			t.Errorf("refused: %v", request)
		}
	})
}

// pass lets time pass, and everything happen that is due.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// end stops the node as SIGTERM does, and returns the duration.
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

func (r *rig) node() *corev1.Node { return apitest.Get[*corev1.Node](r.server, "", "n1") }

func (r *rig) lease() *coordinationv1.Lease {
	return apitest.Get[*coordinationv1.Lease](r.server, corev1.NamespaceNodeLease, "n1")
}

// ready returns the Ready condition of the Node, or a zero one.
func (r *rig) ready() corev1.NodeCondition {
	if node := r.node(); node != nil {
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady {
				return c
			}
		}
	}
	return corev1.NodeCondition{}
}

// bind creates a pod that the scheduler has bound to the node.
func (r *rig) bind(name string) *corev1.Pod {
	return r.server.Put(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PodSpec{
			NodeName:      "n1",
			RestartPolicy: corev1.RestartPolicyNever,
			Containers:    []corev1.Container{{Name: "app", Image: "app:1"}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}).(*corev1.Pod)
}

// phase returns the phase of a pod, or "" if the pod is gone.
func (r *rig) phase(pod *corev1.Pod) corev1.PodPhase {
	if now := apitest.Get[*corev1.Pod](r.server, pod.Namespace, pod.Name); now != nil {
		return now.Status.Phase
	}
	return ""
}

func TestNodeBecomesReady(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		pass(time.Second)
		if c := r.ready(); c.Status != corev1.ConditionTrue {
			t.Errorf("after a second Ready is %q: %s", c.Status, c.Message)
		}
		if l := r.lease(); l == nil || len(l.OwnerReferences) != 1 || l.OwnerReferences[0].UID != r.node().UID {
			t.Errorf("the Node does not own the lease: %v", l)
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
		pods := r.server.Client(apitest.User{}).CoreV1().Pods("default")
		if err := pods.Delete(t.Context(), "web", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](30)}); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		if phase := r.phase(web); phase != corev1.PodRunning || !r.backend.Running(web.UID) {
			t.Errorf("the pod is %q, and it takes 2 s to stop", phase)
		}
		pass(2 * time.Second)
		if phase := r.phase(web); phase != "" || r.backend.Running(web.UID) {
			t.Errorf("the pod has stopped and is %q", phase)
		}
	})
}

func TestOutageOfAMinute(t *testing.T) {
	for name, fault := range map[string]apitest.Fault{
		"refused": {Err: apitest.ErrConnRefused},
		"hanging": {Hang: true},
	} {
		t.Run(name, func(t *testing.T) { // outside the bubble, in which t.Run is not allowed
			bubble(t, func(t *testing.T, r *rig) {
				job, web := r.bind("job"), r.bind("web")
				pass(time.Minute)
				remove := r.server.Inject(fault)
				r.server.BreakWatches(apitest.Match{})
				pass(30 * time.Second)
				r.backend.Exit(job.UID, 3) // no write can report it
				pass(30 * time.Second)
				// kube-controller-manager does this after 50 s without a
				// renewal:
				apitest.Edit(r.server, "", "n1", func(node *corev1.Node) {
					for i := range node.Status.Conditions {
						node.Status.Conditions[i].Status = corev1.ConditionUnknown
					}
				})
				remove()
				pass(20 * time.Second)
				// A renewal alone does not make a node Ready. This fails if
				// lease.Hooks.Recovered does not trigger a status write.
				if c := r.ready(); c.Status != corev1.ConditionTrue {
					t.Errorf("20 s after the outage Ready is %q", c.Status)
				}
				if l := r.lease(); time.Since(l.Spec.RenewTime.Time) > 20*time.Second {
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
		// The pods are not stopped, because the next process takes them over.
		if !r.backend.Running(pod.UID) || r.phase(pod) != corev1.PodRunning {
			t.Errorf("after the end the pod is %q", r.phase(pod))
		}
		r.server.ResetJournal()
		pass(time.Hour)
		if after := r.server.Requests(apitest.Match{}); len(after) > 0 {
			t.Errorf("requests after the end: %v", after)
		}
	})
}

// The lease ends last: it is renewed while the last status is being written.
func TestLeaseOutlivesTheLastStatus(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		statuses := apitest.Match{Verb: "patch", Resource: "nodes/status"}
		pass(time.Minute)
		pass(time.Until(r.lease().Spec.RenewTime.Add(8 * time.Second)))
		r.server.ResetJournal()
		r.server.Inject(apitest.Fault{Match: statuses, Latency: 4 * time.Second})
		r.end()
		if s, l := r.server.Requests(statuses), r.server.Requests(apitest.Match{Verb: "update", Resource: "leases"}); len(s) != 1 || len(l) != 2 {
			t.Errorf("requests during the end: %v and %v, want a renewal while the last status was written, and the last write of the lease", s, l)
		}
	})
}

// The number of requests of an idle node is constant. A test of that number
// finds loops that no other test finds.
func TestAnHourOfNothing(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.bind("web")
		pass(10 * time.Minute)
		r.server.ResetJournal()
		pass(time.Hour)
		for _, budget := range []struct {
			match       apitest.Match
			least, most int
		}{
			{apitest.Match{Verb: "update", Resource: "leases"}, 359, 361},    // every 10 s
			{apitest.Match{Verb: "patch", Resource: "nodes/status"}, 11, 13}, // every 5 min; the first at a random time, so that a fleet spreads
			{apitest.Match{Verb: "watch"}, 0, 20},                            // the server ends each watch after 5 to 10 minutes
			{apitest.Match{}, 359 + 11, 361 + 13 + 20},
		} {
			if count := len(r.server.Requests(budget.match)); count < budget.least || count > budget.most {
				t.Errorf("%+v: %d in an hour, want %d to %d", budget.match, count, budget.least, budget.most)
			}
		}
	})
}
