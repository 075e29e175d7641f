// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// Scenarios that no other controller has a name for.

// A crash at every moment of a life, with and without a Releaser, and with a gate that closes
// at random.
func TestCrashWindows(t *testing.T) {
	for _, releases := range []bool{true, false} {
		for _, window := range []string{"before the first status", "before the final status", "before the deletion", "before the release"} {
			testCrash(t, window, releases, 0)
			for seed := range uint64(10) {
				testCrash(t, window, releases, seed+1)
			}
		}
	}
}

// testCrash crashes in a window. Seed 0 means no gate.
func testCrash(t *testing.T, window string, releases bool, seed uint64) {
	t.Run(fmt.Sprint(window, ", releaser: ", releases, ", gate: ", seed), func(t *testing.T) {
		bubble(t, podsynctest.Options{ExitCode: 0, Forgets: !releases}, func(w *world) {
			var gate randomGate
			r := rand.New(rand.NewPCG(seed, 3))
			gated := func() {
				if seed > 0 {
					gate.close(time.Duration(r.Int64N(int64(4*time.Second))), time.Duration(r.Int64N(int64(8*time.Second))))
				}
			}
			if seed > 0 {
				gate.use(&w.cfg, t.Errorf)
				w.cfg.Relist = 10 * time.Second
			}
			w.wrap = simple
			if releases {
				w.wrap = releasing
			}
			fault := apitest.Fault{Match: apitest.Match{User: nodeUser, Verb: "patch,delete"}, Err: apitest.ErrConnRefused}
			w.run()
			heal := func() {}
			if window == "before the first status" {
				heal = w.server.Inject(fault)
			}
			pod := w.bind(newPod("a", restart(corev1.RestartPolicyNever)))
			gated()
			pass(2 * time.Second)
			if seed > 0 {
				pass(20 * time.Second)
				gated()
			}
			switch window {
			case "before the final status":
				heal = w.server.Inject(fault)
				w.kubectlDelete("a", -1)
			case "before the deletion":
				fault.Match.Verb = "delete"
				heal = w.server.Inject(fault)
				w.kubectlDelete("a", -1)
			case "before the release":
				w.backend.Inject(podsynctest.Fault{Op: podsync.OpRelease, Err: errDown})
				w.kubectlDelete("a", -1)
			}
			pass(3 * time.Second)
			w.crash()
			heal()
			w.backend.ClearFaults()
			gated()
			w.start()
			pass(5 * time.Minute)
			w.isReady()
			if n := len(w.backend.Calls(podsync.OpStart)); n != 1 {
				t.Errorf("%d calls of Start", n)
			}
			if window == "before the first status" {
				w.expectPhase("a", corev1.PodRunning)
				return
			}
			w.expectGone("a")
			if len(w.backend.Held()) != 0 || w.known() != 0 {
				t.Errorf("held: %v, known: %d", w.backend.Held(), w.known())
			}
			if bodies := w.patched("a"); window == "before the final status" && seed == 0 {
				want := map[bool]string{true: "Succeeded", false: "Failed"}[releases]
				last := bodies[len(bodies)-1]["status"].(map[string]any)
				if last["phase"] != want {
					t.Errorf("the exit code of %s was kept: %v, want %s", pod.Name, last["phase"], want)
				}
			}
		})
	})
}

func TestLostPods(t *testing.T) {
	for _, tc := range []struct {
		policy  podsync.LostPolicy
		restart corev1.RestartPolicy
		again   bool
	}{
		{podsync.LostByRestartPolicy, corev1.RestartPolicyAlways, true},
		{podsync.LostByRestartPolicy, corev1.RestartPolicyOnFailure, false},
		{podsync.LostByRestartPolicy, corev1.RestartPolicyNever, false},
		{podsync.LostFail, corev1.RestartPolicyAlways, false},
		{podsync.LostRestart, corev1.RestartPolicyNever, true},
	} {
		for _, restarted := range []bool{false, true} {
			t.Run(fmt.Sprint(tc.policy, tc.restart, restarted), func(t *testing.T) {
				bubble(t, podsynctest.Options{}, func(w *world) {
					w.cfg.Policy.Lost = tc.policy
					w.cfg.Relist = 10 * time.Second
					w.wrap = simple
					w.run()
					pod := w.bind(newPod("a", restart(tc.restart)))
					pass(time.Minute)
					if restarted {
						w.crash()
					}
					w.backend.Lose(pod.UID)
					if restarted {
						w.run()
					} else {
						for n := len(w.backend.Calls(podsync.OpList)); len(w.backend.Calls(podsync.OpList)) == n; {
							pass(100 * time.Millisecond)
						}
						w.expectPhase("a", corev1.PodRunning) // one List is no proof
					}
					pass(time.Minute)
					if !tc.again {
						got := w.expectPhase("a", corev1.PodFailed)
						if got.Status.Reason != podsync.ReasonLost || w.backend.Running(pod.UID) {
							t.Errorf("%+v", got.Status)
						}
						return
					}
					got := w.expectPhase("a", corev1.PodRunning)
					if !w.backend.Running(pod.UID) || got.Status.ContainerStatuses[0].RestartCount != 1 || !isReady(got) {
						t.Errorf("%+v", got.Status.ContainerStatuses)
					}
				})
			})
		}
	}
}

// With an Inspector one List is enough.
func TestLostPodIsInspected(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		pod := w.bind(newPod("a"))
		w.backend.Lose(pod.UID)
		pass(140 * time.Second)
		w.expectCalls("start a", "inspect a", "start a")
	})
}

// Node-lifecycle has marked the pod not ready; the node is back.
func TestMarkedNotReadyIsRepaired(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		w.bind(newPod("a"))
		for range 3 {
			pass(time.Minute)
			apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) { setCondition(p, corev1.PodReady, corev1.ConditionFalse) })
			synctest.Wait()
			if !isReady(w.pod("a")) {
				t.Error("not repaired")
			}
		}
	})
}

// A status that the API refuses never blocks the deletion.
func TestInvalidStatusThenDelete(t *testing.T) {
	for _, all := range []bool{false, true} {
		bubble(t, podsynctest.Options{}, func(w *world) {
			r := &recorder{t: t}
			w.cfg.EventRecorder = r
			w.run()
			pod := w.bind(newPod("a"))
			invalid := statuserr.New(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "status.x: Invalid value")
			invalid.ErrStatus.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseTypeFieldValueInvalid, Field: "status.x", Message: "Invalid value"}}}
			w.server.Inject(apitest.Fault{Match: apitest.Match{User: nodeUser, Verb: "patch", Func: func(r apitest.Request) bool {
				body, err := r.Map()
				return err == nil && (all || body["status"].(map[string]any)["containerStatuses"] != nil || body["status"].(map[string]any)["message"] != nil)
			}}, Status: invalid})
			w.backend.Edit(pod.UID, func(s *corev1.PodStatus) { s.Message = "invalid" })
			pass(24 * time.Hour)
			w.expectPatches(2) // the first one, and the one that is refused
			w.kubectlDelete("a", -1)
			pass(time.Minute)
			w.expectGone("a")
			if len(w.dropped) == 0 || w.dropped[0].Reason != podsync.DroppedInvalid {
				t.Errorf("dropped: %+v", w.dropped)
			}
			events := r.take()
			if !slices.ContainsFunc(events, func(e string) bool {
				return strings.Contains(e, "InvalidStatus") && strings.Contains(e, "Invalid value")
			}) {
				t.Errorf("no event says that the status is refused: %q", events)
			}
		})
	}
}

func TestForceDeleteWhileStarting(t *testing.T) {
	bubble(t, podsynctest.Options{StartTime: time.Minute}, func(w *world) {
		w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, Delay: 10 * time.Second})
		w.run()
		pod := w.bind(newPod("a"))
		pass(time.Second)
		w.kubectlDelete("a", 0)
		w.expectGone("a")
		pass(time.Second)
		if w.backend.Running(pod.UID) || w.known() != 0 {
			t.Errorf("it is %s", w.stage(pod.UID))
		}
	})
}

// The API says that the instance is gone, and the cache does not yet know.
func TestWriteToAPodThatIsGone(t *testing.T) {
	for _, next := range []bool{false, true} {
		bubble(t, podsynctest.Options{}, func(w *world) {
			w.run()
			old := w.bind(newPod("a"))
			fresh := w.server.LagWatches(watches, 10*time.Minute)
			apitest.Remove[*corev1.Pod](w.server, "default", "a")
			if next {
				w.bind(newPod("a"))
			}
			w.server.ResetJournal()
			w.backend.Edit(old.UID, func(s *corev1.PodStatus) { s.Message = "still here" })
			pass(20 * time.Second)
			if !w.backend.Running(old.UID) {
				t.Error("stopped at the first word")
			}
			pass(time.Minute)
			if w.backend.Running(old.UID) {
				t.Error("it runs although the API has said twice that it is gone")
			}
			w.expectPatches(1)
			fresh()
			pass(11 * time.Minute)
			if next {
				w.expectPhase("a", corev1.PodRunning)
			} else if w.known() != 0 {
				t.Error("it is not forgotten")
			}
		})
	}
}

// Providers that can't store a UID are matched by name while that is certain.
func TestStatesWithoutUID(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.wrap = simple
		w.run()
		w.bind(newPod("a"))
		nameless := podsync.State{Ref: podsync.Ref{Namespace: "default", Name: "a"}, Status: corev1.PodStatus{Message: "hello"}}
		w.c.Report(nameless)
		synctest.Wait()
		if got := w.pod("a").Status.Message; got != "hello" {
			t.Errorf("the message is %q", got)
		}
		nameless.Name = "nobody"
		w.c.Report(nameless)
		pass(10 * time.Minute) // nobody comes
		if len(w.dropped) != 1 || w.dropped[0].Reason != podsync.DroppedUnknown {
			t.Errorf("dropped: %+v", w.dropped)
		}
	})
}
