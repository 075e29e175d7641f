// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

// office records the leaders. It has the present ones at every moment, from the call
// of Lead to its return, and records a fault if there are two.
type office struct {
	tb testing.TB

	mu      sync.Mutex
	present map[string]int // leaders by name
	order   []stay
	token   uint64
	since   time.Time // when it was last left empty
	gaps    []gap
	broken  []string
	doomed  bool // it is expected to be broken

	twin    map[string]string // processes with the same identity, by name
	overlap time.Duration     // the longest time that twins led together
}

// stay is one term.
type stay struct {
	who   string
	token uint64
	from  time.Time
	to    time.Time // zero while it lasts
	cause error
}

// gap is a time without a leader.
type gap struct{ from, to time.Time }

func newOffice(tb testing.TB) *office {
	o := &office{tb: tb, present: make(map[string]int), since: time.Now()}
	tb.Cleanup(func() {
		faults := o.faults()
		for i, b := range faults {
			if !o.doomed && i < 20 {
				tb.Error(b)
			}
		}
		if o.doomed && len(faults) == 0 {
			tb.Error("nobody noticed that a rule was broken")
		}
	})
	return o
}

// lead returns work that stays until its context is done, and then for as long
// as linger says.
func (o *office) lead(who string, linger time.Duration) LeadFunc {
	return func(ctx context.Context, term Term) error {
		leave := o.enter(who, term.Token())
		<-ctx.Done()
		time.Sleep(linger)
		leave(context.Cause(ctx))
		return ctx.Err()
	}
}

// enter records the begin of a term.
func (o *office) enter(who string, token uint64) (leave func(cause error)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	for other, n := range o.present {
		switch {
		case n == 0 || o.twin[who] == other:
		default:
			o.broken = append(o.broken, fmt.Sprintf("two leaders at %v: %s leads, and %s begins", now.Format("15:04:05.000"), other, who))
		}
	}
	if token <= o.token {
		o.broken = append(o.broken, fmt.Sprintf("token %d of %s is not larger than %d", token, who, o.token))
	}
	o.token = token
	if o.crowd() == 0 {
		o.gaps = append(o.gaps, gap{o.since, now})
	}
	o.present[who]++
	i := len(o.order)
	o.order = append(o.order, stay{who: who, token: token, from: now})
	return func(cause error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.order[i].to, o.order[i].cause = time.Now(), cause
		if o.present[o.twin[who]] > 0 { // from the later beginning on
			o.overlap = max(o.overlap, time.Since(o.order[len(o.order)-1].from))
		}
		if o.present[who] > 0 {
			o.present[who]--
		}
		if o.crowd() == 0 {
			o.since = time.Now()
		}
	}
}

// twins records that two processes have the same identity.
func (o *office) twins(a, b string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.twin = map[string]string{a: b, b: a}
}

func (o *office) longestOverlap() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.overlap
}

// restore records that resourceVersions, and so tokens, have gone back.
func (o *office) restore() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.token = 0
}

func (o *office) crowd() (n int) {
	for _, k := range o.present {
		n += k
	}
	return n
}

// forget takes a leader out that has crashed.
func (o *office) forget(who string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.present[who] > 0 {
		delete(o.present, who)
		o.since = time.Now()
	}
}

// current returns the name of a leader, "" for none.
func (o *office) current() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	for who, n := range o.present {
		if n > 0 {
			return who
		}
	}
	return ""
}

func (o *office) stays() []stay {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]stay(nil), o.order...)
}

// lastGap returns the time without a leader before the present one.
func (o *office) lastGap() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.gaps) == 0 {
		return 0
	}
	g := o.gaps[len(o.gaps)-1]
	return g.to.Sub(g.from)
}

func (o *office) faults() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string(nil), o.broken...)
}
