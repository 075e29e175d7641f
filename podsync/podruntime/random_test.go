// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime_test

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// tidyAll does one of the things with which an administrator makes room: exited containers, sandboxes
// that are not ready, empty directories, and file systems in memory. Images are left out, since this
// Runtime has none: crikubelet's tests remove them.
func (w *world) tidyAll(random *rand.Rand, ref podsync.Ref) {
	switch random.IntN(4) {
	case 0:
		w.tidy(ref)
	case 1:
		w.machine.mu.Lock()
		defer w.machine.mu.Unlock()
		if b := w.boxes[ref.UID]; b != nil && !b.Ready {
			delete(w.boxes, ref.UID)
		}
	case 2:
		w.removeEmpty()
	case 3:
		w.unmountAll()
	}
}

// times matches the times in the files of a Provider.
var times = regexp.MustCompile(`"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z"`)

// stepClock makes what is on disk and in the runtime older by a time, or newer if that is negative,
// while no process runs. That is what a process sees whose machine had its clock stepped before it
// began: the clock of a bubble can't be stepped, also not while a process runs.
func (w *world) stepClock(by time.Duration) {
	w.Helper()
	changed := 0
	err := filepath.WalkDir(filepath.Join(w.root, "pods"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".json" || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		data = times.ReplaceAllFunc(data, func(text []byte) []byte {
			at, err := time.Parse(`"`+time.RFC3339Nano+`"`, string(text))
			if err != nil || at.IsZero() {
				return text
			}
			changed++
			return []byte(at.Add(-by).Format(`"` + time.RFC3339Nano + `"`))
		})
		return os.WriteFile(path, data, 0o600)
	})
	if err != nil || changed == 0 {
		w.Fatalf("%d times on disk were changed, %v", changed, err)
	}
	w.memory.mu.Lock()
	defer w.memory.mu.Unlock()
	for _, e := range w.memory.containers {
		e.StartedAt = e.StartedAt.Add(-by)
		if !e.FinishedAt.IsZero() {
			e.FinishedAt = e.FinishedAt.Add(-by)
		}
	}
}

// randomPod returns a pod with all kinds of containers, with volumes in memory, and in some seeds
// with as many containers as make each step of it expensive.
func (w *world) randomPod(seed uint64, random *rand.Rand) *corev1.Pod {
	w.api.Put(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "secret"}, Data: map[string][]byte{"key": []byte("text")}})
	policies := []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}
	pod := podOf(policies[seed%3], command("app", "forever"), command("work", fmt.Sprintf("exit %d 20s", random.IntN(2))))
	pod.Spec.InitContainers = []corev1.Container{command("init", "exit 0 2s"), sidecarOf(command("side", "forever"))}
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "secret"}}},
		{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
	}
	for _, v := range pod.Spec.Volumes {
		pod.Spec.Containers[1].VolumeMounts = append(pod.Spec.Containers[1].VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name, SubPath: map[string]string{"secret": "key"}[v.Name]})
	}
	if seed%10 == 3 {
		for i := range 200 {
			pod.Spec.Containers = append(pod.Spec.Containers, command(fmt.Sprint("more", i), "exit 0 1h"))
		}
	}
	return pod
}

// TestRandomEvents drives a pod through exits, deaths of the process, steps of the clock and losses of
// the sandbox, while an administrator removes what is at rest. An end that was reported never
// changes, no run is started twice or without its volumes, and the pod ends and leaves nothing.
func TestRandomEvents(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 6
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			inWorldWith(t, func(w *world) { w.boxed = seed%2 == 0 }, func(w *world) {
				ref := w.start(w.randomPod(seed, random))
				var stepped time.Duration    // what StartedAt and FinishedAt are behind by
				time.Sleep(time.Millisecond) // a run is known by its start here, so none exits as it starts
				ends := map[string]string{}  // by container and start
				look := func() podsync.State {
					s := w.state(ref)
					for _, c := range slices.Concat(s.Status.InitContainerStatuses, s.Status.ContainerStatuses) {
						for _, end := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
							if end == nil {
								continue
							}
							run, text := fmt.Sprint(c.Name, " of ", end.StartedAt.Add(stepped).Sub(w.begin)), fmt.Sprint(end.ExitCode, " at ", end.FinishedAt.Add(stepped).Sub(w.begin))
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
						w.tidyAll(random, ref)
					case 4:
						w.kill()
						if random.IntN(2) == 0 {
							w.tidyAll(random, ref)
						}
						if random.IntN(2) == 0 {
							by := []time.Duration{48 * time.Hour, -48 * time.Hour}[random.IntN(2)]
							w.stepClock(by)
							stepped += by
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
