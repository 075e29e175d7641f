// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// bubble runs a test in a synctest bubble, which panics if the test leaves a
// goroutine behind.
func bubble(f func(t *testing.T)) func(*testing.T) {
	return func(t *testing.T) { synctest.Test(t, f) }
}

func TestFaults(t *testing.T) {
	errOwn := errors.New("own")
	onGet := apitest.Match{Verb: "get", Resource: "nodes"}
	for _, test := range []struct {
		name  string
		fault apitest.Fault
		check func(error) bool
		after time.Duration
	}{
		{"status", apitest.Fault{Status: statuserr.InternalError("boom")}, apierrors.IsInternalError, 0},
		{"unauthorized", apitest.Fault{Status: statuserr.Unauthorized()}, apierrors.IsUnauthorized, 0},
		{"forbidden", apitest.Fault{Status: statuserr.Forbidden("nodes", "n", "because")}, apierrors.IsForbidden, 0},
		{"gone", apitest.Fault{Status: statuserr.Gone()}, apierrors.IsResourceExpired, 0},
		{"unavailable", apitest.Fault{Status: statuserr.Unavailable(0)}, apierrors.IsServiceUnavailable, 0},
		{"server timeout", apitest.Fault{Status: statuserr.ServerTimeout()}, apierrors.IsTimeout, 0},
		{"refused", apitest.Fault{Err: apitest.ErrConnRefused}, func(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }, 0},
		{"latency", apitest.Fault{Latency: 300 * time.Millisecond}, func(err error) bool { return err == nil }, 300 * time.Millisecond},
		{"slow error", apitest.Fault{Latency: 2 * time.Second, Status: statuserr.InternalError("slow")}, apierrors.IsInternalError, 2 * time.Second},
		{"hang", apitest.Fault{Hang: true}, func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }, 10 * time.Second},
		{"hanging response", apitest.Fault{HangResponse: true}, func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }, 10 * time.Second},
		{"malformed", apitest.Fault{Malformed: true}, func(err error) bool { return err != nil }, 0},
		{"own answer", apitest.Fault{Answer: func(apitest.Request) (*http.Response, error) { return nil, errOwn }}, func(err error) bool { return errors.Is(err, errOwn) }, 0},
	} {
		t.Run(test.name, bubble(func(t *testing.T) {
			s := apitest.New(apitest.Options{})
			s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
			test.fault.Name, test.fault.Match = test.name, onGet
			remove := s.Inject(test.fault)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			nodes := s.Client(apitest.User{}).CoreV1().Nodes()
			start := time.Now()
			if _, err := nodes.Get(ctx, "n", metav1.GetOptions{}); !test.check(err) {
				t.Errorf("got %v", err)
			}
			if d := time.Since(start); d != test.after {
				t.Errorf("after %v, want %v", d, test.after)
			}
			// The fault affects no other request, and no request after its removal.
			if _, err := nodes.List(t.Context(), metav1.ListOptions{}); err != nil {
				t.Error(err)
			}
			remove()
			if _, err := nodes.Get(t.Context(), "n", metav1.GetOptions{}); err != nil {
				t.Error(err)
			}
			if r := s.Requests(onGet)[0]; !r.Done || test.name != "latency" && r.Fault != test.name {
				t.Errorf("journal: %+v", r)
			}
		}))
	}
}

func TestFaultSchedule(t *testing.T) { bubble(testFaultSchedule)(t) }

func testFaultSchedule(t *testing.T) {
	s := apitest.New(apitest.Options{})
	nodes := s.Client(apitest.User{}).CoreV1().Nodes()
	outcome := func() string {
		_, err := nodes.Get(t.Context(), "n", metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return "served"
		case apierrors.IsInternalError(err):
			return "failed"
		}
		return err.Error()
	}
	defer s.Inject(apitest.Fault{Match: apitest.Match{Resource: "nodes"}, Skip: 2, Times: 3, Status: statuserr.InternalError("")})()
	var got []string
	for range 7 {
		got = append(got, outcome())
	}
	if want := "served served failed failed failed served served"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
	defer s.Inject(apitest.Fault{For: time.Minute, Status: statuserr.InternalError("")})()
	if o := outcome(); o != "failed" {
		t.Errorf("in its time: %s", o)
	}
	time.Sleep(time.Minute)
	if o := outcome(); o != "served" {
		t.Errorf("after its time: %s", o)
	}
}

// leaseOf puts a lease on the server and returns it as a client has it.
func leaseOf(t *testing.T, s *apitest.Server) (*kubernetes.Clientset, *coordinationv1.Lease) {
	cs := s.Client(apitest.User{})
	l, err := cs.CoordinationV1().Leases("default").Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "l"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("a")}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return cs, l
}

func holder(s *apitest.Server) string {
	return *apitest.Get[*coordinationv1.Lease](s, "default", "l").Spec.HolderIdentity
}

func TestLostResponse(t *testing.T) { bubble(testLostResponse)(t) }

func testLostResponse(t *testing.T) {
	s := apitest.New(apitest.Options{})
	cs, l := leaseOf(t, s)
	defer s.Inject(apitest.Fault{Match: apitest.Match{Verb: "update"}, Times: 1, LoseResponse: true})()
	l.Spec.HolderIdentity = ptr.To("b")
	if _, err := cs.CoordinationV1().Leases("default").Update(t.Context(), l, metav1.UpdateOptions{}); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v", err)
	}
	if h := holder(s); h != "b" {
		t.Errorf("the write was lost as well: %s", h)
	}
	if _, err := cs.CoordinationV1().Leases("default").Update(t.Context(), l, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("second write: %v", err)
	}
}

func TestLateCommit(t *testing.T) { bubble(testLateCommit)(t) }

func testLateCommit(t *testing.T) {
	s := apitest.New(apitest.Options{})
	cs, l := leaseOf(t, s)
	remove := s.Inject(apitest.Fault{Match: apitest.Match{Verb: "update"}, CommitAfter: 30 * time.Second})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	l.Spec.HolderIdentity = ptr.To("b")
	if _, err := cs.CoordinationV1().Leases("default").Update(ctx, l, metav1.UpdateOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if h := holder(s); h != "a" {
		t.Errorf("written too early: %s", h)
	}
	time.Sleep(25*time.Second + time.Millisecond)
	synctest.Wait()
	if h := holder(s); h != "b" {
		t.Errorf("not written: %s", h)
	}
	remove()
	// A client that waits long enough gets its answer.
	defer s.Inject(apitest.Fault{Match: apitest.Match{Verb: "get"}, CommitAfter: 3 * time.Second})()
	start := time.Now()
	if _, err := cs.CoordinationV1().Leases("default").Get(t.Context(), "l", metav1.GetOptions{}); err != nil || time.Since(start) != 3*time.Second {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
}

// TestClientGoRetries shows the retries of client-go after a Retry-After.
func TestClientGoRetries(t *testing.T) { bubble(testClientGoRetries)(t) }

func testClientGoRetries(t *testing.T) {
	s := apitest.New(apitest.Options{})
	nodes := s.Client(apitest.User{}).CoreV1().Nodes()
	defer s.Inject(apitest.Fault{Status: statuserr.TooManyRequests(7)})()
	start := time.Now()
	_, err := nodes.Get(t.Context(), "n", metav1.GetOptions{})
	if !apierrors.IsTooManyRequests(err) || time.Since(start) != 70*time.Second || len(s.Requests(apitest.Match{})) != 11 {
		t.Errorf("after %v and %d requests: %v", time.Since(start), len(s.Requests(apitest.Match{})), err)
	}
}
