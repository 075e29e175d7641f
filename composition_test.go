// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kubewright_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubewright/kubewright"
	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// A composed node is the node of the example in a bubble.
type composed struct {
	*testing.T
	server  *apitest.Server
	backend *podsynctest.Backend
	begun   time.Time
	cancel  context.CancelFunc
	done    chan struct{}
	err     error
}

var (
	onLease  = apitest.Match{Resource: "leases"}
	puts     = apitest.Match{Resource: "leases", Verb: "update"}
	nodeGets = apitest.Match{Resource: "nodes", Verb: "get"}
	patches  = apitest.Match{Resource: "nodes/*", Verb: "patch"}
)

// A stubborn provider takes six seconds to start a pod, whatever its context says.
type stubborn struct{ podsync.Provider }

// Start implements podsync.Provider.
func (p stubborn) Start(ctx context.Context, pod *corev1.Pod) (podsync.State, error) {
	time.Sleep(6 * time.Second)
	return p.Provider.Start(ctx, pod)
}

// composeBlind is compose for a client that may not watch the Node. What is learned of it
// then is learned from the lease.
func composeBlind(t *testing.T, test func(c *composed)) {
	compose(t, func(c *composed) {
		c.server.Inject(apitest.Fault{
			Match:  apitest.Match{Resource: "nodes", Verb: "list,watch"},
			Status: apierrors.NewForbidden(corev1.Resource("nodes"), "n1", nil),
		})
		test(c)
	})
}

// compose runs serve in a bubble.
func compose(t *testing.T, test func(c *composed)) {
	synctest.Test(t, func(t *testing.T) {
		c := &composed{T: t, server: apitest.New(apitest.Options{}), backend: podsynctest.NewBackend(podsynctest.Options{Forgets: true}), begun: time.Now()}
		c.serve()
		test(c)
		c.cancel()
		<-c.done
	})
}

// serve begins a process.
func (c *composed) serve() {
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(c.Context())
	c.done = make(chan struct{})
	go func() {
		defer close(c.done)
		c.err = serve(ctx, c.server.Client(apitest.NodeUser("n1")), "n1", stubborn{c.backend.Connect()})
	}()
}

func (c *composed) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (c *composed) ready() corev1.ConditionStatus {
	for _, condition := range apitest.Get[*corev1.Node](c.server, "", "n1").Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status
		}
	}
	return ""
}

// after returns the times of the requests that match, counted from begun.
func (c *composed) after(begun time.Time, m apitest.Match) (at []time.Duration) {
	for _, r := range c.server.Requests(m) {
		if !r.Time.Before(begun) {
			at = append(at, r.Time.Sub(begun))
		}
	}
	return at
}

// soon checks that the first of the times is within a second.
func (c *composed) soon(what string, at []time.Duration) {
	c.Helper()
	if len(at) == 0 || at[0] > time.Second {
		c.Errorf("%s at %v, want it within a second", what, at)
	}
}

// The Node says that it is registered, and the lease is made at once; the lease says that it
// is held, and the Node is written.
func TestTheNodeAndItsLeaseNotifyEachOther(t *testing.T) {
	composeBlind(t, func(c *composed) {
		// Nothing else would make either of them look before its next slot.
		c.pass(time.Second)
		c.soon("the lease is made", c.after(c.begun, apitest.Match{Resource: "leases", Verb: "create"}))
		c.soon("the Node is read because its gate is open", c.after(c.begun, nodeGets))
		c.pass(15 * time.Second)
		if ready := c.ready(); ready != corev1.ConditionTrue {
			t.Errorf("Ready is %s", ready)
		}
		owners := apitest.Get[*coordinationv1.Lease](c.server, corev1.NamespaceNodeLease, "n1").OwnerReferences
		if len(owners) != 1 || owners[0].UID != apitest.Get[*corev1.Node](c.server, "", "n1").UID {
			t.Errorf("the owners of the lease are %v", owners)
		}
	})
}

// Whatever the instant of the outage is: a lease that had expired has the Node read, which
// may be Unknown.
func TestTheNodeIsReadAfterAnOutageOfTheLease(t *testing.T) {
	for offset := time.Duration(0); offset < 10*time.Second; offset += 2 * time.Second {
		composeBlind(t, func(c *composed) {
			c.pass(time.Minute + offset)
			restore := c.server.Inject(apitest.Fault{Match: onLease, Err: apitest.ErrConnRefused})
			before := len(c.server.Requests(puts))
			c.pass(41 * time.Second)
			restore()
			var renewed time.Time
			for range 100 {
				c.pass(100 * time.Millisecond)
				if all := c.server.Requests(puts); len(all) > before && all[len(all)-1].Code == http.StatusOK {
					renewed = all[len(all)-1].Time
					break
				}
			}
			c.pass(time.Second)
			if renewed.IsZero() {
				t.Fatal("the lease is not renewed")
			}
			if outage := renewed.Sub(c.lastBefore(renewed)); outage <= lease.DefaultDuration {
				t.Errorf("an outage of %v is too short", outage)
			} else {
				c.soon("the Node is read", c.after(renewed, nodeGets))
			}
		})
	}
}

// lastBefore returns when the lease was renewed the last time before t.
func (c *composed) lastBefore(t time.Time) (last time.Time) {
	for _, r := range c.server.Requests(onLease) {
		if r.Time.Before(t) && r.Code/100 == 2 && r.Verb != "get" {
			last = r.Time
		}
	}
	return last
}

// The garbage collector deletes the lease of a Node that was deleted. The Node would be
// missed only with its next write, after minutes. The lease, whose owner is gone, would be
// created and collected in the meantime.
func TestTheNodeIsMissedWithItsLease(t *testing.T) {
	for offset := time.Duration(0); offset < 10*time.Second; offset += 2 * time.Second {
		composeBlind(t, func(c *composed) {
			c.pass(time.Minute + offset)
			deleted := time.Now()
			apitest.Remove[*corev1.Node](c.server, "", "n1")
			c.server.CollectGarbage()
			c.pass(15 * time.Second)
			select {
			case <-c.done:
			default:
				t.Fatal("the program runs without its Node")
			}
			if !errors.Is(c.err, nodestatus.ErrNodeDeleted) || !strings.HasPrefix(c.err.Error(), "kubewright: nodestatus: ") {
				t.Errorf("%v", c.err)
			}
			missed := c.after(deleted, onLease)
			if len(missed) == 0 {
				t.Fatal("the lease was not missed")
			}
			c.soon("the Node is read", c.after(deleted.Add(missed[0]), nodeGets))
			if made := c.after(deleted, apitest.Match{Resource: "leases", Verb: "create"}); len(made) > 0 {
				t.Errorf("the lease of a Node that is gone is created after %v", made)
			}
		})
	}
}

// The API server is restored from a backup, while the program runs or between two processes. What
// lives in the backup runs, what does not is stopped, and the Node and its lease are right.
func TestANodeOutlivesARestore(t *testing.T) {
	for offset := time.Duration(0); offset < 10*time.Second; offset += 3 * time.Second {
		for _, between := range []bool{false, true} {
			compose(t, func(c *composed) {
				c.pass(time.Minute)
				putPod(c.server, "stays")
				putPod(c.server, "deleted")
				c.pass(20*time.Second + offset)
				restore := c.server.Backup()
				deleted := apitest.Get[*corev1.Pod](c.server, "default", "deleted")
				apitest.Remove[*corev1.Pod](c.server, "default", "deleted")
				putPod(c.server, "new")
				c.pass(20 * time.Second)
				stays, made := apitest.Get[*corev1.Pod](c.server, "default", "stays"), apitest.Get[*corev1.Pod](c.server, "default", "new")
				if c.backend.Running(deleted.UID) || !c.backend.Running(made.UID) {
					t.Errorf("before the restore %+v", c.backend.Held())
				}
				if between { // the process is killed: it says nothing to the API
					back := c.server.Inject(apitest.Fault{Err: apitest.ErrConnRefused})
					c.cancel()
					<-c.done
					back()
				}
				restore()
				c.backend.Restored()
				if between {
					c.serve()
				}
				restored := time.Now()
				c.pass(3 * time.Minute)
				for _, name := range []string{"stays", "deleted"} {
					pod := apitest.Get[*corev1.Pod](c.server, "default", name)
					if pod.Status.Phase != corev1.PodRunning || !c.backend.Running(pod.UID) {
						t.Errorf("%s is %s, and runs: %v", name, pod.Status.Phase, c.backend.Running(pod.UID))
					}
				}
				if c.backend.Running(made.UID) {
					t.Error("a pod runs that the API does not have")
				}
				if starts := c.backend.Calls(podsync.OpStart); len(starts) != 4 {
					t.Errorf("%d calls of Start, want one for each pod, and one for that which lives again", len(starts))
				}
				if before := apitest.Get[*corev1.Pod](c.server, "default", "stays"); before.UID != stays.UID {
					t.Error("a pod that stays has another UID")
				}
				if ready := c.ready(); ready != corev1.ConditionTrue {
					t.Errorf("Ready is %s", ready)
				}
				if last := c.lastBefore(time.Now()); time.Since(last) > 11*time.Second || !last.After(restored) {
					t.Errorf("the lease was renewed last %v after the restore", last.Sub(restored))
				}
				for _, v := range c.backend.Violations() {
					t.Error(v)
				}
			})
		}
	}
}

// At the end podsync stops first, then the Node is written, and the lease is renewed until
// then.
func TestTheEndHasAnOrder(t *testing.T) {
	compose(t, func(c *composed) {
		c.pass(time.Minute)
		putPod(c.server, "web")
		c.server.Inject(apitest.Fault{Match: patches, Latency: 4 * time.Second})
		c.pass(time.Millisecond) // the pod is being started
		ended := time.Now()
		c.cancel()
		<-c.done
		if c.err != nil {
			t.Errorf("%v", c.err)
		}
		if took := time.Since(ended); took < 9*time.Second || took > 12*time.Second {
			t.Errorf("the end took %v", took)
		}
		at := c.after(ended, patches)
		if len(at) != 1 || at[0] < 5*time.Second {
			t.Errorf("the Node was written %v after the beginning of the end, want once, and after the pod was started", at)
		}
		if at := c.after(ended, puts); len(at) != 2 || at[1] < 9*time.Second {
			t.Errorf("the lease was written %v after the beginning of the end, want a renewal in ten seconds, and the last write", at)
		}
		if ready := c.ready(); ready != corev1.ConditionFalse {
			t.Errorf("Ready is %s", ready)
		}
	})
}

// A program that is stuck must not look alive, and not at its end either.
func TestALeaseRunsOutWhileAPartHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := apitest.New(apitest.Options{})
		client := server.Client(apitest.NodeUser("n1"))
		var hang time.Time
		leases, err1 := lease.New(lease.Config{Client: client.CoordinationV1(), NodeName: "n1"})
		node, err2 := nodestatus.New(nodestatus.Config{
			Client: client.CoreV1(), NodeName: "n1", Lease: leases, Setters: nodestatus.Standard(),
			HealthChecks: []nodestatus.HealthCheck{func(context.Context, string) error {
				if !hang.IsZero() && time.Now().After(hang) {
					time.Sleep(time.Hour)
				}
				return nil
			}},
		})
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		hang = time.Now().Add(time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		err := kubewright.Run(ctx, leases, node)
		if err == nil || !strings.Contains(err.Error(), "nodestatus has not returned") || time.Since(hang) > 9*time.Minute+24*time.Second {
			t.Errorf("%v after %v", err, time.Since(hang))
		}
		renewed := apitest.Get[*coordinationv1.Lease](server, corev1.NamespaceNodeLease, "n1").Spec.RenewTime
		// The round that hangs begins with a renewal, and is stuck 20 s later, at the moment of another.
		if last := renewed.Sub(hang); last < 10*time.Second || last > time.Minute {
			t.Errorf("the lease was renewed last %v after the health check began to hang", last)
		}
		time.Sleep(2 * time.Hour)
	})
}

// Three things that a program may forget are errors, not faults of the first outage.
func TestAHalfWiredNodeDoesNotRun(t *testing.T) {
	server := apitest.New(apitest.Options{})
	client := server.Client(apitest.NodeUser("n1"))
	provider := podsynctest.NewBackend(podsynctest.Options{}).Connect()
	node := func(l nodestatus.Lease) (*nodestatus.Controller, error) {
		return nodestatus.New(nodestatus.Config{Client: client.CoreV1(), NodeName: "n1", Lease: l})
	}
	newLease := func() *lease.Controller {
		leases, err := lease.New(lease.Config{Client: client.CoordinationV1(), NodeName: "n1"})
		if err != nil {
			t.Fatal(err)
		}
		return leases
	}

	alone, err := node(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := kubewright.Run(t.Context(), newLease(), alone); !errors.Is(err, lease.ErrNoOwner) {
		t.Errorf("a node without its lease: %v", err)
	}

	leases := newLease()
	status, err := node(leases)
	if err != nil {
		t.Fatal(err)
	}
	pods, err := podsync.New(podsync.Config{Client: client.CoreV1(), NodeName: "n1", Provider: provider})
	if err != nil {
		t.Fatal(err)
	}
	if err := kubewright.Run(t.Context(), leases, status, pods); err == nil || !strings.Contains(err.Error(), "podsync has no Gate") {
		t.Errorf("pods without a gate: %v", err)
	}
	if _, err := node(leases); err == nil || !strings.Contains(err.Error(), "nodestatus: invalid config: Lease: lease: follow") {
		t.Errorf("a second node for the lease: %v", err)
	}
	if n := len(server.Requests(apitest.Match{Resource: "pods"})); n > 0 {
		t.Errorf("%d requests about pods", n)
	}
}

// The steady cost of a node: nothing but 360 renewals and 12 reports an hour.
func TestTheSteadyCostOfANode(t *testing.T) {
	compose(t, func(c *composed) {
		c.pass(time.Hour)
		c.server.ResetJournal()
		c.pass(10 * time.Hour)
		renewals, reports := len(c.server.Requests(puts)), len(c.server.Requests(patches))
		others := 0
		for _, r := range c.server.Requests(apitest.Match{}) {
			if r.Verb != "watch" {
				others++
			}
		}
		if others -= renewals + reports; renewals < 3599 || renewals > 3601 || reports < 119 || reports > 121 || others != 0 {
			t.Errorf("%d renewals, %d reports and %d other requests in ten hours", renewals, reports, others)
		}
	})
}

// The Node says what its pods need to know: that there is room for them, and whether the
// provider that runs them answers.
func TestTheNodeSaysWhetherItsPodsAreServed(t *testing.T) {
	compose(t, func(c *composed) {
		c.pass(time.Minute)
		if room := apitest.Get[*corev1.Node](c.server, "", "n1").Status.Allocatable.Pods().Value(); room != 110 {
			t.Errorf("there is room for %d pods", room)
		}
		if ready := c.ready(); ready != corev1.ConditionTrue {
			t.Errorf("Ready is %s", ready)
		}
		answer := c.backend.Inject(podsynctest.Fault{Op: podsync.OpList, Hang: true})
		c.pass(3 * time.Minute)
		if ready := c.ready(); ready != corev1.ConditionFalse {
			t.Errorf("Ready is %s while the provider does not answer", ready)
		}
		answer()
		c.pass(3 * time.Minute)
		if ready := c.ready(); ready != corev1.ConditionTrue {
			t.Errorf("Ready is %s after the provider has answered", ready)
		}
	})
}
