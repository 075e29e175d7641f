// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

// fail makes one of the containers that run exit.
func (w *world) fail(random *rand.Rand) {
	w.memory.mu.Lock()
	var running []*entry
	for _, e := range w.memory.containers {
		if e.State == podruntime.ContainerRunning {
			running = append(running, e)
		}
	}
	w.memory.mu.Unlock()
	slices.SortFunc(running, func(a, b *entry) int { return strings.Compare(a.ID.Name, b.ID.Name) })
	if len(running) > 0 {
		w.memory.exit(running[random.IntN(len(running))], int32(random.IntN(3)), 0)
	}
}

// TestRandomEvents drives a pod through exits, deaths of the process and losses of the sandbox,
// while an administrator removes what is at rest. An end that was reported never changes, no run
// is started twice, and the pod ends and leaves nothing.
func TestRandomEvents(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 6
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			inWorldWith(t, func(w *world) { w.boxed = seed%2 == 0 }, func(w *world) {
				policies := []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}
				pod := podOf(policies[seed%3], command("app", "forever"), command("work", fmt.Sprintf("exit %d 20s", random.IntN(2))))
				pod.Spec.InitContainers = []corev1.Container{command("init", "exit 0 2s"), sidecarOf(command("side", "forever"))}
				ref := w.start(pod)
				time.Sleep(time.Millisecond) // a run is known by its start here, so none exits as it starts
				ends := map[string]string{}  // by container and start
				look := func() podsync.State {
					s := w.state(ref)
					for _, c := range slices.Concat(s.Status.InitContainerStatuses, s.Status.ContainerStatuses) {
						for _, end := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
							if end == nil {
								continue
							}
							run, text := fmt.Sprint(c.Name, " of ", end.StartedAt.Sub(w.begin)), fmt.Sprint(end.ExitCode, " at ", end.FinishedAt.Sub(w.begin))
							if before, seen := ends[run]; seen && before != text {
								w.Errorf("the end of %s was %s, and is %s", run, before, text)
							}
							ends[run] = text
						}
					}
					return s
				}
				for range 60 {
					switch random.IntN(8) {
					case 0, 1:
						w.fail(random)
					case 2, 3:
						look()
						w.tidy(ref)
					case 4:
						w.kill()
						if random.IntN(2) == 0 {
							w.tidy(ref)
						}
						w.boot()
					case 5:
						w.kill()
						w.fail(random)
						w.boot()
					case 6:
						if random.IntN(4) == 0 {
							w.lose(ref.UID)
						}
					}
					time.Sleep(time.Duration(random.IntN(40_000)) * time.Millisecond)
					look()
				}
				w.stop(ref, 10*time.Second)
				time.Sleep(30 * time.Second)
				if s := look(); !s.Stopped {
					w.Errorf("it has not stopped: %+v", s.Status)
				}
				if err := w.p.Release(w.Context(), ref); err != nil {
					w.Error(err)
				}
				if left, err := w.memory.List(w.Context(), ref.UID); err != nil || len(left) > 0 {
					w.Errorf("%v is left, %v", left, err)
				}
				w.machine.mu.Lock()
				defer w.machine.mu.Unlock()
				starts := map[string]bool{}
				for _, entry := range w.journal {
					if strings.HasPrefix(entry, "start ") && starts[entry] {
						w.Errorf("%s twice: %q", entry, w.journal)
					}
					starts[entry] = true
				}
			})
		})
	}
}
