// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apierr

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/report"
)

// A Group reports the failures of one activity that many members carry out
// independently. If ten thousand nodes lose the API server at once, the log has
// one line for the outage and one for its end. The first failure of each class
// goes to the Handler, or to the log if there is no Handler. Further failures
// of that class, of any member, are logged only at V4 until no member fails in
// that way, but for one each hour.
//
// The zero value is ready to use and safe for concurrent use.
type Group struct {
	mu    sync.Mutex
	since time.Time // start of the current failures
	told  time.Time // when one of them was last reported
	count int       // failures since then
	most  int       // the largest number of members that failed at the same time
	now   int       // members that fail now
	class [int(Other) + 1]int
}

// A Member is the state of one member of a Group: the classes of its failures
// since its last success. The zero value is a member without failures. The
// Group's lock protects it.
type Member struct{ classes uint32 }

// retired marks a member that has retired; its bit is above those of all
// classes.
const retired = 1 << 31

// Fail records a failure of a member. The message must be constant;
// keysAndValues identify the member and go to the log only.
func (g *Group) Fail(ctx context.Context, handler report.Handler, m *Member, err error, msg string, keysAndValues ...any) {
	if first, told := g.fail(m, Classify(err)); !first {
		report.Repeated(ctx, &told, err, msg, keysAndValues...)
		return
	}
	report.Tell(ctx, handler, err, msg, keysAndValues...)
}

// fail records a failure. It reports whether it is the first current one of its class, and
// when one was last reported or logged.
func (g *Group) fail(m *Member, class Class) (first bool, told time.Time) {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if m.classes&retired != 0 {
		return false, now
	}
	if g.now == 0 {
		g.since, g.count, g.most = now, 0, 0
	}
	g.count++
	if m.classes == 0 {
		g.now++
		g.most = max(g.most, g.now)
	}
	if m.classes&(1<<class) == 0 {
		m.classes |= 1 << class
		g.class[class]++
		first = g.class[class] == 1
	}
	if told = g.told; first || now.Sub(told) >= report.Again {
		g.told = now
	}
	return first, told
}

// OK records a success of a member. If no member fails after it, OK logs msg at
// V0.
func (g *Group) OK(ctx context.Context, m *Member, msg string, keysAndValues ...any) {
	if failures, members, outage := g.leave(m); failures > 0 {
		klog.FromContext(ctx).Info(msg, append(keysAndValues, "failures", failures, "members", members, "outage", outage)...)
	}
}

// Leave removes a member from those that fail, because the member no longer
// exists.
func (g *Group) Leave(m *Member) { g.leave(m) }

// Retire removes a member permanently. A later failure, for example of a call
// that was in progress, is logged at V4 and does not count. Retire may be
// called while the member's activity is running.
func (g *Group) Retire(m *Member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leaveLocked(m)
	m.classes = retired // under the same lock: a failure in between would never be cleared
}

// leave returns the figures of the outage if m was the last member that failed,
// and zeros otherwise.
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
