// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/internal/mounts"
	"github.com/kubewright/kubewright/podsync"
)

// removeEmpty removes the empty directories below Root, as an administrator does, and returns their
// number. What is mounted there stays.
func (w *world) removeEmpty() (removed int) {
	w.Helper()
	mounted, err := mounts.Below(w.root)
	if err != nil {
		w.Fatal(err)
	}
	var dirs []string
	err = filepath.WalkDir(w.root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != w.root {
			dirs = append(dirs, path)
		}
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	slices.Reverse(dirs) // a directory comes after those in it
	for _, dir := range dirs {
		if !slices.Contains(mounted, dir) && os.Remove(dir) == nil {
			removed++
		}
	}
	return removed
}

// unmountAll unmounts what the process has mounted, as a restart of the machine does.
func (w *world) unmountAll() {
	w.Helper()
	if err := mounts.UnmountBelow(w.root); err != nil {
		w.Fatal(err)
	}
}

// TestEmptyDirectoriesMayBeRemoved removes the empty directories of Root while the process runs, and
// while none does. Pods start, end and are released as if they were still there.
func TestEmptyDirectoriesMayBeRemoved(t *testing.T) {
	for name, tidy := range map[string]func(*world){
		"while it runs":          func(w *world) { w.removeEmpty() },
		"while no process does":  func(w *world) { w.kill(); w.removeEmpty(); w.boot() },
		"before a clean restart": func(w *world) { w.shutdown(); w.removeEmpty(); w.unmountAll(); w.boot() },
	} {
		t.Run(name, func(t *testing.T) {
			inWorldWith(t, func(w *world) { w.boxed = true }, func(w *world) {
				w.api.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings"}})
				pod := podOf(corev1.RestartPolicyAlways, command("app", "exit 1 1m"))
				pod.Spec.Volumes = []corev1.Volume{
					{Name: "empty", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
					{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
					{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}},
				}
				for _, v := range pod.Spec.Volumes {
					pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
				}
				// A second pod has not started anything yet.
				waiting := podOf(corev1.RestartPolicyAlways, command("app", "forever"))
				waiting.UID, waiting.Name = "uid-2", "waiting"
				a := w.start(pod)
				time.Sleep(time.Second)
				w.link.setBefore(func(op string) error {
					if op == "SetUpPod" {
						return errors.New("not now")
					}
					return nil
				})
				b := w.start(waiting)
				time.Sleep(time.Second)
				tidy(w)
				w.link.setBefore(nil)
				time.Sleep(5 * time.Minute)
				if c := w.container(a, "app"); c.RestartCount < 2 {
					t.Errorf("the pod does not start again: %+v", c)
				}
				if c := w.container(b, "app"); c.State.Running == nil {
					t.Errorf("the pod that had not started: %+v", c)
				}
				tidy(w)
				third := podOf(corev1.RestartPolicyAlways, command("app", "forever"))
				third.UID, third.Name = "uid-3", "third"
				c := w.start(third)
				w.stop(a, time.Second)
				w.stop(b, time.Second)
				w.stop(c, time.Second)
				time.Sleep(time.Minute)
				for _, ref := range []podsync.Ref{a, b, c} {
					w.removeEmpty()
					if err := w.p.Release(w.Context(), ref); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}
