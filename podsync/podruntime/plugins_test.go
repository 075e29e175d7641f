// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

// diskPod is a pod with a volume of a PersistentVolumeClaim.
func diskPod(c corev1.Container) *corev1.Pod {
	c.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	pod := podOf(corev1.RestartPolicyAlways, c)
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}}}
	return pod
}

// A Deployment makes pods without end if a node rejects them.
func TestAPodWithAVolumeOfAnotherKindWaits(t *testing.T) {
	for _, boxed := range []bool{false, true} {
		t.Run(fmt.Sprint("sandboxes: ", boxed), func(t *testing.T) {
			recorder := events.NewFakeRecorder(100)
			inWorldWith(t, func(w *world) {
				w.boxed = boxed
				w.change = func(cfg *podruntime.Config) { cfg.EventRecorder = recorder }
			}, func(w *world) {
				pod := diskPod(command("c", "forever"))
				if err := w.p.Admit(w.Context(), pod, func(func(*corev1.Pod) bool) {}); err != nil {
					t.Fatal(err)
				}
				ref := w.start(pod)
				time.Sleep(time.Minute)
				st := w.container(ref, "c")
				if st.State.Waiting == nil || st.State.Waiting.Reason != "ContainerCreating" || !strings.Contains(st.State.Waiting.Message, "no plugin of this node mounts persistentVolumeClaim") {
					t.Errorf("the container has %+v", st.State)
				}
				if e := <-recorder.Events; !strings.HasPrefix(e, "Warning FailedMount ") || !strings.Contains(e, `"data"`) {
					t.Errorf("event %q", e)
				}
				w.stop(ref, time.Second)
				if !w.state(ref).Stopped {
					t.Error("it does not stop")
				}
			})
		})
	}
}

// A disk is a VolumePlugin whose volumes are in the journal of the machine.
type disk struct {
	w      *world
	broken atomic.Bool
}

func (d *disk) Mount(_ context.Context, pod *corev1.Pod, v *corev1.Volume, path string) error {
	if d.broken.Load() {
		return errors.New("the disk is away")
	}
	d.w.note("mount %s", v.PersistentVolumeClaim.ClaimName)
	return errors.Join(os.MkdirAll(path, 0o755), os.WriteFile(filepath.Join(path, "of"), []byte(pod.Name), 0o600))
}

func (d *disk) Unmount(_ context.Context, _ *corev1.Pod, v *corev1.Volume, path string) error {
	if d.broken.Load() {
		return errors.New("the disk is away")
	}
	d.w.note("unmount %s", v.PersistentVolumeClaim.ClaimName)
	return os.RemoveAll(path)
}

// A program adds a kind of volumes. They are there before the first container, and away before
// the pod counts as stopped, also if the process is killed in between.
func TestAPluginMountsVolumes(t *testing.T) {
	for _, boxed := range []bool{false, true} {
		t.Run(fmt.Sprint("sandboxes: ", boxed), func(t *testing.T) {
			var d disk
			inWorldWith(t, func(w *world) {
				d.w, w.boxed = w, boxed
				w.change = func(cfg *podruntime.Config) {
					cfg.Volumes = map[string]podruntime.VolumePlugin{"persistentVolumeClaim": &d}
				}
			}, func(w *world) {
				want := func(entries ...string) {
					t.Helper()
					var all []string
					for _, e := range entries {
						if boxed || e != "set up" && e != "tear down" {
							all = append(all, e)
						}
					}
					w.expect(all...)
				}
				d.broken.Store(true)
				ref := w.start(diskPod(command("c", "exit 1 1h")))
				time.Sleep(5 * time.Second)
				if st := w.container(ref, "c"); st.State.Waiting == nil || !strings.Contains(st.State.Waiting.Message, "the disk is away") {
					t.Errorf("the container has %+v", st.State)
				}
				want()
				d.broken.Store(false)
				time.Sleep(3 * time.Second)
				want("mount claim", "set up", "start c/0")
				if data, err := os.ReadFile(filepath.Join(w.root, "pods", string(ref.UID), "volumes", "data", "of")); err != nil || string(data) != "p" {
					t.Errorf("%q, %v", data, err)
				}
				w.kill()
				w.boot()
				time.Sleep(time.Hour) // its next run is the first of this process
				want("mount claim", "set up", "start c/0", "mount claim", "start c/1")
				d.broken.Store(true)
				w.stop(ref, time.Second)
				time.Sleep(10 * time.Second)
				if w.state(ref).Stopped {
					t.Error("it counts as stopped with a volume that is mounted")
				}
				d.broken.Store(false)
				time.Sleep(time.Minute)
				want("mount claim", "set up", "start c/0", "mount claim", "start c/1", "stop c/1", "tear down", "tear down", "tear down", "tear down", "tear down", "unmount claim")
				if !w.state(ref).Stopped {
					t.Error("it does not count as stopped")
				}
			})
		})
	}
}

// A Stop for a pod whose directory was lost ends its containers before it says so.
func TestAStopOfAPodWhoseDirectoryWasLostEndsItsContainers(t *testing.T) {
	inWorldWith(t, func(w *world) { w.boxed = true }, func(w *world) {
		ref := w.start(podOf(corev1.RestartPolicyAlways, command("c", "stubborn")))
		time.Sleep(time.Second)
		w.kill()
		if err := os.RemoveAll(filepath.Join(w.root, "pods", string(ref.UID))); err != nil {
			t.Fatal(err)
		}
		w.boot()
		opts := podsync.StopOptions{Grace: 10 * time.Second, Reason: podsync.StopDeleted}
		for _, after := range []time.Duration{0, 5 * time.Second} {
			time.Sleep(after)
			if s, err := w.p.Stop(w.Context(), ref, opts); err == nil {
				t.Errorf("after %v it has %+v", after, s)
			}
		}
		time.Sleep(6 * time.Second)
		if s, err := w.p.Stop(w.Context(), ref, opts); err != nil || !s.Stopped {
			t.Errorf("%+v, %v", s, err)
		}
		if list, err := w.memory.List(w.Context(), ref.UID); err != nil || len(list) > 0 || len(w.boxes) > 0 {
			t.Errorf("the runtime has %v and %v, %v", list, w.boxes, err)
		}
		w.link.setBefore(func(string) error { return errCut })
		if s, err := w.p.Stop(w.Context(), podsync.Ref{Namespace: "default", Name: "other", UID: "2"}, opts); err == nil {
			t.Errorf("without an answer of the runtime it has %+v", s)
		}
		w.link.setBefore(nil)
	})
}
