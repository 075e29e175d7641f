// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/requests"
)

// informer runs a pod informer of a node and returns the function that lists
// its store, and one that stops it.
func informer(t *testing.T, s *apitest.Server) (names func() string, stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	f := informers.NewSharedInformerFactoryWithOptions(s.Client(apitest.NodeUser("n")), 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = "spec.nodeName=n" }))
	inf := f.Core().V1().Pods().Informer()
	f.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), inf.HasSynced) {
		t.Fatal("no sync")
	}
	return func() string {
			synctest.Wait()
			var out []string
			for _, o := range inf.GetStore().List() {
				p := o.(*corev1.Pod)
				out = append(out, p.Name+"="+string(p.Status.Phase))
			}
			slices.Sort(out)
			return fmt.Sprint(out)
		}, func() {
			cancel()
			f.Shutdown()
		}
}

func podOn(name, node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
}

var podWatches = apitest.Match{Verb: "watch", Resource: "pods"}

// TestInformer drives the real informer through all that can happen to its
// watch, with and without the initial events in it.
func TestInformer(t *testing.T) {
	for _, refuse := range []bool{false, true} {
		t.Run(fmt.Sprintf("refuse=%v", refuse), bubble(func(t *testing.T) { testInformer(t, refuse) }))
	}
}

func testInformer(t *testing.T, refuse bool) {
	s := apitest.New(apitest.Options{Gates: map[apitest.Gate]bool{apitest.WatchList: !refuse}})
	s.Put(podOn("a", "n"))
	s.Put(podOn("other", "m"))
	names, stop := informer(t, s)
	defer stop()
	expect := func(when, want string) {
		t.Helper()
		if got := names(); got != want {
			t.Errorf("%s: %s, want %s", when, got, want)
		}
	}
	expect("at first", "[a=]")
	if lists := len(s.Requests(apitest.Match{Verb: "list", Resource: "pods"})); (lists == 0) == refuse {
		t.Errorf("%d lists", lists)
	}
	s.Put(podOn("b", "n"))
	apitest.Edit(s, "default", "a", func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })
	apitest.Edit(s, "default", "other", func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })
	expect("after events", "[a=Running b=]")

	resume := s.StallWatches(podWatches)
	apitest.Remove[*corev1.Pod](s, "default", "b")
	time.Sleep(time.Minute)
	expect("stalled", "[a=Running b=]")
	resume()
	expect("resumed", "[a=Running]")

	undo := s.LagWatches(podWatches, 3*time.Second)
	s.Put(podOn("c", "n"))
	time.Sleep(2 * time.Second)
	expect("lagging", "[a=Running]")
	time.Sleep(time.Second)
	expect("after the lag", "[a=Running c=]")
	undo()

	if n := s.DropWatches(podWatches); n != 1 {
		t.Errorf("dropped %d", n)
	}
	s.Put(podOn("d", "n"))
	time.Sleep(2 * time.Second)
	expect("after a drop", "[a=Running c= d=]")

	// Nothing but a new list helps after this.
	block := s.Inject(apitest.Fault{Match: podWatches, Err: apitest.ErrConnRefused})
	s.BreakWatches(podWatches)
	apitest.Remove[*corev1.Pod](s, "default", "c")
	time.Sleep(time.Second)
	s.Compact()
	block()
	time.Sleep(time.Minute)
	expect("after a compaction", "[a=Running d=]")

	s.Put(podOn("e", "n"))
	s.ExpireWatches(podWatches)
	time.Sleep(10 * time.Second)
	expect("after an expiry", "[a=Running d= e=]")
}

func TestBookmarks(t *testing.T) { bubble(testBookmarks)(t) }

func testBookmarks(t *testing.T) {
	s := apitest.New(apitest.Options{})
	pods := s.Client(apitest.User{}).CoreV1().Pods("default")
	w, err := pods.Watch(t.Context(), metav1.ListOptions{AllowWatchBookmarks: true, TimeoutSeconds: new(int64(150)), ResourceVersion: s.ResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	start := time.Now()
	s.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "elsewhere", Namespace: "default"}})
	var got []string
	for ev := range w.ResultChan() {
		got = append(got, fmt.Sprint(ev.Type, " ", ev.Object.(*corev1.Pod).ResourceVersion == s.ResourceVersion(), " ", time.Since(start)))
	}
	if want := "[BOOKMARK true 1m0s BOOKMARK true 2m0s]"; fmt.Sprint(got) != want || time.Since(start) != 150*time.Second {
		t.Errorf("got %v, end after %v", got, time.Since(start))
	}
	if r := s.Requests(podWatches)[0]; !r.Done || r.Duration != 150*time.Second {
		t.Errorf("journal: %v %v", r, r.Duration)
	}
}

// TestExpiredWatch is a watch from a resourceVersion that the server has
// forgotten.
func TestExpiredWatch(t *testing.T) { bubble(testExpiredWatch)(t) }

func testExpiredWatch(t *testing.T) {
	s := apitest.New(apitest.Options{History: 10})
	pods := s.Client(apitest.User{}).CoreV1().Pods("default")
	rv := s.ResourceVersion()
	for i := range 10 {
		s.Put(podOn(fmt.Sprint("p", i), "n"))
	}
	first := func() watch.Event {
		t.Helper()
		w, err := pods.Watch(t.Context(), metav1.ListOptions{ResourceVersion: rv})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		return <-w.ResultChan()
	}
	if ev := first(); ev.Type != watch.Added {
		t.Errorf("within history: %v", ev)
	}
	for i := range 20 {
		s.Put(podOn(fmt.Sprint("q", i), "n"))
	}
	if ev := first(); ev.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(ev.Object)) {
		t.Errorf("beyond history: %v", ev)
	}
}

// TestWatchEnds are the ways in which a client lets go of a watch. That none of
// them leaves a goroutine is for the bubble to say.
func TestWatchEnds(t *testing.T) { bubble(testWatchEnds)(t) }

func testWatchEnds(t *testing.T) {
	s := apitest.New(apitest.Options{})
	pods := s.Client(apitest.User{}).CoreV1().Pods("default")
	ctx, cancel := context.WithCancel(t.Context())
	byContext, err := pods.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	byStop, err := pods.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n := requests.OpenWatches(s, podWatches); n != 2 {
		t.Errorf("%d watches", n)
	}
	cancel()
	byStop.Stop()
	for range byContext.ResultChan() {
	}
	synctest.Wait()
	byContext.Stop()
	synctest.Wait()
	if n := requests.OpenWatches(s, apitest.Match{}); n != 0 {
		t.Errorf("%d watches are left", n)
	}
	for _, r := range s.Requests(podWatches) {
		if !r.Done {
			t.Errorf("still running: %v", r)
		}
	}
}

// A stream that has ended is read to its end when the stall is over, not at the next
// bookmark.
func TestEndedStreamOfStalledWatch(t *testing.T) {
	for name, end := range map[string]func(s *apitest.Server) string{
		"dropped": func(s *apitest.Server) string { s.DropWatches(apitest.Match{}); return "1" },
		"expired": func(s *apitest.Server) string { s.ExpireWatches(apitest.Match{}); return "1" },
		"too old": func(s *apitest.Server) string {
			rv := s.ResourceVersion()
			s.Put(podOn("b", "n"))
			s.Compact()
			return rv
		},
	} {
		t.Run(name, func(t *testing.T) {
			apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
				watchFrom := func(rv string) (<-chan watch.Event, func()) {
					w, err := s.Client(apitest.User{}).CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: rv})
					if err != nil {
						t.Fatal(err)
					}
					return w.ResultChan(), w.Stop
				}
				s.Put(podOn("a", "n"))
				resume := s.StallWatches(apitest.Match{})
				events, stop := watchFrom("1")
				defer func() { stop() }()
				if rv := end(s); rv != "1" {
					stop()
					events, stop = watchFrom(rv)
				}
				time.Sleep(time.Minute)
				resume()
				synctest.Wait()
				select {
				case _, ok := <-events:
					if !ok {
						t.Error("no event")
					}
				default:
					t.Error("the reader still waits")
				}
			})
		})
	}
}
