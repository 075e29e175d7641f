// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kubewright/kubewright/internal/backoff"
)

// A queue that was never empty kept the memory of all earlier entries.
func TestAQueueThatIsNeverEmpty(t *testing.T) {
	var q Fifo[*int]
	var items [3]int
	for i := range 100_000 {
		q.Push(&items[i%3])
		if i >= 10 && q.Pop() != &items[(i-10)%3] {
			t.Fatal("out of order")
		}
	}
	if n := cap(q.items); n > 100 {
		t.Errorf("ten wait in %d places", n)
	}
	if q.Len() != 10 || len(q.Items()) != 10 || q.Items()[9] != &items[99_999%3] {
		t.Errorf("%d wait", q.Len())
	}
}

type item struct{ slot Slot }

func (i *item) Slot() *Slot { return &i.slot }

// has reports whether the item is in the heap, at the place that its Slot says.
func has(h *Heap[*item], it *item) bool {
	i := int(it.slot.index)
	return i > 0 && i <= len(h.items) && h.items[i-1] == it
}

// The heap is compared with a sorted list, through random changes.
func TestTheHeapIsInOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var h Heap[*item]
	items := make([]item, 40)
	at := map[*item]time.Duration{}
	for range 20_000 {
		it := &items[r.IntN(len(items))]
		switch r.IntN(4) {
		case 0:
			h.Set(it, never)
			delete(at, it)
		case 1:
			if h.Len() > 0 {
				first := h.Next()
				it = h.Pop()
				if at[it] != first {
					t.Fatalf("popped %v, the first is due at %v", at[it], first)
				}
				delete(at, it)
			}
		default:
			at[it] = time.Duration(r.IntN(50))
			h.Set(it, at[it])
		}
		want := never
		for _, d := range at {
			want = min(want, d)
		}
		if h.Len() != len(at) || h.Next() != want {
			t.Fatalf("%d items, the first at %v; want %d, %v", h.Len(), h.Next(), len(at), want)
		}
		for i := range items {
			if _, in := at[&items[i]]; in != has(&h, &items[i]) {
				t.Fatalf("item %d is in the heap: %v, want %v", i, !in, in)
			}
		}
	}
	var order []time.Duration
	for h.Len() > 0 {
		order = append(order, at[h.Pop()])
	}
	if !slices.IsSorted(order) {
		t.Errorf("popped in the order %v", order)
	}
}

func TestBreaker(t *testing.T) {
	b := Breaker{Trip: 3, Policy: backoff.Policy{Base: time.Second, Cap: 10 * time.Second}}
	for range 2 {
		b.Failed(100 * time.Second)
	}
	if ok, again := b.Allows(100*time.Second, 2); !ok || again != never {
		t.Errorf("two failures: %v, %v", ok, again)
	}
	if b.Succeeded() {
		t.Error("it is back, and was never away")
	}
	for range 3 {
		b.Failed(100 * time.Second)
	}
	if ok, again := b.Allows(200*time.Second, 1); ok || again != never {
		t.Errorf("tripped, with a request in flight: %v, %v", ok, again)
	}
	ok, again := b.Allows(100*time.Second, 0)
	if ok || again <= 100*time.Second || again > 101*time.Second {
		t.Errorf("tripped just now: %v, %v", ok, again)
	}
	if ok, _ := b.Allows(again, 0); !ok {
		t.Error("no request after the backoff")
	}
	for range 100 {
		b.Failed(200 * time.Second)
	}
	if _, again := b.Allows(200*time.Second, 0); again < 205*time.Second || again > 210*time.Second {
		t.Errorf("the longest backoff ends at %v", again)
	}
	if !b.Succeeded() {
		t.Error("it is not back")
	}
	if ok, _ := b.Allows(200*time.Second, 5); !ok {
		t.Error("still tripped")
	}
}
