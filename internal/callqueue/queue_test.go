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

// seen returns the calls so far, the most at once, and those whose contexts ended.
func (j *journal) seen() (began []string, most, canceled int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.began), j.most, j.canceled
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
		if began, most, _ := j.seen(); !slices.Equal(began, names) || most != 3 {
			t.Errorf("calls %v, %d at once, want %v, 3 at once", began, most, names)
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
		if began, most, _ := j.seen(); most != 1 || len(began) != 1 {
			t.Errorf("%d calls at once, %d in all", most, len(began))
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		q.Close()
		if began, _, _ := j.seen(); len(began) != 2 || len(q.names) != 0 {
			t.Errorf("%d calls, %d names left, want 2 and none", len(began), len(q.names))
		}
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
		if began, _, canceled := j.seen(); canceled != 1 || !slices.Equal(began, []string{"a", "b"}) {
			t.Errorf("canceled %d, began %v", canceled, began)
		}
		q.Add("c")
		begin := time.Now()
		q.Close()
		took := time.Since(begin)
		if began, _, _ := j.seen(); took != time.Second || len(began) != 2 {
			t.Errorf("Close took %v, began %v: it waits for the call under way and begins no other", took, began)
		}
		q.Add("d")
		synctest.Wait()
		if began, _, _ := j.seen(); len(began) != 2 {
			t.Errorf("began %v after Close", began)
		}
	})
}
