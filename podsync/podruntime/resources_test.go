// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

// sized returns a pod whose container requests CPUs.
func sized(name, cpu string) *corev1.Pod {
	pod := podOf(corev1.RestartPolicyAlways, command("app", "forever"))
	pod.Name, pod.UID = name, types.UID("uid-"+name)
	return resized(pod, cpu)
}

// resized returns the next version of a pod, with other requests.
func resized(pod *corev1.Pod, cpu string) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Generation++
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
		Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
	}
	return pod
}

// A shop is a world with four CPUs.
func inShop(t *testing.T, f func(w *world)) {
	t.Helper()
	inWorldWith(t, func(w *world) {
		w.boxed = true
		w.change = func(cfg *podruntime.Config) {
			cfg.Allocatable = func() corev1.ResourceList {
				return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourcePods: resource.MustParse("10")}
			}
		}
	}, f)
}

// admit admits and starts pods, and returns the first rejection.
func (w *world) admit(pods ...*corev1.Pod) error {
	w.Helper()
	var active []*corev1.Pod
	for _, pod := range pods {
		if err := w.p.Admit(w.Context(), pod, slices.Values(active)); err != nil {
			return err
		}
		w.start(pod)
		active = append(active, pod)
	}
	time.Sleep(time.Second)
	return nil
}

func (w *world) update(pod *corev1.Pod) {
	w.Helper()
	if _, err := w.p.Update(w.Context(), pod); err != nil {
		w.Fatal(err)
	}
	time.Sleep(time.Second)
}

// expectResize compares the reason for which a resize is pending, the CPUs in force and
// those that the pod has been given.
func (w *world) expectResize(pod *corev1.Pod, reason, message, cpu, allocated string) {
	w.Helper()
	s := w.state(podsync.RefOf(pod))
	got := corev1.PodCondition{}
	for _, c := range s.Status.Conditions {
		if c.Type == corev1.PodResizePending {
			got = c
		}
	}
	if got.Reason != reason || got.Message != message {
		w.Errorf("%s: the resize is pending for %q: %q, want %q: %q", pod.Name, got.Reason, got.Message, reason, message)
	}
	c := s.Status.ContainerStatuses[0]
	if a, b := c.Resources.Requests.Cpu().String(), c.AllocatedResources.Cpu().String(); a != cpu || b != allocated {
		w.Errorf("%s has %s CPUs and was given %s, want %s and %s", pod.Name, a, b, cpu, allocated)
	}
	if s.Generation != pod.Generation {
		w.Errorf("%s has generation %d, want %d", pod.Name, s.Generation, pod.Generation)
	}
}

// expectResized compares the calls of Resize, without those for the pod.
func (w *world) expectResized(want ...string) {
	w.Helper()
	w.machine.mu.Lock()
	defer w.machine.mu.Unlock()
	got := slices.DeleteFunc(slices.Clone(w.resized), func(s string) bool { return strings.Contains(s, "Pod ") })
	if !slices.Equal(got, want) {
		w.Errorf("resized %q, want %q", w.resized, want)
	}
}

func TestAResizeWaitsUntilThereIsRoom(t *testing.T) {
	inShop(t, func(w *world) {
		a, b := sized("a", "2"), sized("b", "2")
		if err := w.admit(a, b); err != nil {
			t.Fatal(err)
		}
		a = resized(a, "3")
		w.update(a)
		const message = "Node didn't have enough resource: cpu, requested: 3000, used: 2000, capacity: 4000"
		w.expectResize(a, corev1.PodReasonDeferred, message, "2", "2")
		if len(w.resized) > 0 {
			w.Errorf("resized %q", w.resized)
		}

		// The next process knows both what the pod has and what it wants.
		w.kill()
		w.boot()
		time.Sleep(2 * time.Second)
		w.expectResize(a, corev1.PodReasonDeferred, message, "2", "2")

		w.stop(podsync.RefOf(b), time.Second)
		time.Sleep(5 * time.Second)
		w.expectResize(a, "", "", "3", "3")
		w.expectResized("app/0 3 of 3")
		w.kill()
		w.boot()
		time.Sleep(2 * time.Second)
		w.expectResize(a, "", "", "3", "3")
	})
}

// Resources are given to the pod before its containers have them.
func TestAResizeThatTheRuntimeCanNotApplyYetIsInProgress(t *testing.T) {
	inShop(t, func(w *world) {
		a := sized("a", "2")
		if err := w.admit(a); err != nil {
			t.Fatal(err)
		}
		var calls atomic.Int64
		w.link.setBefore(func(op string) error {
			if op == "Resize" && calls.Add(1) > 0 {
				return errors.New("busy")
			}
			return nil
		})
		a = resized(a, "3")
		w.update(a)
		time.Sleep(time.Minute)
		if n := calls.Load(); n != 7 { // at once, and then every ten seconds
			w.Errorf("Resize was called %d times in a minute", n)
		}
		w.expectResize(a, "", "", "2", "3")
		progress := func() (reason, message string) {
			for _, c := range w.state(podsync.RefOf(a)).Status.Conditions {
				if c.Type == corev1.PodResizeInProgress {
					return c.Reason, c.Message
				}
			}
			return "none", ""
		}
		if reason, message := progress(); reason != corev1.PodReasonError || message != "busy" {
			w.Errorf("the resize in progress has %s: %s", reason, message)
		}
		w.link.setBefore(nil)
		time.Sleep(time.Minute)
		w.expectResize(a, "", "", "3", "3")
		if reason, message := progress(); reason != "none" {
			w.Errorf("the resize in progress has %s: %s", reason, message)
		}
	})
}

// TestAResizeIsEvents resizes a container while the runtime fails, and then while it works. Each
// step is one event, and so is each error that differs from the one before.
func TestAResizeIsEvents(t *testing.T) {
	recorder := events.NewFakeRecorder(1000)
	inWorldWith(t, func(w *world) {
		w.boxed = true
		w.change = func(cfg *podruntime.Config) { cfg.EventRecorder = recorder }
	}, func(w *world) {
		a := sized("a", "2")
		if err := w.admit(a); err != nil {
			t.Fatal(err)
		}
		for _, message := range []string{"busy", "still busy", ""} {
			w.link.setBefore(func(op string) error {
				if op == "Resize" && message != "" {
					return errors.New(message)
				}
				return nil
			})
			if message == "busy" {
				a = resized(a, "3")
				w.update(a)
			}
			time.Sleep(time.Minute)
		}
		want := []string{
			"Normal ResizeStarted Pod resize started", "Warning ResizeError Pod resize error: busy",
			"Warning ResizeError Pod resize error: still busy", "Normal ResizeCompleted Pod resize completed",
		}
		var got []string
		for len(recorder.Events) > 0 {
			if e := <-recorder.Events; strings.Contains(e, "Resize") {
				got = append(got, e)
			}
		}
		if !slices.Equal(got, want) {
			w.Errorf("the events are %q, want %q", got, want)
		}
	})
}

// TestAPodWithoutASandboxIsNotResized changes the resources of a pod whose sandbox can't be made, and of
// one whose sandbox was lost and can't be made again. Nothing is resized, and no resize is in progress:
// the next sandbox has them.
func TestAPodWithoutASandboxIsNotResized(t *testing.T) {
	for _, lost := range []bool{false, true} {
		inShop(t, func(w *world) {
			fails := func(op string) error {
				if op == "SetUpPod" {
					return errors.New("no network")
				}
				return nil
			}
			if !lost {
				w.link.setBefore(fails)
			}
			a := sized("a", "2")
			if err := w.admit(a); err != nil {
				t.Fatal(err)
			}
			if lost {
				w.link.setBefore(fails)
				w.lose(a.UID)
				time.Sleep(time.Minute)
			}
			a = resized(a, "3")
			w.update(a)
			for _, c := range w.state(podsync.RefOf(a)).Status.Conditions {
				if c.Type == corev1.PodResizeInProgress || c.Type == corev1.PodResizePending {
					w.Errorf("lost %v: without a sandbox, the condition is %+v", lost, c)
				}
			}
			w.machine.mu.Lock()
			if len(w.resized) > 0 {
				w.Errorf("lost %v: without a sandbox, it resized %q", lost, w.resized)
			}
			w.machine.mu.Unlock()
			w.link.setBefore(nil)
			time.Sleep(2 * time.Minute)
			w.expectResize(a, "", "", "3", "3")
			w.expectWhole(a, "3", "3", "")
			w.expectResized()
		})
	}
}

// resizer is a Runtime that resizes containers, but no pods as a whole.
type resizer struct{ *link }

func (r resizer) Resize(context.Context, podruntime.ContainerID, *corev1.Pod, *corev1.Container) error {
	return r.call("Resize", func() error { return nil })
}

// TestAWithdrawnResizeIsInProgressUntilItIsUndone withdraws a resize that has failed. The container may have
// its resources anyway, so it is resized back, and that is in progress until it succeeds.
func TestAWithdrawnResizeIsInProgressUntilItIsUndone(t *testing.T) {
	inWorldWith(t, func(w *world) {
		w.change = func(cfg *podruntime.Config) { cfg.Runtime = resizer{w.link} }
	}, func(w *world) {
		a := sized("a", "2")
		if err := w.admit(a); err != nil {
			t.Fatal(err)
		}
		inProgress := func(want bool) {
			w.Helper()
			conditions := w.state(podsync.RefOf(a)).Status.Conditions
			if got := slices.ContainsFunc(conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodResizeInProgress }); got != want {
				w.Errorf("a resize is in progress: %v, want %v; the conditions are %+v", got, want, conditions)
			}
		}
		inProgress(false)
		w.link.setBefore(func(op string) error {
			if op == "Resize" {
				return errors.New("busy")
			}
			return nil
		})
		a = resized(a, "3")
		w.update(a)
		inProgress(true)
		a = resized(a, "2")
		w.update(a)
		inProgress(true)
		w.link.setBefore(nil)
		time.Sleep(time.Minute)
		inProgress(false)
		w.expectResize(a, "", "", "2", "2")
	})
}

// wide returns a pod as a whole with a limit of CPUs, two containers that have none and
// one that has.
func wide(cpu string) *corev1.Pod {
	own := command("own", "forever")
	own.Resources = resized(podOf("", own), "500m").Spec.Containers[0].Resources
	pod := podOf(corev1.RestartPolicyAlways, command("app", "forever"), own, command("restarts", "forever"))
	pod.Spec.Containers[2].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.RestartContainer}}
	return widened(pod, cpu)
}

// widened returns the next version of a pod, with other resources of the pod as a whole.
func widened(pod *corev1.Pod, cpu string) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Generation++
	pod.Spec.Resources = new(resized(podOf("", command("", "")), cpu).Spec.Containers[0].Resources)
	return pod
}

// expectWhole compares the CPUs that a pod as a whole has been given and those in force.
func (w *world) expectWhole(pod *corev1.Pod, allocated, applied, condition string) {
	w.Helper()
	s := w.state(podsync.RefOf(pod)).Status
	if s.Resources == nil {
		w.Fatalf("the pod has no resources")
	}
	if a, r, l := s.AllocatedResources.Cpu().String(), s.Resources.Requests.Cpu().String(), s.Resources.Limits.Cpu().String(); a != allocated || r != applied || l != applied {
		w.Errorf("the pod was given %s CPUs and has %s with the limit %s, want %s and %s", a, r, l, allocated, applied)
	}
	got := ""
	for _, c := range s.Conditions {
		if c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress {
			got = fmt.Sprintf("%s %s %s", c.Type, c.Reason, c.Message)
		}
	}
	if got != condition {
		w.Errorf("the condition is %q, want %q", got, condition)
	}
}

func TestAPodIsResizedAsAWhole(t *testing.T) {
	inShop(t, func(w *world) {
		pod := wide("2")
		if err := w.admit(pod); err != nil {
			t.Fatal(err)
		}
		w.expectWhole(pod, "2", "2", "")
		w.expectResized()
		// The machine checks that no container ever has more than its pod.
		for _, cpu := range []string{"3", "1"} {
			pod = widened(pod, cpu)
			w.update(pod)
			time.Sleep(time.Minute)
			w.expectWhole(pod, cpu, cpu, "")
			for name, want := range map[string]string{"app": "", "own": "500m", "restarts": ""} {
				if r := w.container(podsync.RefOf(pod), name).Resources; len(r.Limits) > 0 && r.Limits.Cpu().String() != want {
					w.Errorf("the status of %s has the limit %s, want %s", name, r.Limits.Cpu(), want)
				}
			}
		}
		w.expectResized("app/0 3 of 3", "app/0 1 of 1")
		if n := w.container(podsync.RefOf(pod), "restarts").RestartCount; n != 2 {
			w.Errorf("the container that needs a restart has %d", n)
		}
		for _, name := range []string{"app", "own"} {
			if n := w.container(podsync.RefOf(pod), name).RestartCount; n != 0 {
				w.Errorf("%s has %d restarts", name, n)
			}
		}
		pod = widened(pod, "5")
		w.update(pod)
		w.expectWhole(pod, "1", "1", "PodResizePending Infeasible Node didn't have enough capacity: cpu, requested: 5000, capacity: 4000")
	})
}

// A pod whose runtime can't apply a resize has what it had, and the next resize is tried
// at once.
func TestAResizeOfThePodThatFailsIsInProgress(t *testing.T) {
	for op, calls := range map[string][]string{"GrowPod": nil, "ResizePod": {"app/0 1 of 1", "app/0 3 of 3"}} {
		inShop(t, func(w *world) {
			pod := wide("2")
			pod.Spec.Containers = pod.Spec.Containers[:2]
			if err := w.admit(pod); err != nil {
				t.Fatal(err)
			}
			w.link.setBefore(func(o string) error {
				if o == op {
					return errors.New("memory in use")
				}
				return nil
			})
			pod = widened(pod, "1")
			w.update(pod)
			w.expectWhole(pod, "1", "2", "PodResizeInProgress Error memory in use")
			w.link.setBefore(nil)
			pod = widened(pod, "3")
			w.update(pod)
			w.expectWhole(pod, "3", "3", "")
			if calls != nil {
				w.expectResized(calls...)
			}
		})
	}
}

// A pod that ends keeps the condition as long as it runs, and nothing is resized.
func TestAResizeEndsWithItsPod(t *testing.T) {
	inShop(t, func(w *world) {
		pod := wide("2")
		pod.Spec.Containers = []corev1.Container{command("app", "stubborn")}
		if err := w.admit(pod); err != nil {
			t.Fatal(err)
		}
		w.link.setBefore(func(op string) error {
			if op == "GrowPod" {
				return errors.New("busy")
			}
			return nil
		})
		pod = widened(pod, "3")
		w.update(pod)
		w.stop(podsync.RefOf(pod), 30*time.Second)
		w.link.setBefore(nil)
		time.Sleep(20 * time.Second)
		w.expectWhole(pod, "3", "2", "PodResizeInProgress Error busy")
		w.expectResized()
		time.Sleep(time.Minute)
		w.expectWhole(pod, "3", "2", "")
		w.expectResized()
	})
}

// A pod that has grown for a resize that is withdrawn shrinks again, also if another
// process does it.
func TestAResizeThatIsWithdrawnShrinksThePod(t *testing.T) {
	for _, dies := range []bool{false, true} {
		inShop(t, func(w *world) {
			pod := wide("2")
			if err := w.admit(pod); err != nil {
				t.Fatal(err)
			}
			w.link.setBefore(func(op string) error {
				if op == "Resize" {
					return errors.New("busy")
				}
				return nil
			})
			pod = widened(pod, "3")
			w.update(pod)
			w.expectWhole(pod, "3", "2", "PodResizeInProgress Error busy")
			if dies {
				w.link.setBefore(func(op string) error {
					if op == "GrowPod" || op == "ResizePod" {
						return errCut
					}
					return nil
				})
			} else {
				w.link.setBefore(nil)
			}
			pod = widened(pod, "2")
			w.update(pod)
			if dies {
				w.expectWhole(pod, "2", "2", "PodResizeInProgress Error "+errCut.Error())
				w.kill()
				w.boot()
			}
			time.Sleep(time.Minute)
			w.expectWhole(pod, "2", "2", "")
			w.expectLimit(pod, 2000)
		})
	}
}

// A container that may have another size, because its Resize has failed, is resized again although
// the resize is withdrawn, also by another process, and before the pod shrinks.
func TestAResizeThatFailedAndIsWithdrawnIsUndone(t *testing.T) {
	for name, dies := range map[string]bool{"by this process": false, "by the next one": true} {
		for _, cpu := range []string{"1", "3"} {
			t.Run(name+" from "+cpu, func(t *testing.T) {
				inShop(t, func(w *world) {
					a := sized("a", "2")
					if err := w.admit(a); err != nil {
						t.Fatal(err)
					}
					failing := func(op string) error {
						if op == "Resize" {
							return errors.New("deadline exceeded")
						}
						return nil
					}
					w.link.setAfter(failing)
					a = resized(a, cpu)
					w.update(a)
					w.expectResize(a, "", "", "2", cpu)
					w.link.setAfter(nil)
					w.link.setBefore(failing)
					a = resized(a, "2")
					w.update(a)
					progress := slices.ContainsFunc(w.state(podsync.RefOf(a)).Status.Conditions, func(c corev1.PodCondition) bool {
						return c.Type == corev1.PodResizeInProgress && c.Reason == corev1.PodReasonError
					})
					if !progress {
						w.Error("a container that may have another size is not in progress")
					}
					if dies {
						w.kill()
						w.boot()
					} else {
						w.link.setBefore(nil)
					}
					time.Sleep(time.Minute)
					w.expectResize(a, "", "", "2", "2")
					w.expectResized("app/0 "+cpu+" of "+cpu, "app/0 2 of 2")
					w.expectLimit(a, 2000)
					if s := w.state(podsync.RefOf(a)).Status; len(s.Conditions) != 1 {
						w.Errorf("the conditions are %+v", s.Conditions)
					}
				})
			})
		}
	}
}

// The resources in force are on disk before the Runtime is called, and after that.
func TestAResizeOfThePodOutlivesTheProcess(t *testing.T) {
	for name, before := range map[string]bool{"before": true, "after": false} {
		for n := range 4 { // GrowPod, Resize, and both again for the pod when a container has restarted
			t.Run(fmt.Sprintf("%s call %d", name, n), func(t *testing.T) {
				inShop(t, func(w *world) {
					pod := wide("2")
					if err := w.admit(pod); err != nil {
						t.Fatal(err)
					}
					var calls atomic.Int64
					die := func(op string) error {
						if slices.Contains([]string{"GrowPod", "Resize", "ResizePod"}, op) {
							calls.Add(1)
						}
						if calls.Load() > int64(n) {
							return errCut
						}
						return nil
					}
					if before {
						w.link.setBefore(die)
					} else {
						w.link.setAfter(die)
					}
					pod = widened(pod, "1")
					w.update(pod)
					time.Sleep(5 * time.Second)
					w.kill()
					w.boot()
					time.Sleep(2 * time.Minute)
					w.expectWhole(pod, "1", "1", "")
					w.expectLimit(pod, 1000)
				})
			})
		}
	}
}

// A container that is being started gets the resources that it was begun with: the pod keeps room
// for them until the container can be resized.
func TestAPodShrinksAfterTheContainersThatStart(t *testing.T) {
	inShop(t, func(w *world) {
		pod := wide("3")
		pod.Spec.Containers = pod.Spec.Containers[:2]
		release := make(chan struct{})
		w.link.setBefore(func(op string) error {
			if op == "Start" {
				<-release
			}
			return nil
		})
		if err := w.admit(pod); err != nil {
			t.Fatal(err)
		}
		pod = widened(pod, "1")
		w.update(pod)
		w.expectWhole(pod, "1", "3", "PodResizeInProgress  ")
		close(release)
		time.Sleep(time.Minute)
		w.expectWhole(pod, "1", "1", "")
		w.expectResized("app/0 1 of 1")
		w.expectLimit(pod, 1000)
	})
}

// Nothing starts with the old resources while the pod shrinks for a resize that is withdrawn.
func TestAContainerStartsWhenItsPodHasShrunk(t *testing.T) {
	inShop(t, func(w *world) {
		pod := wide("3")
		pod.Spec.Containers = []corev1.Container{command("app", "exit 1 10s")}
		if err := w.admit(pod); err != nil {
			t.Fatal(err)
		}
		release := make(chan struct{})
		w.link.setBefore(func(op string) error {
			if op == "ResizePod" {
				<-release
			}
			return nil
		})
		w.update(widened(pod, "1"))
		back := widened(widened(pod, "1"), "3")
		w.update(back)
		time.Sleep(10 * time.Second) // it crashes
		w.expect("set up", "start app/0")
		close(release)
		time.Sleep(time.Second)
		w.expect("set up", "start app/0", "start app/1")
		w.expectWhole(back, "3", "3", "")
		w.expectLimit(back, 3000)
	})
}

func TestAResizeLargerThanTheNodeIsInfeasible(t *testing.T) {
	inShop(t, func(w *world) {
		a := sized("a", "2")
		if err := w.admit(a); err != nil {
			t.Fatal(err)
		}
		a = resized(a, "4001m")
		w.update(a)
		w.expectResize(a, corev1.PodReasonInfeasible, "Node didn't have enough capacity: cpu, requested: 4001, capacity: 4000", "2", "2")
		a = resized(a, "4")
		w.update(a)
		w.expectResize(a, "", "", "4", "4")
	})
}

func TestAResizeBackIsNoResize(t *testing.T) {
	inShop(t, func(w *world) {
		a, b := sized("a", "2"), sized("b", "2")
		if err := w.admit(a, b); err != nil {
			t.Fatal(err)
		}
		w.update(resized(a, "3"))
		a = resized(resized(a, "3"), "2")
		w.update(a)
		w.expectResize(a, "", "", "2", "2")
		w.stop(podsync.RefOf(b), time.Second)
		time.Sleep(5 * time.Second)
		w.expectResize(a, "", "", "2", "2")
	})
}

func TestAdmissionCountsTheResourcesInForce(t *testing.T) {
	inShop(t, func(w *world) {
		a, b, c := sized("a", "2"), sized("b", "1"), sized("c", "1")
		if err := w.admit(a, b); err != nil {
			t.Fatal(err)
		}
		// A resize that is pending takes nothing, though the spec shows it.
		a = resized(a, "4")
		w.update(a)
		if err := w.p.Admit(w.Context(), c, slices.Values([]*corev1.Pod{a, b})); err != nil {
			t.Fatal(err)
		}
		// A pod counts from its admission on.
		b = resized(b, "2")
		w.update(b)
		w.expectResize(b, corev1.PodReasonDeferred, "Node didn't have enough resource: cpu, requested: 2000, used: 3000, capacity: 4000", "1", "1")
		// It never started. A resize that shrinks frees room for those that wait.
		if _, err := w.p.Stop(w.Context(), podsync.RefOf(c), podsync.StopOptions{Grace: time.Second}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		w.expectResize(b, "", "", "2", "2")
		w.expectResize(a, corev1.PodReasonDeferred, "Node didn't have enough resource: cpu, requested: 4000, used: 1000, capacity: 4000", "2", "2")
		a = resized(a, "500m")
		w.update(a)
		// A resize that was granted counts although podsync's version is older.
		old := sized("b", "1")
		d := sized("d", "2")
		if err := w.p.Admit(w.Context(), d, slices.Values([]*corev1.Pod{a, old})); err == nil || !strings.Contains(err.Error(), "requested: 2000, used: 2500, capacity: 4000") {
			t.Errorf("%v", err)
		}
	})
}

func TestResizesAreGrantedByPriorityAndAge(t *testing.T) {
	inShop(t, func(w *world) {
		low, old, young, high := sized("low", "500m"), sized("old", "500m"), sized("young", "500m"), sized("high", "500m")
		low.Spec.Priority, high.Spec.Priority = new(int32(-1)), new(int32(1))
		blocker := sized("blocker", "2")
		if err := w.admit(low, old, young, high, blocker); err != nil {
			t.Fatal(err)
		}
		for _, pod := range []**corev1.Pod{&low, &old, &young, &high} {
			*pod = resized(*pod, "1500m")
			w.update(*pod)
		}
		w.stop(podsync.RefOf(blocker), time.Second)
		time.Sleep(5 * time.Second)
		for name, tc := range map[string]struct {
			pod  *corev1.Pod
			want string
		}{"low": {low, "500m"}, "old": {old, "1500m"}, "young": {young, "500m"}, "high": {high, "1500m"}} {
			if c := w.state(podsync.RefOf(tc.pod)).Status.ContainerStatuses[0]; c.Resources.Requests.Cpu().String() != tc.want {
				w.Errorf("%s has %s, want %s", name, c.Resources.Requests.Cpu(), tc.want)
			}
		}
	})
}

// An evictions is a Config.Evict that takes notes.
type evictions struct {
	mu   sync.Mutex
	got  []string
	fail error
}

func (e *evictions) evict(ref podsync.Ref, eviction podsync.Eviction) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.fail != nil {
		return e.fail
	}
	e.got = append(e.got, fmt.Sprintf("%s %v %v %s", ref.UID, eviction.Grace, eviction.OwnLimit, eviction.Message))
	return nil
}

func (e *evictions) answer(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fail = err
}

func (e *evictions) expect(w *world, want ...string) {
	w.Helper()
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Equal(e.got, want) {
		w.Errorf("evicted %q, want %q", e.got, want)
	}
}

// A metered is a Runtime whose containers have the same size.
type metered struct {
	*link
	size *atomic.Int64
}

func (m metered) DiskUsage(_ context.Context, pod types.UID) (usage map[string]int64, err error) {
	err = m.call("DiskUsage", func() error {
		list, _ := m.memory.List(context.Background(), pod)
		usage = map[string]int64{}
		for _, c := range list {
			usage[c.ID.Name] = m.size.Load()
		}
		return nil
	})
	return usage, err
}

// withVolume returns a pod with an emptyDir volume v of at most a MiB.
func withVolume() *corev1.Pod {
	pod := podOf(corev1.RestartPolicyAlways, command("app", "forever"))
	limit := resource.MustParse("1Mi")
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &limit}}}}
	return pod
}

// fill writes a file to the volume v.
func (w *world) fill(pod *corev1.Pod, size int) {
	w.Helper()
	if err := os.WriteFile(filepath.Join(w.root, "pods", string(pod.UID), "volumes", "v", "file"), make([]byte, size), 0o600); err != nil {
		w.Fatal(err)
	}
}

func TestAPodAboveTheSizeLimitOfAVolumeIsEvicted(t *testing.T) {
	var e evictions
	inWorldWith(t, func(w *world) {
		w.change = func(cfg *podruntime.Config) { cfg.Evict = e.evict }
	}, func(w *world) {
		pod, critical := withVolume(), withVolume()
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "fields", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{}}})
		critical.Name, critical.UID, critical.Spec.Priority = "critical", "uid-2", new(int32(2_000_000_000))
		ref := w.start(pod)
		w.start(critical)
		w.fill(pod, 1<<19)
		w.fill(critical, 1<<21)
		time.Sleep(61 * time.Second)
		e.expect(w)
		w.fill(pod, 1<<21)
		e.answer(podsync.ErrGateClosed)
		time.Sleep(10 * time.Second)
		e.answer(nil)
		e.expect(w)
		time.Sleep(10 * time.Second)
		e.expect(w, `uid-1 1s true Usage of EmptyDir volume "v" exceeds the limit "1Mi".`)
		w.stop(ref, time.Second)
		time.Sleep(time.Hour)
		e.expect(w, `uid-1 1s true Usage of EmptyDir volume "v" exceeds the limit "1Mi".`)
	})
}

// A container can write as much as it likes to the files that it has mounted from its pod.
func TestAPodWithLargeFilesOfItsOwnIsEvicted(t *testing.T) {
	for _, name := range []string{"hosts", "messages/app"} {
		t.Run(name, func(t *testing.T) {
			var e evictions
			inWorldWith(t, func(w *world) {
				w.boxed = true
				w.change = func(cfg *podruntime.Config) { cfg.Evict = e.evict }
			}, func(w *world) {
				pod := podOf(corev1.RestartPolicyAlways, command("app", "forever"))
				pod.Spec.Containers[0].TerminationMessagePath = "/dev/termination-log"
				pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("1Mi")}
				ref := w.start(pod)
				time.Sleep(time.Minute)
				e.expect(w)
				path := filepath.Join(w.root, "pods", string(ref.UID), filepath.FromSlash(name))
				if err := os.WriteFile(path, make([]byte, 2<<20), 0o644); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Second)
				e.expect(w, "uid-1 1s true Pod ephemeral local storage usage exceeds the total limit of containers 1Mi.")
			})
		})
	}
}

func TestAPodAboveItsEphemeralStorageIsEvicted(t *testing.T) {
	var e evictions
	var size atomic.Int64
	size.Store(1 << 18)
	inWorldWith(t, func(w *world) {
		w.change = func(cfg *podruntime.Config) {
			cfg.Evict = e.evict
			cfg.Runtime = metered{w.link, &size}
		}
	}, func(w *world) {
		pod := withVolume()
		pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("1Mi")}
		w.start(pod)
		w.fill(pod, 1<<19)
		time.Sleep(11 * time.Second)
		e.expect(w)
		// A measurement that fails is no reason to evict.
		size.Store(1 << 20)
		w.link.setBefore(func(op string) error {
			if op == "DiskUsage" {
				return errors.New("busy")
			}
			return nil
		})
		time.Sleep(10 * time.Second)
		e.expect(w)
		w.link.setBefore(nil)
		time.Sleep(10 * time.Second)
		e.expect(w, "uid-1 1s true Pod ephemeral local storage usage exceeds the total limit of containers 1Mi.")
	})
}

// expectLimit checks the limit of the pod as a whole, in thousandths of a CPU.
func (w *world) expectLimit(pod *corev1.Pod, want int64) {
	w.Helper()
	w.machine.mu.Lock()
	defer w.machine.mu.Unlock()
	if got := w.limits[pod.UID]; got != want {
		w.Errorf("the pod has %d thousandths of a CPU, want %d", got, want)
	}
}
