// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// records is a Checkpoint in memory, which outlives a process.
type records struct {
	mu      sync.Mutex
	all     map[types.UID][]byte
	fail    error
	written bool          // a Save that fails has written the record
	hangs   bool          // Save and Remove wait for their contexts
	saves   chan struct{} // Save waits for one; nil: it does not wait
	saved   int           // the calls of Save
	removes int           // the calls of Remove
}

func (r *records) Load(context.Context) (map[types.UID][]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.all), nil
}

func (r *records) Save(ctx context.Context, uid types.UID, record []byte) error {
	if r.saves != nil {
		<-r.saves
	}
	if err := r.hang(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.saved++; r.fail == nil || r.written {
		r.all[uid] = record
	}
	return r.fail
}

// hang waits for ctx if Save and Remove hang.
func (r *records) hang(ctx context.Context) error {
	r.mu.Lock()
	hangs := r.hangs
	r.mu.Unlock()
	if !hangs {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (r *records) setHang(hangs bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hangs = hangs
}

func (r *records) Remove(ctx context.Context, uid types.UID) error {
	if err := r.hang(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.removes++; r.fail == nil || r.written {
		delete(r.all, uid)
	}
	return r.fail
}

// setFail makes Save and Remove fail, after they have written if written is true.
func (r *records) setFail(err error, written bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail, r.written = err, written
}

func (r *records) has(pod *corev1.Pod) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[pod.UID] != nil
}

// away makes the API server not answer.
func (w *world) away(f apitest.Fault) (back func()) {
	f.Match = apitest.Match{User: nodeUser}
	remove := w.server.Inject(f)
	w.server.BreakWatches(watches)
	return remove
}

// checkpointed runs a controller with a Checkpoint.
func (w *world) checkpointed() *records {
	r := &records{all: map[types.UID][]byte{}}
	w.cfg.Checkpoint = r
	w.cfg.Relist = 10 * time.Second
	w.run()
	return r
}

// A machine that reboots without its network starts its pods, and the API decides when it is back.
func TestPodsStartWhileTheAPIIsAway(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		r := w.checkpointed()
		always := w.bind(newPod("always"))
		job := w.bind(newPod("job", restart(corev1.RestartPolicyNever)))
		done := w.bind(newPod("done", restart(corev1.RestartPolicyNever)))
		deleted := w.bind(newPod("deleted"))
		changed := w.bind(newPod("changed"))
		pass(time.Minute)
		w.backend.Exit(done.UID, 0)
		pass(time.Minute)
		w.expectPhase("done", corev1.PodSucceeded)
		if r.has(done) || !r.has(always) || !r.has(job) {
			t.Errorf("records %v", slices.Collect(maps.Keys(r.all)))
		}

		w.crash()
		for _, pod := range []*corev1.Pod{always, job, done, deleted, changed} {
			w.backend.Lose(pod.UID)
		}
		apitest.Remove[*corev1.Pod](w.server, "default", "deleted")
		apitest.Edit(w.server, "default", "changed", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "registry.example/app:2" })
		back := w.away(apitest.Fault{Err: apitest.ErrConnRefused})
		w.backend.ResetCalls()
		w.start()
		pass(podsync.DefaultOfflineAfter - time.Second)
		w.expectCalls()
		if w.c.CheckProvider(t.Context(), node) == nil {
			t.Error("the node may be ready although its pods are not known")
		}
		pass(time.Minute)
		for pod, runs := range map[*corev1.Pod]bool{always: true, deleted: true, changed: true, job: false, done: false} {
			if w.backend.Running(pod.UID) != runs {
				t.Errorf("%s runs: %v, want %v", pod.Name, !runs, runs)
			}
		}
		if n := w.callsOf(podsync.OpStart); n != 3 {
			t.Errorf("%d calls of Start, want 3: %v", n, w.backend.Calls(""))
		}

		back()
		pass(5 * time.Minute)
		w.isReady()
		if n := w.callsOf(podsync.OpStart); n != 3 {
			t.Errorf("%d calls of Start, want still 3", n)
		}
		w.expectPhase("always", corev1.PodRunning)
		if got := w.expectPhase("job", corev1.PodFailed).Status.Reason; got != podsync.ReasonLost {
			t.Errorf("job failed with %q", got)
		}
		if w.backend.Running(deleted.UID) || r.has(deleted) || r.has(job) {
			t.Error("a pod that is deleted or has ended runs, or has a record")
		}
		if got := w.expectPhase("changed", corev1.PodRunning).Status.ObservedGeneration; got != 2 {
			t.Errorf("observed generation %d of the changed pod", got)
		}
		if err := w.c.CheckProvider(t.Context(), node); err != nil {
			t.Error(err)
		}
	})
}

// Pods that outlive the process are adopted, and nothing runs twice.
func TestPodsAreAdoptedWhileTheAPIIsAway(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		r := w.checkpointed()
		job := w.bind(newPod("job", restart(corev1.RestartPolicyNever)))
		w.bind(newPod("b"))
		pass(time.Minute)
		w.crash()
		back := w.away(apitest.Fault{Hang: true})
		w.start()
		pass(time.Minute)
		w.backend.Exit(job.UID, 0)
		pass(time.Minute)
		// It dies again before the API knows.
		w.crash()
		w.start()
		pass(time.Minute)
		back()
		pass(5 * time.Minute)
		w.expectPhase("job", corev1.PodSucceeded)
		w.expectPhase("b", corev1.PodRunning)
		if n := w.callsOf(podsync.OpStart); n != 2 || r.has(job) {
			t.Errorf("%d calls of Start for two pods; a record of the pod that has ended: %v", n, r.has(job))
		}
	})
}

func TestTheGateDecidesAboutPodsThatStartOffline(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		closed := w.gated()
		w.checkpointed()
		pod := w.bind(newPod("a"))
		pass(time.Minute)
		w.crash()
		w.backend.Lose(pod.UID)
		closed.Store(true)
		w.away(apitest.Fault{Err: apitest.ErrConnRefused})
		w.start()
		pass(time.Hour)
		if w.backend.Running(pod.UID) {
			t.Error("it was started without the gate")
		}
		closed.Store(false)
		pass(time.Minute)
		if !w.backend.Running(pod.UID) {
			t.Error("it does not run although the gate is open")
		}
	})
}

// A pod that ends is not started by the next boot, whatever the API has learned of its end.
func TestAPodThatEndsDoesNotStartOffline(t *testing.T) {
	long := podsynctest.Options{StopTime: 3 * time.Minute}
	deleted := func(w *world, pod *corev1.Pod) { w.kubectlDelete(pod.Name, 600) }
	for name, tc := range map[string]struct {
		opts  podsynctest.Options
		end   func(*world, *corev1.Pod)
		phase corev1.PodPhase // in the end; "": it is gone
	}{
		"deleted":                   {end: deleted},
		"deleted, and still ending": {opts: long, end: deleted},
		"gone, and still ending": {opts: long, end: func(w *world, pod *corev1.Pod) {
			apitest.Edit(w.server, pod.Namespace, pod.Name, func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(600)) })
			apitest.Remove[*corev1.Pod](w.server, pod.Namespace, pod.Name)
		}},
		"evicted": {end: func(w *world, pod *corev1.Pod) {
			if err := w.c.Evict(podsync.RefOf(pod), podsync.Eviction{Message: "disk"}); err != nil {
				w.t.Error(err)
			}
		}, phase: corev1.PodFailed},
		"completed": {end: func(w *world, pod *corev1.Pod) { w.backend.Finish(pod.UID, 0) }, phase: corev1.PodFailed},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, tc.opts, func(w *world) {
				r := w.checkpointed()
				pod := w.bind(newPod("a"))
				pass(time.Minute)
				away := w.server.Inject(apitest.Fault{Match: patches, Err: apitest.ErrConnRefused})
				tc.end(w, pod)
				pass(time.Minute)
				w.crash()
				away()
				w.backend.Lose(pod.UID)
				back := w.away(apitest.Fault{Err: apitest.ErrConnRefused})
				w.backend.ResetCalls()
				w.start()
				pass(2 * time.Minute)
				if n := w.callsOf(podsync.OpStart); n != 0 {
					t.Errorf("%d calls of Start", n)
				}
				back()
				pass(5 * time.Minute)
				if tc.phase != "" {
					w.expectPhase("a", tc.phase)
				} else {
					w.expectGone("a")
				}
				if n := w.callsOf(podsync.OpStart); n != 0 || r.has(pod) {
					t.Errorf("%d calls of Start in the end; a record is left: %v", n, r.has(pod))
				}
			})
		})
	}
}

// A Save may write the record of a pod and fail, or count no more because the gate has closed. The
// record is removed when the pod is gone.
func TestARecordThatMayExistIsRemoved(t *testing.T) {
	t.Run("failed", func(t *testing.T) {
		bubble(t, podsynctest.Options{}, func(w *world) {
			r := w.checkpointed()
			r.setFail(errors.New("input/output error"), true)
			pod := w.bind(newPod("a"))
			pass(time.Minute)
			r.setFail(nil, false)
			w.kubectlDelete("a", 30) // before Start is called again
			pass(5 * time.Minute)
			w.expectGone("a")
			if r.has(pod) || w.known() != 0 {
				t.Errorf("a record: %v; %d pods known", r.has(pod), w.known())
			}
		})
	})
	t.Run("stale", func(t *testing.T) {
		bubble(t, podsynctest.Options{}, func(w *world) {
			closed := w.gated()
			r := &records{all: map[types.UID][]byte{}, saves: make(chan struct{})}
			w.cfg.Checkpoint = r
			w.cfg.Relist = 10 * time.Second
			w.run2(5 * time.Second)
			pod := w.bind(newPod("a"))
			pass(time.Second)
			closed.Store(true)
			pass(20 * time.Second) // a List asks the gate
			w.kubectlDelete("a", 0)
			close(r.saves)
			pass(5 * time.Second)
			closed.Store(false)
			pass(5 * time.Minute)
			if w.backend.Running(pod.UID) || r.has(pod) || w.known() != 0 {
				t.Errorf("runs: %v, a record: %v; %d pods known", w.backend.Running(pod.UID), r.has(pod), w.known())
			}
		})
	})
}

// Run stores the final status of a pod that has ended before it returns, and does not leave its
// record. A disk that fails can't keep Run from returning.
func TestTheRecordGoesWhileRunReturns(t *testing.T) {
	for _, fails := range []bool{false, true} {
		bubble(t, podsynctest.Options{}, func(w *world) {
			r := w.checkpointed()
			pod := w.bind(newPod("a"))
			pass(time.Minute)
			w.server.Inject(apitest.Fault{Match: patches, Latency: time.Second})
			w.kubectlDelete("a", 30)
			pass(500 * time.Millisecond) // it has stopped, and the PATCH is under way
			if fails {
				r.setFail(errors.New("the disk is read-only"), false)
			}
			begin := time.Now()
			w.stop()
			w.expectGone("a")
			if r.has(pod) != fails {
				t.Errorf("a record: %v", r.has(pod))
			}
			if d := time.Since(begin); d > podsync.DefaultShutdownTimeout || d < podsync.DefaultShutdownTimeout-time.Second && fails || r.removes > 4 {
				t.Errorf("Run has returned after %v and %d calls of Remove", d, r.removes)
			}
		})
	}
}

// A disk that is full or hangs delays neither the changes of a pod's spec nor its end.
func TestAPodGoesOnWithoutItsRecord(t *testing.T) {
	for name, fail := range map[string]func(*records){
		"full":  func(r *records) { r.setFail(errors.New("no space left on device"), false) },
		"hangs": func(r *records) { r.setHang(true) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, podsynctest.Options{}, func(w *world) {
				r := w.checkpointed()
				pod := w.bind(newPod("a"))
				pass(time.Minute)
				fail(r)
				for i := range 2 {
					apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) { p.Spec.Containers[0].Image = fmt.Sprint("registry.example/app:", i+2) })
					pass(15 * time.Second)
					if n := w.callsOf(podsync.OpUpdate); n != i+1 {
						t.Errorf("%d calls of Update after %d changes", n, i+1)
					}
				}
				w.kubectlDelete("a", 30)
				pass(time.Second)
				w.expectGone("a")
				r.setFail(nil, false)
				r.setHang(false)
				pass(10 * time.Minute)
				if w.known() != 0 || r.has(pod) {
					t.Errorf("%d pods known; a record: %v", w.known(), r.has(pod))
				}
			})
		})
	}
}

// The records of pods that are gone are removed without holding up List, and failures are reported.
func TestARemoveThatHangsHoldsUpNoList(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		r := w.checkpointed()
		gone, lost := w.bind(newPod("gone")), w.bind(newPod("lost"))
		pass(time.Minute)
		w.crash()
		w.backend.Lose(gone.UID)
		apitest.Remove[*corev1.Pod](w.server, "default", "gone")
		r.setHang(true)
		w.start()
		pass(30 * time.Second)
		w.backend.Lose(lost.UID)
		pass(time.Minute)
		if !w.backend.Running(lost.UID) {
			t.Error("a pod that was lost while Remove hung is not started again")
		}
		if err := w.c.CheckProvider(t.Context(), node); err != nil {
			t.Error(err)
		}
		if told := w.told(); !slices.ContainsFunc(told, func(err string) bool { return strings.Contains(err, "remove the record of pod "+string(gone.UID)) }) {
			t.Errorf("errors %q", told)
		}
		r.setHang(false)
		pass(time.Minute)
		if r.has(gone) {
			t.Error("the record is left")
		}
	})
}

// A Start that has failed is repeated, whatever the Checkpoint says: it is not saved.
func TestAStartThatHasFailedIsNotSaved(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		r := w.checkpointed()
		w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, Err: errors.New("no image"), Times: 1})
		pod := w.bind(newPod("a"))
		pass(200 * time.Millisecond)
		saved, _ := r.Load(t.Context())
		if stage := w.stage(pod.UID); stage != podsync.StageStarting.String() || len(saved) > 0 {
			t.Errorf("stage %s, %d records", stage, len(saved))
		}
		pass(time.Minute)
		w.expectPhase("a", corev1.PodRunning)
		w.expectCalls("start a", "start a")
	})
}

// A record has the pod as it was at Start. What the API has of it counts: when it started, and how
// often its containers have.
func TestAStartOfflineKeepsTheHistory(t *testing.T) {
	for name, fails := range map[string]error{"starts": nil, "does not start": errors.New("no image")} {
		t.Run(name, func(t *testing.T) {
			bubble(t, podsynctest.Options{}, func(w *world) {
				w.checkpointed()
				pod := w.bind(newPod("a"))
				pass(time.Minute)
				w.backend.Edit(pod.UID, func(st *corev1.PodStatus) { st.ContainerStatuses[0].RestartCount = 7 })
				pass(time.Minute)
				before := w.pod("a").Status
				w.crash()
				w.backend.Lose(pod.UID)
				back := w.away(apitest.Fault{Err: apitest.ErrConnRefused})
				if fails != nil {
					w.backend.Inject(podsynctest.Fault{Op: podsync.OpStart, Err: fails})
				}
				w.start()
				pass(podsync.DefaultOfflineAfter - time.Second)
				w.server.Inject(apitest.Fault{Match: apitest.Match{User: nodeUser, Verb: "list", Resource: "pods"}, Latency: 9 * time.Second})
				pass(1500 * time.Millisecond) // the first status would be due now, before the list
				back()
				pass(10 * time.Minute)
				got := w.pod("a").Status
				if !got.StartTime.Equal(before.StartTime) {
					t.Errorf("start time %v, was %v", got.StartTime, before.StartTime)
				}
				cs := got.ContainerStatuses[0]
				if last := cs.LastTerminationState.Terminated; last == nil || last.ExitCode != 137 {
					t.Errorf("last termination %+v, want 137", last)
				}
				if fails == nil && cs.RestartCount != 8 || cs.RestartCount < 7 {
					t.Errorf("%d restarts", cs.RestartCount)
				}
			})
		})
	}
}

// A pod that has no record does not count as started, or it would be missing after a reboot.
func TestAPodIsSavedBeforeItCountsAsStarted(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		r := w.checkpointed()
		r.setFail(errors.New("the disk is full"), false)
		pod := w.bind(newPod("a"))
		pass(5 * time.Minute)
		if got := w.pod("a"); !strings.Contains(got.Status.Message, "the disk is full") || w.stage(pod.UID) != "Starting" {
			t.Errorf("stage %s, message %q", w.stage(pod.UID), got.Status.Message)
		}
		r.setFail(nil, false)
		pass(5 * time.Minute)
		w.expectPhase("a", corev1.PodRunning)
		if !r.has(pod) {
			t.Error("it has no record")
		}
		// It is updated with the spec.
		before := string(r.all[pod.UID])
		apitest.Edit(w.server, "default", "a", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "registry.example/app:2" })
		pass(time.Minute)
		if string(r.all[pod.UID]) == before {
			t.Error("the record has the old spec")
		}
		// A record that can't be removed is tried again, also by the next process.
		r.setFail(errors.New("the disk is read-only"), false)
		w.kubectlDelete("a", -1)
		pass(time.Minute)
		w.expectGone("a")
		w.crash()
		r.setFail(nil, false)
		w.run()
		pass(time.Minute)
		if r.has(pod) || w.c.Kept() != 0 {
			t.Errorf("a record: %v, %d entries", r.has(pod), w.c.Kept())
		}
	})
}

// A process that finds the record of a pod saves it again if the pod has changed since, and not
// because the process is new.
func TestARestartSavesOnlyWhatHasChanged(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		r := w.checkpointed()
		w.bind(newPod("same"))
		w.bind(newPod("changed"))
		pass(time.Minute)
		for _, changed := range []bool{false, true} {
			w.crash()
			want := 0
			if changed {
				apitest.Edit(w.server, "default", "changed", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "registry.example/app:2" })
				want = 1
			}
			r.saved = 0
			w.run()
			pass(time.Minute)
			if r.saved != want {
				t.Errorf("%d calls of Save by a new process, want %d", r.saved, want)
			}
		}
	})
}

// The time for which losses are held does not begin again with each process.
func TestTheHoldOfMassLossesGoesOnAfterACrash(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.wrap = simple
		w.cfg.Policy.MassHold = 10 * time.Minute
		w.checkpointed()
		var pods []*corev1.Pod
		for i := range 3 {
			pods = append(pods, w.bind(newPod(fmt.Sprint("p", i))))
		}
		pass(time.Minute)
		for _, pod := range pods {
			w.backend.Lose(pod.UID)
		}
		w.backend.ResetCalls()
		for range 2 {
			pass(4 * time.Minute)
			w.expectCalls()
			w.crash()
			w.run()
		}
		pass(3 * time.Minute)
		if n := w.callsOf(podsync.OpStart); n != 3 {
			t.Errorf("%d calls of Start after 11 minutes", n)
		}
		// Later losses are held anew.
		pass(time.Hour)
		for _, pod := range pods {
			w.backend.Lose(pod.UID)
		}
		w.crash()
		w.run()
		pass(5 * time.Minute)
		if n := w.callsOf(podsync.OpStart); n != 3 {
			t.Errorf("%d calls of Start: the second loss is not held", n)
		}
	})
}

func TestCheckpointDirKeepsRecords(t *testing.T) {
	ctx, path := t.Context(), filepath.Join(t.TempDir(), "pods")
	open := func() podsync.Checkpoint {
		t.Helper()
		c := podsync.CheckpointDir(path)
		if _, err := c.Load(ctx); err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := podsync.CheckpointDir(path)
	if err := c.Save(ctx, "u", []byte("x")); err == nil {
		t.Error("it saves before it was loaded")
	}
	c = open()
	for _, uid := range []types.UID{"", "../u", ".u", "a/b"} {
		if err := c.Save(ctx, uid, []byte("x")); err == nil {
			t.Errorf("it saves under the name %q", uid)
		}
	}
	if err := errors.Join(c.Save(ctx, "u1", []byte("one")), c.Save(ctx, "u2", []byte("two")), c.Save(ctx, "u1", []byte("1")),
		c.Remove(ctx, "u2"), c.Remove(ctx, "u3")); err != nil {
		t.Fatal(err)
	}
	if _, err := podsync.CheckpointDir(path).Load(ctx); err == nil {
		t.Error("two processes have it open")
	}
	if err := c.(interface{ Close() error }).Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.Save(ctx, "u4", nil); err == nil {
		t.Error("it saves when it is closed")
	}
	c = podsync.CheckpointDir(path)
	got, err := c.Load(ctx)
	if err != nil || len(got) != 1 || string(got["u1"]) != "1" {
		t.Errorf("records %q, %v", got, err)
	}
}

// A pod that the API shows while its old record is being removed waits for that, and no longer.
func TestAPodStartsWhenItsOldRecordIsRemoved(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		r := w.checkpointed()
		pod := w.bind(newPod("a"))
		pass(time.Minute)
		w.crash()
		w.backend.Lose(pod.UID)
		apitest.Remove[*corev1.Pod](w.server, pod.Namespace, pod.Name)
		r.setHang(true)
		w.cfg.Relist = time.Hour
		w.start()
		pass(5 * time.Second)
		again := newPod("a")
		again.UID = pod.UID
		w.bind(again)
		w.backend.ResetCalls()
		pass(4 * time.Second)
		w.expectCalls()
		r.setHang(false)
		pass(2 * time.Second) // Remove has hung for ten seconds
		w.expectCalls("start a")
	})
}
