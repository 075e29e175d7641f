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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

// lines are the messages that a process has logged.
type lines struct {
	mu   sync.Mutex
	text []string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, strings.TrimSpace(string(p)))
	return len(p), nil
}

// take returns the lines since the last call.
func (l *lines) take() (text []string) {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	text, l.text = l.text, nil
	return text
}

// logged compares the messages since the last take, in any order.
func (w *world) logged(after time.Duration, want ...string) {
	w.Helper()
	got := w.lines.take()
	var messages []string
	for _, line := range got {
		messages = append(messages, strings.Split(line, `"`)[1])
	}
	slices.Sort(messages)
	if !slices.Equal(messages, want) {
		w.Errorf("after %v %d lines, want %q:\n%s", after, len(got), want, strings.Join(got[:min(len(got), 5)], "\n"))
	}
}

// A frail is a Runtime with a call that fails while failing is true.
type frail struct {
	sandboxed
	failing *atomic.Bool
	which   string // "": each call
	panics  bool
}

func (f frail) fails(op string) bool { return f.failing.Load() && (f.which == "" || f.which == op) }

func (f frail) fail(op string) error {
	switch {
	case !f.fails(op):
		return nil
	case f.panics:
		panic("a fault of " + op)
	}
	return errors.New("the runtime is away")
}

func (f frail) Watch(ctx context.Context, changed func(types.UID)) error {
	if err := f.fail("Watch"); err != nil {
		return err
	}
	call, cancel := context.WithCancel(ctx)
	var checks sync.WaitGroup
	checks.Go(func() {
		defer cancel()
		for !f.fails("Watch") && call.Err() == nil {
			select {
			case <-time.After(20 * time.Second):
			case <-call.Done():
			}
		}
	})
	err := f.sandboxed.Watch(call, changed)
	cancel()
	checks.Wait()
	if ctx.Err() == nil {
		err = f.fail("Watch")
	}
	return err
}

func (f frail) DiskUsage(context.Context, types.UID) (map[string]int64, error) {
	return map[string]int64{"c": 1 << 30}, f.fail("DiskUsage")
}

func (f frail) Seal(data []byte) ([]byte, error)   { return data, f.fail("Seal") }
func (f frail) Open(sealed []byte) ([]byte, error) { return sealed, nil }

// A failure that lasts is one line for all pods, and one more each hour. Its end is one line.
func TestAFailureThatLastsIsLoggedOnceForAllPods(t *testing.T) {
	limited := func(limit string) corev1.Container {
		c := command("c", "forever")
		c.Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse(limit)}
		return c
	}
	withVolumes := func(source corev1.VolumeSource) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			for _, name := range []string{"a", "b"} {
				pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
			}
		}
	}
	spans := []time.Duration{10 * time.Minute, time.Hour}
	if testing.Short() {
		spans = spans[:1] // each failure is repeated each second
	}
	for name, tc := range map[string]struct {
		container corev1.Container
		edit      func(*corev1.Pod)                        // nil: the pods have nothing else
		fails     string                                   // the call of frail that fails
		panics    bool                                     // it does with a panic
		each      func(*world, podsync.Ref)                // nil: nothing is done to each pod when it fails
		begin     func(*world, []podsync.Ref) (end func()) // nil: nothing else fails
		first     []string                                 // and again after an hour
		last      []string
	}{
		"the runtime is away": {
			container: command("c", "forever"),
			first:     []string{"The containers can't be listed", "The watch of the runtime has ended"},
			last:      []string{"The containers can be listed again", "The watch of the runtime works again"},
		},
		"panic": {
			container: command("c", "forever"), fails: "Watch", panics: true,
			first: []string{"A callback panicked", "The watch of the runtime has ended"}, last: []string{"The watch of the runtime works again"},
		},
		"stop": {
			container: command("c", "forever"), fails: "Stop", each: func(w *world, pod podsync.Ref) { w.stop(pod, time.Second) },
			first: []string{"The container can't be stopped"}, last: []string{"Containers can be stopped again"},
		},
		"old runs": {
			container: command("c", "exit 1 10s"), fails: "Remove",
			first: []string{"An old run is still there"}, last: []string{"Old runs can be removed again"},
		},
		"strays": {
			container: command("c", "forever"), fails: "Remove", each: func(w *world, pod podsync.Ref) { w.stray("stray-"+pod.UID, "c", "exit", "0") },
			first: []string{"Containers without a pod are still there"}, last: []string{"Containers without a pod can be removed again"},
		},
		"sandboxes": {
			container: command("c", "forever"), fails: "SetUpPod", each: func(w *world, pod podsync.Ref) { w.lose(pod.UID) },
			first: []string{"A sandbox call failed"}, last: []string{"Sandbox calls work again"},
		},
		"disk usage": {
			container: limited("2Gi"), fails: "DiskUsage",
			first: []string{"The disk usage of a pod can't be measured"}, last: []string{"The disk usage of pods can be measured again"},
		},
		"eviction": {
			container: limited("1Mi"), fails: "Evict",
			first: []string{"A pod that exceeds a limit of disk usage can't be evicted yet"}, last: []string{"Evictions because of disk usage work again"},
		},
		"volumes": {
			container: command("c", "forever"), fails: "none",
			edit: withVolumes(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}, DefaultMode: new(int32(0o644)),
			}}),
			begin: func(w *world, _ []podsync.Ref) func() {
				settings := w.api.Client(apitest.User{}).CoreV1().ConfigMaps("default")
				if err := settings.Delete(w.Context(), "settings", metav1.DeleteOptions{}); err != nil {
					w.Error(err)
				}
				return func() {
					w.api.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings"}})
				}
			},
			first: []string{"A volume is not refreshed"}, last: []string{"Volumes are refreshed again"},
		},
		"inputs": {
			container: command("c", "forever"), fails: "Seal",
			edit: withVolumes(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "password", DefaultMode: new(int32(0o644))}}),
			begin: func(w *world, _ []podsync.Ref) func() {
				w.api.Put(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "password"}, Data: map[string][]byte{"k": []byte("new")}})
				return func() {}
			},
			first: []string{"What the containers of a pod have read is not on disk"}, last: []string{"What containers have read can be written again"},
		},
		"records": {
			container: command("c", "forever"), fails: "none", each: func(w *world, pod podsync.Ref) { w.lose(pod.UID) },
			begin: func(w *world, pods []podsync.Ref) func() {
				blocked := func(f func(path string) error) {
					for _, pod := range pods {
						if err := f(filepath.Join(w.root, "pods", string(pod.UID), "past.json.tmp")); err != nil {
							w.Error(err)
						}
					}
				}
				blocked(func(path string) error { return os.Mkdir(path, 0o700) })
				return func() { blocked(os.Remove) }
			},
			first: []string{"The restart of a pod is not on disk"}, last: []string{"Records can be written again"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var failing atomic.Bool
			inWorldWith(t, func(w *world) {
				withServices(w)
				w.lines = &lines{}
				w.change = func(cfg *podruntime.Config) {
					f := frail{sandboxed{w.link}, &failing, tc.fails, tc.panics}
					cfg.Runtime, cfg.Relist, cfg.Sealer = f, 20*time.Second, f
					cfg.Backoff = podruntime.Backoff{Initial: 5 * time.Minute, Max: 2 * time.Hour}
					cfg.Evict = func(podsync.Ref, podsync.Eviction) error { return f.fail("Evict") }
					w.link.setBefore(f.fail)
				}
			}, func(w *world) {
				var pods []podsync.Ref
				for i := range 3 {
					pod := named(fmt.Sprint("p", i), podOf(corev1.RestartPolicyAlways, tc.container))
					if tc.edit != nil {
						tc.edit(pod)
					}
					pods = append(pods, w.start(pod))
				}
				time.Sleep(5 * time.Second)
				w.lines.take() // perhaps that Secrets are on the disk
				end := func() {}
				if failing.Store(true); tc.begin != nil {
					end = tc.begin(w, pods)
				}
				for _, pod := range pods {
					if tc.each != nil {
						tc.each(w, pod)
					}
				}
				for _, d := range spans {
					time.Sleep(d)
					w.logged(d, tc.first...)
				}
				end()
				failing.Store(false)
				time.Sleep(5 * time.Minute)
				w.logged(0, tc.last...)
			})
		})
	}
}

// A Provider that begins while the runtime is away is ready when that is back.
func TestAStartWithoutTheRuntimeIsLoggedOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		w.start(podOf(corev1.RestartPolicyAlways, command("c", "forever")))
		time.Sleep(time.Minute)
		w.shutdown()
		var failing atomic.Bool
		failing.Store(true)
		w.lines = &lines{}
		w.change = func(cfg *podruntime.Config) { w.link.setBefore(frail{failing: &failing, which: "List"}.fail) }
		w.boot()
		for _, d := range []time.Duration{10 * time.Minute, time.Hour} {
			time.Sleep(d)
			w.logged(d, "The containers can't be listed")
		}
		failing.Store(false)
		time.Sleep(10 * time.Minute)
		w.logged(0, "The containers can be listed again")
	})
}

// A pod that is being stopped after a volume of it failed does not keep the end of the failures of others from being logged.
func TestAPodThatIsStoppedNoLongerFails(t *testing.T) {
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings"}}
	inWorldWith(t, func(w *world) { w.lines = &lines{} }, func(w *world) {
		pod := podOf(corev1.RestartPolicyAlways, command("c", "stubborn"))
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}, DefaultMode: new(int32(0o644)),
		}}}}
		w.api.Put(settings.DeepCopy())
		w.start(named("stays", pod.DeepCopy()))
		stopped := w.start(named("stopped", pod.DeepCopy()))
		if err := w.api.Client(apitest.User{}).CoreV1().ConfigMaps("default").Delete(w.Context(), "settings", metav1.DeleteOptions{}); err != nil {
			w.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		w.logged(2*time.Minute, "A volume is not refreshed")
		w.stop(stopped, time.Hour)
		w.api.Put(settings.DeepCopy())
		time.Sleep(2 * time.Minute)
		w.logged(0, "Volumes are refreshed again")
	})
}
