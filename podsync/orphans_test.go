// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// onNode binds a pod to another node.
func onNode(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeName = name }
}

// Two nodes share a backend. With the credentials of a node the API answers 403
// about pods of the other one, the same as about pods that are gone.
func TestInstancesOfAnotherNodeAreNeverTouched(t *testing.T) {
	for _, hides := range []bool{false, true} {
		bubble(t, podsynctest.Options{HidesNode: hides}, func(w *world) {
			w.server.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
			for i := range 4 {
				w.backend.Plant(w.bind(newPod(fmt.Sprint("other", i), onNode("n2"))))
			}
			w.bind(newPod("a"))
			w.run()
			pass(24 * time.Hour)
			if n := len(w.backend.Held()); n != 5 {
				t.Errorf("%d instances are left of 5, State.NodeName is hidden: %v", n, hides)
			}
			w.expectCalls("start a")
			kept := 0
			for _, d := range w.dropped {
				if d.Reason == podsync.DroppedUnconfirmed {
					kept++
				}
			}
			want := 0
			if hides {
				want = 4
			}
			if told := w.told(); kept != want || len(told) != want {
				t.Errorf("reported %d times, %d errors, want %d: %q", kept, len(told), want, told)
			}
			for ref, info := range w.c.All() {
				if ref.Name != "a" && info.Stage != podsync.StageOrphaned {
					t.Errorf("%v is in stage %v", ref, info.Stage)
				}
			}
		})
	}
}

// The informer shows that the pod of an instance exists: the API is not asked.
func TestAnInstanceOfAPodThatOwnsRefusesCostsNoRequest(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.cfg.Informer = w.informer("", nil)
		w.cfg.Owns = func(*corev1.Pod) bool { return false }
		w.backend.Plant(w.bind(newPod("a")))
		w.run()
		pass(24 * time.Hour)
		w.expectCalls()
		w.expectRequests(0, 0, 0)
		if len(w.dropped) == 0 || w.dropped[0].Reason != podsync.DroppedOrphan {
			t.Errorf("dropped: %v", w.dropped)
		}
	})
}

func TestAnExclusiveBackendNeedsNoNodeNames(t *testing.T) {
	bubble(t, podsynctest.Options{HidesNode: true}, func(w *world) {
		w.cfg.Policy.ExclusiveBackend = true
		w.plant(1)
		w.run()
		pass(time.Hour)
		if n := len(w.backend.Held()); n != 0 {
			t.Errorf("%d orphans are left", n)
		}
	})
}

// An orphan that can't be verified blocks the pod that has its name now. The
// pod says so.
func TestAPodThatWaitsForAnOrphanSaysWhy(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		recorder := &recorder{t: t}
		w.cfg.EventRecorder = recorder
		w.cfg.Relist = 10 * time.Second
		w.server.Inject(apitest.Fault{Match: apitest.Match{Verb: "get", Resource: "pods"}, Status: statuserr.Unavailable(0)})
		w.plant(1)
		pod := w.bind(newPod("orphan0"))
		w.run()
		pass(time.Hour)
		if w.backend.Running(pod.UID) {
			t.Error("two pods of one name run")
		}
		if status := w.pod("orphan0").Status; status.Phase != corev1.PodPending || status.Reason != "NameTaken" || !strings.Contains(status.Message, "has not confirmed") {
			t.Errorf("%s %s %q", status.Phase, status.Reason, status.Message)
		}
		if told := w.told(); len(told) != 1 || !strings.Contains(told[0], "look for pod default/orphan0") {
			t.Errorf("errors %q, want one", told)
		}
		n := 0
		for _, e := range recorder.take() {
			if strings.Contains(e, "NameTaken") {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d events say why the pod waits, want 1", n)
		}
	})
}

// An API server that was restored from a backup, or with an empty etcd, answers
// a LIST with nothing.
func TestAnEmptyListStopsNothingAtOnce(t *testing.T) {
	for _, n := range []int{2, 50} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			bubble(t, podsynctest.Options{}, func(w *world) {
				w.run()
				for i := range n {
					w.bind(newPod(fmt.Sprint("p", i)))
				}
				pass(time.Minute)
				w.server.ResetJournal()
				back := w.vanish(n)
				pass(8 * time.Minute)
				if w.callsOf(podsync.OpStop) != 0 {
					t.Fatalf("%d pods were stopped", w.callsOf(podsync.OpStop))
				}
				if told := w.told(); len(told) == 0 || !strings.Contains(told[len(told)-1], "run on for 10m") {
					t.Errorf("errors %q", told)
				}
				w.expectPatches(0)
				back()
				w.server.Compact()
				w.server.BreakWatches(watches)
				pass(24 * time.Hour)
				if got := len(w.backend.Held()); got != n {
					t.Errorf("%d of %d pods are left", got, n)
				}
				w.expectCalls(w.starts(n)...)
			})
		})
	}
}

// They are stopped when the API has said so for Policy.MassHold.
func TestPodsThatStayGoneAreStopped(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		for i := range 20 {
			w.bind(newPod(fmt.Sprint("p", i)))
		}
		pass(time.Minute)
		w.vanish(20)
		pass(12 * time.Minute)
		if n := len(w.backend.Held()); n != 0 {
			t.Errorf("%d are left", n)
		}
		if n := w.known(); n != 0 {
			t.Errorf("%d are known", n)
		}
	})
}

// A single pod that a LIST leaves out is confirmed, and stopped at once.
func TestOnePodThatIsMissingIsStoppedAtOnce(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		a := w.bind(newPod("a"))
		w.bind(newPod("b"))
		pass(time.Minute)
		w.missOneEvent(func() { apitest.Remove[*corev1.Pod](w.server, "default", "a") })
		pass(5 * time.Second)
		if w.backend.Running(a.UID) {
			t.Error("it runs on")
		}
	})
}

// One answer of 500 killed a pod of another node of the same controller: the
// question whether it exists was asked about Config.NodeName.
func TestAPodOfAnotherNodeOfTheControllerIsAskedAboutThere(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.admin = true
		w.server.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
		w.cfg.Informer = w.informer("", nil)
		w.cfg.NodeName = node
		w.cfg.Owns = func(*corev1.Pod) bool { return true }
		w.server.Inject(apitest.Fault{Match: apitest.Match{Verb: "get", Resource: "pods"}, Status: statuserr.New(http.StatusForbidden, metav1.StatusReasonForbidden, "no")})
		w.run()
		pod := w.bind(newPod("a", onNode("n2")))
		pass(time.Minute)
		heal := w.server.Inject(apitest.Fault{
			Match:  apitest.Match{Verb: "patch", Resource: "pods/status"},
			Status: statuserr.New(http.StatusNotFound, metav1.StatusReasonNotFound, `pods "a" not found`), Times: 1,
		})
		_ = heal
		w.server.Inject(apitest.Fault{Match: apitest.Match{Verb: "patch", Resource: "pods/status"}, Status: statuserr.InternalError("broken"), Times: 3})
		w.backend.Edit(pod.UID, func(st *corev1.PodStatus) { st.Message = "changed" })
		pass(time.Hour)
		if !w.backend.Running(pod.UID) {
			t.Error("it was stopped")
		}
		if got := w.pod("a"); got == nil || got.Status.Message != "changed" {
			t.Errorf("%+v", got)
		}
	})
}

// A backend that keeps no UIDs holds an instance of an earlier pod of the name.
func TestAnInstanceWithoutUIDOfAnEarlierPodIsStoppedFirst(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.wrap = func(p *podsynctest.Provider) podsync.Provider { return byName{p, w} }
		old := newPod("a")
		old.Namespace, old.UID = "default", "old"
		w.backend.Plant(old)
		pod := w.bind(newPod("a", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "registry.example/other:2" }))
		w.run()
		pass(time.Minute)
		w.expectCalls("stop a 1s Orphaned", "release a", "start a")
		if w.backend.Running("old") || !w.backend.Running(pod.UID) {
			t.Error("the earlier pod runs, or the pod does not")
		}
		w.expectPhase("a", corev1.PodRunning)
		// Its own instance is adopted after a restart.
		w.stop()
		w.run()
		pass(time.Hour)
		w.expectCalls("stop a 1s Orphaned", "release a", "start a")
	})
}

// The first List does not decide about such an instance: no pod has its name yet, or the gate was not asked
// before it.
func TestAnInstanceWithoutUIDIsStoppedAlthoughAListHasPassedIt(t *testing.T) {
	for name, gated := range map[string]bool{"the pod comes later": false, "the gate opens later": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, podsynctest.Options{}, func(w *world) {
				w.wrap = func(p *podsynctest.Provider) podsync.Provider { return byName{p, w} }
				w.cfg.Relist = time.Hour
				w.backend.Plant(newPod("a", func(p *corev1.Pod) { p.Namespace, p.UID = "default", "old" }))
				var pod *corev1.Pod
				if gated {
					w.gated()
					pod = w.bind(newPod("a"))
				}
				w.run()
				pass(time.Minute)
				if !gated {
					pod = w.bind(newPod("a"))
					pass(time.Minute)
				}
				w.expectCalls("stop a 1s Orphaned", "release a", "start a")
				if w.backend.Running("old") || !w.backend.Running(pod.UID) {
					t.Error("the earlier pod runs, or the pod does not")
				}
			})
		})
	}
}

// byName is a backend that knows names only.
type byName struct {
	p *podsynctest.Provider
	w *world
}

func (b byName) Start(ctx context.Context, pod *corev1.Pod) (podsync.State, error) {
	return b.p.Start(ctx, pod)
}

func (b byName) Stop(ctx context.Context, ref podsync.Ref, opts podsync.StopOptions) (podsync.State, error) {
	for _, st := range b.w.backend.Held() {
		if st.Name == ref.Name {
			ref.UID = st.UID
		}
	}
	st, err := b.p.Stop(ctx, ref, opts)
	if err == nil {
		err = b.p.Release(ctx, ref)
	}
	return st, err
}

func (b byName) List(ctx context.Context) ([]podsync.State, error) {
	states, err := b.p.List(ctx)
	return anonymous(states), err
}

// vanish makes n pods disappear by a LIST that is well-formed and empty, and GETs
// that say so too, until back is called.
func (w *world) vanish(n int) (back func()) {
	var saved []*corev1.Pod
	blind := w.server.Inject(apitest.Fault{Match: apitest.Match{User: nodeUser, Verb: "list,watch"}, Err: apitest.ErrConnRefused})
	w.server.BreakWatches(watches)
	for i := range n {
		name := fmt.Sprint("p", i)
		saved = append(saved, w.pod(name))
		apitest.Remove[*corev1.Pod](w.server, "default", name)
	}
	w.server.Compact()
	blind()
	pass(time.Minute)
	return func() {
		for _, pod := range saved {
			pod.ResourceVersion = ""
			w.server.Put(pod)
		}
	}
}

// missOneEvent calls f so that the watch does not show its effect, only the LIST
// after it.
func (w *world) missOneEvent(f func()) {
	blind := w.server.Inject(apitest.Fault{Match: apitest.Match{User: nodeUser, Verb: "list,watch"}, Err: apitest.ErrConnRefused})
	w.server.BreakWatches(watches)
	f()
	w.server.Compact()
	blind()
	pass(time.Minute)
}

func (w *world) starts(n int) (calls []string) {
	for i := range n {
		calls = append(calls, fmt.Sprint("start p", i))
	}
	return calls
}

// restored restores the backup while the controller can't see the API server.
func (w *world) restored(restore func(), then func()) {
	blind := w.server.Inject(apitest.Fault{Match: apitest.Match{User: nodeUser}, Err: apitest.ErrConnRefused})
	w.server.BreakWatches(watches)
	restore()
	then()
	w.server.Compact()
	blind()
	pass(90 * time.Second)
}

// replace makes another pod of the name, as a StatefulSet does.
func (w *world) replace(name string) {
	apitest.Remove[*corev1.Pod](w.server, "default", name)
	w.server.Put(newPod(name))
}

// An API server that was restored from a backup has the StatefulSet of before: its pods have the
// names of those that run, and other UIDs. They are held like pods that are gone.
func TestPodsReplacedByARestoredAPIServerAreHeld(t *testing.T) {
	const n = 10
	for name, tc := range map[string]struct {
		outage func(w *world, restore func())
		held   bool
	}{
		"restored": {func(w *world, restore func()) {
			w.restored(restore, func() {
				for i := range n {
					w.server.Put(newPod(fmt.Sprint("p", i)))
				}
			})
		}, true},
		"restored, and replaced later": {func(w *world, restore func()) {
			w.restored(restore, func() {})
			for i := range n {
				w.server.Put(newPod(fmt.Sprint("p", i)))
			}
			pass(time.Minute)
		}, true},
		"rolled in an outage": {func(w *world, _ func()) {
			w.restored(func() {}, func() {
				for i := range n {
					w.replace(fmt.Sprint("p", i))
				}
			})
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, podsynctest.Options{}, func(w *world) {
				w.run()
				restore := w.server.Backup()
				var old []podsync.Ref
				for i := range n {
					old = append(old, podsync.RefOf(w.bind(newPod(fmt.Sprint("p", i)))))
				}
				pass(time.Minute)
				tc.outage(w, restore)
				running := func() (count int) {
					for _, ref := range old {
						if w.backend.Running(ref.UID) {
							count++
						}
					}
					return count
				}
				if got := running(); tc.held && got != n || !tc.held && got != 0 {
					t.Errorf("%d of %d pods run on", got, n)
				}
				pass(15 * time.Minute)
				if got := running(); got != 0 {
					t.Errorf("%d pods of before run after MassHold", got)
				}
				for i := range n {
					w.expectPhase(fmt.Sprint("p", i), corev1.PodRunning)
				}
			})
		})
	}
}

// emptyList is a provider whose List may be empty by mistake.
type emptyList struct {
	podsync.Provider
	empty *atomic.Bool
}

func (p emptyList) List(ctx context.Context) ([]podsync.State, error) {
	states, err := p.Provider.List(ctx)
	if p.empty.Load() {
		return nil, err
	}
	return states, err
}

// inspecting is emptyList with an Inspector.
type inspecting struct {
	emptyList
	podsync.Inspector
}

// Pods that end do not hide that all others are missing: after a restart the first List is empty by
// mistake, and some pods are being deleted.
func TestPodsThatEndAreNoProofOfAList(t *testing.T) {
	for name, inspects := range map[string]bool{"without an Inspector": false, "with one": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, podsynctest.Options{}, func(w *world) {
				empty := new(atomic.Bool)
				w.wrap = func(p *podsynctest.Provider) podsync.Provider {
					if inspects {
						return inspecting{emptyList{p, empty}, p}
					}
					return emptyList{p, empty}
				}
				w.cfg.Relist = 10 * time.Second
				w.run()
				for i := range 6 {
					w.bind(newPod(fmt.Sprint("p", i), restart(corev1.RestartPolicyNever)))
				}
				pass(time.Minute)
				w.crash()
				for i := range 4 {
					apitest.Edit(w.server, "default", fmt.Sprint("p", i), func(p *corev1.Pod) {
						p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now()}, new(int64(30))
					})
				}
				empty.Store(true)
				w.start()
				pass(2 * time.Minute)
				for _, name := range []string{"p4", "p5"} {
					if pod := w.pod(name); terminal(pod) {
						t.Errorf("%s is %s: %s", name, pod.Status.Phase, pod.Status.Reason)
					}
				}
			})
		})
	}
}

// A back end that answers with an empty list by mistake must not fail all pods, or start them
// twice: neither those that run nor those of the process before.
func TestManyLostPodsAreHeld(t *testing.T) {
	const n = 10
	for _, tc := range []struct {
		name               string
		complete, inspects bool // Policy.CompleteList, and an Inspector
		really             bool // they are lost
		restarts           bool // the process starts again
		held               bool
	}{
		{name: "an empty list", held: true},
		{name: "an empty list after a restart", restarts: true, held: true},
		{name: "an empty list, but an Inspector", inspects: true, held: true},
		{name: "an empty list after a restart, but an Inspector", inspects: true, restarts: true, held: true},
		{name: "lost, says an Inspector", inspects: true, really: true},
		{name: "lost after a restart, says an Inspector", inspects: true, really: true, restarts: true},
		{name: "lost, with CompleteList", complete: true, really: true},
		{name: "lost after a restart, with CompleteList", complete: true, really: true, restarts: true},
		{name: "lost", really: true, held: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, podsynctest.Options{}, func(w *world) {
				empty := new(atomic.Bool)
				w.wrap = func(p *podsynctest.Provider) podsync.Provider {
					if tc.inspects {
						return inspecting{emptyList{p, empty}, p}
					}
					return emptyList{p, empty}
				}
				w.cfg.Relist = 10 * time.Second
				w.cfg.Policy.CompleteList = tc.complete
				w.run()
				var refs []podsync.Ref
				for i := range n {
					policy := corev1.RestartPolicyAlways
					if i%2 == 0 {
						policy = corev1.RestartPolicyNever
					}
					refs = append(refs, podsync.RefOf(w.bind(newPod(fmt.Sprint("p", i), restart(policy)))))
				}
				pass(time.Minute)
				w.masses = nil
				if tc.restarts {
					w.crash()
				}
				if tc.really {
					for _, ref := range refs {
						w.backend.Lose(ref.UID)
					}
				}
				empty.Store(true)
				starts := w.callsOf(podsync.OpStart)
				if tc.restarts {
					w.start()
				}
				pass(5 * time.Minute)
				again := w.callsOf(podsync.OpStart) - starts
				for i := range n {
					pod := w.pod(fmt.Sprint("p", i))
					if failed := terminal(pod); failed == (tc.held || i%2 == 1) {
						t.Errorf("%s is %s after 5 minutes", pod.Name, pod.Status.Phase)
					}
				}
				if want := n / 2; tc.held && again != 0 || !tc.held && again < want {
					t.Errorf("%d calls of Start after 5 minutes", again)
				}
				if reported := len(w.masses) > 0; reported != (tc.held && !tc.inspects) {
					t.Errorf("MassOrphans %v", w.masses)
				}
				empty.Store(false)
				pass(20 * time.Minute)
				for i := range n {
					pod := w.pod(fmt.Sprint("p", i))
					if lost := tc.really && i%2 == 0; lost != terminal(pod) {
						t.Errorf("%s is %s in the end", pod.Name, pod.Status.Phase)
					}
				}
			})
		})
	}
}

// A pod of the same name shows that a pod is gone about which the API does not answer.
func TestThePodThatIsReplacedStopsAlthoughNoGETIsAnswered(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		old := w.bind(newPod("a"))
		pass(time.Minute)
		w.server.Inject(apitest.Fault{Match: apitest.Match{User: nodeUser, Verb: "get"}, Err: apitest.ErrConnRefused})
		w.missOneEvent(func() { apitest.Remove[*corev1.Pod](w.server, old.Namespace, old.Name) })
		if !w.backend.Running(old.UID) {
			t.Fatal("the pod was stopped before the API had confirmed that it is gone")
		}
		pod := w.bind(newPod("a"))
		pass(time.Minute)
		if w.backend.Running(old.UID) || !w.backend.Running(pod.UID) {
			t.Errorf("the old pod runs: %v, the new one: %v", w.backend.Running(old.UID), w.backend.Running(pod.UID))
		}
	})
}

// A slowList is a backend that knows names only, whose List takes its time: it has what there was when it began.
type slowList struct {
	byName
	takes *atomic.Int64 // nanoseconds
}

func (b slowList) List(ctx context.Context) ([]podsync.State, error) {
	states, err := b.byName.List(ctx)
	time.Sleep(time.Duration(b.takes.Load()))
	return states, err
}

// A List begins while the instance of an earlier pod of the name is being stopped. When it ends, Start of the
// pod was called and has failed. The end of the earlier instance is not the pod's.
func TestAListOfBeforeStartHasNothingOfThePod(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		takes := new(atomic.Int64)
		w.wrap = func(p *podsynctest.Provider) podsync.Provider { return slowList{byName{p, w}, takes} }
		w.cfg.Relist = 2 * time.Second
		w.backend.Plant(newPod("a", func(p *corev1.Pod) { p.Namespace, p.UID = "default", "old" }))
		w.backend.Finish("old", 0)
		pod := w.bind(newPod("a", restart(corev1.RestartPolicyNever)))
		slow := w.backend.Inject(podsynctest.Fault{Op: podsync.OpStop, Delay: 5 * time.Second, Times: 1})
		fails := w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, Err: errors.New("the name is in use")})
		w.run()
		takes.Store(int64(10 * time.Second)) // of the next one
		pass(15 * time.Second)
		slow()
		takes.Store(0)
		if len(w.backend.Held()) > 0 {
			t.Fatal("the earlier instance is still there")
		}
		fails()
		pass(time.Minute)
		w.expectPhase("a", corev1.PodRunning)
		if !w.backend.Running(pod.UID) {
			t.Error("it does not run")
		}
	})
}
