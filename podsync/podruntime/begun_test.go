// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/podsync/podruntime"
)

// TestAStartThatFailedIsNoRunOfThePast: a container whose start fails when its pod loses the sandbox
// begins its first run after that. The run counted as one before the loss, so it was repeated although
// it had succeeded.
func TestAStartThatFailedIsNoRunOfThePast(t *testing.T) {
	for name, place := range map[string]func(*corev1.PodSpec, corev1.Container){
		"an init container":   func(s *corev1.PodSpec, c corev1.Container) { s.InitContainers = append(s.InitContainers, c) },
		"a regular container": func(s *corev1.PodSpec, c corev1.Container) { s.Containers = []corev1.Container{c} },
	} {
		for _, dies := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", the process dies"}[dies], func(t *testing.T) {
				inWorldWith(t, func(w *world) { w.boxed = true }, func(w *world) {
					pod := podOf(corev1.RestartPolicyOnFailure, command("app", "forever"))
					pod.Spec.InitContainers = []corev1.Container{command("first", "exit 0 1s")}
					place(&pod.Spec, command("work", "exit 0 5s"))
					ref := w.start(pod)
					refuse := func(op string) error {
						w.machine.mu.Lock()
						defer w.machine.mu.Unlock()
						if op == "Start" && len(w.journal) > 1 { // after "set up" and "start first/0"
							return errors.New("no image")
						}
						return nil
					}
					w.link.setBefore(refuse)
					time.Sleep(10 * time.Second)
					w.lose(ref.UID)
					time.Sleep(10 * time.Second)
					if dies {
						w.kill()
						w.boot()
					}
					w.link.setBefore(nil)
					time.Sleep(10 * time.Minute)
					want := []string{"set up", "start first/0", "set up", "start first/1", "start work/0", "start app/0"}
					if name == "a regular container" {
						want = append(want[:5], "tear down")
					}
					w.expect(want...)
				})
			})
		}
	}
}

// TestAPodThatTheRuntimeHasLostBeginsAgain with its first init container: what that has set up in the
// network of the pod is gone with the sandbox. It was skipped.
func TestAPodThatTheRuntimeHasLostBeginsAgain(t *testing.T) {
	for policy, want := range map[corev1.RestartPolicy][]string{
		corev1.RestartPolicyAlways:    {"set up", "start init/0", "start app/0 & start done/0", "set up", "start init/1", "start app/1 & start done/1"},
		corev1.RestartPolicyOnFailure: {"set up", "start init/0", "start app/0 & start done/0", "set up", "start init/1", "start app/1"},
		corev1.RestartPolicyNever:     {"set up", "start init/0", "start app/0 & start done/0", "tear down"},
	} {
		t.Run(string(policy), func(t *testing.T) {
			inWorldWith(t, func(w *world) { w.boxed = true }, func(w *world) {
				pod := podOf(policy, command("app", "forever"), command("done", "exit 0 1h"))
				pod.Spec.InitContainers = []corev1.Container{command("init", "exit 0 1s")}
				if policy != corev1.RestartPolicyAlways {
					pod.Spec.Containers[1].Command = strings.Fields("exit 0 1s")
				}
				ref := w.start(pod)
				time.Sleep(10 * time.Second)
				w.kill()
				w.memory.mu.Lock()
				clear(w.memory.containers) // the administrator has begun with an empty runtime
				w.memory.mu.Unlock()
				w.machine.mu.Lock()
				delete(w.boxes, ref.UID)
				w.machine.mu.Unlock()
				w.boot()
				time.Sleep(10 * time.Minute)
				w.expect(want...)
			})
		})
	}
}

// TestAPodHasOneAddressOfEachFamily: the API server refuses a status with more, and with what is no
// address, so the pod stayed Pending. A network plugin may give a sandbox several.
func TestAPodHasOneAddressOfEachFamily(t *testing.T) {
	inWorldWith(t, func(w *world) { w.boxed = true }, func(w *world) {
		ref := w.start(podOf(corev1.RestartPolicyAlways, command("app", "forever")))
		time.Sleep(10 * time.Second)
		w.kill()
		w.machine.mu.Lock()
		w.boxes[ref.UID].IPs = []string{"fd00::1", "", "fe80::1%eth0", "10.0.0.1", "::ffff:10.0.0.2", "fd00::2", "10.0.0.3/24"}
		w.machine.mu.Unlock()
		w.boot()
		time.Sleep(10 * time.Second)
		if s := w.state(ref).Status; s.PodIP != "fd00::1" || !slices.Equal(s.PodIPs, []corev1.PodIP{{IP: "fd00::1"}, {IP: "10.0.0.1"}}) {
			t.Errorf("the pod has %q, %v", s.PodIP, s.PodIPs)
		}
	})
	_, err := podruntime.New(podruntime.Config{HostIPs: []string{"192.0.2.1", "2001:db8::1", "192.0.2.2"}})
	if err == nil || !strings.Contains(err.Error(), `HostIPs[2]: Invalid value: "192.0.2.2"`) || strings.Contains(err.Error(), "HostIPs[1]") {
		t.Error(err)
	}
}

// TestTheDirectoryOfAllPodsMayBeRemoved by an administrator while it is empty: no pod was started
// until the next start of the process.
func TestTheDirectoryOfAllPodsMayBeRemoved(t *testing.T) {
	inWorld(t, func(w *world) {
		time.Sleep(time.Second)
		if err := os.Remove(filepath.Join(w.root, "pods")); err != nil {
			t.Fatal(err)
		}
		w.start(podOf(corev1.RestartPolicyAlways, command("app", "forever")))
		w.expect("start app/0")
	})
}
