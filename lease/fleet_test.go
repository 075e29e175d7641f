// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/nodelifecycle"
	"github.com/kubewright/kubewright/internal/requests"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/internal/testlog"
)

// fleet is a bubble with many nodes in one controller.
type fleet struct {
	*fixture
	inFlight gauge
}

// gauge counts the requests under way.
type gauge struct {
	mu       sync.Mutex
	now, max int
}

func (g *gauge) add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now += n
	g.max = max(g.max, g.now)
}

// count is a transport wrapper that counts the requests under way.
func (f *fleet) count(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		f.inFlight.add(1)
		defer f.inFlight.add(-1)
		return next.RoundTrip(r)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func ownerOf(_ context.Context, name string) (metav1.OwnerReference, error) {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID("uid-of-" + name)}, nil
}

func fleetBubble(t *testing.T, nodes int, mutate func(*Config), test func(*fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server := apitest.New(apitest.Options{})
		f := &fleet{fixture: &fixture{T: testlog.New(t), server: server}}
		config := server.Config(apitest.User{})
		config.Wrap(f.count)
		cfg := Config{Process: "host",
			Client:       kubernetes.NewForConfigOrDie(config).CoordinationV1(),
			Fleet:        true,
			Owner:        ownerOf,
			Hooks:        f.told.hooks(),
			ErrorHandler: func(_ context.Context, err error, _ string) { note(&f.told, &f.told.errs)(err) },
		}
		if mutate != nil {
			mutate(&cfg)
		}
		f.controller = f.new(cfg)
		for i := range nodes {
			if err := f.controller.Add(fmt.Sprintf("node-%05d", i)); err != nil {
				t.Fatal(err)
			}
		}
		test(f)
		if f.cancel != nil {
			f.stop()
		}
	})
}

// perSecond is the number of accepted PUTs in each of the last n whole seconds.
func (f *fleet) perSecond(seconds int) []int {
	h := make([]int, seconds)
	begin := time.Now().Add(-time.Duration(seconds) * time.Second)
	for _, r := range f.server.Requests(puts) {
		if i := int(r.Time.Sub(begin) / time.Second); !r.Time.Before(begin) && i < seconds && r.Code == 200 {
			h[i]++
		}
	}
	return h
}

func (f *fleet) wantFlat(when string, h []int, each, slack int) {
	f.Helper()
	for _, n := range h {
		if n < each-slack || n > each+slack {
			f.Errorf("%s: PUTs a second are %v, want %d ±%d", when, h, each, slack)
			return
		}
	}
}

func TestTenThousandNodes(t *testing.T) {
	nodes := 10_000
	if testing.Short() {
		nodes = 300
	}
	testFlat(t, nodes, apitest.Fault{Hang: true})
}

// With fewer nodes, for there are 1.5 times as many requests as usual when each
// of them is refused at once.
func TestARefusedFleetStaysBelowItsRate(t *testing.T) {
	if testing.Short() {
		t.Skip("another fleet of 1,000 nodes: make unit runs it")
	}
	testFlat(t, 1_000, apitest.Fault{Err: apitest.ErrConnRefused})
}

func testFlat(t *testing.T, nodes int, fault apitest.Fault) {
	each := nodes / 10
	fleetBubble(t, nodes, nil, func(f *fleet) {
		f.server.Inject(apitest.Fault{Latency: 10 * time.Millisecond})
		f.start()
		pass(25 * time.Second) // the start, and an interval and a half
		f.server.ResetJournal()
		pass(10 * time.Second)
		// A hundredth, for ten thousand nodes. The first second lacks requests that the
		// reset of the journal has cut off.
		f.wantFlat("after the start", f.perSecond(10)[1:], each, max(each/100, 3))
		if n := len(f.server.Requests(leases)); n != nodes {
			t.Errorf("%d requests in an interval, want %d", n, nodes)
		}

		restore := f.server.Inject(fault)
		pass(time.Minute)
		restore()
		if fault.Hang {
			pass(DefaultCallTimeout) // of the calls that hang
		}
		pass(20 * time.Second)
		f.server.ResetJournal()
		pass(10 * time.Second)
		f.wantFlat("two intervals after the outage", f.perSecond(10), each, each/10)
		if n := len(f.server.Requests(leases)); n != nodes {
			t.Errorf("%d requests in an interval, want %d", n, nodes)
		}
		if f.inFlight.max > DefaultWorkers {
			t.Errorf("%d requests were under way at once, want %d at most", f.inFlight.max, DefaultWorkers)
		}
		if n := len(f.told.recovered); n != nodes {
			t.Errorf("%d leases recovered from the outage, want %d", n, nodes)
		}
		if n := len(f.told.errs); n == 0 || n > 2 {
			t.Errorf("%d errors were reported for one outage", n)
		}
	})
}

// The bound of the package comment for a fleet: 16 s.
func TestAFleetIsRenewedWithinTheBoundAfterAnyOutage(t *testing.T) {
	if testing.Short() {
		t.Skip("another fleet of 1,000 nodes: make unit runs it")
	}
	const nodes = 1_000
	for _, fault := range []apitest.Fault{{Hang: true}, {Err: apitest.ErrConnRefused}} {
		fleetBubble(t, nodes, nil, func(f *fleet) {
			for i := range nodes {
				f.putNode(fmt.Sprintf("node-%05d", i))
			}
			f.server.Inject(apitest.Fault{Latency: 10 * time.Millisecond})
			f.start()
			rule := nodelifecycle.New(f.server, nodelifecycle.Options{})
			ctx, cancel := context.WithCancel(f.Context())
			defer cancel()
			go rule.Run(ctx)
			pass(30 * time.Second)
			restore := f.server.Inject(fault)
			pass(16 * time.Second)
			restore()
			pass(time.Minute)
			if n := len(rule.AllOutages()); n > 0 {
				t.Errorf("%d nodes were Unknown", n)
			}
		})
	}
}

// The start of a fleet is no storm.
func TestTheStartOfAFleetIsNoStorm(t *testing.T) {
	const nodes = 2_000
	fleetBubble(t, nodes, nil, func(f *fleet) {
		f.server.Inject(apitest.Fault{Latency: 10 * time.Millisecond})
		f.start()
		pass(12 * time.Second)
		if n := len(f.server.Requests(posts)); n != nodes {
			t.Errorf("%d leases were created in 12 s, want %d", n, nodes)
		}
		for second, n := range requests.PerSecond(f.server.Requests(leases)) {
			// One and a half times the steady rate, two requests each, and
			// one burst.
			if n > 2*300+2*DefaultWorkers {
				t.Errorf("%d requests in second %d", n, second)
			}
		}
		if f.inFlight.max > DefaultWorkers {
			t.Errorf("%d requests were under way at once", f.inFlight.max)
		}
	})
}

// With an API server that is slower than the workers can be, those leases
// are renewed that can still be saved, and each of them in time.
func TestASlowServerSavesTheLeasesThatCanBeSaved(t *testing.T) {
	nodes, workers := 1_000, 10
	if testing.Short() {
		nodes, workers = 300, 3
	}
	fleetBubble(t, nodes, func(cfg *Config) { cfg.Workers = workers }, func(f *fleet) {
		f.server.Inject(apitest.Fault{Latency: 300 * time.Millisecond}) // a third of the renewals that are wanted
		f.start()
		pass(5 * time.Minute)
		for i := range nodes {
			s, _ := f.controller.Status(fmt.Sprintf("node-%05d", i))
			if age := time.Since(s.LastRenewal); s.LastRenewal.IsZero() || age > DefaultDuration {
				t.Fatalf("node %d: %+v, %v old: others are renewed more often instead", i, s, age)
			}
		}
	})
}

// Adding and removing a node must not fork its chain of renewals.
func TestRemoveAndAddDuringCalls(t *testing.T) {
	bubble(t, nil, func(f *fixture) {
		restore := f.server.Inject(apitest.Fault{Latency: 70 * time.Millisecond})
		f.start()
		for range 100 {
			f.controller.Remove(nodeName)
			if err := f.controller.Add(nodeName); err != nil {
				t.Fatal(err)
			}
			f.controller.Trigger(nodeName)
			pass(31 * time.Millisecond)
		}
		restore()
		pass(time.Minute)
		f.server.ResetJournal()
		pass(100 * 10 * time.Second)
		if n := len(f.server.Requests(leases)); n != 100 {
			t.Errorf("%d requests in 100 intervals", n)
		}
		if len(f.told.contended) > 0 {
			t.Error("contended by ourselves")
		}
	})
}

// Nodes come and go while others are renewed.
func TestAddAndRemoveWhileRunning(t *testing.T) {
	fleetBubble(t, 10, nil, func(f *fleet) {
		f.start()
		pass(time.Minute)
		for i := range 100 {
			if err := f.controller.Add(fmt.Sprintf("late-%d", i)); err != nil {
				t.Fatal(err)
			}
			if err := f.controller.Add(fmt.Sprintf("late-%d", i)); err != nil {
				t.Errorf("Add of a node that is served = %v, want nil", err)
			}
		}
		pass(time.Minute)
		f.server.ResetJournal()
		pass(time.Minute)
		if n := len(f.server.Requests(puts)); n != 110*6 {
			t.Errorf("%d PUTs, want %d", n, 110*6)
		}
		for i := range 100 {
			f.controller.Remove(fmt.Sprintf("late-%d", i))
		}
		pass(time.Second)
		f.server.ResetJournal()
		pass(time.Minute)
		if n := len(f.server.Requests(puts)); n != 10*6 {
			t.Errorf("%d PUTs, want %d", n, 10*6)
		}
		if err := f.controller.Add("Not_A_Name"); err == nil {
			t.Error("an impossible node name was accepted")
		}
	})
}

// A namespace that is missing must not hold up the workers, and neither
// must one node whose calls fail.
func TestOneBadNodeDoesNotHoldUpOthers(t *testing.T) {
	fleetBubble(t, 50, func(cfg *Config) { cfg.Workers = 2 }, func(f *fleet) {
		f.server.Inject(apitest.Fault{
			Match:  apitest.Match{Func: func(r apitest.Request) bool { return r.Name < "node-00004" }},
			Status: statuserr.New(404, metav1.StatusReasonNotFound, "no"),
		})
		f.start()
		pass(time.Minute)
		f.server.ResetJournal()
		pass(10 * time.Minute)
		good := 0
		for _, r := range f.server.Requests(puts) {
			if r.Name >= "node-00004" {
				good++
			}
		}
		if good != 46*60 {
			t.Errorf("%d renewals of 46 good nodes in 60 intervals, want %d", good, 46*60)
		}
		if len(f.told.errs) != 1 {
			t.Errorf("%d errors were reported for four nodes that fail alike", len(f.told.errs))
		}
	})
}

// Gates that do not answer cost the other nodes nothing, whether they return at their
// deadline or never, and are reported once. They were asked with a worker each for a
// quarter of the interval, at every visit, which left no workers for the others.
func TestGatesThatHangCloseNoOtherGate(t *testing.T) {
	nodes := 7_000
	if testing.Short() {
		nodes = 300
	}
	hangs := func(name string) bool { return name[len(name)-1] == '7' } // one in ten
	for _, test := range []struct {
		name string
		hang func(ctx context.Context, end <-chan struct{}) error
	}{
		{"until the deadline", func(ctx context.Context, _ <-chan struct{}) error { <-ctx.Done(); return ctx.Err() }},
		{"for ever", func(_ context.Context, end <-chan struct{}) error { <-end; return nil }},
	} {
		t.Run(test.name, func(t *testing.T) {
			var end chan struct{}
			fleetBubble(t, nodes, func(cfg *Config) {
				end = make(chan struct{})
				cfg.Gate = func(ctx context.Context, name string) error {
					if hangs(name) {
						return test.hang(ctx, end)
					}
					return nil
				}
			}, func(f *fleet) {
				f.start()
				pass(time.Minute)
				late := 0
				for i := range nodes {
					name := fmt.Sprintf("node-%05d", i)
					s, _ := f.controller.Status(name)
					switch {
					case hangs(name) && s.Phase != PhaseGateClosed:
						t.Fatalf("%s, whose gate hangs: %+v", name, s)
					case !hangs(name) && (s.LastRenewal.IsZero() || time.Since(s.LastRenewal) > 11*time.Second):
						late++
					}
				}
				if late > 0 {
					t.Errorf("%d leases of nodes that are well are late", late)
				}
				if len(f.told.errs) != 1 {
					t.Errorf("%d errors were reported, want one for all gates: %v", len(f.told.errs), f.told.errs)
				}
				if len(f.told.overload) > 0 {
					t.Errorf("overloaded: %+v", f.told.overload)
				}
				close(end)
				if test.name == "for ever" {
					pass(time.Second) // the answers trigger visits; they come too late to count
					pass(20 * time.Second)
					if s, _ := f.controller.Status("node-00007"); s.Phase != PhaseHeld {
						t.Errorf("a node whose gate answers again: %+v", s)
					}
				}
			})
		})
	}
}

// A gate that answers later than a worker waits, and before the deadline, is used.
func TestASlowGateIsWaitedForWithoutAWorker(t *testing.T) {
	fleetBubble(t, 100, func(cfg *Config) {
		cfg.Workers = 2
		cfg.Gate = func(ctx context.Context, _ string) error {
			select {
			case <-time.After(2 * time.Second):
			case <-ctx.Done():
			}
			return ctx.Err()
		}
	}, func(f *fleet) {
		f.start()
		pass(3 * time.Minute)
		f.server.ResetJournal()
		pass(10 * time.Minute)
		if n := len(f.server.Requests(puts)); n < 100*60*4/5 || n > 100*61 {
			t.Errorf("%d renewals in 60 intervals of 100 nodes", n)
		}
	})
}

// A visit that only asks a slow gate takes nothing from the pace of renewals, which has
// no room for two visits to each node.
func TestSlowGatesOfAFleetDelayNoRenewal(t *testing.T) {
	nodes := 1_000
	if testing.Short() {
		nodes = 200
	}
	fleetBubble(t, nodes, func(cfg *Config) {
		cfg.Gate = func(context.Context, string) error {
			time.Sleep(2 * patience)
			return nil
		}
	}, func(f *fleet) {
		f.start()
		pass(time.Minute)
		f.server.ResetJournal()
		pass(time.Minute)
		if n := len(f.server.Requests(puts)); n != 6*nodes {
			t.Errorf("%d renewals of %d nodes in six intervals", n, nodes)
		}
	})
}

// An answer that a worker did not wait for is used once, and not for the next renewal.
func TestALateAnswerIsUsedOnce(t *testing.T) {
	var asked, slow atomic.Int64
	bubble(t, func(_ *fixture, cfg *Config) {
		cfg.Gate = func(context.Context, string) error {
			asked.Add(1)
			time.Sleep(time.Duration(slow.Load()))
			return nil
		}
	}, func(f *fixture) {
		slow.Store(int64(time.Second))
		f.start()
		pass(time.Minute)
		slow.Store(0)
		pass(time.Minute)
		asked.Store(0)
		f.server.ResetJournal()
		pass(10 * time.Minute)
		if n, writes := asked.Load(), len(f.server.Requests(puts)); n != 60 || writes != 60 {
			t.Errorf("%d questions and %d renewals in 60 intervals", n, writes)
		}
	})
}

// Too few workers are said once, in the log, by a hook and in the status, with the
// arithmetic.
func TestTooFewWorkersAreSaid(t *testing.T) {
	fleetBubble(t, 1_000, func(cfg *Config) { cfg.Workers = 4 }, func(f *fleet) {
		f.server.Inject(apitest.Fault{Latency: 250 * time.Millisecond})
		f.start()
		pass(5 * time.Minute)
		s, _ := f.controller.Status("node-00000")
		if len(f.told.overload) != 1 || !s.Overloaded {
			t.Fatalf("overloaded: %+v, status %+v", f.told.overload, s)
		}
		o := f.told.overload[0]
		if o.Nodes != 1_000 || o.Workers != 4 || o.RenewInterval != 10*time.Second || o.Ended || o.Late <= o.RenewInterval {
			t.Errorf("%+v", o)
		}
		want := "Node leases are visited late: 1000 nodes every 10s need 100 visits a second, and 4 workers with 250ms a visit make 16: "
		if text := (Overloaded{Nodes: 1000, Workers: 4, RenewInterval: o.RenewInterval, Visit: 250 * time.Millisecond}).String(); !strings.HasPrefix(text, want) {
			t.Errorf("%q, want %q", text, want)
		}
		for i := 100; i < 1_000; i++ {
			f.controller.Remove(fmt.Sprintf("node-%05d", i))
		}
		pass(5 * time.Minute)
		if s, _ := f.controller.Status("node-00000"); len(f.told.overload) != 2 || !f.told.overload[1].Ended || s.Overloaded {
			t.Errorf("with fewer nodes: %+v, status %+v", f.told.overload, s)
		}
	})
}
