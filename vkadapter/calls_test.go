// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/vkadapter"
)

// calls returns how often each method was called, and begins to count again.
func (p *provider) calls() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	counts := map[string]int{}
	for _, call := range p.seen {
		counts[call]++
	}
	p.seen = nil
	text := ""
	for _, method := range slices.Sorted(maps.Keys(counts)) {
		text += fmt.Sprintf("%s %d ", method, counts[method])
	}
	return text
}

// rounds calls List every five seconds, as podsync does for a provider without NotifyPods.
func rounds(t *testing.T, a *vkadapter.Adapter, n int) (states []podsync.State) {
	t.Helper()
	for range n {
		time.Sleep(a.Relist())
		var err error
		if states, err = a.List(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return states
}

// A provider that reports no changes is asked for the status of each pod that runs every five
// seconds, as by virtual-kubelet. Which pods there are it is asked once a minute.
func TestCallsInAQuietHour(t *testing.T) {
	for name, c := range map[string]struct {
		habits
		once bool
		want string
	}{
		"as asked for":                {habits: habits{notFound: known}, want: "GetPodStatus 1440 GetPods 60 "},
		"without a status in GetPods": {habits: habits{notFound: known, noStatus: true}, want: "GetPodStatus 1440 GetPods 60 "},
		"without UIDs":                {habits: habits{notFound: known, noUIDs: true}, want: "GetPodStatus 1440 GetPods 60 "},
		"by UID":                      {habits: habits{notFound: known, byUID: true}, want: "GetPodByUID 1440 GetPods 60 "}, // GetPodStatusByUID calls it
		// Without a Controller the adapter can't know that these are not names of pods.
		"GetPods has names of jobs":  {habits: habits{notFound: known, noUIDs: true, jobNames: true}, want: "GetPod 1440 GetPodStatus 2880 GetPods 720 "},
		"GetPods has no names":       {habits: habits{notFound: known, noUIDs: true, noNames: true}, want: "GetPod 180 GetPodStatus 1440 GetPods 60 "},
		"GetPods lists nothing":      {habits: habits{notFound: known, unlisted: true}, want: "GetPod 120 GetPodStatus 1440 GetPods 60 "},
		"GetPods may be called once": {habits: habits{notFound: known}, once: true, want: "GetPod 180 GetPodStatus 1440 "},
	} {
		t.Run(name, func(t *testing.T) {
			c.silent = true
			synctest.Test(t, func(t *testing.T) {
				a, p := newAdapter(t, c.habits, vkadapter.Config{ListOnce: c.once})
				for _, name := range []string{"one", "two", "ended"} {
					if _, err := a.Start(t.Context(), newPod(name, types.UID("uid-"+name))); err != nil {
						t.Fatal(err)
					}
				}
				p.exit("ended", 0)
				rounds(t, a, 1) // shows the end
				p.calls()
				rounds(t, a, 720)
				if got := p.calls(); got != c.want {
					t.Errorf("calls in an hour: %s, want %s", got, c.want)
				}
			})
		})
	}
}

// A node with two pods costs the API server what its lease and its status need, and watches that end after
// five to ten minutes: some 388 requests. Nothing is read or written about pods that have not changed.
func TestRequestsOfANodeInAQuietHour(t *testing.T) {
	for name, h := range map[string]habits{"with NotifyPods": {notFound: known}, "without": {notFound: known, silent: true}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, h, func(w *world) {
				w.start()
				w.pod("one", corev1.RestartPolicyAlways)
				w.pod("two", corev1.RestartPolicyAlways)
				pass(10 * time.Minute)
				before := len(w.s.Requests(apitest.Match{}))
				pass(time.Hour)
				counts := map[string]int{}
				for _, r := range w.s.Requests(apitest.Match{})[before:] {
					counts[r.Verb+" "+r.Resource]++
				}
				for request, most := range map[string]int{"update leases": 361, "patch nodes": 13, "watch nodes": 12, "watch pods": 12} {
					if n := counts[request]; n < most/2 || n > most {
						t.Errorf("%d times %q in an hour, want at most %d, and at least half of it", n, request, most)
					}
					delete(counts, request)
				}
				if len(counts) > 0 {
					t.Errorf("other requests in an hour: %v", counts)
				}
			})
		})
	}
}

// What may have changed which pods there are has GetPods called in the next round.
func TestGetPodsFollowsWhatChanges(t *testing.T) {
	one, two := newPod("one", "uid-one"), newPod("two", "uid-two")
	away := func(_ *vkadapter.Adapter, p *provider) error { p.setAway(true); return nil }
	for name, c := range map[string]struct {
		change func(a *vkadapter.Adapter, p *provider) error
		want   string // the calls of the next round
		pods   []string
	}{
		"nothing": {
			change: func(*vkadapter.Adapter, *provider) error { return nil },
			want:   "GetPodStatus 2 ", pods: []string{"one", "two"},
		},
		"a pod ends": {
			change: func(_ *vkadapter.Adapter, p *provider) error { p.exit("two", 0); return nil },
			want:   "GetPodStatus 2 ", pods: []string{"one", "two ended"},
		},
		"a pod is started": {
			change: func(a *vkadapter.Adapter, _ *provider) error {
				_, err := a.Start(context.Background(), newPod("three", "uid-three"))
				return err
			},
			want: "GetPodStatus 3 GetPods 1 ", pods: []string{"one", "three", "two"},
		},
		"a pod is adopted": {
			change: func(a *vkadapter.Adapter, p *provider) error {
				if err := p.CreatePod(context.Background(), newPod("three", "uid-three")); err != nil {
					return err
				}
				_, err := a.Start(context.Background(), newPod("three", "uid-three"))
				return err
			},
			want: "GetPodStatus 3 GetPods 1 ", pods: []string{"one", "three", "two"},
		},
		"a pod is updated": {
			change: func(a *vkadapter.Adapter, _ *provider) error {
				_, err := a.Update(context.Background(), two)
				return err
			},
			want: "GetPodStatus 2 GetPods 1 ", pods: []string{"one", "two"},
		},
		"a pod is stopped": {
			change: func(a *vkadapter.Adapter, _ *provider) error {
				_, err := a.Stop(context.Background(), podsync.RefOf(two), podsync.StopOptions{Pod: two})
				return err
			},
			want: "GetPodStatus 1 GetPods 1 ", pods: []string{"one", "two ended"},
		},
		"a pod is released": {
			change: func(a *vkadapter.Adapter, _ *provider) error {
				return a.Release(context.Background(), podsync.RefOf(two))
			},
			want: "GetPodStatus 1 GetPods 1 ", pods: []string{"one"},
		},
		"an instance is lost": {
			change: func(_ *vkadapter.Adapter, p *provider) error { delete(p.jobs, key("default", "two")); return nil },
			want:   "GetPod 1 GetPodStatus 2 GetPods 1 ", pods: []string{"one"},
		},
		"the back end is away": {change: away, want: "GetPodStatus 2 GetPods 1 ", pods: []string{"error"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, p := newAdapter(t, habits{silent: true, notFound: known}, vkadapter.Config{})
				for _, pod := range []*corev1.Pod{one, two} {
					if _, err := a.Start(t.Context(), pod); err != nil {
						t.Fatal(err)
					}
				}
				rounds(t, a, 2)
				if err := c.change(a, p); err != nil {
					t.Fatal(err)
				}
				p.calls()
				time.Sleep(a.Relist())
				states, err := a.List(t.Context())
				var got []string
				for _, st := range states {
					if st.Stopped {
						st.Name += " ended"
					}
					got = append(got, st.Name)
				}
				if err != nil {
					got = []string{"error"}
				}
				slices.Sort(got)
				if calls := p.calls(); calls != c.want || !slices.Equal(got, c.pods) {
					t.Errorf("the next round called %sand has %v, want %sand %v", calls, got, c.want, c.pods)
				}
			})
		})
	}
}

// A node without a pod that runs notices that its back end is away, and one whose pod has no
// status calls GetPods in each round.
func TestWithoutAStatusGetPodsIsCalledInEachRound(t *testing.T) {
	for name, h := range map[string]habits{
		"no pod":      {},
		"it panics":   {panics: true},
		"it hangs":    {hangs: true},
		"no UID":      {noUIDs: true},
		"lags behind": {lag: 50 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			h.silent, h.notFound = true, known
			synctest.Test(t, func(t *testing.T) {
				a, p := newAdapter(t, h, vkadapter.Config{})
				ctx, cancel := context.WithCancel(t.Context())
				var watch sync.WaitGroup
				watch.Go(func() { _ = a.Watch(ctx, func(podsync.State) {}) })
				defer func() { cancel(); watch.Wait() }()
				synctest.Wait()
				switch name {
				case "no pod":
				case "no UID", "it panics", "it hangs": // the adapter has not been asked about it
					if err := p.CreatePod(ctx, newPod("bad", "uid-bad")); err != nil {
						t.Fatal(err)
					}
				default:
					if _, err := a.Start(ctx, newPod("bad", "uid-bad")); err != nil {
						t.Fatal(err)
					}
				}
				p.calls()
				rounds(t, a, 6)
				if n := p.count("GetPods"); n != 6 {
					t.Errorf("GetPods was called %d times in 6 rounds", n)
				}
			})
		})
	}
}

// A pod that had ended before the process began has no instance, and podsync does not call Release for it. When
// it is gone from the API, nothing is asked about it any more.
func TestPodsThatAreGoneAreNotAskedAbout(t *testing.T) {
	const pods = 20
	for name, once := range map[string]bool{"GetPods may be called once": true, "GetPods is called again": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, habits{notFound: known, silent: true, noNames: !once}, func(w *world) {
				w.change = func(cfg *vkadapter.NodeConfig) {
					cfg.Adapter = func(a *vkadapter.Config) { a.ListOnce = once }
				}
				for i := range pods {
					name := fmt.Sprint("old-", i)
					w.pod(name, corev1.RestartPolicyNever)
					apitest.Edit(w.s, "default", name, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
				}
				w.start()
				w.pod("web", corev1.RestartPolicyAlways)
				pass(time.Minute)
				w.phase("after a minute", "web", corev1.PodRunning)
				for i := range pods {
					w.delete(fmt.Sprint("old-", i))
				}
				pass(20 * time.Minute)
				before := w.p.count("GetPod")
				pass(time.Hour)
				if n := w.p.count("GetPod") - before; n > 70 {
					t.Errorf("GetPod was called %d times in an hour, and one pod runs", n)
				}
			})
		})
	}
}
