// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package callqueue

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// journal is the calls of a Queue.
type journal struct {
	mu       sync.Mutex
	began    []string
	now      int
	most     int
	canceled int
}

// call takes a second, or less if its context ends.
func (j *journal) call(ctx context.Context, name string) {
	j.mu.Lock()
	j.began = append(j.began, name)
	j.now++
	j.most = max(j.most, j.now)
	j.mu.Unlock()
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.now--
	if ctx.Err() != nil {
		j.canceled++
	}
}

func TestCallsAreBoundedAndInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		q := New(3, j.call)
		q.Add("before it is open")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		q.Open(ctx)
		var names []string
		for i := range 10 {
			names = append(names, fmt.Sprint("n", i))
			q.Add(names[i])
			q.Add(names[i]) // for a name that waits, one is enough
			synctest.Wait()
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if !slices.Equal(j.began, names) || j.most != 3 {
			t.Errorf("calls %v, %d at once, want %v, 3 at once", j.began, j.most, names)
		}
	})
}

func TestANameHasOneCallAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		q := New(8, j.call)
		q.Open(t.Context())
		for range 5 {
			q.Add("a")
			synctest.Wait()
		}
		if j.most != 1 || len(j.began) != 1 {
			t.Errorf("%d calls at once, %d in all", j.most, len(j.began))
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if len(j.began) != 2 || len(q.names) != 0 {
			t.Errorf("%d calls, %d names left, want 2 and none", len(j.began), len(q.names))
		}
		q.Close()
	})
}

func TestCancelAndClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		q := New(1, j.call)
		q.Open(t.Context())
		q.Add("a")
		q.Add("b")
		synctest.Wait()
		q.Cancel("b") // it waits, and is called later
		q.Cancel("a")
		synctest.Wait()
		if j.canceled != 1 || !slices.Equal(j.began, []string{"a", "b"}) {
			t.Errorf("canceled %d, began %v", j.canceled, j.began)
		}
		q.Add("c")
		begin := time.Now()
		q.Close()
		if took := time.Since(begin); took != time.Second || len(j.began) != 2 {
			t.Errorf("Close took %v, began %v: it waits for the call under way and begins no other", took, j.began)
		}
		q.Add("d")
		synctest.Wait()
		if len(j.began) != 2 {
			t.Errorf("began %v after Close", j.began)
		}
	})
}
