// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/resourceslice"
)

func TestNewRefuses(t *testing.T) {
	_, err := resourceslice.New(resourceslice.Config{NodeName: "N!", Driver: "no driver", MinInterval: -1, HoldEmpty: -1, Labels: map[string]string{"a b": "c"}})
	for _, field := range []string{"Client", "NodeName", "Owner", "Driver", "MinInterval", "HoldEmpty", "Labels"} {
		if !contains(err, field+": ") {
			t.Errorf("%v does not name %s", err, field)
		}
	}
}

func TestSetRefusesOtherDrivers(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start(func(cfg *resourceslice.Config) { cfg.Driver = driver })
		err := r.c.Set(resourceslice.PoolID{Driver: "other.example.com", Name: node}, resourceslice.Pool{})
		if _, ok := errors.AsType[*resourceslice.InvalidError](err); !ok {
			t.Errorf("Set = %v", err)
		}
	})
}

// TestChangesComeTogether: the first is published at once, the others after
// MinInterval, together; what takes something from Pods doesn't wait.
func TestChangesComeTogether(t *testing.T) {
	bubble(t, func(r *rig) {
		all := devices(10)
		r.start()
		r.publish(resourceslice.Pool{Devices: all})
		r.s.ResetJournal()
		r.settle(time.Minute)
		for i := range 5 {
			all[i] = device(i, "b")
			r.set(resourceslice.Pool{Devices: all})
			r.settle(10 * time.Millisecond)
		}
		r.expect("the first of five", 0, 1, 0)
		r.settle(time.Second)
		r.expect("the others", 0, 1, 0)
		r.set(resourceslice.Pool{Devices: all[1:]})
		r.settle(0)
		r.expect("one less", 0, 1, 0)
		all[2].Taints = []resourcev1.DeviceTaint{{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoExecute}}
		r.set(resourceslice.Pool{Devices: all[1:]})
		r.settle(0)
		r.expect("a taint", 0, 1, 0)
	})
}

func TestHoldEmpty(t *testing.T) {
	bubble(t, func(r *rig) {
		r.there(live("s1", 1, 1, device(1, "a")))
		r.start(func(cfg *resourceslice.Config) { cfg.HoldEmpty = 30 * time.Second })
		r.set(resourceslice.Pool{}) // the first enumeration at boot
		r.settle(29 * time.Second)
		r.expect("within HoldEmpty", 0, 0, 0)
		r.set(pools(device(1, "a")))
		r.settle(time.Minute)
		r.expect("the second enumeration", 0, 0, 0)
		r.set(resourceslice.Pool{})
		r.settle(31 * time.Second)
		r.expect("it is empty indeed", 0, 1, 0)
	})
}

func TestWaitsForTheNode(t *testing.T) {
	bubble(t, func(r *rig) {
		r.foreign(func() { apitest.Remove[*corev1.Node](r.s, "", node) })
		r.start()
		r.set(pools(device(1, "a")))
		r.settle(10 * time.Minute)
		r.expect("without a Node", 0, 0, 0)
		if n := len(r.s.Requests(apitest.Match{Verb: "get", Resource: "nodes"})); n > 40 || len(r.reported()) > 0 {
			t.Errorf("%d requests, reported %v", n, r.reported())
		}
		r.foreign(func() { r.s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}) })
		r.settle(31 * time.Second)
		if len(r.devices()) != 1 {
			t.Error("not published when the Node is there")
		}
	})
}

func TestClusterPools(t *testing.T) {
	bubble(t, func(r *rig) {
		cfg := resourceslice.Config{Client: r.s.Client(apitest.User{}).ResourceV1()}
		c, err := resourceslice.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		r.run(c)
		id := resourceslice.PoolID{Driver: driver, Name: "fabric"}
		selector := func(zone string) resourceslice.NodeSelection {
			return resourceslice.NodeSelection{Selector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}},
			}}}}
		}
		publish := func(what string, nodes resourceslice.NodeSelection, creates, updates int) {
			t.Helper()
			if err := c.Set(id, resourceslice.Pool{Devices: devices(200), Nodes: nodes}); err != nil {
				t.Fatal(err)
			}
			if err := c.Wait(r.Context(), id); err != nil {
				t.Fatal(err)
			}
			r.expect(what, creates, updates, 0)
			r.settle(time.Minute)
		}
		publish("add-one-network-device-all-nodes", resourceslice.NodeSelection{AllNodes: true}, 4, 0)
		for _, s := range r.slices() {
			if s.Spec.NodeName != nil || len(s.OwnerReferences) != 0 || s.Spec.AllNodes == nil {
				t.Errorf("%s: %v %v", s.Name, s.Spec.NodeName, s.OwnerReferences)
			}
		}
		publish("some nodes: all slices at once", selector("a"), 0, 4)
		publish("update-node-selector", selector("b"), 0, 4)
		if g := r.slices()[0].Spec.Pool.Generation; g != 3 {
			t.Errorf("generation %d, want 3", g)
		}
		if err := c.Set(id, resourceslice.Pool{}); err == nil {
			t.Error("a pool of no node was accepted by a controller without one")
		}
	})
}

// TestNodePoolBecomesClusterPool: the node's name is immutable, so all slices
// are re-created.
func TestNodePoolBecomesClusterPool(t *testing.T) {
	bubble(t, func(r *rig) {
		r.user = admin
		r.start()
		r.publish(resourceslice.Pool{Devices: tainted(200)})
		r.expect("of the node", 4, 0, 0)
		r.publish(resourceslice.Pool{Devices: tainted(200), Nodes: resourceslice.NodeSelection{AllNodes: true}})
		r.expect("of all nodes", 4, 0, 4)
		r.publish(resourceslice.Pool{Devices: tainted(200)})
		r.expect("of the node again", 4, 0, 4)
	})
}

// TestCrashInTheMiddle stops the process hard after each write of a bump; the
// next one makes the writes that are left and deletes nothing.
func TestCrashInTheMiddle(t *testing.T) {
	for name, tc := range map[string]struct {
		pools  []int // numbers of devices
		writes int   // of the last one
	}{
		"of the first generation": {[]int{5*64 + 1}, 6},
		"with one slice more":     {[]int{7 * 64, 8 * 64}, 9},
		"with spare slices":       {[]int{7 * 64, 8 * 64, 9*64 + 10}, 12},
	} {
		for after := 1; after < tc.writes; after++ {
			if testing.Short() && after%3 != 1 {
				continue
			}
			t.Run(fmt.Sprint(name, " ", after), func(t *testing.T) {
				bubble(t, func(r *rig) {
					last := len(tc.pools) - 1
					r.concurrency = 1 + after%3
					r.start()
					for _, n := range tc.pools[:last] {
						r.publish(resourceslice.Pool{Devices: tainted(n)})
						r.settle(time.Minute)
					}
					r.s.ResetJournal()
					// The process is gone: none of its requests arrives.
					heal := r.s.Inject(apitest.Fault{Match: apitest.Match{User: r.user.Name, Verb: "create,update,delete", Resource: "resourceslices"}, Skip: after, Err: apitest.ErrConnReset})
					want := resourceslice.Pool{Devices: tainted(tc.pools[last])}
					r.set(want)
					r.settle(time.Second)
					r.halt()
					heal()
					r.s.ResetJournal()
					r.start()
					r.publish(want)
					counts := r.writes()
					if n := counts["create"] + counts["update"]; n != tc.writes-after || counts["delete"] > 0 {
						t.Errorf("writes %v, want %d", counts, tc.writes-after)
					}
					if g := r.slices()[0].Spec.Pool.Generation; g != int64(len(tc.pools)) || len(r.slices()) != tc.writes {
						t.Errorf("generation %d with %d slices, want %d with %d", g, len(r.slices()), len(tc.pools), tc.writes)
					}
				})
			})
		}
	}
}

// TestStopClosesTheWindow: a pool that is half published when Run is to end is
// completed first.
func TestStopClosesTheWindow(t *testing.T) {
	bubble(t, func(r *rig) {
		r.concurrency = 1
		r.start()
		r.publish(resourceslice.Pool{Devices: tainted(7 * 64)})
		r.settle(time.Minute)
		r.s.ResetJournal()
		r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "create,update", Resource: "resourceslices"}, Latency: 100 * time.Millisecond})
		r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "create,update", Resource: "resourceslices"}, Skip: 4, Times: 1, Status: statuserr.InternalError("x")})
		r.set(resourceslice.Pool{Devices: tainted(8 * 64)})
		time.Sleep(250 * time.Millisecond)
		r.halt()
		if got := r.generations(); len(got) != 9 || got[0] != "2/9" || got[8] != "2/9" {
			t.Errorf("generations and counts %v", got)
		}
	})
}

// TestStopCompletesAPoolWhoseFirstAnswerIsLost: the first write of a generation is stored, and
// Run is to end before the controller knows.
func TestStopCompletesAPoolWhoseFirstAnswerIsLost(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(resourceslice.Pool{Devices: tainted(7 * 64)})
		r.settle(time.Minute)
		r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "create,update", Resource: "resourceslices"}, Times: 1, Latency: 100 * time.Millisecond, LoseResponse: true})
		r.set(resourceslice.Pool{Devices: tainted(8 * 64)})
		time.Sleep(50 * time.Millisecond)
		r.halt()
		if got := r.generations(); len(got) != 9 || got[0] != "2/9" || got[8] != "2/9" {
			t.Errorf("generations and counts %v", got)
		}
	})
}

// TestADeleteIsOfTheVersionThatWasSeen: another writer may have taken the slice over since.
func TestADeleteIsOfTheVersionThatWasSeen(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(pools(device(1, "a")))
		r.settle(time.Minute)
		r.consumer.remove()
		r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "delete", Resource: "resourceslices"}, Latency: time.Second})
		if err := r.c.Remove(pool); err != nil {
			t.Fatal(err)
		}
		r.settle(time.Second / 2)
		taken := r.slices()[0].DeepCopy()
		taken.Labels = map[string]string{"taken": "over"}
		r.foreign(func() { r.s.Put(taken) })
		r.s.ResetJournal()
		r.settle(600 * time.Millisecond)
		if all := r.slices(); len(all) != 1 || all[0].Labels["taken"] == "" {
			t.Errorf("slices %v", all)
		}
		r.settle(time.Minute)
		if n := len(r.slices()); n != 0 {
			t.Errorf("%d slices after the second delete", n)
		}
	})
}

// TestARemovalDoesNotWaitForALostCreateThatIsThere: it deletes the slice at once.
func TestARemovalDoesNotWaitForALostCreateThatIsThere(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "create", Resource: "resourceslices"}, Times: 1, LoseResponse: true})
		r.publish(pools(device(1, "a")))
		r.consumer.remove()
		if err := r.c.Remove(pool); err != nil {
			t.Fatal(err)
		}
		r.settle(2 * time.Second)
		if n := len(r.slices()); n != 0 {
			t.Errorf("%d slices after two seconds", n)
		}
	})
}

// theirs returns the slice of another owner's pool of the cluster.
func theirs() *resourcev1.ResourceSlice {
	s := live("s1", 1, 1, device(1, "a"))
	s.Spec.NodeName, s.Spec.AllNodes = nil, new(true)
	s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "theirs", UID: "u1"}}
	return s
}

// TestThePoolOfAnotherOwnerIsLeftAlone by a controller without a node: it has the same name.
func TestThePoolOfAnotherOwnerIsLeftAlone(t *testing.T) {
	for name, act := range map[string]func(*rig){
		"Set": func(r *rig) {
			r.set(resourceslice.Pool{Devices: devices(3), Nodes: resourceslice.NodeSelection{AllNodes: true}})
			r.settle(time.Minute)
			if e, n := has[*resourceslice.ContendedError](r); n != 1 || e.Manager != "deployment theirs" {
				r.Errorf("reported %v", r.reported())
			}
		},
		"Remove": func(r *rig) { r.remove(node) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.foreign(func() { r.s.Put(theirs()) })
				r.start(func(cfg *resourceslice.Config) {
					cfg.NodeName, cfg.Client = "", r.s.Client(apitest.User{}).ResourceV1()
					cfg.Owner = func(context.Context) (metav1.OwnerReference, error) {
						return metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "mine", UID: "u2"}, nil
					}
				})
				act(r)
				r.settle(time.Hour)
				r.expect("an hour", 0, 0, 0)
				if _, n := has[*resourceslice.ContendedError](r); n > 1 {
					t.Errorf("reported %v", r.reported())
				}
			})
		})
	}
}

// TestAFailureAfterAWaitIsANewOne: one create fails before another owner has the pool for an
// hour, and one after that. Nothing has failed for an hour.
func TestAFailureAfterAWaitIsANewOne(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start(func(cfg *resourceslice.Config) {
			cfg.NodeName, cfg.Client = "", r.s.Client(apitest.User{}).ResourceV1()
		})
		fails := func() {
			r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "create", Resource: "resourceslices"}, Times: 1, Status: statuserr.Unauthorized()})
		}
		fails()
		r.set(resourceslice.Pool{Devices: devices(3), Nodes: resourceslice.NodeSelection{AllNodes: true}})
		r.settle(10 * time.Millisecond)
		r.expect("the first try", 1, 0, 0)
		r.foreign(func() { r.s.Put(theirs()) })
		r.s.ResetJournal()
		r.settle(time.Hour)
		r.expect("an hour", 0, 0, 0)
		fails()
		r.foreign(func() { apitest.Remove[sliceType](r.s, "", theirs().Name) })
		r.settle(time.Minute)
		if len(r.devices()) != 3 {
			t.Errorf("%d devices, want 3", len(r.devices()))
		}
		for _, err := range r.reported() {
			if _, ok := errors.AsType[*resourceslice.ContendedError](err); !ok {
				t.Errorf("reported %v", err)
			}
		}
	})
}

// TestTheStatusStaysIfTheAnswersDo: those of several slices, in maps without an order.
func TestTheStatusStaysIfTheAnswersDo(t *testing.T) {
	bubble(t, func(r *rig) {
		r.s.SetGate(apitest.DRADeviceTaints, false)
		r.start()
		r.set(resourceslice.Pool{Devices: tainted(200)})
		r.settle(10 * time.Minute)
		before, _ := r.c.Status(pool)
		r.settle(10 * time.Hour)
		if now, _ := r.c.Status(pool); now != before || now.Err == nil {
			t.Errorf("status %+v, then %+v", before, now)
		}
	})
}

// TestAShortOutageIsNoReasonToSendAgain: what was dropped half a minute before it.
func TestAShortOutageIsNoReasonToSendAgain(t *testing.T) {
	bubble(t, func(r *rig) {
		r.s.SetGate(apitest.DRADeviceTaints, false)
		r.start()
		r.set(resourceslice.Pool{Devices: tainted(200)})
		r.settle(time.Minute / 2)
		r.s.ResetJournal()
		r.s.DropWatches(apitest.Match{User: r.user.Name})
		r.settle(20 * time.Minute)
		if sent := r.s.Requests(apitest.Match{Verb: "create,update", Resource: "resourceslices"}); len(sent) > 0 {
			t.Errorf("sent %v", sent)
		}
	})
}

// meddler is a webhook that changes a label.
type meddler struct{ http.RoundTripper }

func (m meddler) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		text := strings.ReplaceAll(string(body), `"ours":"y"`, `"ours":"z"`)
		req = req.Clone(req.Context())
		req.Body, req.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
	}
	return m.RoundTripper.RoundTrip(req)
}

// TestWebhookThatMeddles: the API server never stores a slice as it was sent, and
// the controller does not write it all the time.
func TestWebhookThatMeddles(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start(func(cfg *resourceslice.Config) {
			rc := r.s.Config(r.user)
			rc.ContentType = "application/json"
			rc.Wrap(func(rt http.RoundTripper) http.RoundTripper { return meddler{rt} })
			cfg.Client, cfg.Labels = kubernetes.NewForConfigOrDie(rc).ResourceV1(), map[string]string{"ours": "y"}
		})
		r.set(pools(device(1, "a")))
		r.settle(time.Hour)
		if n := len(r.s.Requests(apitest.Match{Verb: "create,update", Resource: "resourceslices"})); n < 4 || n > 120 {
			t.Errorf("%d writes in an hour", n)
		}
		if n := len(r.reported()); n != 1 {
			t.Errorf("reported %v", r.reported())
		}
	})
}

// TestStopWhileWaiting: so is one that waits, after many failures, for a time to go on.
func TestStopWhileWaiting(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(resourceslice.Pool{Devices: tainted(7 * 64)})
		r.settle(time.Minute)
		heal := r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "create,update", Resource: "resourceslices"}, Skip: 4, Status: statuserr.InternalError("x")})
		r.set(resourceslice.Pool{Devices: tainted(8 * 64)})
		r.settle(time.Minute)
		heal()
		r.s.ResetJournal()
		r.settle(time.Millisecond)
		r.expect("while it waits", 0, 0, 0)
		r.halt()
		if got := r.generations(); len(got) != 9 || got[0] != "2/9" || got[8] != "2/9" {
			t.Errorf("generations and counts %v", got)
		}
	})
}

// TestThrottled: a Retry-After in one answer delays all writers.
func TestThrottled(t *testing.T) {
	bubble(t, func(r *rig) {
		r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "create", Resource: "resourceslices"}, Times: 1, Status: statuserr.TooManyRequests(0)})
		r.start()
		r.set(pools(device(1, "a")))
		r.settle(10 * time.Millisecond)
		other := resourceslice.PoolID{Driver: "other.example.com", Name: node}
		if err := r.c.Set(other, pools(device(1, "a"))); err != nil {
			t.Fatal(err)
		}
		r.settle(900 * time.Millisecond)
		r.expect("within a second", 1, 0, 0)
		r.settle(time.Second)
		r.expect("after it", 2, 0, 0)
	})
}

// TestStopWithoutWindow: no write begins after Run's context is done.
func TestStopWithoutWindow(t *testing.T) {
	bubble(t, func(r *rig) {
		r.concurrency = 1
		r.start()
		r.publish(resourceslice.Pool{Devices: tainted(7 * 64)})
		r.settle(time.Minute)
		r.s.ResetJournal()
		r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "create,update", Resource: "resourceslices"}, Latency: 100 * time.Millisecond})
		all := tainted(7 * 64)
		for i := range 7 {
			all[i*64] = device(i*64, "b")
		}
		r.set(resourceslice.Pool{Devices: all})
		time.Sleep(250 * time.Millisecond)
		r.halt()
		r.expect("independent changes", 0, 3, 0)
	})
}

func TestWithdraw(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(resourceslice.Pool{Devices: tainted(200)})
		r.s.ResetJournal()
		r.consumer.remove()
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		defer cancel()
		if err := r.c.Withdraw(ctx); err != nil {
			t.Fatal(err)
		}
		r.expect("Withdraw", 0, 0, 4)
		r.publish(resourceslice.Pool{Devices: tainted(64)})
		r.expect("and back", 1, 0, 0)
		if g := r.slices()[0].Spec.Pool.Generation; g != 2 {
			t.Errorf("generation %d, want 2: it never falls in a process", g)
		}
	})
}

func TestWaitAndStatus(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		if err := r.c.Wait(r.Context(), pool); !errors.Is(err, resourceslice.ErrUnknownPool) {
			t.Errorf("Wait = %v", err)
		}
		if _, ok := r.c.Status(pool); ok {
			t.Error("a status of nothing")
		}
		stop := r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "create"}, Status: statuserr.Unavailable(0)})
		r.set(pools(device(1, "a")))
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		defer cancel()
		if err := r.c.Wait(ctx, pool); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait = %v", err)
		}
		if n := len(r.reported()); n != 1 {
			t.Errorf("an outage of a minute was reported %d times: %v", n, r.reported())
		}
		stop()
		r.wait()
		s, _ := r.c.Status(pool)
		if s.Revision != 1 || s.Published != 1 || s.Generation != 1 || s.Slices != 1 || s.Devices != 1 || !s.Complete || s.Err != nil {
			t.Errorf("status %+v", s)
		}
	})
}

// TestForeignChangesAreUndone: an attribute in k slices is k writes.
func TestForeignChangesAreUndone(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(resourceslice.Pool{Devices: devices(640)})
		r.s.ResetJournal()
		r.foreign(func() {
			for _, i := range []int{1, 5, 7} {
				apitest.Edit(r.s, "", r.slices()[i].Name, func(s sliceType) {
					s.Spec.Devices[0].Attributes["model"] = resourcev1.DeviceAttribute{StringValue: new("changed")}
				})
			}
		})
		r.settle(1100 * time.Millisecond)
		r.expect("fix-after-update", 0, 3, 0)
		r.settle(time.Hour)
		for range 2 {
			r.foreign(func() {
				for _, s := range r.slices() {
					apitest.Remove[sliceType](r.s, "", s.Name)
				}
			})
			r.settle(1100 * time.Millisecond)
			r.expect("recreate-after-delete", 10, 0, 0)
			r.settle(time.Hour)
		}
	})
}

// TestNodeIsDeniedItsNewSlice: the node authorizer learns of a slice some
// milliseconds after it was created.
func TestNodeIsDeniedItsNewSlice(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(pools(device(1, "a")))
		r.s.ResetJournal()
		r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "update", Resource: "resourceslices"}, Times: 3, Status: statuserr.Forbidden("resourceslices", "s", "no relationship found")})
		r.publish(pools(device(2, "a")))
		r.expect("denied three times", 0, 4, 0)
		if n := len(r.reported()); n != 0 {
			t.Errorf("reported %v", r.reported())
		}
		r.settle(time.Minute)
		deny := r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "update", Resource: "resourceslices"}, Status: statuserr.Forbidden("resourceslices", "s", "policy")})
		r.set(pools(device(3, "a")))
		r.settle(10 * time.Minute)
		if n := len(r.s.Requests(apitest.Match{Verb: "update", Resource: "resourceslices"})); n > 11 {
			t.Errorf("%d updates in ten minutes", n)
		}
		if e, n := has[*resourceslice.ForbiddenError](r); n != 1 || e.Verb != "update" || e.Pool != pool {
			t.Errorf("reported %v", r.reported())
		}
		deny()
		r.settle(time.Minute)
		if _, ok := r.devices()["dev-00003"]; !ok {
			t.Error("not published when it was allowed")
		}
	})
}

// TestDroppedFieldsAreSentAgain: every hour, and after an outage of the API
// server, because a feature gate may be on since.
func TestDroppedFieldsAreSentAgain(t *testing.T) {
	bubble(t, func(r *rig) {
		r.s.SetGate(apitest.DRADeviceTaints, false)
		r.start()
		r.set(resourceslice.Pool{Devices: tainted(200)})
		r.settle(50 * time.Minute)
		r.expect("without the feature", 4, 0, 0)
		r.settle(time.Hour)
		r.expect("an hour later", 0, 4, 0)
		r.s.DropWatches(apitest.Match{User: r.user.Name})
		r.settle(2 * time.Minute)
		r.s.ResetJournal()

		r.s.SetGate(apitest.DRADeviceTaints, true)
		down := r.s.Inject(apitest.Fault{Match: apitest.Match{Resource: "resourceslices", User: r.user.Name}, Err: apitest.ErrConnRefused})
		r.s.DropWatches(apitest.Match{User: r.user.Name})
		r.settle(5 * time.Second)
		down()
		r.settle(2 * time.Minute)
		if err := r.c.Wait(r.Context(), pool); err != nil {
			t.Errorf("Wait = %v", err)
		}
		if taints := r.devices()["dev-00007"].Taints; len(taints) != 1 {
			t.Errorf("taints %v", taints)
		}
	})
}

// TestAPermissionThatIsWithdrawnIsReported: soon, although the pool changes all the time.
// Only a write that succeeded lately explains a denial.
func TestAPermissionThatIsWithdrawnIsReported(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(pools(device(1, "a")))
		r.settle(time.Second)
		r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "update", Resource: "resourceslices"}, Status: statuserr.Forbidden("resourceslices", "s", "policy")})
		for i := range 10 {
			r.set(pools(device(1, fmt.Sprint(i))))
			r.settle(time.Second)
		}
		if _, n := has[*resourceslice.ForbiddenError](r); n != 1 {
			t.Errorf("reported %v", r.reported())
		}
	})
}
