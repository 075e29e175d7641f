// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/requests"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/resourceslice"
)

// refuseDevice refuses every slice with a device of that name and model until undo is
// called. The answer names the device.
func (r *rig) refuseDevice(name, model string) (undo func()) {
	at := func(q apitest.Request) int {
		obj, err := q.Object()
		s, ok := obj.(*resourcev1.ResourceSlice)
		if err != nil || !ok {
			return -1
		}
		return slices.IndexFunc(s.Spec.Devices, func(d resourcev1.Device) bool {
			return d.Name == name && *d.Attributes["model"].StringValue == "model-"+model
		})
	}
	return r.s.Inject(apitest.Fault{
		Match: apitest.Match{Verb: "create,update", Resource: "resourceslices", Func: func(q apitest.Request) bool { return at(q) >= 0 }},
		Answer: func(q apitest.Request) (*http.Response, error) {
			err := statuserr.New(422, metav1.StatusReasonInvalid, name+" is not welcome")
			err.ErrStatus.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Field: fmt.Sprintf("spec.devices[%d]", at(q))}}}
			return nil, err
		},
	})
}

func broken(d resourcev1.Device) resourcev1.Device {
	d.Taints = []resourcev1.DeviceTaint{{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoExecute}}
	return d
}

// TestARefusedDeviceMovesWithItsOldContent: a taint halves its slice, so that a
// device has to move whose present content the API server refuses.
func TestARefusedDeviceMovesWithItsOldContent(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		all := devices(128)
		r.publish(resourceslice.Pool{Devices: all})
		r.settle(time.Minute)
		r.refuseDevice("dev-00127", "b")
		all[127] = device(127, "b")
		r.set(resourceslice.Pool{Devices: all})
		r.settle(time.Minute)
		all[0] = broken(all[0])
		r.set(resourceslice.Pool{Devices: all})
		r.settle(time.Minute)
		got := r.devices()
		if len(got) != 128 || len(got["dev-00000"].Taints) != 1 || *got["dev-00127"].Attributes["model"].StringValue != "model-a" {
			t.Errorf("%d devices, %+v, %+v", len(got), got["dev-00000"], got["dev-00127"])
		}
		if s, _ := r.c.Status(pool); !contains(s.Err, "is not welcome") || s.Published != s.Revision {
			t.Errorf("status %+v", s)
		}
	})
}

// partition is a device that consumes one unit of a counter.
func partition(i int, model, set, counter string) resourcev1.Device {
	d := device(i, model)
	d.ConsumesCounters = []resourcev1.DeviceCounterConsumption{{CounterSet: set, Counters: map[string]resourcev1.Counter{counter: {Value: quantity("1")}}}}
	return d
}

func setOf(name, counter string) resourcev1.CounterSet {
	return resourcev1.CounterSet{Name: name, Counters: map[string]resourcev1.Counter{counter: {Value: quantity("7")}}}
}

// TestRefusedContentIsNotItsOwnReplacement: the API server refuses content that it has, for
// example because a webhook is newer than the slice. The device is left out, and the rest
// is published.
func TestRefusedContentIsNotItsOwnReplacement(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(pools(device(1, "a"), device(2, "a")))
		r.refuseDevice("dev-00001", "a")
		r.s.ResetJournal()
		r.set(pools(device(1, "a"), device(2, "b")))
		r.settle(time.Minute)
		if got := r.devices(); len(got) != 1 || *got["dev-00002"].Attributes["model"].StringValue != "model-b" {
			t.Errorf("devices %v", got)
		}
		r.expect("a refused write and another one", 0, 2, 0)
		if s, _ := r.c.Status(pool); !contains(s.Err, "refused") || s.Published != s.Revision {
			t.Errorf("status %+v", s)
		}
	})
}

// TestADeviceIsLeftOutWithoutItsCounters: the API server refuses a device that keeps
// its live version then, or it refuses a counter set. A consumer of a counter that is
// not published would make the whole pool invalid.
func TestADeviceIsLeftOutWithoutItsCounters(t *testing.T) {
	before := resourceslice.Pool{
		SharedCounters: []resourcev1.CounterSet{setOf("s", "memory")},
		Devices:        []resourcev1.Device{partition(1, "a", "s", "memory"), partition(2, "a", "s", "memory"), device(3, "a")},
	}
	for name, tc := range map[string]struct {
		set     resourcev1.CounterSet
		counter string
		refuse  func(*rig) (undo func())
		left    string // devices that are offered while the API server refuses the other content
	}{
		"the live version of a refused device consumes a set that is gone": {
			setOf("other", "memory"), "memory",
			func(r *rig) func() { return r.refuseDevice("dev-00001", "b") }, "[dev-00002 dev-00003]",
		},
		"the live version of a refused device consumes a counter that is gone": {
			setOf("s", "slots"), "slots",
			func(r *rig) func() { return r.refuseDevice("dev-00001", "b") }, "[dev-00002 dev-00003]",
		},
		"a live device and a set that another client deleted and that can't be created": {
			setOf("s", "memory"), "memory",
			func(r *rig) func() {
				undo := r.s.Inject(apitest.Fault{
					Match:  sending("create", func(s sliceType) bool { return len(s.Spec.SharedCounters) > 0 }),
					Status: statuserr.New(422, metav1.StatusReasonInvalid, "no"),
				})
				r.foreign(func() {
					for _, s := range r.slices() {
						if len(s.Spec.SharedCounters) > 0 {
							apitest.Remove[sliceType](r.s, "", s.Name)
						}
					}
				})
				return undo
			}, "[dev-00003]",
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.start()
				r.publish(before)
				r.settle(time.Minute)
				undo := tc.refuse(r)
				r.set(resourceslice.Pool{
					SharedCounters: []resourcev1.CounterSet{tc.set},
					Devices:        []resourcev1.Device{partition(1, "b", tc.set.Name, tc.counter), partition(2, "a", tc.set.Name, tc.counter), device(3, "a")},
				})
				r.settle(time.Minute)
				if problem := invalidPool(r.slices()); problem != "" {
					t.Errorf("the pool is invalid: %s", problem)
				}
				if got := fmt.Sprint(slices.Sorted(maps.Keys(r.devices()))); got != tc.left {
					t.Errorf("devices %s, want %s", got, tc.left)
				}
				if s, _ := r.c.Status(pool); s.Err == nil || s.Published != s.Revision || !s.Complete {
					t.Errorf("status %+v", s)
				}
				undo()
				r.settle(time.Hour)
				if got := r.devices(); len(got) != 3 || *got["dev-00001"].Attributes["model"].StringValue != "model-b" {
					t.Errorf("devices %v, although nothing is refused", got)
				}
			})
		})
	}
}

// TestASetDoesNotWaitForARetry: whatever the pool waits for, a Set that changes
// it is tried at once.
func TestASetDoesNotWaitForARetry(t *testing.T) {
	writes := apitest.Match{Verb: "create,update", Resource: "resourceslices"}
	for name, hold := range map[string]func(r *rig) (undo func()){
		"refused as a whole": func(r *rig) func() {
			undo := r.s.Inject(apitest.Fault{Match: writes, Status: statuserr.New(422, metav1.StatusReasonInvalid, "no")})
			r.set(skipped(device(1, "a")))
			return undo
		},
		"forbidden": func(r *rig) func() {
			undo := r.s.Inject(apitest.Fault{Match: writes, Status: statuserr.Forbidden("resourceslices", "s", "policy")})
			r.set(pools(device(1, "b")))
			return undo
		},
		"held empty": func(r *rig) func() {
			r.set(resourceslice.Pool{})
			return func() {}
		},
		"failing": func(r *rig) func() {
			undo := r.s.Inject(apitest.Fault{Match: writes, Status: statuserr.InternalError("x")})
			r.set(pools(device(1, "b")))
			return undo
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.start(func(cfg *resourceslice.Config) { cfg.HoldEmpty = time.Hour })
				r.publish(pools(device(1, "a")))
				r.settle(time.Minute)
				undo := hold(r)
				r.settle(20 * time.Minute)
				// One failure more, so that backoff and the other reason meet.
				once := r.s.Inject(apitest.Fault{Match: writes, Times: 1, Status: statuserr.InternalError("x")})
				r.set(pools(device(1, "c")))
				r.settle(30 * time.Minute)
				once()
				undo()
				r.set(pools(broken(device(1, "d"))))
				r.settle(50 * time.Millisecond)
				if d := r.devices()["dev-00001"]; len(d.Taints) != 1 {
					t.Errorf("the taint is not there: %+v", d)
				}
			})
		})
	}
}

// switchable is a RoundTripper that can be switched to another API server.
type switchable struct {
	mu sync.Mutex
	to http.RoundTripper
}

func (s *switchable) become(to http.RoundTripper) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.to = to
}

func (s *switchable) RoundTrip(req *http.Request) (*http.Response, error) {
	s.mu.Lock()
	to := s.to
	s.mu.Unlock()
	return to.RoundTrip(req)
}

// TestARestoreFromABackupIsRepaired: the slices are those of yesterday, with
// lower resource versions than the last own write. If the watch doesn't start
// over, the next write finds out. If a load balancer answered with 404 in the meantime,
// the list is the first one of a new session.
func TestARestoreFromABackupIsRepaired(t *testing.T) {
	for _, then := range []string{"list", "new session", "write"} {
		t.Run(then, func(t *testing.T) {
			bubble(t, func(r *rig) { restoreFromBackup(r, then) })
		})
	}
}

func restoreFromBackup(r *rig, then string) {
	yesterday := apitest.New(apitest.Options{})
	r.user = apitest.NodeUser(node)
	rc := r.s.Config(r.user)
	proxy := &switchable{to: rc.Transport}
	rc.Transport = proxy
	cs := kubernetes.NewForConfigOrDie(rc)
	for range 50 { // so that resource versions are higher than on the other
		r.s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
	}
	r.start(func(cfg *resourceslice.Config) {
		cfg.Client, cfg.Owner = cs.ResourceV1(), resourceslice.NodeOwner(cs.CoreV1().Nodes(), node)
	})
	r.publish(pools(device(1, "a"), device(2, "a")))
	old := r.slices()[0].DeepCopy()
	r.settle(time.Minute)
	r.publish(pools(device(1, "b")))
	r.settle(time.Minute)

	yesterday.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
	old.ResourceVersion = ""
	yesterday.Put(old)
	soon := time.Minute
	if then == "new session" {
		soon = 5 * time.Minute // the longest time between two sessions
		undo := r.s.Inject(apitest.Fault{Match: apitest.Match{User: r.user.Name}, Status: statuserr.New(404, metav1.StatusReasonNotFound, "default backend - 404")})
		r.s.DropWatches(apitest.Match{User: r.user.Name})
		r.settle(5 * time.Minute)
		undo()
	}
	proxy.become(yesterday.Config(r.user).Transport)
	r.s.DropWatches(apitest.Match{User: r.user.Name})
	r.settle(time.Second)
	after := &rig{T: r.T, s: yesterday}
	if then != "write" {
		yesterday.ExpireWatches(apitest.Match{User: r.user.Name})
		r.settle(soon)
		if got := after.devices(); len(got) != 1 || *got["dev-00001"].Attributes["model"].StringValue != "model-b" {
			r.Errorf("devices after the restore: %v", got)
		}
	}
	r.set(pools(device(1, "c")))
	r.settle(time.Minute)
	if got := after.devices(); len(got) != 1 || *got["dev-00001"].Attributes["model"].StringValue != "model-c" {
		r.Errorf("devices after a Set: %v", got)
	}
}

// TestAnEmptyAnswerIsNoOwner: a Node that a proxy makes up has no name, and the API server
// refuses slices with such an owner. The pool waited an hour then.
func TestAnEmptyAnswerIsNoOwner(t *testing.T) {
	bubble(t, func(r *rig) {
		r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "get", Resource: "nodes"}, Times: 1, Answer: func(apitest.Request) (*http.Response, error) {
			body := io.NopCloser(strings.NewReader(`{"kind":"Node","apiVersion":"v1"}`))
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}, nil
		}})
		r.start()
		r.publish(resourceslice.Pool{Devices: devices(1)})
		is := apitest.Get[*corev1.Node](r.s, "", node)
		if all := r.slices(); len(all) != 1 || len(all[0].OwnerReferences) != 1 || all[0].OwnerReferences[0].UID != is.UID {
			r.Errorf("the slices are %+v", all)
		}
	})
}

// TestALateWriteOfADeadProcessMeetsAnotherGeneration: the process dies in the
// middle of a switch to a new generation. Its write to the second slice arrives
// when its successor, with other content, has written the first one.
func TestALateWriteOfADeadProcessMeetsAnotherGeneration(t *testing.T) {
	bubble(t, func(r *rig) {
		all := tainted(192)
		r.start(func(cfg *resourceslice.Config) { cfg.Name, cfg.ShutdownTimeout = "dead", time.Millisecond })
		r.publish(resourceslice.Pool{Devices: all[:114]}) // 64 and 50
		r.settle(time.Minute)
		r.s.Inject(apitest.Fault{
			Match: sending("update", func(s sliceType) bool { return hasDevice(s, "dev-00070") }),
			Times: 1, CommitAfter: 3 * time.Second,
		})
		r.set(resourceslice.Pool{Devices: all}) // 64, 64 and 64: the number of slices changes
		r.settle(300 * time.Millisecond)
		r.consumer.died("kubewright-dead")
		r.halt()
		if got := r.generations(); !slices.Equal(got, []string{"2/3", "1/2", "2/3"}) {
			t.Fatalf("generations and counts when it dies: %v", got)
		}
		// Ten devices of the first slice are gone, so it has room for ten of
		// those that were meant for the second.
		r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "create,update", Resource: "resourceslices"}, Latency: 2 * time.Second})
		r.concurrency = 1
		r.start()
		r.publish(resourceslice.Pool{Devices: all[10:]})
		r.settle(time.Minute)
		if got := r.devices(); len(got) != 182 {
			t.Errorf("%d devices, want 182", len(got))
		}
	})
}

// TestRestrictionsAreNotPublishedWithoutTheirFields: without its counters, a part
// of a device could be allocated together with the whole; without its taint, a
// broken device could be.
func TestRestrictionsAreNotPublishedWithoutTheirFields(t *testing.T) {
	partitions := gpus(2)
	partitions.Devices = append(partitions.Devices, device(90, "a"))
	exclusive := gpus(2)
	for i := range exclusive.Devices {
		exclusive.Devices[i].ConsumesCounters[0].CompatibilityGroups = []string{[]string{"half", "whole"}[i%2]}
	}
	exclusive.Devices = append(exclusive.Devices, device(90, "a"))
	for name, tc := range map[string]struct {
		gate     apitest.Gate
		pool     resourceslice.Pool
		free     []string // devices that may be published
		all      int
		withheld string
	}{
		"counters": {apitest.DRAPartitionableDevices, partitions, []string{"dev-00090"}, 7, "[dev-00000 dev-00001 dev-00002 dev-00010 dev-00011 dev-00012 gpu-0 gpu-1]"},
		"groups":   {apitest.DRADeviceCompatibilityGroups, exclusive, []string{"dev-00090"}, 7, "dev-00001"},
		"taint":    {apitest.DRADeviceTaints, pools(broken(device(1, "a")), device(2, "a")), []string{"dev-00002"}, 2, "[dev-00001]"},
	} {
		for _, optOut := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", name, optOut), func(t *testing.T) {
				bubble(t, func(r *rig) {
					r.s.SetGate(tc.gate, false)
					if !optOut {
						r.consumer.withhold("dev-00001")
					}
					r.start(func(cfg *resourceslice.Config) { cfg.PublishUnrestricted = optOut })
					r.set(tc.pool)
					r.settle(time.Minute)
					got := r.devices()
					if optOut && len(got) != tc.all || !optOut && (len(got) != len(tc.free) || got[tc.free[0]].Name == "") {
						t.Errorf("devices %v", got)
					}
					s, _ := r.c.Status(pool)
					dropped, n := has[*resourceslice.DroppedFieldsError](r)
					if n == 0 || s.Err == nil || s.Published != s.Revision || !s.Complete {
						t.Errorf("status %+v, reported %v", s, r.reported())
					}
					if all := fmt.Sprint(s.Err.(*resourceslice.DroppedFieldsError).Withheld); optOut != (all == "[]") || !optOut && !contains(fmt.Errorf("%s", all), tc.withheld) {
						t.Errorf("withheld %v, reported %v", all, dropped)
					}
					r.s.ResetJournal()
					r.settle(50 * time.Minute)
					r.expect("within an hour", 0, 0, 0)
					r.s.SetGate(tc.gate, true)
					r.settle(time.Hour)
					if got := r.devices(); len(got) != tc.all {
						t.Errorf("%d devices when the feature is on, want %d", len(got), tc.all)
					}
					if s, _ := r.c.Status(pool); s.Err != nil {
						t.Errorf("status %+v", s)
					}
				})
			})
		}
	}
}

// TestFieldsThatRestrictNothingAreDroppedWithoutConsequence: no two claims share by that
// what they must not share.
func TestFieldsThatRestrictNothingAreDroppedWithoutConsequence(t *testing.T) {
	bound, mapped := device(1, "a"), device(1, "a")
	bound.BindingConditions, bound.BindingFailureConditions = []string{"attached"}, []string{"broken"}
	mapped.NodeAllocatableResources = map[corev1.ResourceName]resourcev1.NodeAllocatableResource{
		"cpu": {Mapping: &resourcev1.NodeAllocatableMapping{DeviceMultiplier: new(quantity("1"))}},
	}
	for gate, tc := range map[apitest.Gate]struct {
		device  resourcev1.Device
		dropped string
	}{
		apitest.DRADeviceBindingConditions:  {bound, "[devices.bindingConditions devices.bindingFailureConditions]"},
		apitest.DRANodeAllocatableResources: {mapped, "[devices.nodeAllocatableResources]"},
	} {
		t.Run(string(gate), func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.s.SetGate(gate, false)
				r.start()
				r.set(pools(tc.device))
				r.settle(time.Minute)
				if got := r.devices(); len(got) != 1 {
					t.Errorf("devices %v, want the one without the field", got)
				}
				dropped, n := has[*resourceslice.DroppedFieldsError](r)
				if n != 1 || fmt.Sprint(dropped.Fields) != tc.dropped || len(dropped.Withheld) > 0 {
					t.Errorf("reported %v, want that %s were dropped", r.reported(), tc.dropped)
				}
			})
		})
	}
}

// TestADryRunComesBeforeTheFirstRestriction: a device that gets a taint, or
// counters, later is not offered without it for one round trip either.
func TestADryRunComesBeforeTheFirstRestriction(t *testing.T) {
	dryRuns := apitest.Match{Resource: "resourceslices", Func: func(q apitest.Request) bool { return q.DryRun }}
	writes := apitest.Match{Verb: "create,update", Resource: "resourceslices", Func: func(q apitest.Request) bool { return !q.DryRun }}
	many := func(r *rig, n int) {
		all := devices(n)
		for i := range all {
			all[i] = broken(all[i])
		}
		r.publish(resourceslice.Pool{Devices: all})
	}
	expect := func(r *rig, what string, runs, n int) {
		r.Helper()
		if got, wrote := len(r.s.Requests(dryRuns)), len(r.s.Requests(writes)); got != runs || wrote != n {
			r.Errorf("%s: %d dry runs and %d writes, want %d and %d", what, got, wrote, runs, n)
		}
		r.s.ResetJournal()
	}
	for name, test := range map[string]func(*rig){
		"one for all slices, and one more after an outage": func(r *rig) {
			r.start()
			r.publish(pools(device(1, "a")))
			expect(r, "plain devices", 0, 1)
			many(r, 120)
			expect(r, "taints", 1, 2)
			r.settle(time.Minute)
			many(r, 190)
			expect(r, "more taints", 0, 3)
			r.s.DropWatches(apitest.Match{User: r.user.Name})
			r.settle(time.Minute)
			r.publish(pools(broken(device(1, "a"))))
			expect(r, "a slice that has taints", 0, 3)
			many(r, 300)
			expect(r, "new slices", 1, 6)
		},
		"a taint that is dropped later": func(r *rig) {
			r.s.SetGate(apitest.DRADeviceTaints, false)
			r.start()
			r.publish(pools(device(1, "a"), device(2, "a")))
			r.settle(time.Minute)
			r.consumer.withhold("dev-00001")
			r.set(pools(broken(device(1, "a")), device(2, "a")))
			r.settle(10 * time.Hour)
			if got := r.devices(); len(got) != 1 || got["dev-00002"].Name == "" {
				r.Errorf("devices %v", got)
			}
			expect(r, "ten hours", 11, 2)
		},
		"it fails": func(r *rig) {
			undo := r.s.Inject(apitest.Fault{Match: dryRuns, Status: statuserr.InternalError("x")})
			r.start()
			r.set(pools(broken(device(1, "a"))))
			r.settle(time.Hour)
			if n := len(r.slices()); n != 0 {
				r.Errorf("%d slices, although no dry run succeeded", n)
			}
			undo()
			r.settle(time.Minute)
			if n := len(r.slices()); n != 1 {
				r.Errorf("%d slices, want 1", n)
			}
		},
		"it is refused": func(r *rig) {
			r.s.Inject(apitest.Fault{Match: dryRuns, Status: statuserr.New(422, metav1.StatusReasonInvalid, "no")})
			r.start()
			r.set(pools(broken(device(1, "a")), device(2, "a")))
			r.settle(time.Minute)
			if s, _ := r.c.Status(pool); !contains(s.Err, "refused") {
				r.Errorf("status %+v", s)
			}
		},
		"its answer is lost": func(r *rig) {
			lost := faults["lostAnswer"]
			lost.Match, lost.Times = dryRuns, 1
			r.s.Inject(lost)
			r.start()
			r.set(pools(broken(device(1, "a"))))
			r.settle(time.Minute)
			expect(r, "the end", 2, 1)
		},
		"restrictions may be dropped": func(r *rig) {
			r.start(func(cfg *resourceslice.Config) { cfg.PublishUnrestricted = true })
			r.publish(pools(device(1, "a")))
			many(r, 120)
			expect(r, "taints", 0, 3)
		},
		"a webhook doesn't support it": func(r *rig) {
			r.s.Inject(apitest.Fault{Match: dryRuns, Status: statuserr.New(400, metav1.StatusReasonBadRequest, "admission webhook does not support dry run")})
			r.start()
			r.publish(pools(broken(device(1, "a"))))
			expect(r, "the first publish", 1, 1)
		},
		"a webhook doesn't support it, and the taint is dropped": func(r *rig) {
			r.s.SetGate(apitest.DRADeviceTaints, false)
			r.s.Inject(apitest.Fault{Match: dryRuns, Status: statuserr.New(400, metav1.StatusReasonBadRequest, "admission webhook does not support dry run")})
			r.start()
			r.set(pools(broken(device(1, "a")), device(2, "a")))
			r.settle(time.Minute)
			expect(r, "it is withheld after one round trip", 1, 2)
			r.consumer.withhold("dev-00001")
			r.settle(10 * time.Hour)
			expect(r, "ten hours", 10, 0)
		},
		"a webhook doesn't support it, and a field of all slices is dropped": func(r *rig) {
			r.s.SetGate(apitest.DRAOptionalNodeOperations, false)
			r.s.Inject(apitest.Fault{Match: dryRuns, Status: statuserr.New(400, metav1.StatusReasonBadRequest, "admission webhook does not support dry run")})
			r.start()
			r.set(resourceslice.Pool{Devices: devices(200), SkipNodeOperations: []resourcev1.SkipNodeOperation{"*"}})
			r.settle(time.Minute)
			expect(r, "publish", 0, 4)
			r.settle(10 * time.Hour)
			expect(r, "ten hours", 10, 0)
		},
	} {
		t.Run(name, func(t *testing.T) { bubble(t, test) })
	}
}

// TestANewSessionRepairsAFaultyPool: another client deletes a slice while
// ResourceSlices are not served, so there is no event. A pool with refused content would be
// reconciled an hour later.
func TestANewSessionRepairsAFaultyPool(t *testing.T) {
	for _, faulty := range []bool{false, true} {
		t.Run(fmt.Sprintf("faulty=%v", faulty), func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.start()
				if faulty {
					r.refuseDevice("dev-00002", "b")
				}
				r.set(pools(device(1, "a"), device(2, "b")))
				r.settle(10 * time.Minute)
				r.s.Serve(resourcev1.SchemeGroupVersion, false)
				down := r.s.Inject(apitest.Fault{Match: apitest.Match{User: r.user.Name}, Status: statuserr.New(503, metav1.StatusReasonServiceUnavailable, "down")})
				r.s.DropWatches(apitest.Match{User: r.user.Name})
				r.settle(5 * time.Second)
				r.foreign(func() { apitest.Remove[sliceType](r.s, "", r.slices()[0].Name) })
				r.settle(time.Minute)
				r.s.Serve(resourcev1.SchemeGroupVersion, true)
				down()
				r.settle(2 * time.Minute)
				if n := len(r.slices()); n != 1 {
					t.Errorf("%d slices two minutes after the outage, want 1", n)
				}
			})
		})
	}
}

// TestADroppedHeadIsAskedForWithADryRun: a field that all slices have is dropped. It is
// tried again each hour and after each outage, but not with a new generation.
func TestADroppedHeadIsAskedForWithADryRun(t *testing.T) {
	bubble(t, func(r *rig) {
		dryRuns := apitest.Match{Verb: "update", Resource: "resourceslices", Func: func(q apitest.Request) bool { return q.DryRun }}
		expect := func(what string, n int) {
			t.Helper()
			if got := len(r.s.Requests(dryRuns)); got != n {
				t.Errorf("%s: %d dry runs, want %d", what, got, n)
			}
			if s, _ := r.c.Status(pool); s.Generation != 1 || !contains(s.Err, "skipNodeOperations") {
				t.Errorf("%s: status %+v", what, s)
			}
			r.expect(what, 0, 0, 0)
		}
		r.s.SetGate(apitest.DRAOptionalNodeOperations, false)
		r.start()
		r.set(skipped(tainted(200)...))
		r.settle(time.Minute)
		r.s.ResetJournal()
		r.settle(10 * time.Hour)
		expect("ten hours", 10)
		r.s.DropWatches(apitest.Match{User: r.user.Name}) // so that the next watch is a short one
		r.settle(2 * time.Minute)
		r.s.ResetJournal()
		r.s.DropWatches(apitest.Match{User: r.user.Name})
		r.settle(2 * time.Minute)
		expect("an outage", 1)

		undo := r.s.Inject(apitest.Fault{Match: dryRuns, Status: statuserr.InternalError("x")})
		r.settle(61 * time.Minute)
		if n := len(r.s.Requests(dryRuns)); n < 2 {
			t.Errorf("%d dry runs, although the first one failed", n)
		}
		undo()
		r.settle(time.Minute)
		r.s.ResetJournal()
		r.settle(30 * time.Minute)
		expect("after dry runs that failed", 0)

		r.s.SetGate(apitest.DRAOptionalNodeOperations, true)
		r.settle(time.Hour)
		for _, s := range r.slices() {
			if len(s.Spec.SkipNodeOperations) == 0 {
				t.Errorf("slice %s does not have the field an hour after the feature is on", s.Name)
			}
		}
		if s, _ := r.c.Status(pool); s.Generation != 2 || s.Err != nil {
			t.Errorf("status %+v", s)
		}
	})
}

// TestAWatchThatLastedStartsAgainAtOnce: only one that ends again and again is
// started more rarely.
func TestAWatchThatLastedStartsAgainAtOnce(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(pools(device(1, "a")))
		match := apitest.Match{User: r.user.Name, Resource: "resourceslices"}
		for i := range 8 {
			r.settle(time.Minute)
			r.s.ExpireWatches(match)
			r.settle(time.Second)
			if n := requests.OpenWatches(r.s, match); n != 1 {
				t.Fatalf("%d watches a second after the end of watch %d", n, i)
			}
		}
		r.s.ResetJournal()
		for range 60 {
			r.s.ExpireWatches(match)
			r.settle(time.Second)
		}
		match.Verb = "watch"
		if n := len(r.s.Requests(match)); n > 10 {
			t.Errorf("%d watches in a minute, although none lasted", n)
		}
	})
}

// TestASuccessorThatStopsCompletesThePoolThatItFillsUp, although it has written none
// of it yet.
func TestASuccessorThatStopsCompletesThePoolThatItFillsUp(t *testing.T) {
	bubble(t, func(r *rig) {
		writes := apitest.Match{Verb: "create,update", Resource: "resourceslices"}
		want := resourceslice.Pool{Devices: tainted(3 * 64)}
		r.concurrency = 1
		r.start()
		r.publish(resourceslice.Pool{Devices: tainted(2 * 64)})
		r.settle(time.Minute)
		heal := r.s.Inject(apitest.Fault{Match: writes, Skip: 2, Err: apitest.ErrConnReset})
		r.set(want)
		r.settle(time.Second)
		r.halt()
		heal()
		if got := r.generations(); !slices.Contains(got, "1/2") || !slices.Contains(got, "2/3") {
			t.Fatalf("generations and counts when it dies: %v", got)
		}

		r.s.Inject(apitest.Fault{Match: writes, Latency: 100 * time.Millisecond})
		r.s.Inject(apitest.Fault{Match: writes, Times: 1, Status: statuserr.InternalError("x")})
		r.concurrency = 1
		r.start()
		r.set(want)
		r.settle(50 * time.Millisecond) // the first write is under way
		r.halt()
		if got := r.generations(); !slices.Equal(got, []string{"2/3", "2/3", "2/3"}) {
			t.Errorf("generations and counts %v", got)
		}
	})
}

// skipping matches the writes of pools that are skipped.
var skipping = sending("create,update", func(s sliceType) bool { return len(s.Spec.SkipNodeOperations) > 0 })

// skipped is a pool with a field that a webhook may not like.
func skipped(devices ...resourcev1.Device) resourceslice.Pool {
	return resourceslice.Pool{SkipNodeOperations: []resourcev1.SkipNodeOperation{"*"}, Devices: devices}
}

// TestARefusedRepetitionOfALostWriteHoldsTheNextSetForAMinute: a write is lost, and
// when it is repeated the API server refuses it. The first attempt may be carried out
// for another minute. After that the content is not sent again.
func TestARefusedRepetitionOfALostWriteHoldsTheNextSetForAMinute(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(pools(device(1, "a")))
		r.settle(time.Minute)
		r.s.Inject(apitest.Fault{Match: skipping, Times: 1, Hang: true})
		r.s.Inject(apitest.Fault{Match: skipping, Status: statuserr.New(422, metav1.StatusReasonInvalid, "no")})
		r.set(skipped(device(1, "a")))
		r.settle(resourceslice.CallTimeout + time.Second) // the write is lost, and repeated
		if n := len(r.s.Requests(skipping)); n < 2 {
			t.Fatalf("%d writes with the refused content, want the lost one and its repetition", n)
		}
		r.set(pools(device(1, "b")))
		model := func() string { return *r.devices()["dev-00001"].Attributes["model"].StringValue }
		r.settle(58 * time.Second)
		if got := model(); got != "model-a" {
			t.Errorf("%s while the lost write may be carried out", got)
		}
		r.settle(35 * time.Second) // the backoff is at most 30 s
		if got := model(); got != "model-b" {
			t.Errorf("%s after the lost write can't be carried out any longer", got)
		}
		n := len(r.s.Requests(skipping))
		r.settle(3 * time.Hour)
		if more := len(r.s.Requests(skipping)) - n; more != 0 {
			t.Errorf("%d more writes with the refused content", more)
		}
	})
}

// TestAForbiddenRepetitionOfALostWriteEndsAfterAMinute: a webhook is not up, and then
// it denies the content with a 403. A write that is over must not keep the next Set,
// or Remove, from being published.
func TestAForbiddenRepetitionOfALostWriteEndsAfterAMinute(t *testing.T) {
	denied := statuserr.Forbidden("resourceslices", "s", "admission webhook denied the request")
	lose := func(r *rig, match apitest.Match) {
		r.s.Inject(apitest.Fault{Match: match, Times: 1, Status: statuserr.InternalError("failed calling webhook")})
	}
	corrected := func(r *rig) {
		r.Helper()
		r.set(pools(device(1, "b")))
		r.settle(2 * time.Minute)
		if got := r.devices(); len(got) != 1 || *got["dev-00001"].Attributes["model"].StringValue != "model-b" {
			r.Errorf("devices %v two minutes after a corrected Set", got)
		}
		if s, _ := r.c.Status(pool); s.Err != nil || s.Published != s.Revision {
			r.Errorf("status %+v", s)
		}
	}
	for name, test := range map[string]func(*rig){
		"create": func(r *rig) {
			lose(r, skipping)
			r.s.Inject(apitest.Fault{Match: skipping, Status: denied})
			r.set(skipped(device(1, "a")))
			r.settle(time.Second)
			corrected(r)
		},
		"update": func(r *rig) {
			r.publish(pools(device(1, "a")))
			r.settle(time.Minute)
			lose(r, skipping)
			r.s.Inject(apitest.Fault{Match: skipping, Status: denied})
			r.set(skipped(device(1, "a")))
			r.settle(time.Second)
			corrected(r)
		},
		"an update that nothing replaces": func(r *rig) {
			r.publish(pools(device(1, "a")))
			r.settle(time.Minute)
			lose(r, skipping)
			r.s.Inject(apitest.Fault{Match: skipping, Status: statuserr.New(422, metav1.StatusReasonInvalid, "no")})
			r.set(skipped(device(1, "a")))
			r.settle(3 * time.Minute)
			if s, _ := r.c.Status(pool); !contains(s.Err, "no") {
				r.Errorf("status %+v, although the content is refused", s)
			}
			r.s.ResetJournal()
			r.settle(50 * time.Minute)
			r.expect("refused content", 0, 0, 0)
		},
		"an update of a slice that another client has deleted": func(r *rig) {
			r.publish(pools(device(1, "a")))
			r.settle(time.Minute)
			defer r.s.StallWatches(apitest.Match{User: r.user.Name})()
			lose(r, skipping)
			r.s.Inject(apitest.Fault{Match: skipping, Status: denied})
			r.set(skipped(device(1, "a")))
			r.settle(time.Second)
			r.foreign(func() { apitest.Remove[sliceType](r.s, "", r.slices()[0].Name) })
			corrected(r)
		},
		"an update that was carried out": func(r *rig) {
			r.publish(pools(device(1, "a")))
			r.settle(time.Minute)
			defer r.s.StallWatches(apitest.Match{User: r.user.Name})()
			r.s.Inject(apitest.Fault{Match: skipping, Times: 1, LoseResponse: true})
			r.s.Inject(apitest.Fault{Match: skipping, Status: denied})
			r.set(skipped(device(1, "a")))
			r.settle(time.Second)
			r.s.ResetJournal()
			corrected(r)
			if n := len(r.s.Requests(apitest.Match{Verb: "get", Resource: "resourceslices"})); n != 0 {
				r.Errorf("%d GETs of slices, although the list shows what was carried out", n)
			}
		},
		"delete": func(r *rig) {
			r.publish(pools(device(1, "a")))
			r.settle(time.Minute)
			r.consumer.remove()
			deletes := apitest.Match{Verb: "delete", Resource: "resourceslices"}
			lose(r, deletes)
			undo := r.s.Inject(apitest.Fault{Match: deletes, Status: denied})
			if err := r.c.Remove(pool); err != nil {
				r.Fatal(err)
			}
			r.settle(time.Second)
			corrected(r)
			r.s.ResetJournal()
			if err := r.c.Remove(pool); err != nil {
				r.Fatal(err)
			}
			r.settle(10 * time.Minute)
			if n := len(r.slices()); n != 1 {
				r.Errorf("%d slices while deletes are denied", n)
			}
			undo()
			r.settle(time.Minute)
			if n := len(r.slices()); n != 0 {
				r.Errorf("%d slices after Remove", n)
			}
		},
		"a delete that nothing replaces": func(r *rig) {
			r.publish(pools(device(1, "a")))
			r.settle(time.Minute)
			r.consumer.remove()
			deletes := apitest.Match{Verb: "delete", Resource: "resourceslices"}
			lose(r, deletes)
			undo := r.s.Inject(apitest.Fault{Match: deletes, Status: denied})
			if err := r.c.Remove(pool); err != nil {
				r.Fatal(err)
			}
			r.settle(10 * time.Minute)
			if s, ok := r.c.Status(pool); !ok || s.Published == s.Revision {
				r.Errorf("the pool counts as removed: %+v", s)
			}
			undo()
			r.settle(time.Minute)
			if n := len(r.slices()); n != 0 {
				r.Errorf("%d slices after Remove", n)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.start()
				test(r)
			})
		})
	}
}

// TestContentThatTheAPIServerFailsAtGivesWayToTheNextSet: a webhook fails at it each
// time, so the answer to each repetition is lost. The next Set waits for a minute after
// the last one, which may be carried out until then.
func TestContentThatTheAPIServerFailsAtGivesWayToTheNextSet(t *testing.T) {
	next := apitest.Match{Verb: "update", Resource: "resourceslices", Func: func(q apitest.Request) bool { return !skipping.Func(q) }}
	fails := apitest.Fault{Match: skipping, Status: statuserr.InternalError("failed calling webhook: EOF")}
	late := apitest.Fault{Match: skipping, CommitAfter: 55 * time.Second}
	for name, last := range map[string]apitest.Fault{"it fails to the end": fails, "the last one is carried out late": late} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.start()
				r.publish(pools(device(1, "a")))
				r.settle(time.Minute)
				undo := r.s.Inject(fails)
				r.set(skipped(device(1, "a")))
				r.settle(10 * time.Minute)
				undo()
				r.s.Inject(last)
				r.s.ResetJournal()
				for i := range 8 { // a driver that changes its pool all the time
					r.set(pools(broken(device(1, fmt.Sprint(i)))))
					r.settle(20 * time.Second)
				}
				before, after := r.s.Requests(skipping), r.s.Requests(next)
				if len(before) != 1 || len(after) == 0 {
					t.Fatalf("%d repetitions of the failing write, want one, and %d writes of the next Sets", len(before), len(after))
				}
				if wait := after[0].Time.Sub(before[0].Time); wait < time.Minute {
					t.Errorf("the next Set is written %v after a write that may be carried out", wait)
				}
				if d := r.devices()["dev-00001"]; len(d.Taints) != 1 || *d.Attributes["model"].StringValue != "model-7" {
					t.Errorf("device %v", d)
				}
			})
		})
	}
}

// TestASetInAShortOutageIsPublishedSoonAfterIt: the lost write is repeated for a minute
// although it is no longer wanted, because an answer to it is the fastest way to go on.
func TestASetInAShortOutageIsPublishedSoonAfterIt(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(pools(device(1, "a")))
		r.settle(time.Minute)
		undo := r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "update", Resource: "resourceslices"}, Err: apitest.ErrConnReset})
		r.set(pools(device(1, "b")))
		r.settle(10 * time.Second)
		r.set(pools(device(1, "c")))
		r.settle(20 * time.Second)
		undo()
		r.settle(30 * time.Second) // the longest backoff
		if got := *r.devices()["dev-00001"].Attributes["model"].StringValue; got != "model-c" {
			t.Errorf("%s half a minute after the outage", got)
		}
	})
}

// TestAnEmptyAnswerIsNoAnswer: a proxy makes it up. All devices of the slice would count
// as dropped, or as not live.
func TestAnEmptyAnswerIsNoAnswer(t *testing.T) {
	writes := apitest.Match{Verb: "create,update", Resource: "resourceslices"}
	dryRuns := apitest.Match{Resource: "resourceslices", Func: func(q apitest.Request) bool { return q.DryRun }}
	for name, tc := range map[string]struct {
		match   apitest.Match
		refused bool
		next    resourceslice.Pool
		want    string // models of the two devices
	}{
		"write":   {writes, false, pools(device(1, "b"), device(2, "b")), "model-b model-b"},
		"dry run": {dryRuns, false, pools(broken(device(1, "b")), broken(device(2, "b"))), "model-b model-b"},
		"get":     {apitest.Match{Verb: "get", Resource: "resourceslices"}, true, pools(device(1, "b"), device(2, "b")), "model-a model-b"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				inject := func() {
					r.s.Inject(apitest.Fault{Match: tc.match, Times: 1, Answer: func(apitest.Request) (*http.Response, error) {
						return &http.Response{
							StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
							Body: io.NopCloser(strings.NewReader(`{"kind":"ResourceSlice","apiVersion":"resource.k8s.io/v1"}`)),
						}, nil
					}})
				}
				inject()
				r.start()
				r.publish(pools(device(1, "a"), device(2, "a")))
				r.settle(time.Minute)
				inject()
				if tc.refused {
					r.refuseDevice("dev-00001", "b")
				}
				r.set(tc.next)
				r.settle(time.Minute)
				var models []string
				for _, name := range slices.Sorted(maps.Keys(r.devices())) {
					models = append(models, *r.devices()[name].Attributes["model"].StringValue)
				}
				if got := strings.Join(models, " "); got != tc.want {
					t.Errorf("models %q, want %q", got, tc.want)
				}
				if _, n := has[*resourceslice.DroppedFieldsError](r); n > 0 {
					t.Errorf("reported %v", r.reported())
				}
			})
		})
	}
}

// TestANodeThatIsDeniedAnotherSliceOfTheNameReadsIt: another client has replaced a
// slice, and the watch is stalled. The API server denies the update of the old one.
func TestANodeThatIsDeniedAnotherSliceOfTheNameReadsIt(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(pools(device(1, "a")))
		r.settle(time.Minute)
		defer r.s.StallWatches(apitest.Match{User: r.user.Name})()
		r.foreign(func() {
			other := r.slices()[0].DeepCopy()
			apitest.Remove[sliceType](r.s, "", other.Name)
			other.UID, other.ResourceVersion = "", ""
			r.s.Put(other)
		})
		r.s.Inject(apitest.Fault{
			Match: apitest.Match{Verb: "update", Resource: "resourceslices"}, Times: 1,
			Status: statuserr.Forbidden("resourceslices", "s", "no relationship found"),
		})
		r.set(pools(device(1, "b")))
		r.settle(5 * time.Second)
		if got := r.devices(); len(got) != 1 || *got["dev-00001"].Attributes["model"].StringValue != "model-b" {
			t.Errorf("devices %v", got)
		}
		if n := len(r.reported()); n != 0 {
			t.Errorf("reported %v", r.reported())
		}
	})
}

// TestANodePoolAvoidsTheNamesOfAClusterPool: a long driver name leaves no room for
// the node's name in those of the slices, so the slices that an earlier process
// published for the cluster are in the way.
func TestANodePoolAvoidsTheNamesOfAClusterPool(t *testing.T) {
	bubble(t, func(r *rig) {
		r.user = admin
		id := resourceslice.PoolID{Driver: "a-driver-with-a-very-long-name.gpus.example.com", Name: node}
		publish := func(nodes resourceslice.NodeSelection) {
			r.start()
			if err := r.c.Set(id, resourceslice.Pool{Devices: devices(1), Nodes: nodes}); err != nil {
				t.Fatal(err)
			}
			r.settle(time.Minute)
			if s, _ := r.c.Status(id); s.Published != s.Revision {
				t.Errorf("status %+v, reported %v", s, r.reported())
			}
			r.halt()
		}
		publish(resourceslice.NodeSelection{AllNodes: true})
		publish(resourceslice.NodeSelection{})
		if all := r.slices(); len(all) != 2 || all[0].Spec.NodeName != nil || all[1].Spec.NodeName == nil {
			t.Errorf("slices %v", all)
		}
	})
}

// TestALostCreateIsRepeatedUntilTheNodeMayReadIt: the node authorizer has not seen
// the slice yet, so it is not another publisher's.
func TestALostCreateIsRepeatedUntilTheNodeMayReadIt(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.settle(time.Minute)
		defer r.s.StallWatches(apitest.Match{User: r.user.Name})()
		lost := faults["lostAnswer"]
		lost.Match, lost.Times = apitest.Match{Verb: "create", Resource: "resourceslices"}, 1
		r.s.Inject(lost)
		r.s.Inject(apitest.Fault{
			Match: apitest.Match{Verb: "get", Resource: "resourceslices"}, Times: 2,
			Status: statuserr.Forbidden("resourceslices", "s", "no relationship found"),
		})
		r.publish(pools(device(1, "a")))
		if n := len(r.slices()); n != 1 {
			t.Errorf("%d slices, want one", n)
		}
	})
}

// TestAnOwnDeleteThatIsCarriedOutLateIsNoForeignChange: after another client's delete
// the owner would be read again.
func TestAnOwnDeleteThatIsCarriedOutLateIsNoForeignChange(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(pools(device(1, "a")))
		r.settle(10 * time.Second) // after a minute a new pool would be a reason too
		r.consumer.remove()
		r.s.Inject(apitest.Fault{
			Match: apitest.Match{Verb: "delete", Resource: "resourceslices"}, Times: 1,
			CommitAfter: resourceslice.CallTimeout + 10*time.Millisecond, // before the repetition
		})
		r.c.Remove(pool)
		r.wait()
		r.s.ResetJournal()
		r.publish(pools(device(1, "a")))
		if n := len(r.s.Requests(apitest.Match{Verb: "get", Resource: "nodes"})); n != 0 {
			t.Errorf("the owner is read %d times", n)
		}
	})
}

// TestAPoolIsCompactedOnceAnHour: a pool that grows and shrinks again and again is
// not rewritten each time.
func TestAPoolIsCompactedOnceAnHour(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		publish := func(n, least, most int) {
			r.Helper()
			r.publish(resourceslice.Pool{Devices: tainted(n)})
			if got := len(r.slices()); got < least || got > most {
				r.Errorf("%d devices are on %d slices, want %d to %d", n, got, least, most)
			}
			r.settle(time.Minute)
		}
		publish(10*64, 10, 12)
		publish(1, 1, 3)
		publish(10*64, 10, 12)
		publish(1, 10, 12)
		r.settle(time.Hour)
		publish(2, 1, 3)
	})
}

// TestAPartitionTypeWithoutPartitions: a driver that loses all its devices can
// empty its pool.
func TestAPartitionTypeWithoutPartitions(t *testing.T) {
	bubble(t, func(r *rig) {
		r.s.SetGate(apitest.DRAPartitionableDevicesType, true)
		r.start()
		p := gpus(1)
		p.PartitionTypeAttribute = driver + "/model"
		r.publish(p)
		r.settle(time.Minute)
		for _, s := range r.slices() {
			if has, want := s.Spec.PartitionTypeAttribute != nil, len(s.Spec.Devices) > 0; has != want {
				t.Errorf("slice %s with %d devices has a partition type: %v", s.Name, len(s.Spec.Devices), has)
			}
		}
		r.publish(resourceslice.Pool{PartitionTypeAttribute: driver + "/model"})
		if n := len(r.devices()); n != 0 {
			t.Errorf("%d devices", n)
		}
		r.publish(resourceslice.Pool{PartitionTypeAttribute: driver + "/model", Devices: []resourcev1.Device{device(7, "a")}})
		for _, s := range r.slices() {
			if s.Spec.PartitionTypeAttribute != nil {
				t.Errorf("slice %s without partitions has a partition type", s.Name)
			}
		}
	})
}

// TestAnErrorIsReportedAgainAfterARepair: the pool was published without it in between.
func TestAnErrorIsReportedAgainAfterARepair(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(pools(device(1, "a")))
		r.settle(time.Minute)
		r.foreign(func() { apitest.Remove[sliceType](r.s, "", r.slices()[0].Name) })
		r.settle(time.Hour)
		for i := range 3 {
			undo := r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "update", Resource: "resourceslices"}, Status: statuserr.Forbidden("resourceslices", "s", "policy")})
			r.set(pools(device(1, fmt.Sprint(i))))
			r.settle(10 * time.Minute)
			undo()
			r.settle(10 * time.Minute)
			if s, _ := r.c.Status(pool); s.Published != s.Revision {
				t.Fatalf("status %+v", s)
			}
		}
		if _, n := has[*resourceslice.ForbiddenError](r); n != 3 {
			t.Errorf("three lasting errors are reported %d times", n)
		}
	})
}

// TestEachSeriesOfRepairsIsReportedOnce, with the third repair.
func TestEachSeriesOfRepairsIsReportedOnce(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(pools(device(1, "a")))
		for series := range 3 {
			r.settle(time.Hour)
			for repair := range 6 {
				r.foreign(func() {
					apitest.Edit(r.s, "", r.slices()[0].Name, func(s sliceType) {
						s.Spec.Devices[0].Attributes["model"] = resourcev1.DeviceAttribute{StringValue: new("changed")}
					})
				})
				r.settle(time.Minute)
				want := series
				if repair >= 2 {
					want++
				}
				if _, n := has[*resourceslice.ContendedError](r); n != want {
					t.Fatalf("%d reports after repair %d of series %d, want %d", n, repair+1, series+1, want)
				}
			}
		}
	})
}

// TestWhatCountsAsARepair: one change of another writer is one repair, however many writes
// that takes; and what is wanted anyway is none.
func TestWhatCountsAsARepair(t *testing.T) {
	change := func(r *rig) {
		r.foreign(func() {
			apitest.Edit(r.s, "", r.slices()[0].Name, func(s sliceType) {
				s.Spec.Devices[0].Attributes["model"] = resourcev1.DeviceAttribute{StringValue: new("changed")}
			})
		})
	}
	for name, tc := range map[string]struct {
		happens func(r *rig, n int)
		times   int
		want    int // Published with Repair
	}{
		"a write that conflicts": {func(r *rig, _ int) {
			f := faults["409"]
			f.Match, f.Times = apitest.Match{Verb: "update", Resource: "resourceslices"}, 2
			defer r.s.Inject(f)()
			change(r)
			r.settle(time.Minute)
		}, 2, 2},
		"a write that fails": {func(r *rig, _ int) {
			f := faults["500"]
			f.Match, f.Times = apitest.Match{Verb: "update", Resource: "resourceslices"}, 2
			defer r.s.Inject(f)()
			change(r)
			r.settle(time.Minute)
		}, 1, 1},
		"a write that is throttled": {func(r *rig, _ int) {
			f := faults["429"]
			f.Match, f.Times = apitest.Match{Verb: "update", Resource: "resourceslices"}, 50 // client-go repeats it
			defer r.s.Inject(f)()
			change(r)
			r.settle(10 * time.Minute)
		}, 1, 1},
		"a Set in the meantime": {func(r *rig, n int) {
			change(r)
			r.publish(pools(device(1, fmt.Sprint(n))))
			r.settle(time.Minute)
		}, 5, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.start()
				r.publish(pools(device(1, "a")))
				r.settle(time.Hour)
				for n := range tc.times {
					tc.happens(r, n)
				}
				if _, n := has[*resourceslice.ContendedError](r); n != 0 {
					t.Errorf("%d reports of another writer", n)
				}
				r.mu.Lock()
				defer r.mu.Unlock()
				repairs := 0
				for _, p := range r.published {
					if p.Repair {
						repairs++
					}
					if p.Repair && p.Latency > 10*time.Minute {
						t.Errorf("a repair took %v", p.Latency)
					}
				}
				if repairs != tc.want {
					t.Errorf("%d repairs, want %d", repairs, tc.want)
				}
			})
		})
	}
}

// TestSetAllRemovesTheOtherPoolsOfTheDriver: a pool that was renamed while the
// process was down, one that was a cluster pool, and one that this process Set.
func TestSetAllRemovesTheOtherPoolsOfTheDriver(t *testing.T) {
	bubble(t, func(r *rig) {
		r.user = admin
		r.start()
		for name, p := range map[string]resourceslice.Pool{
			"old":      {Devices: devices(3)},
			"fabric":   {Devices: devices(3), Nodes: resourceslice.NodeSelection{AllNodes: true}},
			"switched": {Devices: devices(3), Nodes: resourceslice.NodeSelection{AllNodes: true}},
		} {
			id := resourceslice.PoolID{Driver: driver, Name: name}
			if err := r.c.Set(id, p); err != nil {
				t.Fatal(err)
			}
		}
		other := resourceslice.PoolID{Driver: "other.example.com", Name: node}
		if err := r.c.Set(other, pools(device(1, "a"))); err != nil {
			t.Fatal(err)
		}
		r.settle(time.Minute)
		foreign := live("theirs", 1, 1, device(1, "a"))
		foreign.Spec.NodeName, foreign.Spec.AllNodes, foreign.Spec.Pool.Name = nil, new(true), "n2"
		r.foreign(func() { r.s.Put(foreign) })
		r.halt()
		r.consumer.remove()
		r.start()
		r.settle(time.Minute)
		r.s.ResetJournal()
		r.settle(time.Hour)
		r.expect("before SetAll", 0, 0, 0)
		if err := r.c.SetAll(driver, map[string]resourceslice.Pool{"switched": {Devices: devices(3)}, "new": {Devices: devices(3)}}); err != nil {
			t.Fatal(err)
		}
		r.settle(time.Minute)
		names := map[string]int{}
		for _, s := range r.slices() {
			names[s.Spec.Pool.Name]++
			if s.Spec.Pool.Name == "switched" && (s.Spec.NodeName == nil || s.Spec.Pool.ResourceSliceCount != 1) {
				t.Errorf("%+v", s.Spec)
			}
		}
		if want := map[string]int{"switched": 1, "new": 1, "n2": 1, node: 1}; fmt.Sprint(names) != fmt.Sprint(want) {
			t.Errorf("slices by pool %v, want %v", names, want)
		}
		if n := requests.OpenWatches(r.s, apitest.Match{User: r.user.Name, Resource: "resourceslices"}); n > 2 { // one is the consumer's
			t.Errorf("%d watches", n)
		}
		if err := r.c.SetAll(driver, map[string]resourceslice.Pool{"new": {Devices: []resourcev1.Device{{Name: "X"}}}}); err == nil {
			t.Error("an invalid pool was accepted")
		}
		r.settle(time.Minute)
		names = map[string]int{}
		for _, s := range r.slices() {
			names[s.Spec.Pool.Name]++
		}
		if want := map[string]int{"new": 1, "n2": 1, node: 1}; fmt.Sprint(names) != fmt.Sprint(want) {
			t.Errorf("slices by pool %v, want %v: an invalid pool stays as it was", names, want)
		}
		r.s.ResetJournal()
		r.settle(time.Hour)
		r.expect("an hour later", 0, 0, 0)
	})
}

// TestAClusterPoolBecomesANodePoolAfterAnInvalidSet: an earlier process published
// the pool for the cluster. The slices without a node are listed while SetAll has
// refused the pool, and it is Set correctly an hour later.
func TestAClusterPoolBecomesANodePoolAfterAnInvalidSet(t *testing.T) {
	bubble(t, func(r *rig) {
		r.user = admin
		r.start()
		r.publish(resourceslice.Pool{Devices: devices(3), Nodes: resourceslice.NodeSelection{AllNodes: true}})
		r.halt()
		r.consumer.remove()
		r.start()
		if err := r.c.SetAll(driver, map[string]resourceslice.Pool{node: pools(resourcev1.Device{Name: "X"})}); err == nil {
			t.Error("an invalid pool was accepted")
		}
		r.settle(time.Hour)
		if n := len(r.slices()); n != 1 {
			t.Errorf("%d slices while the pool is invalid, want 1", n)
		}
		if err := r.c.SetAll(driver, map[string]resourceslice.Pool{node: {Devices: devices(3)}}); err != nil {
			t.Fatal(err)
		}
		r.settle(time.Minute)
		if all := r.slices(); len(all) != 1 || all[0].Spec.NodeName == nil {
			t.Errorf("slices %v", all)
		}
	})
}

// TestSetAllAsksAgainForSlicesWithoutANode: the list of them fails once. The pool that SetAll
// does not name is removed as soon as a list succeeds.
func TestSetAllAsksAgainForSlicesWithoutANode(t *testing.T) {
	bubble(t, func(r *rig) {
		r.user = admin
		r.start()
		r.publish(resourceslice.Pool{Devices: devices(1)})
		r.there(func() sliceType {
			s := live("s1", 1, 1, device(1, "a"))
			s.Spec.NodeName, s.Spec.AllNodes, s.Spec.Pool.Name = nil, new(true), "old"
			s.OwnerReferences = r.slices()[0].OwnerReferences
			return s
		}())
		r.consumer.remove()
		up := r.s.Inject(apitest.Fault{
			Match: apitest.Match{User: admin.Name, Verb: "list", Resource: "resourceslices", Func: func(q apitest.Request) bool {
				return !strings.Contains(q.FieldSelector, "spec.nodeName="+node)
			}},
			Status: statuserr.New(503, metav1.StatusReasonServiceUnavailable, "down"),
		})
		if err := r.c.SetAll(driver, map[string]resourceslice.Pool{node: {Devices: devices(1)}}); err != nil {
			t.Fatal(err)
		}
		r.settle(time.Minute)
		if n := len(r.slices()); n != 2 {
			t.Errorf("%d slices while those without a node can't be listed, want 2", n)
		}
		up()
		r.settle(time.Minute)
		if all := r.slices(); len(all) != 1 || all[0].Spec.NodeName == nil {
			t.Errorf("slices %v, want that of the node", all)
		}
	})
}

// TestSetAllWithNodeCredentials: they can't list slices without a node, and can't
// have created any.
func TestSetAllWithNodeCredentials(t *testing.T) {
	bubble(t, func(r *rig) {
		old := live("s1", 1, 1, device(1, "a"))
		old.Spec.Pool.Name = "old"
		r.there(old)
		r.consumer.remove()
		r.start()
		if err := r.c.SetAll(driver, map[string]resourceslice.Pool{node: pools(device(1, "a"))}); err != nil {
			t.Fatal(err)
		}
		r.settle(time.Hour)
		if n := len(r.s.Requests(apitest.Match{Verb: "list", Resource: "resourceslices"})); n != 1 {
			t.Errorf("%d lists in an hour, want one for the slices without a node", n)
		}
		r.expect("a renamed pool", 1, 0, 1)
		if n := len(r.reported()); n != 0 {
			t.Errorf("reported %v", r.reported())
		}
	})
}

// TestAMistakenClusterPoolDoesNotBlockThePoolOfTheNode: the node's credentials can't
// list slices without a node, so they can't have created any for the pool.
func TestAMistakenClusterPoolDoesNotBlockThePoolOfTheNode(t *testing.T) {
	mistake := resourceslice.Pool{Devices: devices(3), Nodes: resourceslice.NodeSelection{AllNodes: true}}
	for _, remove := range []bool{false, true} {
		t.Run(fmt.Sprintf("remove=%v", remove), func(t *testing.T) {
			bubble(t, func(r *rig) {
				var failed atomic.Int32
				r.start(func(cfg *resourceslice.Config) {
					cfg.Hooks.WatchFailed = func(e resourceslice.WatchFailed) {
						if !apierrors.IsForbidden(e.Err) {
							t.Errorf("WatchFailed: %v", e.Err)
						}
						failed.Add(1)
					}
				})
				r.publish(pools(device(1, "a")))
				r.settle(time.Minute)
				if n := failed.Load(); n != 0 {
					t.Errorf("WatchFailed was called %d times, and no list has failed", n)
				}
				r.set(mistake)
				r.settle(time.Minute)
				if failed.Load() == 0 {
					t.Error("WatchFailed was not called")
				}
				if forbidden, n := has[*resourceslice.ForbiddenError](r); n != 1 || forbidden.Verb != "list" {
					t.Errorf("reported %v", r.reported())
				}
				want := 1
				if remove {
					want = 0
					r.consumer.remove()
					if err := r.c.Remove(pool); err != nil {
						t.Fatal(err)
					}
				} else {
					r.set(pools(device(2, "a")))
				}
				r.settle(time.Minute)
				all := r.slices()
				if len(all) != want || want > 0 && !hasDevice(all[0], "dev-00002") {
					t.Errorf("slices %v a minute after the correction", all)
				}
				if n := requests.OpenWatches(r.s, apitest.Match{User: r.user.Name, Resource: "resourceslices"}); n != 1 {
					t.Errorf("%d watches", n)
				}
				if s, ok := r.c.Status(pool); ok == remove || s.Published != s.Revision {
					t.Errorf("status %+v, %v", s, ok)
				}
				r.s.ResetJournal()
				r.settle(time.Hour)
				if n := len(r.s.Requests(apitest.Match{Func: func(q apitest.Request) bool { return q.Code == http.StatusForbidden }})); n != 0 {
					t.Errorf("%d forbidden requests in an hour", n)
				}
			})
		})
	}
}

// TestAClusterPoolThatCantBeListedAnyLongerIsNotPublishedTwice: the permission is gone
// for a while when the pool becomes one of the node.
func TestAClusterPoolThatCantBeListedAnyLongerIsNotPublishedTwice(t *testing.T) {
	bubble(t, func(r *rig) {
		r.user = admin
		r.start()
		r.publish(resourceslice.Pool{Devices: devices(3), Nodes: resourceslice.NodeSelection{AllNodes: true}})
		r.settle(time.Minute)
		r.consumer.remove()
		allow := r.s.Inject(apitest.Fault{
			Match: apitest.Match{User: admin.Name, Resource: "resourceslices", Func: func(q apitest.Request) bool {
				return (q.Verb == "list" || q.Verb == "watch") && !strings.Contains(q.FieldSelector, "spec.nodeName="+node)
			}},
			Status: statuserr.Forbidden("resourceslices", "", "no"),
		})
		r.s.Serve(resourcev1.SchemeGroupVersion, false)
		r.s.DropWatches(apitest.Match{User: admin.Name})
		r.settle(time.Minute)
		r.s.Serve(resourcev1.SchemeGroupVersion, true)
		r.settle(5 * time.Minute) // a new session begins
		r.set(resourceslice.Pool{Devices: devices(3)})
		r.settle(10 * time.Minute)
		if all := r.slices(); len(all) != 1 || all[0].Spec.NodeName != nil {
			t.Errorf("slices %v while those of the cluster can't be listed", all)
		}
		allow()
		r.settle(2 * time.Minute)
		if all := r.slices(); len(all) != 1 || all[0].Spec.NodeName == nil {
			t.Errorf("slices %v", all)
		}
	})
}

// TestSetAllRemovesAPoolOnceWhileTheWatchIsStalled: its slice stays in the view until
// the event of the delete comes, and does not make the pool one to remove again.
func TestSetAllRemovesAPoolOnceWhileTheWatchIsStalled(t *testing.T) {
	bubble(t, func(r *rig) {
		old := live("s1", 1, 1, device(1, "a"))
		old.Spec.Pool.Name = "old"
		r.there(old)
		r.consumer.remove()
		r.start()
		r.settle(time.Minute)
		defer r.s.StallWatches(apitest.Match{User: r.user.Name})()
		if err := r.c.SetAll(driver, map[string]resourceslice.Pool{node: pools(device(1, "a"))}); err != nil {
			t.Fatal(err)
		}
		r.settle(2 * time.Minute)
		r.expect("a renamed pool", 1, 0, 1)
		var removed int
		r.mu.Lock()
		for _, p := range r.published {
			if p.Pool.Name == "old" {
				removed++
			}
		}
		r.mu.Unlock()
		if removed != 1 {
			t.Errorf("the pool is removed %d times", removed)
		}
	})
}

// TestSetAllInTheCluster: a controller without a node removes the pools of its
// driver that have its Owner, or no owner if it has none, and neither those of other
// drivers nor those of nodes.
func TestSetAllInTheCluster(t *testing.T) {
	mine := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "mine", UID: "u1"}
	for name, tc := range map[string]struct {
		owner resourceslice.OwnerFunc
		stays string
	}{
		"without an owner": {nil, "owned"},
		"with an owner":    {func(context.Context) (metav1.OwnerReference, error) { return mine, nil }, "unowned"},
		"with an owner that was created again": {func(context.Context) (metav1.OwnerReference, error) {
			again := mine
			again.UID = "u2"
			return again, nil
		}, "unowned"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				everywhere := func(name, driver, pool string, owners ...metav1.OwnerReference) *resourcev1.ResourceSlice {
					s := live(name, 1, 1, device(1, "a"))
					s.Spec.NodeName, s.Spec.AllNodes, s.Spec.Driver, s.Spec.Pool.Name = nil, new(true), driver, pool
					s.OwnerReferences = owners
					return s
				}
				r.foreign(func() {
					r.s.Put(everywhere("s1", driver, "owned", mine))
					r.s.Put(everywhere("s2", driver, "unowned"))
					r.s.Put(everywhere("s3", "other.example.com", "old"))
				})
				r.there(everywhere("s4", driver, "of-a-node"))
				r.consumer.remove()
				r.start(func(cfg *resourceslice.Config) {
					cfg.NodeName, cfg.Owner, cfg.Client = "", tc.owner, r.s.Client(apitest.User{}).ResourceV1()
				})
				all := resourceslice.Pool{Devices: devices(3), Nodes: resourceslice.NodeSelection{AllNodes: true}}
				if err := r.c.SetAll(driver, map[string]resourceslice.Pool{"new": all}); err != nil {
					t.Fatal(err)
				}
				r.settle(time.Minute)
				var got []string
				for _, s := range r.slices() {
					got = append(got, s.Spec.Driver+"/"+s.Spec.Pool.Name)
				}
				slices.Sort(got)
				if want := []string{driver + "/new", driver + "/of-a-node", driver + "/" + tc.stays, "other.example.com/old"}; !slices.Equal(got, want) {
					t.Errorf("pools %v, want %v", got, want)
				}
			})
		})
	}
}

// TestARenamedDriverRemovesItsFormerPools: a controller with Config.Driver watches that
// driver alone, but Remove and SetAll still remove what it published under its former
// name. It touches nothing of another driver before that, and never Sets it.
func TestARenamedDriverRemovesItsFormerPools(t *testing.T) {
	former := resourceslice.PoolID{Driver: "former.example.com", Name: node}
	for name, remove := range map[string]func(*resourceslice.Controller) error{
		"Remove": func(c *resourceslice.Controller) error { return c.Remove(former) },
		"SetAll": func(c *resourceslice.Controller) error { return c.SetAll(former.Driver, nil) },
	} {
		for _, inCluster := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/cluster=%v", name, inCluster), func(t *testing.T) {
				bubble(t, func(r *rig) {
					r.consumer.remove()
					s := live("s1", 1, 1, device(1, "a"))
					if s.Spec.Driver = former.Driver; inCluster {
						s.Spec.NodeName, s.Spec.AllNodes = nil, new(true)
						r.foreign(func() { r.s.Put(s) })
					} else {
						r.there(s)
					}
					r.start(func(cfg *resourceslice.Config) {
						if cfg.Driver = driver; inCluster {
							cfg.NodeName, cfg.Owner, cfg.Client = "", nil, r.s.Client(apitest.User{}).ResourceV1()
						}
					})
					if err := r.c.Set(former, pools(device(1, "a"))); err == nil {
						t.Error("Set of another driver's pool was accepted")
					}
					r.settle(time.Hour)
					r.expect("before", 0, 0, 0)
					if err := remove(r.c); err != nil {
						t.Fatal(err)
					}
					r.settle(time.Minute)
					r.expect(name, 0, 0, 1)
				})
			})
		}
	}
}

// TestAWriteThatHangsIsRepeatedAndThenPlanned: a create without an answer, a Set
// of something else, and a Remove; nothing is left in the end.
func TestAWriteThatHangsIsRepeatedAndThenPlanned(t *testing.T) {
	for name, fault := range map[string]apitest.Fault{"lost": faults["lostAnswer"], "late": faults["late"], "never": faults["hang"]} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				fault.Match, fault.Times = apitest.Match{Verb: "create", Resource: "resourceslices"}, 1
				r.s.Inject(fault)
				r.start()
				r.set(resourceslice.Pool{Devices: tainted(200)})
				r.settle(time.Second)
				r.consumer.remove()
				if err := r.c.Remove(pool); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(r.Context(), 5*time.Minute)
				defer cancel()
				if err := r.c.Wait(ctx, pool); err != nil {
					t.Fatal(err)
				}
				r.settle(time.Minute)
				if n := len(r.slices()); n != 0 {
					t.Errorf("%d slices are left", n)
				}
			})
		})
	}
}
