// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podstatus"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// The end of a lost instance is not the end of the one that replaces it.
func TestALostPodThatStartsAgainIsNotCompleted(t *testing.T) {
	bubble(t, podsynctest.Options{StartTime: 20 * time.Second}, func(w *world) {
		w.cfg.Policy.Lost = podsync.LostRestart
		w.run()
		pod := w.bind(newPod("a", restart(corev1.RestartPolicyNever)))
		pass(time.Minute)
		w.expectPhase("a", corev1.PodRunning)
		for n := range int32(2) {
			w.backend.Lose(pod.UID)
			w.c.Report(podsync.State{}) // nothing
			pass(3 * time.Minute)
			got := w.expectPhase("a", corev1.PodRunning)
			cs := got.Status.ContainerStatuses[0]
			if cs.State.Running == nil || cs.RestartCount != n+1 {
				t.Errorf("after loss %d: %+v", n+1, cs)
			}
			if !w.backend.Running(pod.UID) {
				t.Fatalf("it does not run: %s", w.stage(pod.UID))
			}
		}
	})
}

// Two losses while the API does not answer are two restarts, of sidecars too,
// and an ephemeral container is not started again.
func TestEachLossCountsOnce(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.cfg.Relist = 10 * time.Second
		w.run()
		pod := w.bind(newPod("a", func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "sidecar", Image: "registry.example/s:1", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}}
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "registry.example/d:1"}}}
		}))
		w.backend.Edit(pod.UID, func(st *corev1.PodStatus) {
			st.EphemeralContainerStatuses = []corev1.ContainerStatus{{Name: "debug", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		})
		pass(time.Minute)
		heal := w.server.Inject(apitest.Fault{Match: patches, Status: statuserr.Unavailable(0)})
		for range 2 {
			w.backend.Lose(pod.UID)
			pass(5 * time.Minute)
		}
		heal()
		pass(10 * time.Minute)
		st := w.expectPhase("a", corev1.PodRunning).Status
		if n := st.ContainerStatuses[0].RestartCount; n != 2 {
			t.Errorf("the container was restarted %d times, want 2", n)
		}
		if n := st.InitContainerStatuses[0].RestartCount; n != 2 {
			t.Errorf("the sidecar was restarted %d times, want 2", n)
		}
		if end := st.EphemeralContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != 137 {
			t.Errorf("the ephemeral container: %+v", st.EphemeralContainerStatuses[0].State)
		}
	})
}

func TestAStartThatFailsAfterALossIsShown(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		pod := w.bind(newPod("a"))
		pass(time.Minute)
		w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, Err: errDown})
		w.backend.Lose(pod.UID)
		pass(10 * time.Minute)
		if st := w.pod("a").Status; st.Reason != podsync.ReasonFailedStart || !strings.Contains(st.Message, errDown.Error()) {
			t.Errorf("reason %q, message %q", st.Reason, st.Message)
		}
	})
}

// The answer to Start is lost, and the pod runs: its reports say so, and do not change when Start is
// called again and succeeds.
func TestAFailedStartIsForgottenWhenThePodIsAccepted(t *testing.T) {
	for _, reason := range []string{"", "OnSpotCapacity"} { // of the provider
		bubble(t, podsynctest.Options{}, func(w *world) {
			w.run()
			heal := w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, ErrAfter: errDown})
			pod := w.bind(newPod("a"))
			pass(time.Second)
			w.backend.Edit(pod.UID, func(st *corev1.PodStatus) { st.Reason = reason })
			pass(10 * time.Minute)
			if st := w.expectPhase("a", corev1.PodRunning).Status; st.Reason != podsync.ReasonFailedStart || !strings.Contains(st.Message, errDown.Error()) {
				t.Errorf("reason %q, message %q while Start fails", st.Reason, st.Message)
			}
			heal()
			pass(10 * time.Minute)
			if st := w.expectPhase("a", corev1.PodRunning).Status; st.Reason != reason || st.Message != "" {
				t.Errorf("reason %q, message %q of a pod that was accepted, want %q and none", st.Reason, st.Message, reason)
			}
		})
	}
}

// A report may leave out a container that has ended.
func TestAnEndThatIsReportedOnceCounts(t *testing.T) {
	for _, stored := range []bool{false, true} {
		bubble(t, podsynctest.Options{}, func(w *world) {
			w.run()
			pod := w.bind(newPod("a", restart(corev1.RestartPolicyNever), func(p *corev1.Pod) {
				p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "other", Image: "registry.example/o:1"})
			}))
			pass(time.Minute)
			ended := func(c *corev1.ContainerStatus) {
				c.Ready, c.State = false, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}}
			}
			heal := func() {}
			if !stored {
				heal = w.server.Inject(apitest.Fault{Match: patches, Status: statuserr.Unavailable(0)})
			}
			w.backend.Edit(pod.UID, func(st *corev1.PodStatus) { ended(&st.ContainerStatuses[0]) })
			pass(time.Second)
			w.backend.Edit(pod.UID, func(st *corev1.PodStatus) {
				st.ContainerStatuses = st.ContainerStatuses[1:]
				ended(&st.ContainerStatuses[0])
			})
			pass(time.Second)
			heal()
			pass(time.Minute)
			w.expectPhase("a", corev1.PodSucceeded)
		})
	}
}

// A provider that knows phases only can complete a Job.
func TestAPhaseIsEnoughToSucceed(t *testing.T) {
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		bubble(t, podsynctest.Options{}, func(w *world) {
			w.wrap = func(p *podsynctest.Provider) podsync.Provider { return phasesOnly{p} }
			w.cfg.Policy.TrustPhase = true
			w.cfg.Relist = 10 * time.Second
			w.run()
			pod := w.bind(newPod("a", restart(corev1.RestartPolicyNever)))
			pass(time.Minute)
			w.expectPhase("a", corev1.PodRunning)
			w.backend.Edit(pod.UID, func(st *corev1.PodStatus) { st.Phase = phase })
			pass(time.Minute)
			w.expectPhase("a", phase)
		})
	}
}

// phasesOnly reports phases and no containers.
type phasesOnly struct{ p *podsynctest.Provider }

func (p phasesOnly) strip(st podsync.State) podsync.State {
	phase := st.Status.Phase
	if phase == "" {
		phase = corev1.PodRunning
	}
	st.Status = corev1.PodStatus{Phase: phase}
	return st
}

func (p phasesOnly) Start(ctx context.Context, pod *corev1.Pod) (podsync.State, error) {
	st, err := p.p.Start(ctx, pod)
	return p.strip(st), err
}

func (p phasesOnly) Stop(ctx context.Context, ref podsync.Ref, opts podsync.StopOptions) (podsync.State, error) {
	st, err := p.p.Stop(ctx, ref, opts)
	return p.strip(st), err
}

func (p phasesOnly) List(ctx context.Context) ([]podsync.State, error) {
	states, err := p.p.List(ctx)
	for i := range states {
		states[i] = p.strip(states[i])
	}
	return states, err
}

func TestAConditionThatIsNoLongerReportedIsTakenOff(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		pod := w.bind(newPod("a"))
		for _, typ := range []corev1.PodConditionType{"example.com/busy", corev1.PodResizePending} {
			w.backend.Edit(pod.UID, func(st *corev1.PodStatus) {
				st.Conditions = []corev1.PodCondition{{Type: typ, Status: corev1.ConditionTrue}}
			})
			pass(time.Minute)
			if condition(w.pod("a"), typ) == nil {
				t.Fatalf("%s is not there", typ)
			}
			w.backend.Edit(pod.UID, func(st *corev1.PodStatus) { st.Conditions = nil })
			pass(time.Minute)
			if c := condition(w.pod("a"), typ); c != nil {
				t.Errorf("%s is still there: %+v", typ, c)
			}
		}
	})
}

// An API server that starts answers 403 until it has loaded its roles, and a webhook 422 until it is
// repaired. The first such answer is not taken for the last word.
func TestARefusedStatusIsWrittenSoonAfter(t *testing.T) {
	for name, refusal := range map[string]*apierrors.StatusError{
		"403": statuserr.Forbidden("pods", "a", "RBAC: clusterrole not found"), "422": statuserr.New(422, metav1.StatusReasonInvalid, "webhook"),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, podsynctest.Options{}, func(w *world) {
				w.run()
				back := w.server.Inject(apitest.Fault{Match: patches, Status: refusal})
				w.bind(newPod("a"))
				pass(5 * time.Second)
				back()
				pass(10 * time.Second)
				w.expectPhase("a", corev1.PodRunning)
				// A refusal that lasts is met more and more seldom.
				w.server.ResetJournal()
				w.server.Inject(apitest.Fault{Match: patches, Status: refusal})
				w.bind(newPod("b"))
				pass(time.Hour)
				if n := len(w.server.Requests(patches)); n < 8 || n > 60 {
					t.Errorf("%d patches in an hour", n)
				}
			})
		})
	}
}

// Pods that a webhook refuses must not hold up others.
func TestABrokenNamespaceStarvesNoOther(t *testing.T) {
	outage := time.Hour
	if testing.Short() {
		outage = 10 * time.Minute
	}
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		heal := w.server.Inject(apitest.Fault{Match: apitest.Match{User: nodeUser, Verb: "patch", Namespace: "broken"}, Status: statuserr.InternalError("failed calling webhook")})
		for i := range 200 {
			w.bind(newPod(fmt.Sprint("b", i), func(p *corev1.Pod) { p.Namespace = "broken" }))
		}
		deleted := w.bind(newPod("deleted"))
		pass(outage)
		w.bind(newPod("a"))
		w.kubectlDelete("deleted", -1)
		pass(2 * time.Second)
		w.expectPhase("a", corev1.PodRunning)
		w.expectGone("deleted")
		if w.backend.Running(deleted.UID) {
			t.Error("the deleted pod runs")
		}
		heal()
		pass(6 * time.Minute)
		if pod := apitest.Get[*corev1.Pod](w.server, "broken", "b199"); pod.Status.Phase != corev1.PodRunning {
			t.Errorf("after the outage it is %s", pod.Status.Phase)
		}
	})
}

// What a webhook refuses in one namespace is not repeated sooner because another one's pods are written.
func TestAWriteElsewhereEndsNoBackoff(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		broken := apitest.Match{User: nodeUser, Verb: "patch", Namespace: "broken"}
		w.server.Inject(apitest.Fault{Match: broken, Status: statuserr.InternalError("failed calling webhook")})
		w.bind(newPod("b", func(p *corev1.Pod) { p.Namespace = "broken" }))
		good := w.bind(newPod("a"))
		pass(time.Minute)
		w.server.ResetJournal()
		for range 120 {
			w.backend.Edit(good.UID, func(st *corev1.PodStatus) { st.ContainerStatuses[0].RestartCount++ })
			pass(5 * time.Second)
		}
		if n, others := len(w.server.Requests(broken)), len(w.server.Requests(patches)); n == 0 || n > 6 || others < 100 {
			t.Errorf("%d tries in ten minutes, and %d requests in all", n, others)
		}
	})
}

// A report that came during Start, and is older than its result, did not count
// against it until the next List, two minutes later.
func TestAReportDuringStartDoesNotHideItsResult(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.wrap = func(p *podsynctest.Provider) podsync.Provider { return slowAnswer{p, w} }
		w.run()
		w.bind(newPod("a"))
		pass(20 * time.Second)
		w.expectPhase("a", corev1.PodRunning)
	})
}

// slowAnswer reports that containers are being created before Start returns.
type slowAnswer struct {
	*podsynctest.Provider
	w *world
}

func (p slowAnswer) Watch(ctx context.Context, _ func(podsync.State)) error {
	<-ctx.Done()
	return nil
}

func (p slowAnswer) Start(ctx context.Context, pod *corev1.Pod) (podsync.State, error) {
	st, err := p.Provider.Start(ctx, pod)
	p.w.c.Report(podsync.State{Ref: st.Ref, Status: corev1.PodStatus{Message: "creating", ContainerStatuses: []corev1.ContainerStatus{
		{Name: "main", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}},
	}}})
	return st, err
}

// Start succeeds, and no List ever shows the pod.
func TestAStartWithoutEffectIsRepeatedWithBackoff(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.wrap = func(p *podsynctest.Provider) podsync.Provider {
			return bending{Provider: p, list: func([]podsync.State) []podsync.State { return nil }}
		}
		w.cfg.Relist = 10 * time.Second
		w.run()
		w.bind(newPod("a"))
		pass(time.Hour)
		if n := w.callsOf(podsync.OpStart); n > 25 {
			t.Errorf("%d calls of Start in an hour", n)
		}
	})
}

func TestALongEventIsCut(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		r := &recorder{t: t}
		w.cfg.EventRecorder = r
		w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, Err: errors.New(strings.Repeat("é", 3000))})
		w.run()
		w.bind(newPod("a"))
		pass(time.Minute)
		for _, e := range r.take() {
			_, note, _ := strings.Cut(e, ": ")
			if len(note) > 1024 || !strings.HasSuffix(note, "...") {
				t.Errorf("a note of %d bytes", len(note))
			}
		}
	})
}

func TestLabelsAreHandedToUpdateIfWanted(t *testing.T) {
	for _, tc := range []struct{ wanted, adopted bool }{{false, false}, {true, false}, {false, true}, {true, true}} {
		bubble(t, podsynctest.Options{}, func(w *world) {
			w.cfg.Policy.UpdateMetadata = tc.wanted
			w.run()
			w.bind(newPod("a"))
			pass(time.Minute)
			if tc.adopted {
				w.crash()
				w.run()
				pass(time.Minute)
			}
			apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} })
			pass(time.Hour)
			want := 0
			if tc.wanted {
				want = 1
			}
			if n := w.callsOf(podsync.OpUpdate); n != want {
				t.Errorf("%+v: %d calls of Update, want %d", tc, n, want)
			}
		})
	}
}

// refusing is a provider that can't resize.
type refusing struct{ *podsynctest.Provider }

func (p refusing) Update(ctx context.Context, pod *corev1.Pod) (podsync.State, error) {
	_, _ = p.Provider.Update(ctx, pod)
	return podsync.State{}, podsync.Reject("NoRoom", "the backend has no room")
}

func TestAResizeThatIsRefusedIsShownAndNotRepeated(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		r := &recorder{t: t}
		w.cfg.EventRecorder = r
		w.wrap = func(p *podsynctest.Provider) podsync.Provider { return refusing{p} }
		w.run()
		w.bind(newPod("a"))
		pass(time.Minute)
		apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}
		})
		pass(time.Hour)
		pod := w.pod("a")
		if c := condition(pod, corev1.PodResizePending); c == nil || c.Status != corev1.ConditionTrue || c.Reason != corev1.PodReasonInfeasible {
			t.Errorf("the condition is %+v", c)
		}
		if n := w.callsOf(podsync.OpUpdate); n != 1 {
			t.Errorf("%d calls of Update", n)
		}
		if events := r.take(); len(events) != 1 || !strings.Contains(events[0], "NoRoom") && !strings.Contains(events[0], "no room") {
			t.Errorf("events %q", events)
		}
	})
}

func TestAChangeThatTheProviderCannotApplyIsNotAcknowledged(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		r := &recorder{t: t}
		w.cfg.EventRecorder = r
		w.wrap = simple
		w.run()
		w.bind(newPod("a"))
		pass(time.Minute)
		apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "registry.example/app:2" })
		pass(time.Hour)
		if pod := w.pod("a"); pod.Status.ObservedGeneration != 1 {
			t.Errorf("observedGeneration %d of %d", pod.Status.ObservedGeneration, pod.Generation)
		}
		if events := r.take(); len(events) != 1 || !strings.Contains(events[0], "FailedUpdate") {
			t.Errorf("events %q", events)
		}
	})
}

// No container of a pod has an exit code if none was seen to run.
func TestAPodThatWasNeverStartedHasNoExitCodes(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, Hang: true})
		w.run()
		w.bind(newPod("a", func(p *corev1.Pod) { p.Finalizers = []string{"example.com/hold"} }))
		w.kubectlDelete("a", -1)
		pass(time.Minute)
		pod := w.expectPhase("a", corev1.PodFailed)
		for _, cs := range pod.Status.ContainerStatuses {
			if cs.State.Waiting == nil || cs.LastTerminationState.Terminated != nil {
				t.Errorf("%+v", cs)
			}
		}
		synctest.Wait()
	})
}

// TestPodsHaveWhatTheAPIHas: whoever has seen a status in the API, and asks the node for its
// pods, finds the status there too, before the controller has had the answer to its write.
func TestPodsHaveWhatTheAPIHas(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		stored := 0
		defer w.server.Inject(apitest.Fault{Match: apitest.Match{Verb: "patch", Resource: "pods/status"}, Served: func(apitest.Request) {
			stored++
			for pod := range w.c.Pods {
				if want := w.pod(pod.Name); !podstatus.Equal(&pod.Status, &want.Status) {
					t.Errorf("%+v, and the API has %+v", pod.Status, want.Status)
				}
			}
		}})()
		uid := w.bind(newPod("web")).UID
		w.bind(newPod("other"))
		pass(time.Minute)
		w.backend.Exit(uid, 3)
		pass(time.Minute)
		if stored < 3 {
			t.Errorf("%d writes", stored)
		}
		for range w.c.Pods {
			break
		}
	})
}

// TestPodsHaveWhatAnotherClientWrote: a status whose PATCH has no answer does not hide what another
// client has written since.
func TestPodsHaveWhatAnotherClientWrote(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		uid := w.bind(newPod("web")).UID
		pass(time.Minute)
		w.server.Inject(apitest.Fault{Match: apitest.Match{Verb: "patch", Resource: "pods/status"}, HangResponse: true})
		w.backend.Edit(uid, func(st *corev1.PodStatus) { st.ContainerStatuses[0].RestartCount++ })
		pass(time.Second)
		apitest.Edit(w.server, "default", "web", func(p *corev1.Pod) { setCondition(p, corev1.PodReady, corev1.ConditionFalse) })
		pass(time.Second)
		for pod := range w.c.Pods {
			if isReady(pod) {
				t.Error("the answer hangs, and the pod is shown as Ready")
			}
		}
	})
}
