// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"
)

// world is a few processes that manage one node, and the API server.
type world struct {
	rand    *rand.Rand
	store   *store
	players []*player
	owner   string
	now     Instant
	gc      bool          // the Node may go, and the lease with it
	steady  time.Duration // until then no process is started again
	log     []string
}

// turn lets a process visit the node; any request may fail in any way.
func (w *world) turn(p *player) error {
	p.now = w.now
	e := Consent{NodeName: nodeName, Holder: nodeName, Owner: node(w.owner)}
	switch w.rand.IntN(12) {
	case 0:
		e.Gate = errors.New("closed")
	case 1:
		e.Owner, e.OwnerErr = node("none"), errors.New("not now")
	case 2:
		if w.gc {
			e.Owner, e.OwnerErr, e.NodeGone = node("none"), errors.New("not found"), true
		}
	}
	if err := p.apply(e); err != nil {
		return err
	}
	if err := w.requests(p); err != nil {
		return err
	}
	return p.apply(Reported{})
}

func (w *world) requests(p *player) error {
	for n := 0; ; n++ {
		a := p.lease.Next(p.rules, p.now)
		w.log = append(w.log, fmt.Sprintf("%v %s/%s: %s", p.now.Since, p.rules.Process.Name, p.rules.Process.Start, describe(p.now, a)))
		if a.Do == Finish {
			return nil
		}
		if n > 8 {
			return errors.New("a turn does not end")
		}
		if w.rand.IntN(4) == 0 { // the answer takes a while, in which others act
			w.pass(time.Duration(w.rand.Int64N(int64(3 * time.Second))))
		}
		var err error
		switch kind := w.rand.IntN(20); kind {
		case 0:
			err = p.send(Answered{To: a, Answer: Failed})
		case 1:
			w.store.do(a)
			err = p.send(Answered{To: a, Answer: Failed})
		case 2:
			w.store.do(a)
			answer, lease := w.store.do(a)
			err = p.send(Answered{To: a, Answer: answer, Lease: lease})
		case 3:
			err = p.send(Answered{To: a, Answer: Answer(w.rand.IntN(4)) + Missing})
			if err == nil && p.lease.held && p.lease.known == missing {
				err = errors.New("held, and missing")
			}
		case 4:
			w.store.do(a)
			err = p.apply(CutOff{To: a})
		default:
			answer, lease := w.store.do(a)
			err = p.send(Answered{To: a, Answer: answer, Lease: lease})
		}
		if err != nil {
			return err
		}
		if err := w.exclusive(); err != nil {
			return err
		}
		p.now = w.now
	}
}

func (w *world) pass(d time.Duration) {
	w.now.Since += d
	w.now.Wall += d.Microseconds()
}

// exclusive checks that at most one process may act.
func (w *world) exclusive() error {
	if w.gc {
		return nil // its clients also renew it under our name
	}
	var holders []string
	for _, p := range w.players {
		if p.lease.Holds(p.rules, w.now) == nil {
			holders = append(holders, p.rules.Process.String())
		}
	}
	if len(holders) > 1 {
		return fmt.Errorf("held by %q at once", holders)
	}
	return nil
}

// isKnown reports whether each process holds the lease, or has seen that another one does.
func (w *world) isKnown() bool {
	return !slices.ContainsFunc(w.players, func(p *player) bool {
		return p.lease.Holds(p.rules, w.now) != nil && (!p.lease.remembersHolder() || p.lease.trouble.foreign.removed)
	})
}

func (w *world) step() error {
	w.pass(time.Duration(w.rand.Int64N(int64(9 * time.Second))))
	i := w.rand.IntN(len(w.players))
	p := w.players[i]
	p.now = w.now
	switch w.rand.IntN(40) {
	case 0: // the process ends, and is started again
		if w.now.Since < w.steady {
			break // it would not know of a holder whose lease was deleted
		}
		if w.rand.IntN(2) == 0 {
			if err := p.apply(Leaving{NodeName: nodeName, Holder: nodeName, Last: map[bool]Do{true: Delete, false: Expire}[w.gc && w.rand.IntN(2) == 0]}); err != nil {
				return err
			}
			if err := w.requests(p); err != nil {
				return err
			}
		}
		if err := p.apply(Ended{}); err != nil {
			return err
		}
		rules := *p.rules
		rules.Process.Start += "'"
		w.players[i] = newPlayer(&rules)
	case 1: // cut off for a while
		w.pass(time.Duration(w.rand.Int64N(int64(time.Minute))))
	case 2: // an administrator deletes the lease
		if w.gc || w.isKnown() {
			w.store.lease, w.steady = nil, w.now.Since+time.Minute
		}
	case 3:
		if w.gc {
			w.owner += "'"
		}
	case 4: // a client that renews it under our name
		if l := w.store.lease; l != nil && w.gc {
			l = l.DeepCopy()
			l.Spec.RenewTime = microTime(w.now.Wall)
			w.store.put(l)
		}
	case 5:
		if l := w.store.lease; l != nil {
			l = l.DeepCopy()
			l.Labels = map[string]string{"label": fmt.Sprint(w.store.writes)}
			w.store.put(l)
		}
	case 6:
		if l := w.store.lease; l != nil && w.gc {
			l = l.DeepCopy()
			l.Spec.HolderIdentity = ptr.To("other")
			w.store.put(l)
		}
	default:
		return w.turn(p)
	}
	return nil
}

// TestExploration plays random lives of two processes with one node: no invariant
// breaks, RenewTime grows, turns end, and at most one of them may act, unless the lease
// is written by clients that don't ask, or is deleted before a process knows of its holder.
// In the end the lease is held.
func TestExploration(t *testing.T) {
	lives := 2_000
	if testing.Short() {
		lives = 300
	}
	for seed := range lives {
		w := &world{rand: rand.New(rand.NewPCG(1, uint64(seed))), store: &store{}, owner: "n", gc: seed%2 == 0, now: Instant{Wall: epoch}}
		for _, name := range []string{"a", "b"} {
			w.players = append(w.players, newPlayer(&Rules{Duration: 40 * time.Second, Interval: 10 * time.Second, Process: Process{name, "1"}}))
		}
		err := w.exclusive()
		for n := 0; n < 150 && err == nil; n++ {
			err = w.step()
		}
		w.rand = rand.New(quiet{})
		for n := 0; n < 24 && err == nil; n++ {
			w.pass(5 * time.Second)
			err = w.turn(w.players[n%2])
		}
		held := 0
		for _, p := range w.players {
			if p.lease.Holds(p.rules, w.now) == nil {
				held++
			}
		}
		if err == nil && held != 1 {
			err = fmt.Errorf("held by %d processes in the end", held)
		}
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, strings.Join(w.log[max(0, len(w.log)-25):], "\n"))
		}
	}
}

// quiet is a source of randomness in which nothing goes wrong.
type quiet struct{}

func (quiet) Uint64() uint64 { return 1<<64 - 1 }
