// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
)

func configMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string]string{"v": value}}
}

// TestObserve requires every change, in order, with the state right after it.
func TestObserve(t *testing.T) {
	s := apitest.New(apitest.Options{})
	maps := s.Client(apitest.User{}).CoreV1().ConfigMaps("default")
	var got []string
	remove := s.Observe(func(c apitest.Change) {
		m, _ := meta.Accessor(c.Object)
		old := "-"
		if cm, ok := c.Old.(*corev1.ConfigMap); ok {
			old = cm.Data["v"]
		}
		now := "-"
		if cm := apitest.Get[*corev1.ConfigMap](s, "default", m.GetName()); cm != nil {
			now = cm.Data["v"]
			cm.Data["v"] = "changed"                     // a copy
			c.Object.(*corev1.ConfigMap).Data["v"] = "x" // a copy too
		}
		if m.GetResourceVersion() != s.ResourceVersion() {
			t.Errorf("%s is reported at %s", m.GetResourceVersion(), s.ResourceVersion())
		}
		got = append(got, fmt.Sprint(c.Type, " ", m.GetName(), " ", old, ">", now))
	})
	ctx := t.Context()
	_, err := maps.Create(ctx, configMap("a", "1"), metav1.CreateOptions{})
	must(t, err)
	_, err = maps.Update(ctx, configMap("a", "2"), metav1.UpdateOptions{})
	must(t, err)
	_, err = maps.Update(ctx, configMap("a", "2"), metav1.UpdateOptions{}) // changes nothing
	must(t, err)
	s.Put(configMap("b", "1"))
	apitest.Edit(s, "default", "b", func(cm *corev1.ConfigMap) { cm.Data["v"] = "2" })
	must(t, maps.Delete(ctx, "a", metav1.DeleteOptions{}))
	apitest.Remove[*corev1.ConfigMap](s, "default", "b")
	remove()
	s.Put(configMap("c", "1"))
	want := []string{"ADDED a ->1", "MODIFIED a 1>2", "ADDED b ->1", "MODIFIED b 1>2", "DELETED a 2>-", "DELETED b 2>-"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestObserveTogether requires the changes of one deletion of a collection after the
// last of them.
func TestObserveTogether(t *testing.T) {
	s := apitest.New(apitest.Options{})
	s.Put(configMap("a", ""))
	s.Put(configMap("b", ""))
	var left []int
	s.Observe(func(apitest.Change) { left = append(left, len(apitest.List[*corev1.ConfigMap](s, ""))) })
	must(t, s.Client(apitest.User{}).CoreV1().ConfigMaps("default").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	if !slices.Equal(left, []int{0, 0}) {
		t.Errorf("left after each: %v", left)
	}
}

// TestObjects lists objects of all kinds, of types with and without a Go type here.
func TestObjects(t *testing.T) {
	widget := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
	s := apitest.New(apitest.Options{Kinds: []apitest.Kind{{GroupVersionKind: widget}}})
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(widget)
	u.SetNamespace("default")
	u.SetName("w")
	s.Put(u)
	s.Put(configMap("b", ""))
	s.Put(configMap("a", ""))
	var got []string
	for _, o := range s.Objects() {
		m, _ := meta.Accessor(o)
		got = append(got, o.GetObjectKind().GroupVersionKind().Kind+" "+m.GetName())
	}
	want := []string{"ConfigMap a", "ConfigMap b", "Namespace default", "Namespace kube-node-lease", "Namespace kube-public", "Namespace kube-system", "Widget w",
		"PriorityClass system-cluster-critical", "PriorityClass system-node-critical"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestServed crashes a client after its second write.
func TestServed(t *testing.T) {
	s := apitest.New(apitest.Options{})
	maps := s.Client(apitest.User{}).CoreV1().ConfigMaps("default")
	var served []string
	s.Inject(apitest.Fault{Match: apitest.Match{Resource: "configmaps"}, Skip: 1, Served: func(r apitest.Request) {
		served = append(served, fmt.Sprint(r.Name, " ", r.Code, " ", apitest.Get[*corev1.ConfigMap](s, "default", r.Name) != nil))
	}})
	s.Inject(apitest.Fault{Match: apitest.Match{Name: "c"}, LoseResponse: true})
	s.Inject(apitest.Fault{Match: apitest.Match{Name: "d"}, Err: apitest.ErrConnRefused})
	for _, name := range []string{"a", "b", "b", "c", "d"} {
		_, _ = maps.Create(t.Context(), configMap(name, ""), metav1.CreateOptions{})
	}
	if want := []string{"b 201 true", "b 409 true", "c 201 true"}; !slices.Equal(served, want) {
		t.Errorf("served %q, want %q", served, want)
	}
}

// TestStallReads reads from a server whose watch cache stands still two changes behind.
func TestStallReads(t *testing.T) {
	apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		user := apitest.User{Name: "late"}
		maps := s.Client(user).CoreV1().ConfigMaps("default")
		ctx := t.Context()
		s.Put(configMap("a", "1"))
		old := s.ResourceVersion()
		s.Put(configMap("a", "2"))
		s.Put(configMap("b", "1"))
		resume := s.StallReads(apitest.Match{User: "late"}, 2)

		state := func(rv string) string {
			t.Helper()
			l, err := maps.List(ctx, metav1.ListOptions{ResourceVersion: rv})
			must(t, err)
			out := []string{l.ResourceVersion}
			for _, cm := range l.Items {
				out = append(out, cm.Name+cm.Data["v"])
			}
			return strings.Join(out, " ")
		}
		for rv, want := range map[string]string{"0": old + " a1", old: old + " a1", "": s.ResourceVersion() + " a2 b1"} {
			if got := state(rv); got != want {
				t.Errorf("list at %q: %s, want %s", rv, got, want)
			}
		}
		if _, err := maps.Get(ctx, "b", metav1.GetOptions{ResourceVersion: "0"}); !apierrors.IsNotFound(err) {
			t.Errorf("b is there already: %v", err)
		}
		if _, err := maps.Get(ctx, "b", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
		if _, err := maps.List(ctx, metav1.ListOptions{ResourceVersion: s.ResourceVersion()}); !apierrors.IsTimeout(err) {
			t.Errorf("list of a state that is held back: %v", err)
		}
		initial := metav1.ListOptions{SendInitialEvents: ptr.To(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true}
		if _, err := maps.Watch(ctx, initial); !apierrors.IsTimeout(err) {
			t.Errorf("watch with new initial events: %v", err)
		}

		w, err := maps.Watch(ctx, metav1.ListOptions{ResourceVersion: "0", AllowWatchBookmarks: true})
		must(t, err)
		defer w.Stop()
		var events []string
		go func() {
			for ev := range w.ResultChan() {
				if m, err := meta.Accessor(ev.Object); err == nil {
					events = append(events, fmt.Sprint(ev.Type, m.GetName(), m.GetResourceVersion()))
				}
			}
		}()
		s.Put(configMap("c", "1"))
		time.Sleep(90 * time.Second) // a bookmark is due, and must not be for what is held back
		synctest.Wait()
		if want := []string{"ADDEDa" + old, "BOOKMARK" + old}; !slices.Equal(events, want) {
			t.Errorf("events %v, want %v", events, want)
		}
		resume()
		synctest.Wait()
		if len(events) != 5 || !strings.HasPrefix(events[2], "MODIFIEDa") || !strings.HasPrefix(events[3], "ADDEDb") || !strings.HasPrefix(events[4], "ADDEDc") {
			t.Errorf("events after resume: %v", events)
		}
		if got, want := state("0"), s.ResourceVersion()+" a2 b1 c1"; got != want {
			t.Errorf("list after resume: %s, want %s", got, want)
		}
		held := map[string]int{}
		for _, r := range s.Requests(apitest.Match{User: "late"}) {
			held[r.Verb] += r.Held
		}
		if held["list"] != 2+2 || held["get"] != 1 || held["watch"] != 3 {
			t.Errorf("Held is %v", held)
		}
	})
}

// TestStaleInformer starts an informer on a server whose watch cache stands still. Without
// initial events in watches, its list is old.
func TestStaleInformer(t *testing.T) {
	apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		s.Put(podOn("a", "n"))
		s.Put(podOn("b", "n"))
		resume := s.StallReads(apitest.Match{}, 1)
		defer s.RefuseWatchLists(apitest.Match{Resource: "pods"})()
		names, stop := informer(t, s)
		defer stop()
		time.Sleep(time.Second)
		if got, want := names(), "[a=]"; got != want {
			t.Errorf("the informer has %s, want %s", got, want)
		}
		resume()
		if got := names(); got != "[a= b=]" {
			t.Errorf("after resume the informer has %s", got)
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
