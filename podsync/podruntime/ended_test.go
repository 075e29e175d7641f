// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

// tidy removes all exited containers from the runtime, as an administrator does, and returns their
// names.
func (w *world) tidy(pod podsync.Ref) (names []string) {
	w.Helper()
	list, err := w.memory.List(w.Context(), pod.UID)
	if err != nil {
		w.Fatal(err)
	}
	for _, c := range list {
		if c.State != podruntime.ContainerExited {
			continue
		}
		names = append(names, fmt.Sprintf("%s/%d", c.ID.Name, c.ID.Attempt))
		if err := w.memory.Remove(w.Context(), c.ID); err != nil {
			w.Fatal(err)
		}
	}
	slices.Sort(names)
	return names
}

// TestAnEndOutlivesItsContainer removes the exited containers from the runtime while the process
// runs, and while none does. A pod goes on as if they were still there.
func TestAnEndOutlivesItsContainer(t *testing.T) {
	type ends map[string]int32 // exit codes by container
	for name, tc := range map[string]struct {
		policy  corev1.RestartPolicy
		init    []corev1.Container
		regular []corev1.Container
		ends    ends
		stopped bool // the work is done after half a minute
	}{
		"an init container of a pod that runs once": {
			corev1.RestartPolicyNever, []corev1.Container{command("init", "exit 0")}, []corev1.Container{command("app", "forever")}, ends{"init": 0}, false},
		"an init container and a sidecar": {
			corev1.RestartPolicyAlways, []corev1.Container{sidecarOf(command("side", "forever")), command("init", "exit 0")}, []corev1.Container{command("app", "forever")}, ends{"init": 0}, false},
		"work that is done": {
			corev1.RestartPolicyOnFailure, nil, []corev1.Container{command("done", "exit 0"), command("app", "forever")}, ends{"done": 0}, false},
		"work that has failed": {
			corev1.RestartPolicyNever, nil, []corev1.Container{command("failed", "exit 3"), command("app", "forever")}, ends{"failed": 3}, false},
		"a pod whose work is done": {
			corev1.RestartPolicyNever, nil, []corev1.Container{command("a", "exit 0"), command("b", "exit 7")}, ends{"a": 0, "b": 7}, true},
	} {
		for _, boxed := range []bool{false, true} {
			for _, dies := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, sandbox %v, process dies %v", name, boxed, dies), func(t *testing.T) {
					inWorldWith(t, func(w *world) { w.boxed = boxed }, func(w *world) {
						pod := podOf(tc.policy, tc.regular...)
						pod.Spec.InitContainers = tc.init
						ref := w.start(pod)
						time.Sleep(30 * time.Second)
						before := w.state(ref)
						if dies {
							w.kill()
						}
						if got := w.tidy(ref); len(got) != len(tc.ends) {
							w.Errorf("%v have ended, want %v", got, tc.ends)
						}
						w.machine.mu.Lock()
						journal := slices.Clone(w.journal)
						w.machine.mu.Unlock()
						if dies {
							w.boot()
						}
						time.Sleep(20 * time.Minute)
						if dies && boxed && tc.stopped { // the sandbox of a pod that has stopped is torn down again
							journal = append(journal, "tear down")
						}
						w.expect(journal...)
						if after := w.state(ref); before.Stopped != tc.stopped || after.Stopped != tc.stopped {
							w.Errorf("stopped %v, then %v, want %v", before.Stopped, after.Stopped, tc.stopped)
						}
						for name, code := range tc.ends {
							if end := w.container(ref, name).State.Terminated; end == nil || end.ExitCode != code || strings.Contains(end.Reason, "Unknown") {
								w.Errorf("%s: %+v, want exit code %d", name, end, code)
							}
						}
					})
				})
			}
		}
	}
}

// TestThePreviousEndOutlivesItsContainer removes each exited run of a container that fails again
// and again. Back-off, exit codes and restarts are those of a runtime that keeps them, and no
// records pile up.
func TestThePreviousEndOutlivesItsContainer(t *testing.T) {
	inWorld(t, func(w *world) {
		ref := w.start(podOf(corev1.RestartPolicyAlways, command("app", "exit 42")))
		for n := range 6 {
			time.Sleep(2 * time.Minute)
			w.tidy(ref)
			if n%2 == 1 {
				w.kill()
				w.boot()
			}
			time.Sleep(time.Second)
			c := w.container(ref, "app")
			end := c.LastTerminationState.Terminated
			if end == nil || end.ExitCode != 42 || c.State.Waiting == nil || c.State.Waiting.Reason != "CrashLoopBackOff" {
				w.Errorf("after %d removals: %+v", n+1, c)
			}
		}
		w.begun("app", 0, 0, 10*time.Second, 30*time.Second, 70*time.Second, 150*time.Second, 310*time.Second, 610*time.Second)
		files, err := filepath.Glob(filepath.Join(w.root, "pods", string(ref.UID), "runs", "*.json"))
		if err != nil || len(files) > 2 {
			w.Errorf("%v, %v: more records than those of the last two runs", files, err)
		}
	})
}

// TestAnEndIsOneWrite counts the records that are written while a container runs and ends: one
// when it starts, one when it is seen running, and one for its end with its message.
func TestAnEndIsOneWrite(t *testing.T) {
	inWorld(t, func(w *world) {
		ref := w.start(podOf(corev1.RestartPolicyNever, command("app", "exit 3 10s"), command("other", "forever")))
		file := filepath.Join(w.root, "pods", string(ref.UID), "runs", "app.0.json")
		var inodes []os.FileInfo
		for range 200 { // each write makes another file
			time.Sleep(100 * time.Millisecond)
			info, err := os.Stat(file)
			if err != nil {
				w.Fatal(err)
			}
			if len(inodes) == 0 || !os.SameFile(inodes[len(inodes)-1], info) {
				inodes = append(inodes, info)
			}
		}
		if end := w.container(ref, "app").State.Terminated; end == nil || end.ExitCode != 3 {
			w.Errorf("%+v", end)
		}
		if len(inodes) != 2 {
			w.Errorf("%d versions of the record since the start, want 2: running, and ended", len(inodes))
		}
	})
}

// processBound is the Runtime of a world whose containers end with the process.
type processBound struct{ *link }

func (processBound) EndsWithProcess() bool { return true }

// TestAnAnnouncedRestartIsNoCrash ends a process with its containers twice within ten minutes, in order
// and by death, and also with a runtime that has not said that its containers end so. They start at once only
// after an announced end. One line in the log tells of each restart.
func TestAnAnnouncedRestartIsNoCrash(t *testing.T) {
	const line = "Containers that ran under the process before are gone"
	for name, tc := range map[string]struct {
		bound, dies bool
		reason      string
		wait        time.Duration // before the third run
	}{
		"an announced end":               {true, false, "ProcessEnded", 0},
		"a death":                        {true, true, "ContainerStatusUnknown", 10 * time.Second},
		"containers that should outlive": {false, false, "ContainerStatusUnknown", 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inWorldWith(t, func(w *world) {
				w.lines = &lines{}
				w.change = func(cfg *podruntime.Config) {
					if tc.bound {
						cfg.Runtime = processBound{w.link}
					}
				}
			}, func(w *world) {
				always := w.start(podOf(corev1.RestartPolicyAlways, command("app", "forever")))
				once := podOf(corev1.RestartPolicyNever, command("work", "forever"), command("done", "exit 0"))
				once.UID, once.Name = "uid-2", "once"
				never := w.start(once)
				time.Sleep(time.Minute)
				for n := range 2 {
					w.lines.take()
					if tc.dies {
						w.kill()
						_ = os.Remove(filepath.Join(w.root, "announced")) // a dead process writes nothing
					} else {
						w.shutdown()
					}
					w.machine.memory = newMemory() // which has ended with the process
					w.boot()
					time.Sleep(time.Second)
					logged := strings.Join(w.lines.take(), "\n")
					if want := fmt.Sprintf("%q containers=%d announced=%v", line, 2-n, tc.bound && !tc.dies); strings.Count(logged, line) != 1 || !strings.Contains(logged, want) {
						w.Errorf("restart %d: the log is %s, want %s", n+1, logged, want)
					}
					time.Sleep(time.Minute)
					c := w.container(always, "app")
					if end := c.LastTerminationState.Terminated; c.State.Running == nil || c.RestartCount != int32(n+1) || end == nil || end.ExitCode != 137 || end.Reason != tc.reason {
						w.Errorf("restart %d: %+v", n+1, c)
					}
				}
				w.begun("app", 0, time.Minute, 2*time.Minute+time.Second+tc.wait)
				if end := w.container(never, "work").State.Terminated; end == nil || end.Reason != tc.reason {
					w.Errorf("work that ran once ended with %+v", end)
				}
				if end := w.container(never, "done").State.Terminated; end == nil || end.ExitCode != 0 {
					w.Errorf("work that was done has ended with %+v", end)
				}
			})
		})
	}
}
