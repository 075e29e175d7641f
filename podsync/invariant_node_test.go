// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// The invariants that concern all pods of the node.

// plant puts instances into the backend whose pods do not exist.
func (w *world) plant(n int) {
	for i := range n {
		pod := newPod(fmt.Sprint("orphan", i))
		pod.Namespace, pod.UID = "default", types.UID(fmt.Sprint("orphan", i))
		w.backend.Plant(pod)
	}
}

func TestOrphansAreVerified(t *testing.T) {
	for name, wrap := range map[string]func(*podsynctest.Provider) podsync.Provider{"simple": simple, "full": full} {
		t.Run(name, func(t *testing.T) {
			bubble(t, podsynctest.Options{Forgets: name == "simple"}, func(w *world) {
				w.wrap = wrap
				w.cfg.Relist = 10 * time.Second
				w.bind(newPod("a"))
				w.plant(3)
				w.backend.Finish("orphan2", 0)
				heal := w.server.Inject(apitest.Fault{Match: apitest.Match{User: nodeUser, Verb: "get"}, Status: statuserr.Unavailable(0)})
				w.run()
				pass(20 * time.Second)
				if n := len(w.server.Requests(gets)); n != 0 {
					t.Errorf("asked about after %d s", 20)
				}
				pass(time.Hour)
				if len(w.backend.Held()) != 4 {
					t.Errorf("removed although the API did not answer: %v", w.backend.Held())
				}
				heal()
				pass(time.Minute)
				if held := w.backend.Held(); len(held) != 1 || w.known() != 1 {
					t.Errorf("still there: %v", held)
				}
				w.expectPatches(1)
			})
		})
	}
}

func (w *world) expectPatches(want int) {
	w.t.Helper()
	if n := len(w.server.Requests(patches)); n != want {
		w.t.Errorf("%d PATCH, want %d:\n%s", n, want, w.journal())
	}
}

func TestAStaleCacheIsNoEvidence(t *testing.T) {
	// The informer does not see the pods, by its selector; they exist.
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.cfg.Relist = 10 * time.Second
		informer := w.informer("app=mine", nil)
		w.cfg.Informer, w.cfg.Fleet = informer, true
		for i := range 4 {
			w.backend.Plant(w.bind(newPod(fmt.Sprint("p", i))))
		}
		w.run()
		pass(24 * time.Hour)
		if len(w.backend.Held()) != 4 {
			t.Error("healthy pods were removed")
		}
		if n := len(w.server.Requests(gets)); n == 0 || n > 4*30 {
			t.Errorf("%d GETs in a day", n)
		}
		if len(w.dropped) == 0 || w.dropped[0].Reason != podsync.DroppedOrphan {
			t.Errorf("dropped: %+v", w.dropped)
		}
	})
}

func TestTheMassHoldKeepsManyOrphans(t *testing.T) {
	for _, test := range []struct {
		name        string
		hold        time.Duration
		left, ended int
		masses      []int
	}{
		{"ten minutes", 0, 20, 0, append(slices.Repeat([]int{20}, 10), 0)},
		{"never", -1, 20, 20, nil},
		{"at once", 1, 0, 0, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, podsynctest.Options{}, func(w *world) {
				w.cfg.Relist = 10 * time.Second
				w.cfg.Policy.MassHold = test.hold
				w.plant(20)
				w.run()
				pass(9 * time.Minute)
				if n := len(w.backend.Held()); n != test.left {
					t.Errorf("%d are left after nine minutes, want %d", n, test.left)
				}
				pass(3 * time.Minute)
				if n := len(w.backend.Held()); n != test.ended {
					t.Errorf("%d are left in the end, want %d", n, test.ended)
				}
				if test.masses != nil && !slices.Equal(w.masses, test.masses) {
					t.Errorf("the hook was called with %d orphans, want %d", w.masses, test.masses)
				}
				if told := w.told(); len(told) != min(test.left, 1) {
					t.Errorf("errors %q, want %d", told, min(test.left, 1))
				}
			})
		})
	}
}

// A gauge that is made from the hook must go back to 0, however it ends.
func TestTheMassHoldEndsWhenThePodsAreBack(t *testing.T) {
	for name, end := range map[string]func(*world){
		"the instances are gone": func(w *world) {
			for _, st := range w.backend.Held() {
				w.backend.Lose(st.UID)
			}
		},
		"there are more instances": func(w *world) {
			for i := range 80 {
				w.bind(newPod(fmt.Sprint("p", i)))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, podsynctest.Options{}, func(w *world) {
				w.cfg.Relist = 10 * time.Second
				w.plant(20)
				w.run()
				pass(5 * time.Minute)
				if n := len(w.masses); n == 0 || w.masses[n-1] != 20 {
					t.Fatalf("the hook was told of %d orphans, want 20", w.masses)
				}
				end(w)
				pass(time.Hour)
				i := slices.Index(w.masses, 0)
				if i != len(w.masses)-1 {
					t.Errorf("the hook was told of %d orphans, want 0 once and at last", w.masses)
				}
			})
		})
	}
}

// An API server that answers for a few at a time must not have a mistake carried
// out in small parts.
func TestTheMassHoldCountsWhatIsNotKnown(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.cfg.Relist = 10 * time.Second
		w.plant(20)
		restore := w.server.Inject(apitest.Fault{
			Match: apitest.Match{Verb: "get", Resource: "pods", Func: func(r apitest.Request) bool {
				return r.Name != "orphan3" && r.Name != "orphan14"
			}},
			Status: statuserr.InternalError("broken"),
		})
		w.run()
		pass(10 * time.Minute)
		if n := len(w.backend.Held()); n != 20 {
			t.Errorf("%d are left while the API answers for 2 of 20", n)
		}
		restore()
		pass(11 * time.Minute)
		if n := len(w.backend.Held()); n != 0 {
			t.Errorf("%d are left in the end", n)
		}
	})
}

func TestOrphanGivesWayToItsName(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.plant(1)
		pod := w.bind(newPod("orphan0"))
		w.run()
		pass(time.Second)
		if !w.backend.Running(pod.UID) || w.backend.Running("orphan0") {
			t.Errorf("the pod is %s", w.stage(pod.UID))
		}
	})
}

func TestShutdownStoresWhatIsKnown(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		running := w.bind(newPod("running"))
		ended := w.bind(newPod("ended", restart(corev1.RestartPolicyNever)))
		w.bind(newPod("deleted"))
		heal := w.server.Inject(apitest.Fault{Match: apitest.Match{User: nodeUser, Verb: "patch,delete"}, Status: statuserr.Unavailable(0)})
		w.backend.Exit(ended.UID, 0)
		w.kubectlDelete("deleted", -1)
		pass(500 * time.Millisecond)
		heal()
		start := time.Now()
		w.stop()
		if d := time.Since(start); d > podsync.DefaultShutdownTimeout {
			t.Errorf("Run returned after %v", d)
		}
		w.expectPhase("ended", corev1.PodSucceeded)
		w.expectGone("deleted")
		if !w.backend.Running(running.UID) {
			t.Error("shutdown has stopped a pod")
		}
	})
}

func TestShutdownEndsWithoutTheAPI(t *testing.T) {
	for name, fault := range map[string]apitest.Fault{"hangs": {Hang: true}, "fails": {Status: statuserr.Unavailable(0)}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, podsynctest.Options{}, func(w *world) {
				w.run()
				w.bind(newPod("a"))
				fault.Match = apitest.Match{User: nodeUser}
				w.server.Inject(fault)
				w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, Hang: true})
				w.bind(newPod("starting"))
				w.kubectlDelete("a", -1)
				pass(time.Minute)
				start := time.Now()
				w.stop()
				if d := time.Since(start); d > podsync.DefaultShutdownTimeout {
					t.Errorf("Run returned after %v", d)
				}
				total := len(w.server.Requests(apitest.Match{}))
				pass(time.Hour)
				if len(w.server.Requests(apitest.Match{})) != total {
					t.Error("requests after Run has returned")
				}
			})
		})
	}
}

// informer makes an informer as a program would, and runs it.
func (w *world) informer(labels string, each func(*corev1.Pod)) cache.SharedIndexInformer {
	pods := w.server.Client(apitest.User{}).CoreV1().Pods("")
	informer := cache.NewSharedIndexInformerWithOptions(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			opts.LabelSelector = labels
			return pods.List(ctx, opts)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			opts.LabelSelector = labels
			return pods.Watch(ctx, opts)
		},
	}, &corev1.Pod{}, cache.SharedIndexInformerOptions{})
	if each != nil {
		add := func(obj any) {
			if pod, ok := obj.(*corev1.Pod); ok {
				each(pod)
			}
		}
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, obj any) { add(obj) }}); err != nil {
			w.t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		informer.RunWithContext(ctx)
	}()
	w.t.Cleanup(func() {
		w.stop()
		cancel()
		<-done
	})
	synctest.Wait()
	return informer
}

// vandal changes its arguments and its results.
type vandal struct{ podsync.Provider }

func (v vandal) Start(ctx context.Context, pod *corev1.Pod) (podsync.State, error) {
	st, err := v.Provider.Start(ctx, pod)
	wreck(pod)
	go wreck(&corev1.Pod{Status: st.Status})
	return st, err
}

func (v vandal) Stop(ctx context.Context, ref podsync.Ref, opts podsync.StopOptions) (podsync.State, error) {
	if opts.Pod != nil {
		wreck(opts.Pod)
	}
	return v.Provider.Stop(ctx, ref, opts)
}

func wreck(pod *corev1.Pod) {
	pod.Labels, pod.ResourceVersion, pod.UID = map[string]string{"wrecked": "yes"}, "", "wrecked"
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].Image = "wrecked"
	}
	for i := range pod.Status.Conditions {
		pod.Status.Conditions[i].Reason = "wrecked"
	}
}

func TestTheCacheIsNeverChanged(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.wrap = func(p *podsynctest.Provider) podsync.Provider { return vandal{p} }
		seen := map[*corev1.Pod]string{}
		spell := func(p *corev1.Pod) string {
			b, err := json.Marshal(p)
			if err != nil {
				t.Error(err)
			}
			return string(b)
		}
		w.cfg.Informer = w.informer("", func(p *corev1.Pod) { seen[p] = spell(p) })
		w.cfg.Fleet = true
		w.run()
		for i := range 5 {
			w.bind(newPod(fmt.Sprint("p", i)))
		}
		heal := w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, Err: errDown})
		w.bind(newPod("failing"))
		pass(time.Minute)
		heal()
		for _, info := range w.c.All() {
			wreck(info.Pod)
		}
		w.kubectlDelete("p1", -1)
		pass(time.Minute)
		if len(seen) < 10 {
			t.Fatalf("only %d versions seen", len(seen))
		}
		for p, before := range seen {
			if after := spell(p); after != before {
				t.Errorf("the cache was changed from\n%s to\n%s", before, after)
			}
		}
	})
}

func TestActiveDeadlineEndsThePod(t *testing.T) {
	for _, restartAt := range []time.Duration{0, 30 * time.Second, 5 * time.Minute} {
		bubble(t, podsynctest.Options{}, func(w *world) {
			w.run()
			pod := w.bind(newPod("a", func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64(100)) }))
			pass(restartAt)
			if restartAt > 0 {
				w.crash()
				w.run()
			}
			if restartAt < 100*time.Second {
				pass(100*time.Second - restartAt - time.Millisecond)
				w.expectPhase("a", corev1.PodRunning)
				pass(time.Second + time.Millisecond)
			}
			got := w.expectPhase("a", corev1.PodFailed)
			if got.Status.Reason != "DeadlineExceeded" || w.backend.Running(pod.UID) {
				t.Errorf("%+v", got.Status)
			}
			pass(time.Hour)
		})
	}
}

func TestNothingIsKeptOfForgottenPods(t *testing.T) {
	rounds := 20
	if testing.Short() {
		rounds = 5
	}
	bubble(t, podsynctest.Options{StopTime: time.Second}, func(w *world) {
		w.run()
		for round := range rounds {
			for i := range 50 {
				pod := w.bind(newPod(fmt.Sprint("p", i), restart(corev1.RestartPolicyNever)))
				if i%3 == 0 {
					w.backend.Exit(pod.UID, int32(i%2))
				}
			}
			pass(time.Second)
			for i := range 50 {
				w.kubectlDelete(fmt.Sprint("p", i), int64((i+round)%3))
			}
			pass(3 * time.Second)
		}
		pass(time.Minute)
		if n := w.c.Kept(); n != 0 {
			t.Errorf("%d entries are kept of %d pods that are gone", n, 50*rounds)
		}
		if n := len(w.backend.Held()); n != 0 {
			t.Errorf("the backend holds %d", n)
		}
	})
}
