// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime_test

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kubewright/kubewright/internal/record"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podruntime"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

// A run that made way for the next one says nothing about the pod's work, also if the
// next one can't start yet and the policy would not restart the container.
func TestARunThatIsReplacedIsNotTheEndOfThePod(t *testing.T) {
	restart := func(pod *corev1.Pod) {
		c := &pod.Spec.Containers[0]
		c.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi")}
	}
	for name, test := range map[string]struct {
		policy corev1.RestartPolicy
		change func(w *world, pod *corev1.Pod)
	}{
		"image":     {corev1.RestartPolicyNever, func(w *world, pod *corev1.Pod) { pod.Spec.Containers[0].Image = "new"; w.update(pod) }},
		"resources": {corev1.RestartPolicyOnFailure, func(w *world, pod *corev1.Pod) { restart(pod); w.update(pod) }},
		"sandbox":   {corev1.RestartPolicyOnFailure, func(w *world, pod *corev1.Pod) { w.lose(pod.UID) }},
	} {
		t.Run(name, func(t *testing.T) {
			inWorldWith(t, func(w *world) { w.boxed = true }, func(w *world) {
				pod := podOf(test.policy, command("app", "forever"))
				pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
				pod.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}}
				ref := w.start(pod)
				time.Sleep(time.Second)
				w.link.setBefore(func(op string) error {
					if op == "Start" || op == "SetUpPod" {
						return errors.New("not yet")
					}
					return nil
				})
				pod = pod.DeepCopy()
				test.change(w, pod)
				for range 40 {
					if s := w.state(ref); podstatus.Ended(&pod.Spec, &s.Status) { // podsync stops the pod
						w.Fatalf("the pod has ended: %+v", s.Status.ContainerStatuses)
					}
					time.Sleep(100 * time.Millisecond)
				}
				w.link.setBefore(nil)
				time.Sleep(time.Minute)
				if c := w.container(ref, "app"); c.State.Running == nil || c.RestartCount != 1 || c.LastTerminationState.Terminated == nil {
					w.Errorf("when it can start: %+v", c)
				}
			})
		})
	}
}

// A container that its probe has ended starts again whatever its exit code says, unless it
// is never started again: the code is that of a process that obeyed a signal.
func TestAProbeRestartsAContainerThatExitsWithZero(t *testing.T) {
	never, always := corev1.ContainerRestartPolicyNever, corev1.ContainerRestartPolicyAlways
	for name, test := range map[string]struct {
		pod   corev1.RestartPolicy
		own   *corev1.ContainerRestartPolicy
		again bool
	}{
		"OnFailure":                {corev1.RestartPolicyOnFailure, nil, true},
		"Never":                    {corev1.RestartPolicyNever, nil, false},
		"Never, Always of its own": {corev1.RestartPolicyNever, &always, true},
		"OnFailure, its own Never": {corev1.RestartPolicyOnFailure, &never, false},
	} {
		for _, probe := range []string{"liveness", "startup"} {
			t.Run(name+", "+probe, func(t *testing.T) {
				inWorld(t, func(w *world) {
					c := command("c", "forever")
					c.RestartPolicy = test.own
					if probe == "liveness" {
						c.LivenessProbe = execProbe("alive")
					} else {
						c.StartupProbe = execProbe("alive")
					}
					w.exec = func(id podruntime.ContainerID, _ []string) (int, error) {
						if id.Attempt == 0 {
							return 1, nil
						}
						return 0, nil
					}
					pod := podOf(test.pod, c)
					ref := w.start(pod)
					time.Sleep(time.Minute)
					w.expectStopped(pod, ref, test.again)
				})
			})
		}
	}
}

// expectStopped compares the history of a pod whose container c was stopped once, and perhaps started again.
func (w *world) expectStopped(pod *corev1.Pod, ref podsync.Ref, again bool) {
	w.Helper()
	want := []string{"start c/0", "stop c/0"}
	if again {
		want = append(want, "start c/1")
	}
	w.expect(want...)
	if s := w.state(ref); podstatus.Ended(&pod.Spec, &s.Status) == again {
		w.Errorf("status %+v", s.Status.ContainerStatuses)
	}
}

// A run that a probe or a hook ends does not run on because the process dies in the meantime,
// although the probe succeeds when the next process looks.
func TestAProbeThatHasFailedEndsTheRunAlsoAfterADeath(t *testing.T) {
	for name, tc := range map[string]struct {
		policy corev1.RestartPolicy
		edit   func(*corev1.Container)
		again  bool
	}{
		"liveness":         {corev1.RestartPolicyOnFailure, func(c *corev1.Container) { c.LivenessProbe = execProbe("exit", "1") }, true},
		"startup":          {corev1.RestartPolicyAlways, func(c *corev1.Container) { c.StartupProbe = execProbe("exit", "1") }, true},
		"liveness, Never":  {corev1.RestartPolicyNever, func(c *corev1.Container) { c.LivenessProbe = execProbe("exit", "1") }, false},
		"a postStart hook": {corev1.RestartPolicyNever, func(c *corev1.Container) { c.Lifecycle.PostStart = execHook("exit", "1") }, false},
	} {
		for _, cut := range []string{"preStop", "Stop"} {
			t.Run(name+", "+cut, func(t *testing.T) {
				inWorld(t, func(w *world) {
					c := command("c", "forever")
					if c.Lifecycle = (&corev1.Lifecycle{}); cut == "preStop" {
						c.Lifecycle.PreStop = execHook("sleep")
					}
					tc.edit(&c)
					w.link.setBefore(func(op string) error {
						if op == "Stop" {
							return errCut
						}
						return nil
					})
					pod := podOf(tc.policy, c)
					ref := w.start(pod)
					time.Sleep(25 * time.Second)
					w.kill()
					w.exec = func(podruntime.ContainerID, []string) (int, error) { return 0, nil }
					w.boot()
					time.Sleep(time.Minute)
					w.expectStopped(pod, ref, tc.again)
				})
			})
		}
	}
}

// The clock may have been set back since the time by which a run must end was written.
func TestARunThatMustEndDoesNotWaitForTheClock(t *testing.T) {
	inWorld(t, func(w *world) {
		c := command("c", "stubborn")
		c.LivenessProbe = execProbe("exit", "1")
		c.LivenessProbe.TerminationGracePeriodSeconds = new(int64(60))
		w.link.setBefore(func(op string) error {
			if op == "Stop" {
				return errCut
			}
			return nil
		})
		ref := w.start(podOf(corev1.RestartPolicyAlways, c))
		time.Sleep(25 * time.Second)
		w.kill()
		path := filepath.Join(w.root, "pods", string(ref.UID), "runs", "c.0.json")
		var rec map[string]any
		if found, err := record.Read(path, &rec); err != nil || !found || rec["endBy"] == nil {
			w.Fatalf("%v, %v, %v", rec, found, err)
		}
		rec["endBy"] = time.Now().Add(8 * time.Hour)
		if err := record.Write(path, rec); err != nil {
			w.Fatal(err)
		}
		w.boot()
		time.Sleep(59 * time.Second)
		w.expect("start c/0", "stop c/0")
		time.Sleep(10 * time.Second)
		w.expect("start c/0", "stop c/0", "start c/1")
	})
}

// An init container that runs ends its work, whatever its image is to be.
func TestANewImageLeavesARunningInitContainerAlone(t *testing.T) {
	inWorld(t, func(w *world) {
		pod := podOf(corev1.RestartPolicyAlways, command("app", "forever"))
		pod.Spec.InitContainers = []corev1.Container{command("init", "exit 0 10s")}
		w.start(pod)
		time.Sleep(time.Second)
		pod = pod.DeepCopy()
		pod.Spec.InitContainers[0].Image = "new"
		w.update(pod)
		time.Sleep(time.Minute)
		w.expect("start init/0", "start app/0")
	})
}
