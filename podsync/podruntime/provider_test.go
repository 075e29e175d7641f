// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
	"github.com/kubewright/kubewright/podsync/podruntime"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

func TestContainersRunInOrderAndSidecarsEndLast(t *testing.T) {
	inWorld(t, func(w *world) {
		pod := podOf(corev1.RestartPolicyNever, command("app", "exit 0 5s"))
		side := sidecarOf(command("side", "forever"))
		side.StartupProbe = execProbe("exit", "0")
		pod.Spec.InitContainers = []corev1.Container{command("first", "exit 0 1s"), side, command("second", "exit 0 1s")}
		ref := w.start(pod)
		time.Sleep(time.Minute)
		s := w.state(ref)
		if !s.Stopped || podstatus.FinalPhase(&pod.Spec, &s.Status) != corev1.PodSucceeded {
			w.Errorf("the pod has %+v", s)
		}
		w.expect("start first/0", "start side/0", "start second/0", "start app/0", "stop side/0")
	})
}

// TestAPodThatEndedOnAFullDiskIsNotStarted: the disk is full, so no container of the
// pod starts and its end can't be written. The next process has room again.
func TestAPodThatEndedOnAFullDiskIsNotStarted(t *testing.T) {
	inWorld(t, func(w *world) {
		full := true
		w.link.setBefore(func(op string) error {
			if op == "Start" && full {
				return errors.New("no space left on device")
			}
			return nil
		})
		ref := w.start(podOf(corev1.RestartPolicyAlways, command("app", "forever")))
		time.Sleep(time.Minute)
		record := filepath.Join(w.root, "pods", string(ref.UID), "stop.json")
		if err := os.Mkdir(record+".tmp", 0o700); err != nil { // is in the way as no room is
			w.Fatal(err)
		}
		w.stop(ref, time.Hour)
		if s := w.state(ref); !s.Stopped {
			w.Errorf("the pod has not ended: %+v", s)
		}
		w.kill()
		full = false
		w.boot()
		time.Sleep(time.Minute)
		if s := w.state(ref); !s.Stopped {
			w.Errorf("the next process takes it for one that must run: %+v", s)
		}
		w.expect()
	})
}

// TestAPodWithoutRoomForItsEndHasItsGracePeriodAgain: the process is killed while the
// containers of the pod end, and the deadline is not on the disk.
func TestAPodWithoutRoomForItsEndHasItsGracePeriodAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		pod := podOf(corev1.RestartPolicyAlways, command("app", "stubborn"))
		pod.Spec.TerminationGracePeriodSeconds = new(int64(40))
		ref := w.start(pod)
		synctest.Wait()
		record := filepath.Join(w.root, "pods", string(ref.UID), "stop.json")
		if err := os.Mkdir(record+".tmp", 0o700); err != nil {
			w.Fatal(err)
		}
		w.stop(ref, time.Hour)
		synctest.Wait()
		w.kill()
		w.boot()
		time.Sleep(39 * time.Second)
		if s := w.state(ref); s.Stopped {
			w.Errorf("the pod has ended early: %+v", s)
		}
		time.Sleep(2 * time.Second)
		if s := w.state(ref); !s.Stopped {
			w.Errorf("the pod has not ended: %+v", s)
		}
	})
}

// Kubernetes' conformance tests read the reason of all containers, init containers too.
func TestContainersWaitWithPodInitializing(t *testing.T) {
	inWorld(t, func(w *world) {
		pod := podOf(corev1.RestartPolicyAlways, command("app", "forever"))
		pod.Spec.InitContainers = []corev1.Container{command("first", "exit 1"), command("second", "exit 0")}
		ref := w.start(pod)
		time.Sleep(time.Second)
		s := w.state(ref).Status
		for _, c := range []corev1.ContainerStatus{s.InitContainerStatuses[1], s.ContainerStatuses[0]} {
			if c.State.Waiting == nil || c.State.Waiting.Reason != "PodInitializing" {
				w.Errorf("%s has %+v", c.Name, c.State)
			}
		}
	})
}

func TestAContainerThatIsBeingStartedWaitsWithPodInitializing(t *testing.T) {
	inWorld(t, func(w *world) {
		w.link.setBefore(func(op string) error {
			if op == "Start" {
				time.Sleep(10 * time.Second)
			}
			return nil
		})
		pod := podOf(corev1.RestartPolicyNever, command("app", "forever"))
		pod.Spec.InitContainers = []corev1.Container{command("first", "exit 0")}
		ref := w.start(pod)
		for _, at := range []time.Duration{5 * time.Second, 15 * time.Second} { // first is being started, and then app
			time.Sleep(time.Until(w.begin.Add(at)))
			for _, name := range []string{"first", "app"} {
				state := w.container(ref, name).State
				if state.Terminated == nil && (state.Waiting == nil || state.Waiting.Reason != "PodInitializing") {
					w.Errorf("after %v %s has %+v", at, name, state)
				}
			}
		}
		time.Sleep(10 * time.Second)
		if w.container(ref, "app").State.Running == nil {
			w.Error("app does not run")
		}
		// An ephemeral container does not wait for init containers.
		pod = pod.DeepCopy()
		pod.Generation++
		pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon(command("debug", "forever"))}}
		if _, err := w.p.Update(w.Context(), pod); err != nil {
			w.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if waiting := w.container(ref, "debug").State.Waiting; waiting == nil || waiting.Reason != "ContainerCreating" {
			w.Errorf("the ephemeral container waits with %+v", waiting)
		}
	})
}

func TestRestartsAreHeldBackAsByTheKubelet(t *testing.T) {
	inWorld(t, func(w *world) {
		ref := w.start(podOf(corev1.RestartPolicyAlways, command("c", "exit 1")))
		const s = time.Second
		time.Sleep(time.Second)
		c := w.container(ref, "c")
		if c.State.Waiting == nil || c.State.Waiting.Reason != "CrashLoopBackOff" || c.RestartCount != 1 || c.LastTerminationState.Terminated.ExitCode != 1 {
			w.Errorf("held back it is %+v", c)
		}
		time.Sleep(35 * s)
		w.kill() // which does not cut a wait short
		w.boot()
		time.Sleep(14*time.Minute + 30*s)
		w.begun("c", 0, 0, 10*s, 30*s, 70*s, 150*s, 310*s, 610*s)
	})
}

func TestALivenessProbeRestartsAContainer(t *testing.T) {
	inWorld(t, func(w *world) {
		c := command("c", "forever")
		c.LivenessProbe = execProbe("alive")
		w.exec = func(id podruntime.ContainerID, _ []string) (int, error) {
			if id.Attempt == 0 && time.Since(w.begin) > 25*time.Second {
				return 1, nil
			}
			return 0, nil
		}
		ref := w.start(podOf(corev1.RestartPolicyAlways, c))
		time.Sleep(49 * time.Second)
		w.expect("start c/0")
		time.Sleep(2 * time.Second) // the third failure is at 50 s
		w.expect("start c/0", "stop c/0", "start c/1")
		if st := w.container(ref, "c"); st.RestartCount != 1 || !st.Ready {
			w.Errorf("after the restart: %+v", st)
		}
		time.Sleep(time.Hour)
		w.expect("start c/0", "stop c/0", "start c/1")
	})
}

// The kubelet's ticker runs on while a probe hangs: three failures are noticed after 25 s.
func TestAProbeThatHangsKeepsItsPeriod(t *testing.T) {
	inWorld(t, func(w *world) {
		c := command("c", "forever")
		c.LivenessProbe = execProbe("sleep")
		c.LivenessProbe.TimeoutSeconds = 5
		w.start(podOf(corev1.RestartPolicyAlways, c))
		time.Sleep(26 * time.Second)
		w.begun("c", 0, 25*time.Second)
	})
}

// An end must not wait for a log: neither that of another container nor for long its own.
func TestALogThatHangsDelaysNoEnd(t *testing.T) {
	inWorldWith(t, func(w *world) {}, func(w *world) {
		w.deaf = true
		failed := command("failed", "exit 1 1s")
		failed.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
		ref := w.start(podOf(corev1.RestartPolicyAlways, failed, command("other", "stubborn")))
		time.Sleep(500 * time.Millisecond)
		w.stop(ref, 3*time.Second)
		time.Sleep(3 * time.Second)
		if st := w.container(ref, "other"); st.State.Terminated == nil {
			t.Errorf("the other container has %+v", st.State)
		}
		time.Sleep(3 * time.Second)
		if s := w.state(ref); !s.Stopped {
			t.Errorf("the pod has not stopped: %+v", s)
		}
	})
}

// A run begins when the message of the one before is known, and after logTimeout at the latest.
func TestARestartWaitsForTheLog(t *testing.T) {
	inWorldWith(t, func(w *world) {}, func(w *world) {
		w.deaf = true
		c := command("c", "exit 1 1s")
		c.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
		w.start(podOf(corev1.RestartPolicyAlways, c))
		time.Sleep(10 * time.Second)
		w.begun("c", 0, 6*time.Second)
	})
}

// Probes have events of their own goroutines, and an Update changes the pod. With -race this
// fails if both use it.
func TestEventsOfProbesDoNotRaceWithUpdates(t *testing.T) {
	recorder := events.NewFakeRecorder(1000)
	inWorldWith(t, func(w *world) {
		w.change = func(cfg *podruntime.Config) { cfg.EventRecorder = recorder }
	}, func(w *world) {
		c := command("c", "forever")
		c.ReadinessProbe = execProbe("exit", "1")
		c.ReadinessProbe.PeriodSeconds = 1
		pod := podOf(corev1.RestartPolicyAlways, c)
		w.start(pod)
		for range 20 {
			time.Sleep(time.Second)
			pod = pod.DeepCopy()
			pod.Generation++
			if _, err := w.p.Update(w.Context(), pod); err != nil {
				t.Fatal(err)
			}
		}
		if len(recorder.Events) < 20 {
			t.Errorf("%d events", len(recorder.Events))
		}
	})
}

// The API server refuses an event whose note is longer than 1,024 bytes.
func TestALongErrorIsAnEvent(t *testing.T) {
	recorder := events.NewFakeRecorder(1000)
	inWorldWith(t, func(w *world) {
		w.change = func(cfg *podruntime.Config) { cfg.EventRecorder = recorder }
	}, func(w *world) {
		c := command("c", "forever")
		c.Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"hook"}}}}
		w.exec = func(podruntime.ContainerID, []string) (int, error) { return 0, errors.New(strings.Repeat("x", 3000)) }
		w.start(podOf(corev1.RestartPolicyNever, c))
		time.Sleep(time.Minute)
		const begin = "Warning FailedPostStartHook "
		for len(recorder.Events) > 0 {
			if event := <-recorder.Events; strings.HasPrefix(event, begin) {
				if note := strings.TrimPrefix(event, begin); len(note) != 1024 {
					t.Errorf("the note has %d bytes", len(note))
				}
				return
			}
		}
		t.Error("no event")
	})
}

func TestAProbeWhoseResultIsUnknownChangesNothing(t *testing.T) {
	inWorld(t, func(w *world) {
		c := command("c", "forever")
		c.LivenessProbe, c.ReadinessProbe = execProbe("alive"), execProbe("ready")
		w.exec = func(podruntime.ContainerID, []string) (int, error) {
			if time.Since(w.begin) > time.Minute {
				return 0, errors.New("the runtime is away")
			}
			return 0, nil
		}
		ref := w.start(podOf(corev1.RestartPolicyAlways, c))
		time.Sleep(time.Hour)
		if st := w.container(ref, "c"); st.RestartCount != 0 || !st.Ready {
			w.Errorf("after an hour without results: %+v", st)
		}
	})
}

func TestReadinessFollowsItsProbeUntilTheEnd(t *testing.T) {
	inWorld(t, func(w *world) {
		c := command("c", "stubborn")
		c.ReadinessProbe, c.LivenessProbe = execProbe("ready"), execProbe("alive")
		var ready, ended atomic.Int32
		ready.Store(1)
		w.exec = func(_ podruntime.ContainerID, command []string) (int, error) {
			if command[0] == "alive" {
				if ended.Load() > 0 {
					w.Error("a container that ends is asked whether it lives")
				}
				return 0, nil
			}
			return int(ready.Load()), nil
		}
		ref := w.start(podOf(corev1.RestartPolicyAlways, c))
		check := func(want bool) {
			t.Helper()
			time.Sleep(31 * time.Second)
			if st := w.container(ref, "c"); st.Ready != want || st.RestartCount != 0 {
				w.Errorf("ready %v, want %v: %+v", st.Ready, want, st)
			}
		}
		check(false)
		ready.Store(0)
		check(true)
		ready.Store(1)
		check(false)
		ready.Store(0)
		check(true)
		w.stop(ref, time.Hour)
		synctest.Wait()
		ended.Store(1)
		check(true)
		ready.Store(1) // it takes itself out of the service before it ends
		check(false)
		ready.Store(0)
		check(true)
		w.kill()
		ready.Store(1) // the next process goes on
		w.boot()
		check(false)
		w.stop(ref, time.Second)
		time.Sleep(time.Minute)
	})
}

func TestAStartupProbeHoldsBackTheOthers(t *testing.T) {
	inWorld(t, func(w *world) {
		c := command("c", "forever")
		c.StartupProbe, c.LivenessProbe = execProbe("started"), execProbe("alive")
		var asked []string
		w.exec = func(_ podruntime.ContainerID, command []string) (int, error) {
			asked = append(asked, command[0])
			if command[0] == "started" && len(asked) < 3 {
				return 1, nil
			}
			return 0, nil
		}
		ref := w.start(podOf(corev1.RestartPolicyAlways, c))
		time.Sleep(15 * time.Second)
		if st := w.container(ref, "c"); *st.Started || st.Ready {
			w.Errorf("before its startup probe has succeeded: %+v", st)
		}
		time.Sleep(10 * time.Second)
		if st := w.container(ref, "c"); !*st.Started || !st.Ready {
			w.Errorf("after its startup probe has succeeded: %+v", st)
		}
		if want := []string{"started", "started", "started", "alive"}; !slices.Equal(asked, want) {
			w.Errorf("probes %q, want %q", asked, want)
		}
	})
}

func TestAStartupProbeThatFailsRestarts(t *testing.T) {
	inWorld(t, func(w *world) {
		c := command("c", "forever")
		c.StartupProbe = execProbe("exit", "1")
		w.start(podOf(corev1.RestartPolicyAlways, c))
		time.Sleep(25 * time.Second)
		w.expect("start c/0", "stop c/0", "start c/1")
	})
}

func TestHooksRunOnceAlsoAfterADeath(t *testing.T) {
	inWorld(t, func(w *world) {
		var ran []string
		w.exec = func(id podruntime.ContainerID, command []string) (int, error) {
			ran = append(ran, command[0])
			return 0, nil
		}
		c := command("c", "forever")
		c.Lifecycle = &corev1.Lifecycle{PostStart: execHook("post"), PreStop: execHook("pre")}
		ref := w.start(podOf(corev1.RestartPolicyAlways, c))
		time.Sleep(time.Second)
		w.kill()
		w.boot()
		w.stop(ref, time.Minute)
		time.Sleep(time.Second)
		if s := w.state(ref); !s.Stopped {
			w.Errorf("%+v", s)
		}
		if want := []string{"post", "pre"}; !slices.Equal(ran, want) {
			w.Errorf("hooks %q, want %q", ran, want)
		}
	})
}

func TestAPostStartHookThatFailsRestarts(t *testing.T) {
	inWorld(t, func(w *world) {
		c := command("c", "forever")
		c.Lifecycle = &corev1.Lifecycle{PostStart: execHook("exit", "1")}
		w.start(podOf(corev1.RestartPolicyAlways, c))
		time.Sleep(time.Second)
		w.expect("start c/0", "stop c/0", "start c/1", "stop c/1")
	})
}

func TestThePreStopHookIsPartOfTheGracePeriod(t *testing.T) {
	for name, tc := range map[string]struct {
		hook, grace, ends time.Duration
	}{
		"a short hook leaves the rest":   {10 * time.Second, 30 * time.Second, 30 * time.Second},
		"a long one leaves two seconds":  {time.Hour, 30 * time.Second, 32 * time.Second},
		"no container has less than two": {0, time.Second, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				c := command("c", "stubborn")
				if tc.hook > 0 {
					c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: int64(tc.hook / time.Second)}}}
				}
				ref := w.start(podOf(corev1.RestartPolicyAlways, c))
				time.Sleep(time.Second)
				begin := time.Now()
				w.stop(ref, tc.grace)
				time.Sleep(time.Hour)
				s := w.state(ref)
				end := s.Status.ContainerStatuses[0].State.Terminated
				if !s.Stopped || end == nil || end.ExitCode != 137 || end.FinishedAt.Sub(begin) != tc.ends {
					w.Errorf("it ended with %+v, want an end after %v", s.Status.ContainerStatuses[0], tc.ends)
				}
			})
		})
	}
}

// A Stop that hangs is called again and again, and ends all the same: nothing piles up while a
// container can't be killed.
func TestAStopThatHangsEnds(t *testing.T) {
	var under, most atomic.Int64
	inWorldWith(t, func(w *world) {
		w.change = func(cfg *podruntime.Config) { cfg.Runtime = hung{w.link, &under, &most} }
	}, func(w *world) {
		ref := w.start(podOf(corev1.RestartPolicyAlways, command("c", "stubborn")))
		time.Sleep(time.Second)
		w.stop(ref, 30*time.Second)
		time.Sleep(24 * time.Hour)
		if most.Load() > 20 || under.Load() == 0 {
			w.Errorf("%d calls of Stop are under way, and were %d", under.Load(), most.Load())
		}
	})
}

// A hung is a Runtime whose Stop hangs.
type hung struct {
	*link
	under, most *atomic.Int64
}

func (h hung) Stop(ctx context.Context, _ podruntime.ContainerID, _ podruntime.StopOptions) error {
	h.most.Store(max(h.most.Load(), h.under.Add(1)))
	defer h.under.Add(-1)
	<-ctx.Done()
	return ctx.Err()
}

func TestAGracePeriodBecomesShorter(t *testing.T) {
	inWorld(t, func(w *world) {
		hooked := command("hooked", "stubborn")
		hooked.Lifecycle = &corev1.Lifecycle{PreStop: execHook("sleep")}
		ref := w.start(podOf(corev1.RestartPolicyAlways, hooked, command("plain", "stubborn")))
		time.Sleep(time.Second)
		w.stop(ref, time.Hour)
		time.Sleep(time.Second)
		begin := time.Now()
		w.stop(ref, 10*time.Second)
		time.Sleep(11 * time.Second)
		if end := w.container(ref, "plain").State.Terminated; end == nil || end.FinishedAt.Sub(begin) != 10*time.Second {
			w.Errorf("without a hook: %+v", end)
		}
		time.Sleep(2 * time.Second)
		if end := w.container(ref, "hooked").State.Terminated; end == nil || end.FinishedAt.Sub(begin) != 12*time.Second {
			w.Errorf("with a hook: %+v", end)
		}
		if !w.state(ref).Stopped {
			w.Error("the pod has not stopped")
		}
	})
}

// The two seconds that a container has at the least begin with the first request to end.
func TestTheShortestWindowBeginsWithTheFirstStop(t *testing.T) {
	inWorld(t, func(w *world) {
		ref := w.start(podOf(corev1.RestartPolicyAlways, command("c", "stubborn")))
		synctest.Wait()
		w.stop(ref, time.Minute)
		time.Sleep(10 * time.Second)
		w.stop(ref, 3*time.Second)
		time.Sleep(500 * time.Millisecond)
		w.stop(ref, time.Second)
		time.Sleep(3 * time.Second)
		if end := w.container(ref, "c").State.Terminated; end == nil || end.FinishedAt.Sub(w.begin) != 11500*time.Millisecond {
			w.Errorf("it ended %+v", end)
		}
	})
}

// Of the containers that start again only the one that asked for it is held back.
func TestOnlyTheContainerOfTheRuleIsHeldBack(t *testing.T) {
	inWorld(t, func(w *world) {
		never := corev1.ContainerRestartPolicyNever
		app := command("app", "exit 88 1s")
		app.RestartPolicy = &never
		app.RestartPolicyRules = []corev1.ContainerRestartRule{{
			Action:    corev1.ContainerRestartRuleActionRestartAllContainers,
			ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{88}},
		}}
		w.start(podOf(corev1.RestartPolicyNever, app, command("other", "forever")))
		time.Sleep(40 * time.Second)
		const s = time.Second
		w.begun("app", 0, 1*s, 12*s, 33*s)
		w.begun("other", 0, 1*s, 2*s, 13*s, 34*s)
	})
}

func TestARuleRestartsThePodFromItsFirstContainer(t *testing.T) {
	inWorld(t, func(w *world) {
		never := corev1.ContainerRestartPolicyNever
		app := command("app", "exit 88 5s")
		app.RestartPolicy = &never
		app.RestartPolicyRules = []corev1.ContainerRestartRule{{
			Action:    corev1.ContainerRestartRuleActionRestartAllContainers,
			ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{88}},
		}}
		pod := podOf(corev1.RestartPolicyNever, app, command("other", "stubborn"))
		pod.Spec.InitContainers = []corev1.Container{command("init", "exit 0 1s")}
		ref := w.start(pod)
		time.Sleep(7 * time.Second) // other is killed at 8 s
		s := w.state(ref)
		if !slices.ContainsFunc(s.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.AllContainersRestarting && c.Status == corev1.ConditionTrue
		}) {
			w.Errorf("while containers end the conditions are %+v", s.Status.Conditions)
		}
		time.Sleep(1500 * time.Millisecond) // init runs again
		w.kill()
		w.boot()
		time.Sleep(time.Second)
		w.expect("start init/0", "start app/0 & start other/0", "stop other/0", "start init/1", "start app/1 & start other/1")
		other := w.container(ref, "other")
		if last := other.LastTerminationState.Terminated; last == nil || last.Reason != podstatus.ReasonRestartingAllContainers || other.RestartCount != 1 {
			w.Errorf("a container that was ended has %+v", other)
		}
		if last := w.container(ref, "app").LastTerminationState.Terminated; last == nil || last.Reason != "Error" || last.ExitCode != 88 {
			w.Errorf("the container that exited has %+v", last)
		}
		w.stop(ref, time.Second)
		time.Sleep(time.Minute)
	})
}

func TestALostSandboxIsReplacedWithItsContainers(t *testing.T) {
	inWorldWith(t, func(w *world) { w.boxed = true }, func(w *world) {
		done := command("done", "exit 0 1s")
		pod := podOf(corev1.RestartPolicyOnFailure, command("app", "forever"), done)
		pod.Spec.InitContainers = []corev1.Container{command("init", "exit 0 1s")}
		ref := w.start(pod)
		time.Sleep(10 * time.Second)
		if ip := w.state(ref).Status.PodIP; ip != "10.0.0.1" {
			w.Errorf("the pod has the address %q", ip)
		}
		w.lose(ref.UID)
		time.Sleep(10 * time.Second)
		w.expect("set up", "start init/0", "start app/0 & start done/0", "stop app/0", "set up", "start init/1", "start app/1")
		if s := w.state(ref); s.Status.PodIP != "10.0.0.2" {
			w.Errorf("the pod has %+v", s.Status)
		}
		w.stop(ref, time.Second)
		time.Sleep(10 * time.Second)
		if !w.state(ref).Stopped {
			w.Error("it has not stopped")
		}
		if err := w.p.Release(w.Context(), ref); err != nil {
			w.Error(err)
		}
		if len(w.boxes)+len(w.containers) > 0 {
			w.Errorf("left: %v, %v", w.boxes, w.containers)
		}
	})
}

// A run that has ended before it was listed as running has run, also if its container is removed.
func TestAShortRunIsNotRepeated(t *testing.T) {
	for name, dies := range map[string]bool{"known to this process": false, "known to the next one": true} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				ref := w.start(podOf(corev1.RestartPolicyNever, command("short", "exit 0"), command("app", "forever")))
				time.Sleep(10 * time.Second)
				if dies {
					w.kill()
				}
				if err := w.memory.Remove(w.Context(), podruntime.ContainerID{Pod: ref.UID, Name: "short"}); err != nil {
					t.Fatal(err)
				}
				if dies {
					w.boot()
				}
				time.Sleep(2 * time.Minute)
				w.expect("start short/0 & start app/0")
				if c := w.container(ref, "short"); c.State.Terminated == nil {
					w.Errorf("the run that has ended is %+v", c.State)
				}
			})
		})
	}
}

// The result of a container that was done says nothing about the init containers of the next
// sandbox, in the next process either.
func TestAfterALostSandboxTheInitContainersComeFirst(t *testing.T) {
	init, sidecar := command("first", "exit 0 30s"), sidecarOf(command("first", "forever"))
	sidecar.StartupProbe = execProbe("exit", "0")
	sidecar.StartupProbe.InitialDelaySeconds = 30
	for name, first := range map[string]corev1.Container{"an init container": init, "a sidecar": sidecar} {
		for _, dies := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", the process dies: ", dies), func(t *testing.T) {
				inWorldWith(t, func(w *world) { w.boxed = true }, func(w *world) {
					pod := podOf(corev1.RestartPolicyOnFailure, command("done", "exit 0 2s"), command("app", "forever"))
					pod.Spec.InitContainers = []corev1.Container{first}
					ref := w.start(pod)
					time.Sleep(time.Minute)
					w.lose(ref.UID)
					time.Sleep(10 * time.Second)
					if dies {
						w.kill()
						w.boot()
					}
					time.Sleep(15 * time.Second) // 25 s after the loss
					if w.machine.mu.Lock(); slices.Contains(w.journal, "start app/1") {
						w.Errorf("the container did not wait for the one before it: %q", w.journal)
					}
					w.machine.mu.Unlock()
					time.Sleep(time.Minute)
					if s := w.container(ref, "app"); s.RestartCount != 1 || s.State.Running == nil {
						w.Errorf("%+v", s)
					}
					if s := w.container(ref, "done"); s.RestartCount != 0 || s.State.Terminated == nil {
						w.Errorf("the result of a container that was done is %+v", s)
					}
				})
			})
		}
	}
}

// After a boot the sandbox of a pod is not ready and has no address. That of the node would lead
// Services there.
func TestAPodHasTheAddressOfItsNodeOnlyInItsNetwork(t *testing.T) {
	for name, tc := range map[string]struct {
		hostNetwork, ready bool
		want               string
	}{
		"not ready":                       {false, false, ""},
		"not ready in the host's network": {true, false, "192.0.2.1"},
		"ready":                           {false, true, "192.0.2.1"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorldWith(t, func(w *world) { w.boxed = true }, func(w *world) {
				pod := podOf(corev1.RestartPolicyAlways, command("app", "forever"))
				pod.Spec.HostNetwork = tc.hostNetwork
				pod.Spec.Containers[0].ReadinessProbe = execProbe("exit", "0")
				ref := w.start(pod)
				time.Sleep(10 * time.Second)
				w.kill()
				w.machine.mu.Lock()
				for _, b := range w.boxes {
					b.Ready, b.IPs = tc.ready, nil
				}
				w.machine.mu.Unlock()
				w.boot()
				w.link.setBefore(func(op string) error {
					if op == "SetUpPod" {
						return errors.New("the network is not ready")
					}
					return nil
				})
				time.Sleep(time.Hour)
				s := w.state(ref).Status
				if s.PodIP != tc.want || len(s.PodIPs) > 0 != (tc.want != "") || s.HostIP != "192.0.2.1" {
					w.Errorf("the pod has %q, %v, want %q", s.PodIP, s.PodIPs, tc.want)
				}
			})
		})
	}
}

func TestAPodThatNeverRestartsEndsWithItsSandbox(t *testing.T) {
	inWorldWith(t, func(w *world) { w.boxed = true }, func(w *world) {
		ref := w.start(podOf(corev1.RestartPolicyNever, command("app", "forever")))
		time.Sleep(time.Second)
		w.lose(ref.UID)
		time.Sleep(10 * time.Second)
		if s := w.state(ref); !s.Stopped {
			w.Errorf("%+v", s)
		}
		w.expect("set up", "start app/0", "stop app/0", "tear down")
	})
}

func TestASandboxThatFailsIsTriedAgain(t *testing.T) {
	inWorldWith(t, func(w *world) { w.boxed = true }, func(w *world) {
		tries := 0
		w.link.setBefore(func(op string) error {
			if op == "SetUpPod" {
				if tries++; tries <= 3 {
					return errors.New("no address is left")
				}
			}
			return nil
		})
		ref := w.start(podOf(corev1.RestartPolicyAlways, command("app", "forever")))
		time.Sleep(6 * time.Second)
		if c := w.container(ref, "app"); c.State.Waiting == nil || !strings.Contains(c.State.Waiting.Message, "no address is left") {
			w.Errorf("without a sandbox the container has %+v", c.State)
		}
		time.Sleep(2 * time.Second)
		w.begun("app", 7*time.Second) // after 1, 2 and 4 s
	})
}

// Whatever a SetUpPod that failed has left, such as the devices of claims, goes before the pod
// counts as stopped.
// A runtime can fail for hours, and at once or at the deadline of the call. Nothing of the pod may count as ended until then,
// and it ends soon after that.
func TestAPodEndsOnceItsRuntimeAnswersAgain(t *testing.T) {
	for _, takes := range []time.Duration{0, 2 * time.Minute} {
		for _, op := range []string{"Stop", "TearDownPod"} {
			inWorldWith(t, func(w *world) { w.boxed = true }, func(w *world) {
				var calls atomic.Int64
				w.link.setBefore(func(called string) error {
					if called != op {
						return nil
					}
					calls.Add(1)
					time.Sleep(takes)
					return context.DeadlineExceeded
				})
				ref := w.start(podOf(corev1.RestartPolicyAlways, command("app", "stubborn")))
				time.Sleep(10 * time.Second)
				w.stop(ref, 30*time.Second)
				calls.Store(0)
				time.Sleep(20 * time.Minute)
				if w.state(ref).Stopped {
					t.Errorf("%s fails, and the pod counts as stopped", op)
				}
				if n, most := calls.Load(), int64(20*60+1); n < 5 || n > most { // one a second, and one at the beginning
					t.Errorf("%s was called %d times in 20 minutes, want 5 to %d", op, n, most)
				}
				w.link.setBefore(nil)
				time.Sleep(takes + 2*time.Minute)
				if !w.state(ref).Stopped {
					t.Errorf("%s succeeds, and the pod has not stopped", op)
				}
			})
		}
	}
}

func TestAPodWithoutASandboxIsTornDownToo(t *testing.T) {
	inWorldWith(t, func(w *world) { w.boxed = true }, func(w *world) {
		w.link.setBefore(func(op string) error {
			if op == "SetUpPod" {
				return errors.New("no address is left")
			}
			return nil
		})
		ref := w.start(podOf(corev1.RestartPolicyNever, command("app", "forever")))
		time.Sleep(40 * time.Second) // the next try is a while off
		hanging := make(chan struct{})
		w.link.setBefore(func(op string) error {
			if op == "TearDownPod" {
				<-hanging
			}
			return nil
		})
		w.stop(ref, time.Minute)
		synctest.Wait()
		if w.state(ref).Stopped {
			t.Error("it counts as stopped before TearDownPod has returned")
		}
		close(hanging)
		synctest.Wait()
		if !w.state(ref).Stopped {
			t.Error("it does not count as stopped")
		}
		w.expect("tear down")
	})
}

// TestFewContainersOfAPodAreLaunchedAtOnce: each has a copy of the pod, so a pod with thousands of
// containers and a slow registry took the memory of the node.
func TestFewContainersOfAPodAreLaunchedAtOnce(t *testing.T) {
	inWorldWith(t, func(w *world) { w.boxed = true }, func(w *world) {
		var mu sync.Mutex
		pulls, most := 0, 0
		count := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			pulls += n
			most = max(most, pulls)
		}
		w.link.setBefore(func(op string) error {
			if op == "Pull" {
				count(1)
				time.Sleep(time.Second)
				count(-1)
			}
			return nil
		})
		pod := podOf(corev1.RestartPolicyAlways)
		for i := range 100 {
			pod.Spec.Containers = append(pod.Spec.Containers, command(fmt.Sprint("c", i), "forever"))
		}
		ref := w.start(pod)
		time.Sleep(time.Minute)
		synctest.Wait()
		if most != 32 {
			t.Errorf("%d images were pulled at once", most)
		}
		for _, c := range w.state(ref).Status.ContainerStatuses {
			if c.State.Running == nil || c.RestartCount > 0 {
				t.Errorf("%+v", c)
			}
		}
	})
}

// Who waits for a registry holds up no other pod.
func TestAPullTakesNoPlaceOfAStart(t *testing.T) {
	inWorldWith(t, func(w *world) {
		w.boxed = true
		w.change = func(cfg *podruntime.Config) { cfg.MaxStarts = 1 }
	}, func(w *world) {
		var pulls atomic.Int32
		registry := make(chan error)
		w.link.setBefore(func(op string) error {
			if op == "Pull" && pulls.Add(1) == 1 {
				return <-registry
			}
			return nil
		})
		refs := make([]podsync.Ref, 2)
		for i, name := range []string{"far", "near"} {
			pod := podOf(corev1.RestartPolicyAlways, command(name, "forever"))
			pod.UID, pod.Name = types.UID("uid-"+name), name
			refs[i] = w.start(pod)
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		w.expect("set up", "set up", "start near/0")
		if c := w.container(refs[0], "far"); c.State.Waiting == nil {
			t.Errorf("%+v", c.State)
		}
		registry <- &podruntime.StartError{Reason: "ErrImagePull", BackoffReason: "ImagePullBackOff", Err: errors.New("not found")}
		synctest.Wait()
		if c := w.container(refs[0], "far"); c.State.Waiting == nil || c.State.Waiting.Reason != "ImagePullBackOff" {
			t.Errorf("%+v", c.State)
		}
		time.Sleep(time.Minute)
		w.expect("set up", "set up", "start near/0", "start far/0")
	})
}

func TestAnEphemeralContainerRunsOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		pod := podOf(corev1.RestartPolicyAlways, command("app", "forever"))
		ref := w.start(pod)
		time.Sleep(time.Second)
		pod = pod.DeepCopy()
		pod.Generation = 2
		pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Command: []string{"exit", "3", "5s"}}}}
		s, err := w.p.Update(w.Context(), pod)
		if err != nil || s.Generation != 2 {
			w.Fatalf("Update: %+v, %v", s, err)
		}
		time.Sleep(2 * time.Second)
		if c := w.container(ref, "debug"); c.State.Running == nil {
			w.Errorf("debug is %+v", c)
		}
		w.kill()
		w.boot()
		time.Sleep(time.Hour)
		w.expect("start app/0", "start debug/0")
		if c := w.container(ref, "debug"); c.State.Terminated == nil || c.State.Terminated.ExitCode != 3 {
			w.Errorf("debug is %+v", c)
		}
	})
}

// A slow is a Runtime whose container "first" is created and does not start for an hour.
type slow struct{ *link }

func (s slow) List(ctx context.Context, pod types.UID) ([]podruntime.Container, error) {
	list, err := s.link.List(ctx, pod)
	if time.Since(s.begin) > time.Second && len(list) == 0 {
		list = append(list, podruntime.Container{ID: podruntime.ContainerID{Pod: "uid-1", Name: "first"}})
	}
	return list, err
}

func TestACreatedContainerWaitsWithPodInitializing(t *testing.T) {
	prepare := func(w *world) {
		w.change = func(cfg *podruntime.Config) { cfg.Runtime = slow{w.link} }
	}
	inWorldWith(t, prepare, func(w *world) {
		w.link.setBefore(func(op string) error {
			if op == "Start" {
				time.Sleep(time.Hour)
			}
			return nil
		})
		pod := podOf(corev1.RestartPolicyNever, command("app", "forever"))
		pod.Spec.InitContainers = []corev1.Container{command("first", "exit 0")}
		ref := w.start(pod)
		time.Sleep(2 * time.Minute) // it is listed again
		if c := w.container(ref, "first"); c.State.Waiting == nil || c.State.Waiting.Reason != "PodInitializing" {
			w.Errorf("first has %+v", c)
		}
		time.Sleep(time.Hour)
	})
}

// A choosy is a Runtime that can't run containers with the image "bad".
type choosy struct{ *link }

func (choosy) Check(pod *corev1.Pod) error {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.Image == "bad" {
			return errors.New("container " + c.Name + " is bad")
		}
	}
	return nil
}

func TestAnEphemeralContainerThatTheRuntimeCanNotRunWaits(t *testing.T) {
	prepare := func(w *world) {
		w.change = func(cfg *podruntime.Config) { cfg.Runtime = choosy{w.link} }
	}
	inWorldWith(t, prepare, func(w *world) {
		pod := podOf(corev1.RestartPolicyAlways, command("app", "forever"))
		ref := w.start(pod)
		time.Sleep(time.Second)
		pod = pod.DeepCopy()
		pod.Generation = 2
		pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{
			{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "refused", Image: "bad", Command: []string{"forever"}}},
			{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "options", Command: []string{"forever"},
				VolumeMounts: []corev1.VolumeMount{{MountPath: "/m", BindMountOptions: []string{"nodev"}}}}},
			{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Command: []string{"forever"}}},
		}
		if _, err := w.p.Update(w.Context(), pod); err != nil {
			w.Fatal(err)
		}
		time.Sleep(time.Hour)
		for name, why := range map[string]string{"refused": "container refused is bad", "options": "bindMountOptions of the mount at /m"} {
			if c := w.container(ref, name); c.State.Waiting == nil || c.State.Waiting.Reason != "CreateContainerConfigError" || !strings.Contains(c.State.Waiting.Message, why) {
				w.Errorf("%s is %+v", name, c)
			}
		}
		w.expect("start app/0", "start debug/0")
	})
}

func TestANewImageStartsTheContainerAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		pod := podOf(corev1.RestartPolicyNever, command("app", "forever"), command("other", "forever"))
		ref := w.start(pod)
		time.Sleep(time.Second)
		pod = pod.DeepCopy()
		pod.Spec.Containers[0].Image = "new"
		if _, err := w.p.Update(w.Context(), pod); err != nil {
			w.Fatal(err)
		}
		time.Sleep(time.Second)
		w.expect("start app/0 & start other/0", "stop app/0", "start app/1")
		if c := w.container(ref, "app"); c.Image != "new" || c.RestartCount != 1 {
			w.Errorf("app is %+v", c)
		}
		time.Sleep(time.Hour)
		w.expect("start app/0 & start other/0", "stop app/0", "start app/1")
	})
}

// The old image is that of the container until the new one runs.
func TestTheStatusHasTheImageOfTheRunThatItShows(t *testing.T) {
	inWorld(t, func(w *world) {
		pod := podOf(corev1.RestartPolicyAlways, command("app", "stubborn"))
		pod.Spec.InitContainers = []corev1.Container{command("init", "exit 0")}
		ref := w.start(pod)
		time.Sleep(time.Second)
		pod = pod.DeepCopy()
		pod.Spec.InitContainers[0].Image, pod.Spec.Containers[0].Image = "new", "new"
		w.link.setBefore(func(op string) error {
			if op == "Start" {
				return &podruntime.StartError{Reason: "ErrImagePull", Err: errors.New("not found")}
			}
			return nil
		})
		w.update(pod)
		expect := func(when, app string) {
			w.Helper()
			if a, i := w.container(ref, "app").Image, w.container(ref, "init").Image; a != app || i != "image" {
				w.Errorf("%s the images are %s and %s, want %s and image", when, a, i, app)
			}
		}
		expect("while the old one ends,", "image")
		time.Sleep(40 * time.Second)
		expect("while the new one can't be pulled,", "image")
		w.link.setBefore(nil)
		time.Sleep(5 * time.Minute)
		expect("at the end,", "new")
	})
}

func TestResourcesChangeInPlace(t *testing.T) {
	cpu := func(c corev1.Container, n string) corev1.Container {
		c.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(n)}
		return c
	}
	for _, boxed := range []bool{true, false} {
		t.Run(fmt.Sprintf("resizer %v", boxed), func(t *testing.T) {
			inWorldWith(t, func(w *world) { w.boxed = boxed }, func(w *world) {
				restarts := cpu(command("restarts", "forever"), "1")
				restarts.ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.RestartContainer}}
				pod := podOf(corev1.RestartPolicyAlways, cpu(command("app", "forever"), "1"), restarts)
				ref := w.start(pod)
				time.Sleep(time.Second)
				pod = pod.DeepCopy()
				pod.Spec.Containers[0] = cpu(pod.Spec.Containers[0], "2")
				pod.Spec.Containers[1] = cpu(pod.Spec.Containers[1], "3")
				if _, err := w.p.Update(w.Context(), pod); err != nil {
					w.Fatal(err)
				}
				time.Sleep(time.Second)
				conditions := w.state(ref).Status.Conditions
				pending := slices.ContainsFunc(conditions, func(c corev1.PodCondition) bool {
					return c.Type == corev1.PodResizePending && c.Reason == corev1.PodReasonInfeasible
				})
				if pending == boxed {
					w.Errorf("conditions %+v", conditions)
				}
				if !boxed {
					return
				}
				w.expectResized("app/0 2 of 5")
				for name, want := range map[string]string{"app": "2", "restarts": "3"} {
					c := w.container(ref, name)
					if c.Resources == nil || c.Resources.Limits.Cpu().String() != want {
						w.Errorf("%s has %+v, want %s", name, c.Resources, want)
					}
				}
				if n := w.container(ref, "restarts").RestartCount; n != 1 {
					w.Errorf("the container that needs a restart has %d", n)
				}
			})
		})
	}
}

func TestWithoutAListNothingIsDecided(t *testing.T) {
	inWorld(t, func(w *world) {
		ref := w.start(podOf(corev1.RestartPolicyAlways, command("c", "exit 1 10s")))
		time.Sleep(time.Second)
		w.link.setBefore(func(op string) error {
			if op == "List" {
				return errors.New("the runtime is away")
			}
			return nil
		})
		time.Sleep(time.Minute)
		w.expect("start c/0")
		if c := w.container(ref, "c"); c.State.Running == nil {
			w.Errorf("without a list it is %+v", c.State)
		}
		w.link.setBefore(nil)
		time.Sleep(2 * time.Second)
		w.expect("start c/0", "start c/1")
	})
}

func TestAPullThatFailsBacksOffUnderItsOwnReason(t *testing.T) {
	inWorld(t, func(w *world) {
		var tries []time.Duration
		w.link.setBefore(func(op string) error {
			if op != "Start" {
				return nil
			}
			if tries = append(tries, time.Since(w.begin)); len(tries) > 3 {
				return nil
			}
			return &podruntime.StartError{Reason: "ErrImagePull", BackoffReason: "ImagePullBackOff", Err: errors.New("not found")}
		})
		ref := w.start(podOf(corev1.RestartPolicyAlways, command("c", "forever")))
		time.Sleep(time.Second)
		if c := w.container(ref, "c"); c.State.Waiting == nil || c.State.Waiting.Reason != "ImagePullBackOff" || c.State.Waiting.Message != "not found" || c.RestartCount != 0 {
			w.Errorf("%+v", c)
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		const s = time.Second
		if want := []time.Duration{0, 10 * s, 30 * s, 70 * s}; !slices.Equal(tries, want) {
			w.Errorf("tried at %v, want %v", tries, want)
		}
		if c := w.container(ref, "c"); c.State.Running == nil {
			w.Errorf("%+v", c)
		}
	})
}

func TestAContainerThatTheRuntimeLostHasEnded(t *testing.T) {
	inWorld(t, func(w *world) {
		ref := w.start(podOf(corev1.RestartPolicyNever, command("c", "forever")))
		time.Sleep(time.Second)
		w.memory.mu.Lock()
		clear(w.containers)
		w.report(ref.UID)
		w.memory.mu.Unlock()
		s := w.state(ref)
		if end := s.Status.ContainerStatuses[0].State.Terminated; end == nil || end.Reason != "ContainerStatusUnknown" || end.ExitCode != 137 || !s.Stopped {
			w.Errorf("%+v", s)
		}
		w.kill()
		w.boot()
		time.Sleep(time.Hour)
		w.expect("start c/0")
	})
}

func TestAStartThatTheRuntimeCantDateYetKeepsTheTimeItWasSeen(t *testing.T) {
	inWorldWith(t, func(w *world) { w.young = true }, func(w *world) {
		seen := time.Now()
		ref := w.start(podOf(corev1.RestartPolicyAlways, command("c", "forever")))
		time.Sleep(time.Second)
		check := func() {
			w.Helper()
			if run := w.container(ref, "c").State.Running; run == nil || !run.StartedAt.Time.Equal(seen) {
				w.Errorf("the container shows %+v, want a start at %v", run, seen)
			}
		}
		check()
		w.kill()
		w.young = false
		w.memory.mu.Lock()
		for _, c := range w.containers {
			c.StartedAt = seen.Add(time.Millisecond)
		}
		w.memory.mu.Unlock()
		w.boot()
		time.Sleep(time.Second)
		check()
	})
}

func TestContainersWithoutAPodAreRemoved(t *testing.T) {
	inWorld(t, func(w *world) {
		pod := podOf(corev1.RestartPolicyAlways, command("c", "forever"))
		ref := w.start(pod)
		time.Sleep(time.Second)
		w.kill()
		dir := filepath.Join(w.root, "pods", string(ref.UID))
		if err := os.RemoveAll(dir); err != nil {
			w.Fatal(err)
		}
		w.boot()
		time.Sleep(50 * time.Second)
		w.expect("start c/0") // podsync may start it again in time
		time.Sleep(5 * time.Minute)
		w.expect("start c/0", "stop c/0")
		if len(w.containers) > 0 {
			w.Errorf("left: %v", w.containers)
		}
	})
}

// A stuck is a Runtime that does not end the containers of some pods.
type stuck struct {
	*link
	stops *[]time.Duration // of the pod that fails, since the beginning
}

func (s stuck) Stop(ctx context.Context, id podruntime.ContainerID, opts podruntime.StopOptions) error {
	switch id.Pod {
	case "hangs":
		<-ctx.Done()
		return ctx.Err()
	case "fails":
		if *s.stops = append(*s.stops, time.Since(s.begin).Truncate(time.Second)); len(*s.stops) == 6 {
			return nil // and the container runs on
		}
		return errors.New("no such process")
	}
	return s.link.Stop(ctx, id, opts)
}

func TestAStrayThatDoesNotEndHoldsUpNoOther(t *testing.T) {
	var stops []time.Duration
	inWorldWith(t, func(w *world) {
		w.lines = &lines{}
		w.change = func(cfg *podruntime.Config) { cfg.Runtime, cfg.Relist = stuck{w.link, &stops}, time.Second }
	}, func(w *world) {
		for _, uid := range []types.UID{"hangs", "fails", "a", "b", "c"} {
			w.stray(uid, string(uid), "forever")
		}
		time.Sleep(80 * time.Second)
		w.expect("stop a/0 & stop b/0 & stop c/0")
		if len(w.containers) != 2 {
			w.Errorf("left: %v", w.containers)
		}
		w.logged(0, "Containers without a pod are still there")
		time.Sleep(220 * time.Second)
		synctest.Wait()
		var waits []time.Duration
		for i := range stops[1:] {
			waits = append(waits, stops[i+1]-stops[i])
		}
		if want := []time.Duration{1e9, 2e9, 4e9, 8e9, 16e9, 10e9, 1e9, 2e9, 4e9, 8e9, 16e9, 32e9, 60e9, 60e9}; !slices.Equal(waits, want) {
			w.Errorf("the waits between the tries are %v, want %v", waits, want)
		}
	})
}

// A pod that is started again while its containers are being removed starts with new ones.
func TestAPodIsNotStartedWhileItsContainersAreRemoved(t *testing.T) {
	for name, block := range map[string]func(l *link, f func(op string) error){
		"Remove":    (*link).setBefore,
		"RemovePod": (*link).setAfter, // nothing of the pod is listed any longer
	} {
		t.Run(name, func(t *testing.T) {
			inWorldWith(t, func(w *world) {
				w.boxed = true
				w.change = func(cfg *podruntime.Config) { cfg.Relist = time.Second }
			}, func(w *world) {
				pod := podOf(corev1.RestartPolicyNever, command("c", "forever"))
				w.stray(pod.UID, "c", "exit", "0")
				release := make(chan struct{})
				block(w.link, func(op string) error {
					if op == name {
						<-release
					}
					return nil
				})
				time.Sleep(70 * time.Second)
				if _, err := w.p.Start(w.Context(), pod); err == nil {
					w.Error("it was started while its containers are being removed")
				}
				close(release)
				time.Sleep(time.Second)
				ref := w.start(pod)
				time.Sleep(time.Minute)
				w.expect("tear down", "set up", "start c/0")
				if c := w.container(ref, "c"); c.State.Running == nil {
					w.Errorf("%+v", c)
				}
			})
		})
	}
}

// A patient is a Runtime that takes its time to say whether it can run a pod.
type patient struct {
	*link
	checked chan error
}

func (p patient) CheckPod(context.Context, *corev1.Pod) error { return <-p.checked }

func TestAStartUnderWayKeepsItsContainers(t *testing.T) {
	var checked chan error
	inWorldWith(t, func(w *world) {
		w.change = func(cfg *podruntime.Config) {
			checked = make(chan error)
			cfg.Runtime, cfg.Relist = patient{w.link, checked}, time.Second
		}
	}, func(w *world) {
		pod := podOf(corev1.RestartPolicyAlways, command("c", "forever"))
		w.stray(pod.UID, "c", "forever")
		for _, result := range []error{errors.New("not yet"), nil} {
			time.Sleep(30 * time.Second)
			started := make(chan error, 1)
			go func() {
				_, err := w.p.Start(w.Context(), pod)
				started <- err
			}()
			time.Sleep(5 * time.Minute)
			checked <- result
			if err := <-started; !errors.Is(err, result) {
				w.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		w.expect()
		if c := w.container(podsync.RefOf(pod), "c"); c.State.Running == nil || c.RestartCount != 0 {
			w.Errorf("%+v", c)
		}
	})
}

// stray makes a container of a pod that is not in Root.
func (w *world) stray(pod types.UID, name string, command ...string) {
	w.Helper()
	spec := podruntime.ContainerSpec{ID: podruntime.ContainerID{Pod: pod, Name: name}}
	spec.Environment.Command = command
	if err := w.memory.Start(w.Context(), spec); err != nil {
		w.Error(err)
	}
}

func TestAPodWhoseDirectoryWasLostAdoptsItsContainers(t *testing.T) {
	inWorld(t, func(w *world) {
		pod := podOf(corev1.RestartPolicyAlways, command("c", "forever"))
		w.start(pod)
		time.Sleep(time.Second)
		w.kill()
		if err := os.RemoveAll(filepath.Join(w.root, "pods")); err != nil {
			w.Fatal(err)
		}
		w.boot()
		time.Sleep(30 * time.Second)
		ref := w.start(pod)
		time.Sleep(time.Hour)
		w.expect("start c/0")
		if c := w.container(ref, "c"); c.State.Running == nil || !c.Ready {
			w.Errorf("%+v", c)
		}
	})
}

func TestVolumesFollowConfigMapsAndLabels(t *testing.T) {
	var newest atomic.Pointer[corev1.Pod]
	inWorldWith(t, func(w *world) {
		w.change = func(cfg *podruntime.Config) { cfg.Pod = func(podsync.Ref) *corev1.Pod { return newest.Load() } }
	}, func(w *world) {
		put := func(value string) {
			w.api.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "cm"}, Data: map[string]string{"key": value}})
		}
		put("one")
		pod := podOf(corev1.RestartPolicyAlways, command("c", "forever"))
		pod.Labels = map[string]string{"color": "red"}
		pod.Spec.Volumes = []corev1.Volume{
			{Name: "cm", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}}},
			{Name: "labels", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
				{Path: "color", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['color']"}},
			}}}},
		}
		ref := w.start(pod)
		check := func(file, want string) {
			t.Helper()
			data, err := os.ReadFile(filepath.Join(w.root, "pods", string(ref.UID), "volumes", file))
			if err != nil || string(data) != want {
				w.Errorf("%s has %q, %v, want %q", file, data, err, want)
			}
		}
		check("cm/key", "one")
		check("labels/color", "red")
		put("two")
		changed := pod.DeepCopy()
		changed.Labels["color"] = "blue"
		newest.Store(changed)
		time.Sleep(podruntime.VolumeRefresh + time.Second)
		check("cm/key", "two")
		check("labels/color", "blue")
		w.kill()
		put("three")
		w.boot()
		time.Sleep(podruntime.VolumeRefresh + time.Second)
		check("cm/key", "three")
	})
}

// The CA of the cluster is beside a token, which lasts an hour or longer.
func TestAVolumeWithATokenFollowsItsConfigMap(t *testing.T) {
	inWorldWith(t, withServices, func(w *world) {
		pod := podOf(corev1.RestartPolicyAlways, command("c", "forever"))
		pod.Spec.ServiceAccountName = "default"
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: new(int64(86400))}},
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}},
		}}}}}
		w.start(w.api.Put(pod).(*corev1.Pod))
		requests := func(verb, resource string) int {
			return len(w.api.Requests(apitest.Match{Func: func(r apitest.Request) bool { return r.Verb == verb && r.Resource == resource }}))
		}
		time.Sleep(2*time.Hour + time.Second)
		w.api.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings"}, Data: map[string]string{"k": "changed"}})
		time.Sleep(podruntime.VolumeRefresh + time.Second)
		found, err := filepath.Glob(filepath.Join(w.root, "pods", "*", "*", "v", "k"))
		if err != nil || len(found) != 1 {
			t.Fatalf("files %q, %v", found, err)
		}
		if data, err := os.ReadFile(found[0]); err != nil || string(data) != "changed" {
			t.Errorf("after a minute the volume has %q, %v", data, err)
		}
		if tokens, reads := requests("create", "serviceaccounts"), requests("get", "configmaps"); tokens != 1 || reads != 122 {
			t.Errorf("%d tokens and %d reads of the ConfigMap in 121 minutes", tokens, reads)
		}
		time.Sleep(20 * time.Hour)
		if tokens := requests("create", "serviceaccounts"); tokens != 2 { // 80 % of a day are 19.2 hours
			t.Errorf("%d tokens in 22 hours", tokens)
		}
	})
}

// Another try can't help a pod of a few KB whose references multiply.
func TestAPodWithAnEnvironmentWithoutLimitIsRefused(t *testing.T) {
	inWorld(t, func(w *world) {
		c := command("c", "forever")
		c.Env = []corev1.EnvVar{{Name: "V0", Value: strings.Repeat("x", 1<<10)}, {Name: "V1", Value: strings.Repeat("$(V0)", 1<<8)}, {Name: "V2", Value: strings.Repeat("$(V1)", 1<<8)}}
		_, err := w.p.Start(w.Context(), podOf(corev1.RestartPolicyAlways, c))
		var reject *podsync.RejectError
		if !errors.As(err, &reject) || reject.Reason != "ContainerConfigError" || !strings.Contains(reject.Message, "container c: envFrom, env, command and args: ") {
			w.Errorf("Start: %v, want a rejection that names the container", err)
		}
		w.expect()
	})
}

// A container that can't start because an annotation is missing starts when the pod has it.
func TestAStartHasTheNewestLabelsAndAnnotations(t *testing.T) {
	var newest atomic.Pointer[corev1.Pod]
	inWorldWith(t, func(w *world) {
		w.change = func(cfg *podruntime.Config) { cfg.Pod = func(podsync.Ref) *corev1.Pod { return newest.Load() } }
	}, func(w *world) {
		c := command("c", "forever")
		field := func(path string) *corev1.EnvVarSource {
			return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
		}
		c.Env = []corev1.EnvVar{{Name: "SUB", ValueFrom: field("metadata.annotations['sub']")}}
		c.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data", SubPathExpr: "$(SUB)/x"}}
		pod := podOf(corev1.RestartPolicyAlways, c)
		pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		ref := w.start(pod)
		other := pod.DeepCopy()
		other.UID, other.Annotations = "another", map[string]string{"sub": "wrong"}
		newest.Store(other)
		time.Sleep(2 * time.Minute)
		if state := w.container(ref, "c").State; state.Waiting == nil || state.Waiting.Reason != "CreateContainerConfigError" {
			w.Errorf("without the annotation the container is %+v", state)
		}
		w.expect()
		changed := pod.DeepCopy()
		changed.Annotations = map[string]string{"sub": "right"}
		newest.Store(changed)
		time.Sleep(2 * time.Minute)
		w.expect("start c/0")
		if _, err := os.Stat(filepath.Join(w.root, "pods", string(ref.UID), "volumes", "data", "right", "x")); err != nil {
			w.Error(err)
		}
	})
}

func TestTerminationMessages(t *testing.T) {
	inWorld(t, func(w *world) {
		c := command("log", "exit 1")
		c.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
		file := command("file", "exit 0 5s")
		file.TerminationMessagePath = "/dev/termination-log"
		ref := w.start(podOf(corev1.RestartPolicyNever, c, file))
		time.Sleep(time.Second)
		if err := os.WriteFile(filepath.Join(w.root, "pods", string(ref.UID), "messages", "file"), []byte("written\xff"+strings.Repeat("x", 4000)), 0o600); err != nil {
			w.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		for range 2 {
			s := w.state(ref)
			if m := s.Status.ContainerStatuses[0].State.Terminated.Message; m != "the last line" {
				w.Errorf("from the log: %q", m)
			}
			if m := s.Status.ContainerStatuses[1].State.Terminated.Message; !strings.HasPrefix(m, "written\uFFFDxxx") {
				w.Errorf("from the file: %q", m)
			}
			w.kill()
			w.boot()
		}
	})
}

func TestOldRunsAreRemoved(t *testing.T) {
	inWorld(t, func(w *world) {
		ref := w.start(podOf(corev1.RestartPolicyAlways, command("c", "exit 1")))
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := len(w.containers); n != 2 {
			w.Errorf("the runtime has %d runs, want 2", n)
		}
		records, err := filepath.Glob(filepath.Join(w.root, "pods", string(ref.UID), "runs", "*"))
		if err != nil || len(records) != 2 {
			w.Errorf("records %q, %v", records, err)
		}
	})
}

// The process dies at every call of the runtime, before and after its effect. No
// container may run twice at once, a container that must not restart runs once, and
// each exit code arrives.
func TestADeathAtAnyCallLosesNothing(t *testing.T) {
	step := 1
	if testing.Short() {
		step = 3
	}
	for _, boxed := range []bool{false, true} {
		for _, after := range []bool{false, true} {
			for at := 0; ; at += step {
				var reached atomic.Bool
				inWorldWith(t, func(w *world) { w.boxed = boxed }, func(w *world) {
					synctest.Wait() // until it has listed: Start waits for that
					var n atomic.Int32
					die := func(string) error {
						if n.Add(1) <= int32(at) {
							return nil
						}
						reached.Store(true)
						w.link.setBefore(func(string) error { return errCut })
						return errCut
					}
					if after {
						w.link.setAfter(die)
					} else {
						w.link.setBefore(die)
					}
					pod := podOf(corev1.RestartPolicyNever, command("app", "exit 3 5s"), command("other", "exit 0 8s"))
					pod.Spec.InitContainers = []corev1.Container{command("init", "exit 0 1s"), sidecarOf(command("side", "forever"))}
					ref := w.start(pod)
					time.Sleep(time.Minute)
					w.kill()
					w.boot()
					time.Sleep(time.Minute)
					s := w.state(ref)
					if !s.Stopped {
						w.Errorf("died at call %d (after %v): it has not stopped: %+v", at, after, s.Status)
					}
					for name, code := range map[string]int32{"init": 0, "app": 3, "other": 0} {
						c := w.container(ref, name)
						if c.State.Terminated == nil || c.State.Terminated.ExitCode != code || len(w.started(name)) != 1 {
							w.Errorf("died at call %d (after %v): %s was started %d times and has %+v", at, after, name, len(w.started(name)), c.State)
						}
					}
					if n := len(w.started("side")); n != 1 {
						w.Errorf("died at call %d (after %v): the sidecar was started %d times", at, after, n)
					}
					if err := w.p.Release(w.Context(), ref); err != nil {
						w.Error(err)
					}
					if len(w.containers)+len(w.boxes) > 0 {
						w.Errorf("left: %v, %v", w.containers, w.boxes)
					}
				})
				if !reached.Load() {
					if at < 10 {
						t.Errorf("there were only %d calls", at)
					}
					break
				}
				if t.Failed() {
					return
				}
			}
		}
	}
}

func TestAPanicOfTheRuntimeConcernsOneCall(t *testing.T) {
	for _, boxed := range []bool{false, true} {
		calls := map[string]bool{}
		inWorldWith(t, func(w *world) { w.boxed = boxed }, func(w *world) {
			synctest.Wait()
			var mu sync.Mutex
			w.link.setBefore(func(op string) error {
				mu.Lock()
				defer mu.Unlock()
				if !calls[op] {
					calls[op] = true
					panic("a fault of " + op)
				}
				return nil
			})
			pod := podOf(corev1.RestartPolicyNever, command("app", "exit 3 5s"))
			pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
				ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}, TimeoutSeconds: 1, PeriodSeconds: 1, FailureThreshold: 1, SuccessThreshold: 1,
			}
			ref := w.start(pod)
			time.Sleep(time.Minute)
			if s := w.state(ref); !s.Stopped || s.Status.ContainerStatuses[0].State.Terminated.ExitCode != 3 || len(w.started("app")) != 1 {
				w.Errorf("after %d starts: %+v", len(w.started("app")), s)
			}
			for err := w.p.Release(w.Context(), ref); err != nil; err = w.p.Release(w.Context(), ref) {
				if !errors.As(err, new(*podsync.PanicError)) {
					w.Fatal(err)
				}
			}
		})
		want := []string{"Exec", "List", "Remove", "Start"}
		if boxed {
			want = []string{"Exec", "List", "ListPods", "Pull", "Remove", "RemovePod", "SetUpPod", "Start", "TearDownPod"}
		}
		if got := slices.Sorted(maps.Keys(calls)); !slices.Equal(got, want) {
			t.Errorf("the calls that panicked were %q, want %q", got, want)
		}
	}
}

// A faulty is what an embedder hands in besides the Runtime. It panics while broken is set.
type faulty struct {
	*link
	broken atomic.Bool
	corev1client.ConfigMapsGetter
}

func (f *faulty) fail(callback string) {
	if f.broken.Load() {
		panic("a fault of " + callback)
	}
}

func (f *faulty) Check(*corev1.Pod) error { f.fail("Check"); return nil }

func (f *faulty) ConfigMaps(namespace string) corev1client.ConfigMapInterface {
	f.fail("ConfigMaps")
	return f.ConfigMapsGetter.ConfigMaps(namespace)
}

func (f *faulty) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {
	f.fail("Eventf")
}

func (f *faulty) Resize(context.Context, podruntime.ContainerID, *corev1.Pod, *corev1.Container) error {
	return nil
}

// Functions of Config and the Check of an ephemeral container are called by goroutines of the Provider, where a panic would
// end the process. One pod waits until they return again, and the other one runs.
func TestAPanicOfAFunctionOfTheProgramConcernsOnePod(t *testing.T) {
	f := &faulty{}
	prepare := func(w *world) {
		w.change = func(cfg *podruntime.Config) {
			f.link = w.link
			core := w.api.Client(apitest.User{}).CoreV1()
			f.ConfigMapsGetter = core
			env, err := podenv.New(podenv.Config{ConfigMaps: f, Secrets: core, Allocatable: func() corev1.ResourceList { f.fail("Allocatable of podenv"); return nil }})
			if err != nil {
				w.Fatal(err)
			}
			cfg.Runtime, cfg.Environment, cfg.EventRecorder = f, env, f
			cfg.Allocatable = func() corev1.ResourceList {
				f.fail("Allocatable")
				return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourcePods: resource.MustParse("10")}
			}
		}
	}
	inWorldWith(t, prepare, func(w *world) {
		data := func(value string) *corev1.ConfigMap {
			return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings"}, Data: map[string]string{"KEY": value}}
		}
		w.api.Put(data("1"))
		app := command("app", "exit 1 10s")
		app.Env = []corev1.EnvVar{{Name: "CPUS", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}}}}
		app.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
		pod := podOf(corev1.RestartPolicyAlways, app)
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}, DefaultMode: new(int32(0o644)),
		}}}, {Name: "fields", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{DefaultMode: new(int32(0o644)), Items: []corev1.DownwardAPIVolumeFile{
			{Path: "cpus", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "app", Resource: "limits.cpu"}},
		}}}}}
		if err := w.p.Admit(w.Context(), pod, slices.Values([]*corev1.Pod(nil))); err != nil {
			w.Fatal(err)
		}
		ref := w.start(pod)
		time.Sleep(5 * time.Second)

		f.broken.Store(true)
		pod = pod.DeepCopy()
		pod.Generation = 2
		pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("2")
		pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Command: []string{"forever"}}}}
		w.update(pod)
		time.Sleep(time.Minute)
		for name, message := range map[string]string{"app": "panic in Config.Environment: a fault of Allocatable of podenv", "debug": "panic in Checker.Check: a fault of Check"} {
			if c := w.container(ref, name); c.State.Waiting == nil || !strings.Contains(c.State.Waiting.Message, message) {
				w.Errorf("%s is %+v, want a wait for %q", name, c.State, message)
			}
		}
		w.expectResize(pod, corev1.PodReasonDeferred, "panic in Config.Allocatable: a fault of Allocatable", "1", "1")

		f.broken.Store(false)
		w.api.Put(data("2"))
		time.Sleep(10 * time.Minute)
		if n := len(w.started("app")); n < 3 {
			w.Errorf("app started %d times", n)
		}
		if c := w.container(ref, "debug"); c.State.Running == nil {
			w.Errorf("debug is %+v", c.State)
		}
		w.expectResize(pod, "", "", "2", "2")
		if got, err := os.ReadFile(filepath.Join(w.root, "pods", string(ref.UID), "volumes", "v", "KEY")); err != nil || string(got) != "2" {
			w.Errorf("the volume has %q (%v)", got, err)
		}
	})
}

// Config.Pod and Config.Evict are called by goroutines of the Provider, too. A panic in them counts as no newer version, and
// as an eviction that has failed.
func TestAPanicOfPodOrEvictEndsNothing(t *testing.T) {
	var f faulty
	var e evictions
	inWorldWith(t, func(w *world) {
		w.change = func(cfg *podruntime.Config) {
			cfg.Pod = func(podsync.Ref) *corev1.Pod { f.fail("Pod"); return nil }
			cfg.Evict = func(ref podsync.Ref, eviction podsync.Eviction) error {
				f.fail("Evict")
				return e.evict(ref, eviction)
			}
		}
	}, func(w *world) {
		f.broken.Store(true)
		pod := withVolume()
		pod.Spec.Containers[0] = command("app", "exit 1 10s")
		ref := w.start(pod)
		w.fill(pod, 1<<21)
		time.Sleep(55 * time.Second)
		if n := len(w.started("app")); n != 3 {
			w.Errorf("app was started %d times, want 3", n)
		}
		e.expect(w)
		f.broken.Store(false)
		time.Sleep(10 * time.Second)
		e.expect(w, `uid-1 1s true Usage of EmptyDir volume "v" exceeds the limit "1Mi".`)
		w.stop(ref, time.Second)
		time.Sleep(time.Minute)
		if !w.state(ref).Stopped {
			w.Errorf("the pod has not stopped: %+v", w.state(ref))
		}
	})
}

// A Runtime that can't tell whether a run had begun when its Start was cut off does not start it again.
func TestARunThatMayHaveBegunIsNotRepeated(t *testing.T) {
	for _, dies := range []bool{false, true} {
		for policy, want := range map[corev1.RestartPolicy][]string{corev1.RestartPolicyNever: nil, corev1.RestartPolicyAlways: {"start app/1"}} {
			inWorld(t, func(w *world) {
				var once sync.Once
				w.link.setBefore(func(op string) (err error) {
					if op == "Start" {
						once.Do(func() { err = fmt.Errorf("cut off: %w", podruntime.ErrMayHaveRun) })
					}
					return err
				})
				ref := w.start(podOf(policy, command("app", "forever")))
				time.Sleep(time.Second)
				if dies {
					w.kill()
					w.boot()
				}
				time.Sleep(time.Hour)
				w.expect(want...)
				c := w.container(ref, "app")
				end := c.State.Terminated
				if policy == corev1.RestartPolicyAlways {
					end = c.LastTerminationState.Terminated
				}
				if end == nil || end.ExitCode != 137 || end.Reason != "ContainerStatusUnknown" || int(c.RestartCount) != len(want) {
					w.Errorf("%s: the container is %+v", policy, c)
				}
				if stopped := w.state(ref).Stopped; stopped != (policy == corev1.RestartPolicyNever) {
					w.Errorf("%s: stopped is %v", policy, stopped)
				}
			})
		}
	}
}

func TestAStartAfterOneThatFailedLateUsesItsDirectory(t *testing.T) {
	for _, deleted := range []bool{false, true} { // before that start
		inWorld(t, func(w *world) {
			pod := podOf(corev1.RestartPolicyNever, command("app", "exit 0"))
			ref := w.start(pod)
			time.Sleep(time.Minute)
			dir := filepath.Join(w.root, "pods", string(ref.UID))
			saved := filepath.Join(w.root, "saved")
			if err := os.CopyFS(saved, os.DirFS(dir)); err != nil {
				w.Fatal(err)
			}
			if err := w.p.Release(w.Context(), ref); err != nil {
				w.Fatal(err)
			}
			// As if Start had made it and had then run out of file descriptors.
			if err := os.Rename(saved, dir); err != nil {
				w.Fatal(err)
			}
			if deleted {
				w.stop(ref, time.Second)
				w.shutdown()
				w.boot()
				time.Sleep(time.Minute)
				if s, err := w.p.Inspect(w.Context(), ref); !errors.Is(err, podsync.ErrNotFound) {
					w.Errorf("a pod that was deleted is there: %+v, %v", s, err)
				}
				return
			}
			w.start(pod)
			time.Sleep(time.Minute)
			if s := w.state(ref); !s.Stopped {
				w.Errorf("%+v", s)
			}
		})
	}
}

func TestTwoProcessesDontRunTheSamePods(t *testing.T) {
	inWorld(t, func(w *world) {
		ref := w.start(podOf(corev1.RestartPolicyAlways, command("app", "forever")))
		first, stop := w.p, w.shutdown
		second, err := podruntime.New(podruntime.Config{Runtime: w.link, Root: w.root, Environment: resolver(t), HostIPs: []string{"192.0.2.1"}})
		if err != nil {
			w.Fatal(err)
		}
		if err := second.Run(w.Context()); !errors.Is(err, podruntime.ErrRootInUse) || !strings.Contains(err.Error(), w.root) {
			w.Errorf("the second process: %v, want ErrRootInUse with the directory", err)
		}
		if s, err := first.Inspect(w.Context(), ref); err != nil || s.Stopped {
			w.Errorf("the first process: %+v, %v", s, err)
		}
		stop()
		w.boot()
		time.Sleep(time.Minute)
		w.expect("start app/0")
	})
}

func TestRunRunsOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		pod := podOf(corev1.RestartPolicyAlways, command("c", "forever"))
		w.start(pod)
		if err := w.p.Run(w.Context()); !errors.Is(err, podruntime.ErrAlreadyRun) {
			w.Errorf("a second Run: %v", err)
		}
		w.shutdown()
		if _, err := w.p.List(w.Context()); !errors.Is(err, podruntime.ErrStopped) {
			w.Errorf("List after Run: %v", err)
		}
		if _, err := w.p.Start(w.Context(), podOf(corev1.RestartPolicyAlways)); !errors.Is(err, podruntime.ErrStopped) {
			w.Errorf("Start after Run: %v", err)
		}
		w.boot()
	})
}

func TestMethodsWaitForTheFirstList(t *testing.T) {
	inWorld(t, func(w *world) {
		w.start(podOf(corev1.RestartPolicyAlways, command("c", "forever")))
		time.Sleep(time.Second)
		w.kill()
		w.change = func(*podruntime.Config) {
			w.link.setBefore(func(op string) error {
				if op == "List" && time.Since(w.begin) < time.Minute {
					return errors.New("the runtime is away")
				}
				return nil
			})
		}
		w.boot()
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		if list, err := w.p.List(ctx); !errors.Is(err, context.DeadlineExceeded) {
			w.Errorf("List without the runtime: %v, %v", list, err)
		}
		list, err := w.p.List(w.Context())
		if err != nil || len(list) != 1 || list[0].Status.ContainerStatuses[0].State.Running == nil {
			w.Errorf("List when it is back: %+v, %v", list, err)
		}
	})
}

func TestADirectoryThatCantBeReadEndsRun(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "pods", "uid"), 0o700); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		p, err := podruntime.New(podruntime.Config{Runtime: newMemory(), Root: root, Environment: resolver(t), HostIPs: []string{"192.0.2.1"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "no pod.json") {
			t.Errorf("Run: %v", err)
		}
		if _, err := p.List(t.Context()); !errors.Is(err, podruntime.ErrStopped) {
			t.Errorf("List: %v", err)
		}
	})
}

func TestConfigNamesEveryProblem(t *testing.T) {
	_, err := podruntime.New(podruntime.Config{Root: "relative", Relist: -1, MaxStarts: -1, Backoff: podruntime.Backoff{Initial: -1, Max: -1, Reset: -1}})
	if _, err := podruntime.New(podruntime.Config{HostIPs: []string{"192.0.2.1", "node"}}); err == nil || !strings.Contains(err.Error(), `HostIPs[1]: Invalid value: "node"`) {
		t.Error(err)
	}
	for _, field := range []string{"Runtime", "Root", "Environment", "HostIPs", "Relist", "MaxStarts", "Backoff.Initial", "Backoff.Max", "Backoff.Reset"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name %s", err, field)
		}
	}
}

// Each step would be a PATCH, and the next one follows at once.
func TestStepsOfTheRuntimeAreNoNews(t *testing.T) {
	inWorldWith(t, func(w *world) { w.boxed = true }, func(w *world) {
		w.created.Store(true)
		w.link.setAfter(func(op string) error { // the container is created, and is being started
			if op == "Start" {
				time.Sleep(2 * time.Second)
				w.link.setAfter(nil)
			}
			return nil
		})
		ref := w.start(podOf(corev1.RestartPolicyAlways, command("app", "forever")))
		time.Sleep(time.Second)
		if c := w.state(ref).Status.ContainerStatuses[0]; c.ContainerID != "" || c.State.Waiting == nil {
			w.Errorf("a container that has not run: %+v", c)
		}
		w.created.Store(false)
		time.Sleep(time.Minute)
		if c := w.state(ref).Status.ContainerStatuses[0]; c.ContainerID == "" || c.State.Running == nil {
			w.Errorf("a container that runs: %+v", c)
		}
		ready := func() corev1.ConditionStatus {
			for _, c := range w.state(ref).Status.Conditions {
				if c.Type == corev1.PodReadyToStartContainers {
					return c.Status
				}
			}
			return ""
		}
		w.link.setBefore(func(op string) error {
			if op == "SetUpPod" {
				time.Sleep(10 * time.Second)
			}
			return nil
		})
		w.lose(ref.UID)
		time.Sleep(5 * time.Second)
		if ready() != corev1.ConditionFalse {
			w.Errorf("after the loss of the sandbox: ready to start containers %v", ready())
		}
		time.Sleep(time.Minute)
		if ready() != corev1.ConditionTrue {
			w.Errorf("in the next sandbox: ready to start containers %v", ready())
		}
		w.link.setAfter(func(op string) error {
			if op == "TearDownPod" {
				time.Sleep(10 * time.Second)
			}
			return nil
		})
		w.stop(ref, time.Second)
		time.Sleep(5 * time.Second)
		if w.state(ref).Stopped || ready() != corev1.ConditionTrue {
			w.Errorf("while the sandbox is torn down: stopped %v, ready to start containers %v", w.state(ref).Stopped, ready())
		}
		time.Sleep(time.Minute)
		if !w.state(ref).Stopped || ready() != corev1.ConditionFalse {
			w.Errorf("after that: stopped %v, ready to start containers %v", w.state(ref).Stopped, ready())
		}
	})
}

func TestARuntimeThatDoesNotListAStartIsCalledOnceASecond(t *testing.T) {
	inWorld(t, func(w *world) {
		w.created.Store(true)
		var starts atomic.Int32
		w.link.setBefore(func(op string) error {
			if op == "Start" && starts.Add(1) > 100 {
				return errCut // it never ends on the old code
			}
			return nil
		})
		w.start(podOf(corev1.RestartPolicyAlways, command("app", "forever")))
		time.Sleep(9500 * time.Millisecond)
		if n := starts.Load(); n != 10 {
			w.Errorf("%d calls of Start in ten seconds, want 10", n)
		}
	})
}

// A reader computes the back-off from the count, the start and the last end.
func TestARestartCountsWhenItHasBegun(t *testing.T) {
	inWorld(t, func(w *world) {
		ref := w.start(podOf(corev1.RestartPolicyAlways, command("c", "exit 1 5s")))
		time.Sleep(12 * time.Second) // it has ended twice, and waits until 20
		before := w.container(ref, "c")
		w.link.setBefore(func(op string) error {
			if op == "Start" {
				time.Sleep(4 * time.Second)
			}
			return nil
		})
		time.Sleep(10 * time.Second) // it is being started
		during := w.container(ref, "c")
		if before.State.Waiting == nil || before.State.Waiting.Reason != "CrashLoopBackOff" || before.RestartCount != 1 || !apiequality.Semantic.DeepEqual(before, during) {
			w.Errorf("before its start %+v, while it is being started %+v", before, during)
		}
		time.Sleep(3 * time.Second)
		if c := w.container(ref, "c"); c.RestartCount != 2 || c.State.Running == nil || c.State.Running.StartedAt.Sub(c.LastTerminationState.Terminated.FinishedAt.Time) < 10*time.Second {
			w.Errorf("after it: %+v", c)
		}
	})
}

func TestPodsAreStartedByAge(t *testing.T) {
	inWorldWith(t, func(w *world) { w.change = func(cfg *podruntime.Config) { cfg.MaxStarts = 1 } }, func(w *world) {
		w.link.setBefore(func(op string) error {
			if op == "Start" {
				time.Sleep(time.Second)
			}
			return nil
		})
		for i, age := range []int{0, 1, 3, 2} { // the first has the place when the others come
			pod := podOf(corev1.RestartPolicyAlways, command("c"+strconv.Itoa(age), "forever"))
			pod.UID, pod.Name = types.UID(fmt.Sprint("uid-", i)), fmt.Sprint("p", i)
			pod.CreationTimestamp = metav1.NewTime(w.begin.Add(-time.Duration(age) * time.Hour))
			w.start(pod)
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		w.expect("start c0/0", "start c3/0", "start c2/0", "start c1/0")
	})
}
