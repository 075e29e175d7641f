// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/apitest"
)

// A watch that ends after its first event loses none, and its initial events are complete.
func TestShortenWatches(t *testing.T) {
	bubble(func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		s.Put(podOn("a", "n"))
		s.Put(podOn("b", "n"))
		remove := s.ShortenWatches(podWatches)
		names, stop := informer(t, s)
		defer stop()
		if got := names(); got != "[a= b=]" && got != "[a=Pending b=Pending]" {
			t.Fatalf("%s", got)
		}
		before := len(s.Requests(podWatches))
		for _, name := range []string{"c", "d", "e"} {
			s.Put(podOn(name, "n"))
		}
		apitest.Remove[*corev1.Pod](s, "default", "a")
		if got := len(names()); got != len("[b= c= d= e=]") && got != len("[b=Pending c=Pending d=Pending e=Pending]") {
			t.Errorf("%s", names())
		}
		if n := len(s.Requests(podWatches)) - before; n != 4 {
			t.Errorf("%d watches for four events", n)
		}
		ended := 0
		for _, r := range s.Requests(podWatches) {
			if r.Fault == "ShortenWatches" {
				ended++
			}
		}
		if ended != 4 {
			t.Errorf("%d watches have ended after an event, want 4", ended)
		}
		remove()
		s.Put(podOn("f", "n"))
		synctest.Wait()
		s.Put(podOn("g", "n"))
		synctest.Wait()
		if n := len(s.Requests(podWatches)) - before; n != 4 {
			t.Errorf("%d watches after the rule was removed", n)
		}
	})(t)
}
