// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// term is a fence whose term is valid.
type term uint64

func (term) Valid() bool     { return true }
func (t term) Token() uint64 { return uint64(t) }

func newProvider(t testing.TB, runFor time.Duration) *provider {
	server := httptest.NewServer(newCloud(runFor).Handler())
	t.Cleanup(server.Close)
	return &provider{client: server.Client(), pods: server.URL + "/nodes/n1/pods", term: term(1)}
}

// web returns a pod that runs until it is stopped.
func web() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "1"},
		Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
}

func TestConformance(t *testing.T) {
	podsynctest.TestProvider(t, podsynctest.Suite{
		New: func(t testing.TB) podsync.Provider { return newProvider(t, 50*time.Millisecond) },
		// The other replica, in the next term.
		Reopen: func(_ testing.TB, old podsync.Provider) podsync.Provider {
			p := *old.(*provider)
			p.term = term(p.term.Token() + 1)
			return &p
		},
		Completes: func() *corev1.Pod {
			return &corev1.Pod{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "main", Image: "none"}},
			}}
		},
		NeverRestarts: true, // only pods that need not be restarted end
	})
}

// TestFence: a list is enough to keep out every request with a smaller token,
// for that node only.
func TestFence(t *testing.T) {
	earlier := newProvider(t, 0)
	later := *earlier
	later.term = term(2)
	pod := web()
	ref := podsync.RefOf(pod)
	if _, err := earlier.Start(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	before, err := later.List(t.Context())
	if err != nil || len(before) != 1 || before[0].Stopped {
		t.Fatalf("the next term finds %v, %v", before, err)
	}
	another := web()
	another.UID = "2"
	for what, call := range map[string]func() error{
		"start":   func() error { _, err := earlier.Start(t.Context(), another); return err },
		"stop":    func() error { _, err := earlier.Stop(t.Context(), ref, podsync.StopOptions{}); return err },
		"release": func() error { return earlier.Release(t.Context(), ref) },
		"list":    func() error { _, err := earlier.List(t.Context()); return err },
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), "token 1 is fenced off by 2") {
			t.Errorf("%s: %v", what, err)
		}
	}
	after, err := later.List(t.Context())
	if err != nil || len(after) != 1 || after[0].UID != "1" || after[0].Stopped {
		t.Errorf("the cloud has %v, %v", after, err)
	}
	elsewhere := *earlier
	elsewhere.pods = strings.Replace(earlier.pods, "n1", "n2", 1)
	if list, err := elsewhere.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("another node has %v, %v", list, err)
	}
}

// over is the fence of a term that has ended.
type over struct{ term }

func (over) Valid() bool { return false }

// TestTermOver: without a term, no request is sent.
func TestTermOver(t *testing.T) {
	p := newProvider(t, 0)
	p.term = over{}
	p.client = &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		t.Errorf("asked: %s %s", r.Method, r.URL)
		return nil, http.ErrUseLastResponse
	})}
	if _, err := p.List(t.Context()); err == nil || !strings.Contains(err.Error(), errNotLeading.Error()) {
		t.Errorf("%v, want %v", err, errNotLeading)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestCloudRefuses(t *testing.T) {
	p := newProvider(t, 0)
	pod := web()
	if _, err := p.Start(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if err := p.Release(t.Context(), podsync.RefOf(pod)); err == nil || !strings.Contains(err.Error(), "the instance runs") {
		t.Errorf("a pod that runs was forgotten: %v", err)
	}
	answer, err := p.client.Get(p.pods) // without a token
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusBadRequest {
		t.Errorf("without a token: %s", answer.Status)
	}
	pod.UID, pod.Spec.InitContainers = "2", []corev1.Container{{Name: "first", Image: "none"}}
	_, err = p.Start(t.Context(), pod)
	if rejection, ok := errors.AsType[*podsync.RejectError](err); !ok || rejection.Reason != "Unsupported" {
		t.Errorf("init containers: %v", err)
	}
}
