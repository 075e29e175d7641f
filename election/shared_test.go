// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/lineartest"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// wide matches the watches of a namespace.
func wide(user string) apitest.Match {
	return apitest.Match{User: user, Verb: "watch", Resource: "leases", Func: func(q apitest.Request) bool { return q.Name == "" }}
}

// process is one that stands in an election for each of several Services.
type process struct {
	*rig
	user       string
	offices    []*office
	candidates []*replica
}

// startProcess starts a process with candidates for n Leases and one watch. Each Lease has
// an office that all processes share.
func startProcess(r *rig, user string, offices []*office) *process {
	p := &process{rig: r, user: user, offices: offices}
	watch, err := NewSharedWatch(r.server.Client(apitest.User{Name: user}).CoordinationV1(), theLease.Namespace)
	if err != nil {
		r.Fatal(err)
	}
	for i, office := range offices {
		p.candidates = append(p.candidates, r.start(user, func(cfg *Config) {
			cfg.Lease = leaseOf(i)
			cfg.Lead = office.lead(user, 0)
			cfg.Watch = watch
		}))
	}
	return p
}

func leaseOf(i int) types.NamespacedName {
	return types.NamespacedName{Namespace: theLease.Namespace, Name: fmt.Sprint("service-", i)}
}

func newOffices(t *testing.T, n int) (offices []*office) {
	for range n {
		offices = append(offices, newOffice(t))
	}
	return offices
}

// leads returns in how many elections a process leads.
func (p *process) leads() (n int) {
	for _, office := range p.offices {
		if office.current() == p.user {
			n++
		}
	}
	return n
}

func inRigWith(t *testing.T, elections int, test func(r *rig, a, b *process)) {
	t.Helper()
	inRig(t, func(r *rig) {
		r.quiet = true
		offices := newOffices(t, elections)
		a := startProcess(r, "a", offices)
		r.sleep(time.Second)
		b := startProcess(r, "b", offices)
		r.sleep(time.Minute)
		if a.leads() != elections {
			r.Fatalf("a leads in %d elections", a.leads())
		}
		test(r, a, b)
	})
}

// Two processes stand in a dozen elections with one watch each. A process that is cut off is
// replaced in all of them as soon as with a dozen watches.
func TestOneWatchForManyElections(t *testing.T) {
	const elections = 12
	inRigWith(t, elections, func(r *rig, a, b *process) {
		if n := len(r.server.Requests(apitest.Match{Verb: "watch"})); n != 2 {
			t.Errorf("%d watches of two processes", n)
		}
		if n := len(r.server.Requests(apitest.Match{User: "b", Verb: "get"})); n != elections {
			t.Errorf("%d GETs of %d candidates", n, elections)
		}
		r.server.ResetJournal()
		r.isolate(apitest.Match{User: "a"})
		r.sleep((Timing{}).CrashFailover() + 100*time.Millisecond)
		if n := b.leads(); n != elections {
			t.Errorf("b leads in %d elections", n)
		}
		if n := len(r.server.Requests(apitest.Match{User: "b", Verb: "get"})); n != 0 {
			t.Errorf("%d GETs of b", n)
		}
	})
}

// An orderly end costs each election a hand-over, and ends the watch.
func TestTheSharedWatchEndsWithItsLastCandidate(t *testing.T) {
	inRigWith(t, 3, func(r *rig, a, b *process) {
		for _, c := range b.candidates[1:] {
			c.stop()
		}
		again := r.start("b", func(cfg *Config) { cfg.Lease, cfg.Watch = leaseOf(1), b.candidates[0].cfg.Watch })
		r.sleep(time.Minute)
		if n := len(r.server.Requests(wide("b"))); n != 1 {
			t.Errorf("%d watches of b", n)
		}
		b.candidates[0].stop()
		again.stop()
		if n := r.server.DropWatches(apitest.Match{User: "b"}); n != 0 {
			t.Errorf("%d watches of b are open after its end", n)
		}
	})
}

// Without the permission to watch a namespace each candidate watches its own Lease, and
// nothing else changes.
func TestASharedWatchThatIsRefused(t *testing.T) {
	inRig(t, func(r *rig) {
		r.quiet = true
		allow := r.server.Inject(apitest.Fault{Match: wide(""), Status: statuserr.Forbidden("leases", "", "no")})
		offices := newOffices(t, 5)
		a := startProcess(r, "a", offices)
		r.sleep(time.Second)
		b := startProcess(r, "b", offices)
		r.sleep(time.Minute)
		if n := len(r.server.Requests(apitest.Match{Verb: "watch"})); n != 2+2*5 {
			t.Errorf("%d watches, want two that are refused and one of each candidate", n)
		}
		if errs := slices.Concat(a.candidates[0].errors(), b.candidates[4].errors()); len(errs) != 0 {
			t.Errorf("errors: %v", errs)
		}
		allow()
		r.server.ResetJournal()
		r.sleep(2 * refusedFor)
		if n := len(r.server.Requests(wide("b"))); n == 0 {
			t.Error("not tried again")
		}
		r.isolate(apitest.Match{User: "a"})
		r.sleep((Timing{}).CrashFailover() + 100*time.Millisecond)
		if n := b.leads(); n != 5 {
			t.Errorf("b leads in %d elections", n)
		}
	})
}

// A watch that has lost its place is followed by a read of each candidate. Edits that it has
// not shown protect the holder before: two never lead.
func TestASharedWatchThatLosesItsPlace(t *testing.T) {
	inRigWith(t, 4, func(r *rig, a, b *process) {
		r.server.ResetJournal()
		r.server.ExpireWatches(apitest.Match{User: "b"})
		r.sleep(time.Second)
		if n := len(r.server.Requests(apitest.Match{User: "b", Verb: "get"})); n != 4 {
			t.Errorf("%d GETs, want one of each candidate", n)
		}
		if n := len(r.server.Requests(wide("b"))); n != 1 {
			t.Errorf("%d watches", n)
		}
		// A gap in which the holder is removed by hand, while it is cut off.
		heal := r.isolate(apitest.Match{User: "a"})
		resume := r.server.StallWatches(apitest.Match{User: "b"})
		for i := range 4 {
			apitest.Edit(r.server, theLease.Namespace, leaseOf(i).Name, func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new(string) })
		}
		r.server.ExpireWatches(apitest.Match{User: "b"})
		resume()
		r.sleep(time.Minute)
		heal()
		if n := b.leads(); n != 4 {
			t.Errorf("b leads in %d elections", n)
		}
	})
}

// The API server is restored from a backup. Its versions are behind that of the watch, which
// would show nothing for long.
func TestASharedWatchAfterARestore(t *testing.T) {
	inRigWith(t, 4, func(r *rig, a, b *process) {
		restore := r.server.Backup()
		r.sleep(time.Hour)
		restore()
		r.sleep(3 * time.Minute)
		if n := a.leads() + b.leads(); n != 4 {
			t.Errorf("%d leaders", n)
		}
		r.server.ResetJournal()
		r.sleep(2 * time.Minute)
		if n := len(r.server.Requests(apitest.Match{Verb: "get"})); n > 4 {
			t.Errorf("%d GETs: the watch is not believed", n)
		}
	})
}

// One candidate whose hook hangs delays no other, and reads its Lease afterwards.
func TestACandidateThatDoesNotReadTheSharedWatch(t *testing.T) {
	inRigWith(t, 3, func(r *rig, a, b *process) {
		a.candidates[0].hangHook(5 * time.Minute) // its term ends, b claims and renews
		r.sleep(time.Minute)
		if n := b.leads(); n != 1 {
			t.Errorf("b leads in %d elections", n)
		}
		for range 2 * unread {
			apitest.Edit(r.server, theLease.Namespace, leaseOf(0).Name, func(l *coordinationv1.Lease) { metav1.SetMetaDataAnnotation(&l.ObjectMeta, "x", l.ResourceVersion) })
			r.sleep(time.Second)
		}
		r.server.ResetJournal()
		r.sleep(5 * time.Minute)
		if n := len(r.server.Requests(apitest.Match{User: "a", Verb: "get", Name: leaseOf(0).Name})); n != 1 {
			t.Errorf("%d GETs after the hook, want 1", n)
		}
		if holder, ok := a.candidates[0].Leader(); !ok || !strings.HasPrefix(holder, "b_") {
			t.Errorf("a believes in %q", holder)
		}
		if a.leads() != 2 || b.leads() != 1 {
			t.Errorf("a leads in %d elections, b in %d", a.leads(), b.leads())
		}
	})
}

// A stream that breaks is continued where it broke, and is reported once by each candidate.
func TestASharedWatchThatBreaks(t *testing.T) {
	inRigWith(t, 3, func(r *rig, a, b *process) {
		r.server.ResetJournal()
		heal := r.server.Inject(apitest.Fault{Match: apitest.Match{User: "b", Verb: "watch"}, Err: apitest.ErrConnRefused})
		r.server.BreakWatches(apitest.Match{User: "b"})
		r.sleep(time.Minute / 10)
		heal()
		r.sleep(time.Minute)
		if n := len(r.server.Requests(apitest.Match{User: "b", Verb: "get"})); n != 0 {
			t.Errorf("%d GETs: nothing was missed", n)
		}
		watches := r.server.Requests(wide("b"))
		if last := watches[len(watches)-1]; !strings.Contains(last.Query, "resourceVersion=") {
			t.Errorf("the watch goes on from %q", last.Query)
		}
		for _, c := range b.candidates {
			if n := len(c.errors()); n != 1 {
				t.Errorf("%d errors: %v", n, c.errors())
			}
		}
	})
}

func TestASharedWatchOfAnotherNamespace(t *testing.T) {
	inRig(t, func(r *rig) {
		client := r.server.Client(apitest.User{}).CoordinationV1()
		if _, err := NewSharedWatch(nil, ""); err == nil || !strings.Contains(err.Error(), "client") || !strings.Contains(err.Error(), "namespace") {
			t.Errorf("%v", err)
		}
		watch, err := NewSharedWatch(client, "elsewhere")
		if err != nil {
			t.Fatal(err)
		}
		cfg := r.new("a").cfg
		cfg.Watch = watch
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), `Watch: Invalid value: "elsewhere"`) {
			t.Errorf("%v", err)
		}
	})
}

// What a candidate that joins is told: nothing, if it knows all that the watch has shown.
func TestJoiningASharedWatch(t *testing.T) {
	lease := func(version string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "l", ResourceVersion: version}}
	}
	for name, test := range map[string]struct {
		from   string
		before func(*feed) // it joins
		after  func(*feed)
		want   string
	}{
		"it knows the last event":          {"5", func(f *feed) { f.observe(lease("5"), false) }, func(f *feed) { f.observe(lease("6"), false) }, "6"},
		"it is ahead of the watch":         {"7", func(f *feed) { f.observe(lease("5"), false) }, func(f *feed) { f.observe(lease("6"), false) }, "6"},
		"it is behind the watch":           {"4", func(f *feed) { f.observe(lease("5"), false) }, func(*feed) {}, "blind 5"},
		"it was deleted":                   {"4", func(f *feed) { f.observe(lease("5"), true) }, func(*feed) {}, "blind 5 deleted"},
		"its version can't be compared":    {"x", func(f *feed) { f.observe(lease("5"), false) }, func(*feed) {}, "blind 5"},
		"it was shown nothing of it":       {"5", func(*feed) {}, func(f *feed) { f.observe(lease("6"), false); f.observe(lease("7"), false) }, "blind 6 7"},
		"it is shown first what it knows":  {"5", func(*feed) {}, func(f *feed) { f.observe(lease("5"), false); f.observe(lease("6"), false) }, "5 6"},
		"it knows of none":                 {"", func(*feed) {}, func(f *feed) { f.observe(lease("6"), false) }, "blind 6"},
		"it knows of none, and there is":   {"", func(f *feed) { f.observe(lease("5"), false) }, func(*feed) {}, "blind 5"},
		"it knows of none, and it is gone": {"", func(f *feed) { f.observe(lease("5"), true) }, func(*feed) {}, "blind"},
		"the watch has not begun": {"5", func(f *feed) { f.up = false }, func(f *feed) {
			f.begin(true)
			f.observe(lease("6"), false)
		}, "blind 6"},
		"the watch goes on": {"5", func(f *feed) { f.observe(lease("5"), false) }, func(f *feed) {
			f.begin(false)
			f.observe(lease("6"), false)
		}, "6"},
	} {
		t.Run(name, func(t *testing.T) {
			f := &feed{up: true, readers: map[string][]*reader{}, latest: map[string]shown{}}
			r := &reader{name: "l", from: test.from, sights: make(chan *sight[*coordinationv1.Lease], unread)}
			test.before(f)
			f.readers["l"] = []*reader{r}
			f.welcome(r)
			test.after(f)
			var told []string
			for len(r.sights) > 0 {
				switch s := <-r.sights; {
				case s.began:
					told = append(told, "blind")
				case s.deleted:
					told = append(told, s.object.ResourceVersion, "deleted")
				default:
					told = append(told, s.object.ResourceVersion)
				}
			}
			if got := strings.Join(told, " "); got != test.want {
				t.Errorf("it is told %q, want %q", got, test.want)
			}
		})
	}
}

// A Lease that was deleted is remembered for a while. Whoever may create and delete Leases
// of the namespace may do so often.
func TestASharedWatchForgetsDeletedLeases(t *testing.T) {
	lease := func(i int) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("l", i), ResourceVersion: "1"}}
	}
	churn := func(n int) *feed {
		f := &feed{up: true, readers: map[string][]*reader{}, latest: map[string]shown{}}
		for i := range n {
			f.observe(lease(i), false)
			f.observe(lease(i), true)
		}
		return f
	}
	synctest.Test(t, func(t *testing.T) {
		f := churn(10)
		f.observe(lease(10), false)
		if len(f.latest) != 11 {
			t.Errorf("%d Leases are remembered, want 11", len(f.latest))
		}
		time.Sleep(buriedFor + time.Second)
		f.observe(lease(11), false)
		f.observe(lease(11), true)
		if len(f.latest) != 2 {
			t.Errorf("%d Leases are remembered, want the one that exists and the one that was just deleted", len(f.latest))
		}
	})
	if testing.Short() {
		return // the race detector, which runs with -short, changes what a call costs
	}
	lineartest.Check(t, 2500, func(n int) func() { return func() { churn(n) } })
}
