// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
)

// A Group follows one activity that many members carry out, each of which may
// fail by itself: where ten thousand nodes lose the API server at once, one
// line says so and one says that it is over. The first failure of each class
// goes to the Handler, or to the log where there is none; those that follow,
// of this member and of others, are printed at V4 only, until no member fails
// in that way any more.
//
// The zero value is ready to use, by any number of goroutines.
type Group struct {
	mu    sync.Mutex
	since time.Time // when the first of the present failures began
	count int       // failures since then
	most  int       // the largest number of members that failed at once
	now   int       // members that fail
	class [int(apierr.Other) + 1]int
}

// A Member is one member's part of a Group: the classes of failure it has
// shown since its last success. The zero value is a member that does not fail.
// The Group's lock guards it.
type Member struct{ classes uint32 }

// retired marks a member that no longer counts; it is above all classes.
const retired = 1 << 31

// Fail records a failure of a member. The message is constant; keysAndValues
// say which member it is, and go to the log only.
func (g *Group) Fail(ctx context.Context, handler Handler, m *Member, err error, msg string, keysAndValues ...any) {
	if !g.fail(m, apierr.Classify(err)) {
		klog.FromContext(ctx).V(4).Info(msg, append(keysAndValues, "err", err)...)
		return
	}
	Tell(ctx, handler, err, msg, keysAndValues...)
}

// fail reports whether no member failed in this way before.
func (g *Group) fail(m *Member, class apierr.Class) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m.classes&retired != 0 {
		return false
	}
	if g.now == 0 {
		g.since, g.count, g.most = time.Now(), 0, 0
	}
	g.count++
	if m.classes == 0 {
		g.now++
		g.most = max(g.most, g.now)
	}
	if m.classes&(1<<class) != 0 {
		return false
	}
	m.classes |= 1 << class
	g.class[class]++
	return g.class[class] == 1
}

// OK records a success of a member. Where no member fails any more it prints
// msg at V0.
func (g *Group) OK(ctx context.Context, m *Member, msg string, keysAndValues ...any) {
	if failures, members, outage := g.leave(m); failures > 0 {
		klog.FromContext(ctx).Info(msg, append(keysAndValues, "failures", failures, "members", members, "outage", outage)...)
	}
}

// Leave takes a member that is there no longer out of those that fail.
func (g *Group) Leave(m *Member) { g.leave(m) }

// Retire is Leave for good: what fails after it, such as a call that was under
// way when the member was removed, is printed at V4 and counts for nothing. It
// may be called while the member's activity is under way.
func (g *Group) Retire(m *Member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leaveLocked(m)
	m.classes = retired // under the same lock: a failure between the two would never end
}

// leave returns what the failures came to where m was the last member that
// failed, and zeros else.
func (g *Group) leave(m *Member) (failures, members int, outage time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.leaveLocked(m)
}

func (g *Group) leaveLocked(m *Member) (failures, members int, outage time.Duration) {
	if m.classes&^retired == 0 {
		return 0, 0, 0
	}
	for class := range g.class {
		if m.classes&(1<<class) != 0 {
			g.class[class]--
		}
	}
	m.classes = 0
	if g.now--; g.now > 0 {
		return 0, 0, 0
	}
	return g.count, g.most, time.Since(g.since)
}
