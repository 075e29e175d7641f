// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// Defects that showed when programs by other authors ran with this package.

// A pod that is gone without a deletionTimestamp, as after a removal from etcd, had one second.
func TestAVanishedPodHasItsGracePeriod(t *testing.T) {
	for name, remove := range map[string]func(*world){
		"by an event": func(w *world) { apitest.Remove[*corev1.Pod](w.server, "default", "a") },
		"by a list": func(w *world) {
			w.missOneEvent(func() { apitest.Remove[*corev1.Pod](w.server, "default", "a") })
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, podsynctest.Options{}, func(w *world) {
				w.run()
				w.bind(newPod("a", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(120)) }))
				for i := range 5 {
					w.bind(newPod(fmt.Sprint("other", i)))
				}
				pass(time.Minute)
				w.backend.ResetCalls()
				remove(w)
				pass(time.Minute)
				w.expectCalls("stop a 2m0s Deleted", "release a")
			})
		})
	}
}

// A client that annotates the pod faster than a request takes kept it Pending: each patch of the
// phase was pinned to a version that was old when it arrived.
func TestAPhaseIsWrittenAlthoughAnotherClientWritesAllTheTime(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.server.Inject(apitest.Fault{Match: apitest.Match{User: nodeUser, Verb: "patch,get"}, Latency: 300 * time.Millisecond})
		w.run()
		w.bind(newPod("a", restart(corev1.RestartPolicyNever)))
		write := func(d time.Duration) {
			for i := 0; time.Duration(i)*250*time.Millisecond < d; i++ {
				if w.pod("a") == nil {
					return
				}
				apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) { p.Annotations = map[string]string{"n": fmt.Sprint(i)} })
				pass(250 * time.Millisecond)
			}
		}
		write(30 * time.Second)
		pod := w.expectPhase("a", corev1.PodRunning)
		if n := len(w.server.Requests(patches)); n > 12 {
			t.Errorf("%d patches", n)
		}
		w.backend.Exit(pod.UID, 0)
		write(30 * time.Second)
		w.expectPhase("a", corev1.PodSucceeded)
		w.kubectlDelete("a", -1)
		write(30 * time.Second)
		w.expectGone("a")
	})
}

// A phase that another client sets in between is seen, even if the patch is not pinned: it
// contests another phase.
func TestAPhaseThatAnotherClientSetsIsNotOverwritten(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.server.Inject(apitest.Fault{Match: apitest.Match{User: nodeUser, Verb: "patch,get"}, Latency: 300 * time.Millisecond})
		w.run()
		w.bind(newPod("a"))
		for i := range 6 {
			apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) {
				p.Annotations = map[string]string{"n": fmt.Sprint(i)}
				if i == 5 {
					p.Status.Phase = corev1.PodFailed
				}
			})
			pass(250 * time.Millisecond)
		}
		pass(time.Minute)
		w.expectPhase("a", corev1.PodFailed)
	})
}

func named(names ...string) func(*corev1.PodStatus) {
	return func(st *corev1.PodStatus) {
		st.ContainerStatuses = nil
		for _, name := range names {
			st.ContainerStatuses = append(st.ContainerStatuses, corev1.ContainerStatus{
				Name: name, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			})
		}
	}
}

// renaming is a provider whose backend has names of its own for containers.
type renaming struct {
	podsync.Provider
	as func(*corev1.PodStatus)
}

func (p renaming) Start(ctx context.Context, pod *corev1.Pod) (podsync.State, error) {
	st, err := p.Provider.Start(ctx, pod)
	p.as(&st.Status)
	return st, err
}

func (p renaming) List(ctx context.Context) ([]podsync.State, error) {
	states, err := p.Provider.List(ctx)
	for i := range states {
		p.as(&states[i].Status)
	}
	return states, err
}

// The API server stores the status of a container that the spec doesn't have, and this package
// left it out: the pod never became ready.
func TestTheOnlyContainerMayHaveAnotherNameInAReport(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.wrap = func(p *podsynctest.Provider) podsync.Provider { return renaming{p, named("job-17")} }
		w.cfg.Relist = 10 * time.Second
		w.run()
		w.bind(newPod("a"))
		pass(time.Minute)
		if pod := w.expectPhase("a", corev1.PodRunning); !isReady(pod) || pod.Status.ContainerStatuses[0].Name != "main" {
			t.Errorf("ready: %v, containers %+v", isReady(pod), pod.Status.ContainerStatuses)
		}
		// The next process has the report before it has the pod.
		w.crash()
		w.run()
		pass(time.Minute)
		if len(w.dropped) > 0 {
			t.Errorf("dropped %v", w.dropped)
		}
	})
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.wrap = func(p *podsynctest.Provider) podsync.Provider { return renaming{p, named("x", "y")} }
		w.run()
		w.bind(newPod("a"))
		pass(time.Minute)
		if len(w.dropped) == 0 || !strings.Contains(w.dropped[0].Err.Error(), "podsync leaves such a status out") {
			t.Errorf("dropped %v", w.dropped)
		}
	})
}

// If the permissions for pods are missing, the Node must not be ready, a hook counts the failures,
// and the handler gets the first of them. Package report logs it again each hour.
func TestAnInformerThatIsRefusedIsVisible(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		var mu sync.Mutex
		failures := 0
		w.cfg.Hooks.APICall = func(call podsync.APICall) {
			mu.Lock()
			defer mu.Unlock()
			if (call.Op == podsync.OpList || call.Op == podsync.OpWatch) && call.Err != nil {
				failures++
			}
		}
		forbid := func() func() {
			return w.server.Inject(apitest.Fault{Match: apitest.Match{User: nodeUser, Verb: "list,watch", Resource: "pods"}, Status: statuserr.Forbidden("pods", "", "no permission")})
		}
		allow := forbid()
		w.start()
		if err := w.c.CheckProvider(t.Context(), node); err == nil {
			t.Error("the node may be ready before its pods are known")
		}
		pass(3*time.Hour + 10*time.Minute)
		if err := w.c.CheckProvider(t.Context(), node); err == nil || !strings.Contains(err.Error(), "does not show the pods") {
			t.Errorf("after hours without permissions: %v", err)
		}
		mu.Lock()
		if told := w.told(); failures < 100 || len(told) != 1 {
			t.Errorf("%d failures in the hook, errors %q", failures, told)
		}
		mu.Unlock()
		allow()
		pass(2 * time.Minute)
		if err := w.c.CheckProvider(t.Context(), node); err != nil {
			t.Errorf("with permissions: %v", err)
		}
		// Later, too.
		forbid()
		w.server.BreakWatches(watches)
		pass(5 * time.Minute)
		if err := w.c.CheckProvider(t.Context(), node); err == nil {
			t.Error("the permissions have gone, and the node is ready")
		}
	})
}

// The lease is renewed each ten seconds. A pod recovers from an outage without answers, such as a
// connection that drops everything, soon after it.
func TestPodsRecoverSoonFromAConnectionThatDropsEverything(t *testing.T) {
	const bound = 35 * time.Second // a request under way, the pause after it, and the next one
	for _, outage := range []time.Duration{45 * time.Second, 3 * time.Minute, 10 * time.Minute} {
		t.Run(outage.String(), func(t *testing.T) {
			bubble(t, podsynctest.Options{}, func(w *world) {
				w.run()
				pod := w.bind(newPod("a", restart(corev1.RestartPolicyNever)))
				pass(time.Minute)
				up := w.server.Inject(apitest.Fault{Match: apitest.Match{User: nodeUser}, Hang: true})
				w.backend.Exit(pod.UID, 0)
				pass(outage)
				up()
				w.server.BreakWatches(watches)
				w.bind(newPod("b"))
				pass(bound)
				w.expectPhase("a", corev1.PodSucceeded)
				w.expectPhase("b", corev1.PodRunning)
			})
		})
	}
}

func TestATypedNilIsRefusedByNew(t *testing.T) {
	server := apitest.New(apitest.Options{})
	_, err := podsync.New(podsync.Config{Client: server.Client(apitest.User{}).CoreV1(), Provider: (*podsynctest.Provider)(nil), NodeName: node})
	if err == nil || !strings.Contains(err.Error(), "Provider") {
		t.Errorf("New: %v", err)
	}
}

// The pods of client-go's fake clientset have no UIDs. That must be said, and not hidden behind
// a list that the fake can't stream.
func TestAFakeClientsetIsNamed(t *testing.T) {
	client := fake.NewClientset(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"},
		Spec:       corev1.PodSpec{NodeName: node},
	})
	dropped := make(chan podsync.Dropped, 1)
	c, err := podsync.New(podsync.Config{
		Client: client.CoreV1(), Provider: podsynctest.NewBackend(podsynctest.Options{}).Connect(), NodeName: node,
		Hooks: podsync.Hooks{Dropped: func(d podsync.Dropped) { dropped <- d }},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	select {
	case d := <-dropped:
		if !errors.Is(d.Err, podsync.ErrNoUID) {
			t.Errorf("dropped %v", d)
		}
	case <-time.After(10 * time.Second):
		t.Error("nothing is said about a fake clientset")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
