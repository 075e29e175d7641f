// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/apitest"
)

// A volume that is about to be mounted must be in the list of the API server: after a
// write that was under way without it, and if the list has it already.
func TestFlushWaitsForAStatusOfLaterValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		volumes := &knob[[]corev1.UniqueVolumeName]{}
		failing := &knob[error]{}
		var written notes[Written]
		w := start(t, s, Config{Hooks: Hooks{Written: written.add}, Setters: []Setter{
			VolumesInUse(func(context.Context, string) ([]corev1.UniqueVolumeName, error) { return volumes.get(), failing.get() }),
		}})
		w.pass(time.Minute)
		s.Inject(apitest.Fault{Match: patches, Latency: 2 * time.Second})
		volumes.set([]corev1.UniqueVolumeName{"a"})
		w.c.Trigger(node1)
		w.pass(time.Second) // a write without b is under way
		flush := func(timeout time.Duration, want bool) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			err := w.c.Flush(ctx, node1)
			if (err == nil) != want || err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Flush = %v", err)
			}
		}
		volumes.set([]corev1.UniqueVolumeName{"a", "b"})
		flush(10*time.Second, true)
		if got := w.node().Status.VolumesInUse; len(got) != 2 {
			t.Errorf("the API server has %v after Flush", got)
		}
		synctest.Wait() // for the hook of that write
		// What is listed already needs no write.
		before := len(written.get())
		flush(time.Second, true)
		if n := len(written.get()); n != before {
			t.Errorf("%d writes of a list that is there", n-before)
		}
		// The API server does not answer, a setter fails, or the gate is closed.
		volumes.set(nil)
		flush(time.Second, false)
		w.pass(10 * time.Second)
		failing.set(errors.New("can't list"))
		flush(time.Minute, false)
		failing.set(nil)
		flush(time.Minute, true)
		if got := w.node().Status.VolumesInUse; len(got) != 0 {
			t.Errorf("the API server has %v after Flush", got)
		}
		if err := w.c.Flush(t.Context(), "other"); err == nil {
			t.Error("Flush of a node that is not managed")
		}
		n, _ := w.c.nodes.Get(node1)
		n.mu.Lock()
		defer n.mu.Unlock()
		if len(n.waiters) != 0 {
			t.Errorf("%d calls of Flush are remembered", len(n.waiters))
		}
	})
}

func TestFlushWaitsForAnOpenGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		closed := &knob[error]{}
		w := start(t, s, Config{Gate: func(context.Context, string) error { return closed.get() }})
		w.pass(time.Minute)
		closed.set(errors.New("another process holds the lease"))
		w.c.Trigger(node1)
		w.pass(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := w.c.Flush(ctx, node1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Flush = %v while another process may write", err)
		}
		closed.set(nil)
		ctx, cancel = context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		if err := w.c.Flush(ctx, node1); err != nil {
			t.Errorf("Flush = %v after the gate has opened", err)
		}
	})
}

// A write whose answer was lost may have been stored, so the API server may not have the
// status that it has accepted last.
func TestFlushDoesNotTrustALostWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		volumes := &knob[[]corev1.UniqueVolumeName]{value: []corev1.UniqueVolumeName{"a"}}
		w := start(t, s, Config{Setters: []Setter{
			VolumesInUse(func(context.Context, string) ([]corev1.UniqueVolumeName, error) { return volumes.get(), nil }),
		}})
		w.pass(time.Minute)
		restore := s.Inject(apitest.Fault{Match: patches, LoseResponse: true})
		volumes.set(nil)
		w.c.Trigger(node1)
		w.pass(50 * time.Millisecond)
		restore()
		if got := w.node().Status.VolumesInUse; len(got) != 0 {
			t.Fatalf("the API server has %v, want that the write was stored", got)
		}
		volumes.set([]corev1.UniqueVolumeName{"a"})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := w.c.Flush(ctx, node1); err != nil {
			t.Fatal(err)
		}
		if got := w.node().Status.VolumesInUse; len(got) != 1 {
			t.Errorf("Flush = nil, and the API server has %v", got)
		}
	})
}
