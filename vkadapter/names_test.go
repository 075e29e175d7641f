// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/vkadapter"
)

// nameless are providers that return pods without UIDs.
var nameless = map[string]habits{
	"without NotifyPods":            {notFound: known, noUIDs: true, silent: true},
	"status only from GetPodStatus": {notFound: known, noUIDs: true, noStatus: true, silent: true},
	"any error for not found":       {notFound: errPlain, noUIDs: true, silent: true},
	"with NotifyPods":               {notFound: known, noUIDs: true},
	"objects of the back end":       {notFound: fromAPI, hostObjects: true, silent: true},
}

// A job has succeeded and is kept for its logs, and its pod is deleted and created again. The new
// pod waits until the old one is released.
func TestAPodDoesNotGetTheEndOfItsPredecessor(t *testing.T) {
	for name, h := range nameless {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				a, p := newAdapter(t, h, vkadapter.Config{})
				defer watch(t, a)()
				first, second := newPod("web", "uid-1"), newPod("web", "uid-2")
				if _, err := a.Start(ctx, first); err != nil {
					t.Fatal(err)
				}
				p.exit("web", 0)
				if states := listed(t, a); !h.silent {
					time.Sleep(2 * time.Second)
				} else if len(states) != 1 || states[0].UID != "uid-1" || !states[0].Stopped {
					t.Errorf("the list has %+v", states)
				}
				for range 2 {
					if st, err := a.Start(ctx, second); !errors.Is(err, vkadapter.ErrOtherPod) {
						t.Errorf("Start of the second = %+v, %v, want ErrOtherPod", st, err)
					}
					if states := listed(t, a); len(states) != 1 || states[0].UID != "uid-1" {
						t.Errorf("the list has %+v, want the first", states)
					}
				}
				if n := p.count("CreatePod"); n != 1 {
					t.Errorf("CreatePod was called %d times before Release", n)
				}
				if err := a.Release(ctx, podsync.RefOf(first)); err != nil {
					t.Errorf("Release = %v", err)
				}
				if st, err := a.Start(ctx, second); err != nil || st.Stopped || st.UID != "uid-2" {
					t.Errorf("Start after Release = %+v, %v", st, err)
				}
				if p.started("uid-2") != 1 || p.count("DeletePod") != 1 {
					t.Errorf("%d jobs of the second, %d calls of DeletePod, want 1 and 1", p.started("uid-2"), p.count("DeletePod"))
				}
			})
		})
	}
}

// Release is repeated after Stop has seen the pod go, and after the next pod of the name has started.
func TestReleaseOfAPodThatIsGoneTouchesNoOther(t *testing.T) {
	for name, h := range nameless {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				for again, call := range map[string]func(*vkadapter.Adapter, *corev1.Pod) error{
					"Release": func(a *vkadapter.Adapter, pod *corev1.Pod) error { return a.Release(ctx, podsync.RefOf(pod)) },
					"Stop": func(a *vkadapter.Adapter, pod *corev1.Pod) error {
						st, err := a.Stop(ctx, podsync.RefOf(pod), podsync.StopOptions{Pod: pod})
						if !st.Stopped {
							t.Errorf("the second Stop = %+v", st)
						}
						return err
					},
				} {
					a, p := newAdapter(t, h, vkadapter.Config{})
					end := watch(t, a)
					first, second := newPod("web", "uid-1"), newPod("web", "uid-2")
					_, err1 := a.Start(ctx, first)
					st, err2 := a.Stop(ctx, podsync.RefOf(first), podsync.StopOptions{Pod: first})
					_, err3 := a.Start(ctx, second)
					if err := errors.Join(err1, err2, err3, call(a, first)); err != nil || !st.Stopped {
						t.Fatalf("%v, the first is %+v", err, st)
					}
					if n := p.count("DeletePod"); n != 1 || len(p.names()) != 1 {
						t.Errorf("%s: DeletePod was called %d times, and the jobs are %v", again, n, p.names())
					}
					end()
				}
			})
		})
	}
}

// An earlier process has left a job, and Start of the next pod of its name comes between two lists.
// Each list after it has the job as an instance that podsync stops and releases, and then the pod starts.
func TestAPodDoesNotGetAJobThatNobodyKnows(t *testing.T) {
	for name, h := range nameless {
		for what, ended := range map[string]bool{", running": false, ", ended": true} {
			t.Run(name+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx := t.Context()
					before, p := newAdapter(t, h, vkadapter.Config{})
					end := watch(t, before)
					if _, err := before.Start(ctx, newPod("web", "uid-1")); err != nil {
						t.Fatal(err)
					}
					end()
					if ended {
						p.exit("web", 0)
					}
					a, err := vkadapter.New(p.handler(), vkadapter.Config{NodeName: nodeName})
					if err != nil {
						t.Fatal(err)
					}
					defer watch(t, a)()
					second := newPod("web", "uid-2")
					if states := listed(t, a); len(states) != 1 || states[0].UID != "" {
						t.Errorf("the first list has %+v", states)
					}
					var orphan podsync.State
					for range 2 {
						if st, err := a.Start(ctx, second); err == nil {
							t.Errorf("Start = %+v", st)
						}
						states := listed(t, a)
						if len(states) != 1 || states[0].UID == "" || states[0].UID == "uid-2" {
							t.Fatalf("the list has %+v", states)
						}
						orphan = states[0]
					}
					if !orphan.Stopped {
						if _, err := a.Stop(ctx, orphan.Ref, podsync.StopOptions{}); err != nil {
							t.Errorf("Stop = %v", err)
						}
					}
					if err := a.Release(ctx, orphan.Ref); err != nil {
						t.Errorf("Release = %v", err)
					}
					if st, err := a.Start(ctx, second); err != nil || st.UID != "uid-2" || p.started("uid-2") != 1 {
						t.Errorf("Start = %+v, %v with %d jobs", st, err, p.started("uid-2"))
					}
				})
			})
		}
	}
}

// CreatePod fails after it has submitted a job, and the job ends before Start is repeated: the name
// was free, so the end is the pod's. An end that was there before is not, as often as CreatePod fails.
func TestWhoseEndItIsAfterCreatePodFailed(t *testing.T) {
	for name, h := range nameless {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				h.createTimesOut = true
				a, p := newAdapter(t, h, vkadapter.Config{})
				defer watch(t, a)()
				first, second := newPod("web", "uid-1"), newPod("web", "uid-2")
				if _, err := a.Start(ctx, first); err == nil {
					t.Error("the first Start succeeds")
				}
				p.exit("web", 0)
				if st, err := a.Start(ctx, first); err != nil || !st.Stopped || p.count("CreatePod") != 1 {
					t.Errorf("the second Start = %+v, %v after %d calls of CreatePod", st, err, p.count("CreatePod"))
				}
				other, err := vkadapter.New(p.handler(), vkadapter.Config{NodeName: nodeName})
				if err != nil {
					t.Fatal(err)
				}
				defer watch(t, other)()
				for range 3 {
					if st, err := other.Start(ctx, second); err == nil {
						t.Errorf("Start of the second = %+v", st)
					}
					time.Sleep(5 * time.Second)
					for _, st := range listed(t, other) {
						if st.UID == "" || st.UID == "uid-2" { // podsync takes both for the second
							t.Errorf("the list has %+v", st)
						}
					}
				}
			})
		})
	}
}

// watch has an adapter watched until the returned function is called.
func watch(t *testing.T, a *vkadapter.Adapter) (end func()) {
	t.Helper()
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { defer close(done); _ = a.Watch(ctx, func(podsync.State) {}) }()
	synctest.Wait()
	return func() { cancel(); <-done }
}

// A pod that has completed is replaced under its name, and the new one runs.
func TestWildProvidersReplaceAPod(t *testing.T) {
	each(t, func(w *world) { replace(w, true, false) })
}

// A pod of a provider that returns no UIDs is replaced, also while no process runs.
func TestAPodIsReplacedUnderItsName(t *testing.T) {
	for name, h := range nameless {
		for when, down := range map[string]bool{"": false, ", no process": true} {
			for what, ended := range map[string]bool{", ended": true, ", running": false} {
				t.Run(name+when+what, func(t *testing.T) {
					bubble(t, h, func(w *world) { replace(w, ended, down) })
					h.stopTime = 20 * time.Second
					bubble(t, h, func(w *world) { replace(w, ended, down) })
				})
			}
		}
	}
}

// replace replaces a pod that has ended or runs, at once or while no process runs.
func replace(w *world, ended, down bool) {
	w.Helper()
	w.start()
	w.pod("build", corev1.RestartPolicyNever)
	pass(time.Minute)
	if ended {
		w.cloud.exit("build", 0)
		pass(time.Minute)
		w.phase("after the exit", "build", corev1.PodSucceeded)
	}
	if down {
		w.kill()
	}
	apitest.Remove[*corev1.Pod](w.s, "default", "build")
	second := w.pod("build", corev1.RestartPolicyNever)
	if down {
		w.start()
	}
	pass(7 * time.Minute)
	w.phase("the second", "build", corev1.PodRunning)
	w.once("the second", second)
	w.cloud.exit("build", 0)
	pass(time.Minute)
	w.phase("after the exit of the second", "build", corev1.PodSucceeded)
}
