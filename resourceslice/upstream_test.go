// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/features"
	featurestesting "k8s.io/client-go/features/testing"
	"k8s.io/klog/v2/ktesting"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/resourceslice"
)

// Each test covers a mistake of the upstream helper. The comment describes the
// helper's behavior, the assertions the right one.

// TestSetLeavesADeviceToTheAPIServer: a driver publishes what the hardware says, such as a
// serial number that is too long. All other devices are published.
func TestSetLeavesADeviceToTheAPIServer(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		all := devices(3)
		all[1].Attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
			"serial": {StringValue: new(strings.Repeat("0", resourcev1.DeviceAttributeMaxValueLength+1))},
		}
		if err := r.c.Set(pool, resourceslice.Pool{Devices: all}); err != nil {
			t.Fatal(err)
		}
		err := r.c.Wait(r.Context(), pool)
		e, ok := errors.AsType[*resourceslice.InvalidError](err)
		if !ok || !contains(err, "spec.devices[1].attributes[serial]") || !contains(err, all[1].Name) || !slices.Equal(e.Refused, []string{all[1].Name}) {
			t.Errorf("Wait = %v, want an InvalidError with the attribute and the device", err)
		}
		if _, n := has[*resourceslice.InvalidError](r); len(r.devices()) != 2 || n != 1 {
			t.Errorf("%d devices, reported %v", len(r.devices()), r.reported())
		}
		all[1] = device(1, "a")
		r.publish(resourceslice.Pool{Devices: all})
		if len(r.devices()) != 3 {
			t.Errorf("%d devices after the attribute was mended", len(r.devices()))
		}
	})
}

// TestOneSliceIsAlwaysRefused: the pool is never complete again, and all others are rewritten without end.
func TestOneSliceIsAlwaysRefused(t *testing.T) {
	bubble(t, func(r *rig) {
		r.s.Inject(apitest.Fault{
			Match:  sending("create,update", func(s sliceType) bool { return hasDevice(s, "dev-00100") }),
			Status: statuserr.New(422, metav1.StatusReasonInvalid, "dev-00100 is not welcome"),
		})
		r.start()
		r.set(resourceslice.Pool{Devices: devices(640)})
		r.settle(10 * time.Second)
		if got := len(r.devices()); got != 640-64 {
			t.Errorf("%d devices, want all but those of the slice that is refused", got)
		}
		status, _ := r.c.Status(pool)
		if _, ok := errors.AsType[*resourceslice.InvalidError](status.Err); !ok || !status.Complete {
			t.Errorf("status %+v, want a complete pool and an InvalidError", status)
		}
		if err := r.c.Wait(r.Context(), pool); err == nil {
			t.Error("Wait = nil")
		}
		r.s.ResetJournal()
		r.settle(50 * time.Minute)
		r.expect("an hour", 0, 0, 0)
		if _, n := has[*resourceslice.InvalidError](r); n != 1 {
			t.Errorf("reported %d times: %v", n, r.reported())
		}
		all := devices(640)
		r.set(resourceslice.Pool{Devices: append(all[:100], all[101:]...)})
		r.settle(time.Minute)
		if got := len(r.devices()); got != 639 {
			t.Errorf("%d devices after it was removed", got)
		}
	})
}

func hasDevice(s *resourcev1.ResourceSlice, name string) bool {
	for _, d := range s.Spec.Devices {
		if d.Name == name {
			return true
		}
	}
	return false
}

// TestDroppedFields: every Set rewrites all slices, with a new generation and as many errors.
func TestDroppedFields(t *testing.T) {
	bubble(t, func(r *rig) {
		r.s.SetGate(apitest.DRADeviceTaints, false)
		r.start()
		r.set(resourceslice.Pool{Devices: tainted(200)})
		r.settle(time.Second)
		r.expect("the first time", 4, 0, 0)
		for range 3 {
			r.set(resourceslice.Pool{Devices: tainted(200)})
			r.settle(10 * time.Second)
		}
		r.settle(50 * time.Minute)
		r.expect("again and again", 0, 0, 0)
		dropped, n := has[*resourceslice.DroppedFieldsError](r)
		if n != 1 || fmt.Sprint(dropped.Fields) != "[devices.taints]" {
			t.Errorf("reported %v", r.reported())
		}
		if err := r.c.Wait(r.Context(), pool); err == nil {
			t.Error("Wait = nil although taints were dropped")
		}
		all := tainted(200)
		all[0] = device(0, "b")
		r.set(resourceslice.Pool{Devices: all})
		r.settle(time.Minute)
		r.expect("one device changes", 0, 1, 0)
	})
}

// TestNodeIsCreatedAgain: the helper always uses the UID that it read first, so the
// garbage collector and the helper delete and create the slices in turn.
func TestNodeIsCreatedAgain(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(resourceslice.Pool{Devices: tainted(200)})
		r.expect("first publish", 4, 0, 0)
		var owner *corev1.Node
		r.foreign(func() {
			apitest.Remove[*corev1.Node](r.s, "", node)
			owner = r.s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}).(*corev1.Node)
			for _, s := range r.slices() { // as the garbage collector does
				apitest.Remove[sliceType](r.s, "", s.Name)
			}
		})
		r.settle(time.Minute)
		r.expect("repair", 4, 0, 0)
		for _, s := range r.slices() {
			if s.OwnerReferences[0].UID != owner.UID {
				t.Errorf("owner of %s is %v, want %s", s.Name, s.OwnerReferences, owner.UID)
			}
		}
		if n := len(r.s.Requests(apitest.Match{Verb: "get", Resource: "nodes"})); n > 1 {
			t.Errorf("the Node was asked for %d times", n)
		}
	})
}

// TestTheNodeIsReplacedWhileNothingIsPublished: no slice is deleted that would show it.
func TestTheNodeIsReplacedWhileNothingIsPublished(t *testing.T) {
	bubble(t, func(r *rig) {
		gets := func() int { return len(r.s.Requests(apitest.Match{Verb: "get", Resource: "nodes"})) }
		r.consumer.remove()
		r.start()
		for _, name := range []string{"a", "b", "c"} {
			r.setEach("a", name)
			r.settle(time.Second)
		}
		if n := gets(); n != 1 {
			t.Errorf("%d reads of the Node for three pools, want 1", n)
		}
		for _, name := range []string{"a", "b", "c"} {
			r.remove(name)
		}
		apitest.Remove[*corev1.Node](r.s, "", node)
		r.settle(time.Second)
		r.s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
		r.settle(time.Hour)
		r.publish(pools(device(1, "a")))
		now := apitest.Get[*corev1.Node](r.s, "", node)
		if owner := r.slices()[0].OwnerReferences[0]; owner.UID != now.UID {
			t.Errorf("the owner of a new slice is %s, want %s", owner.UID, now.UID)
		}
		r.settle(time.Hour)
		r.publish(pools(device(1, "b"), device(2, "b")))
		if n := gets(); n != 2 {
			t.Errorf("%d reads of the Node, want 2", n)
		}
	})
}

// TestOwnerOfSlicesThatAreLeft: the other way round: only some slices are gone when the Node is seen to
// be another one.
func TestOwnerOfSlicesThatAreLeft(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(resourceslice.Pool{Devices: tainted(200)})
		r.s.ResetJournal()
		r.foreign(func() {
			apitest.Remove[*corev1.Node](r.s, "", node)
			apitest.Remove[sliceType](r.s, "", r.slices()[0].Name)
		})
		r.settle(10 * time.Second)
		r.expect("while there is no Node", 0, 0, 0)
		if n := len(r.reported()); n != 0 {
			t.Errorf("reported %v", r.reported())
		}
		r.foreign(func() { r.s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}) })
		r.settle(time.Minute)
		r.expect("the owner of three, and the fourth", 1, 3, 0)
	})
}

// TestManySlicesAndASlowWatch: own creates are forgotten beyond a hundred when the watch is slow, and
// made twice. Without a feature of client-go the informer's store doesn't know its resource
// version.
func TestManySlicesAndASlowWatch(t *testing.T) {
	slices, changes := 150, 20
	if testing.Short() {
		slices, changes = 50, 3
	}
	t.Run("AtomicFIFO", func(t *testing.T) { testASlowWatch(t, slices, changes) })
	t.Run("without", func(t *testing.T) {
		for _, f := range []features.Feature{features.UnlockWhileProcessingFIFO, features.AtomicFIFO} {
			featurestesting.SetFeatureDuringTest(t, f, false)
		}
		testASlowWatch(t, 10, 5)
	})
}

func testASlowWatch(t *testing.T, slices, changes int) {
	bubble(t, func(r *rig) {
		r.start()
		r.settle(time.Second)
		resume := r.s.StallWatches(apitest.Match{User: r.user.Name})
		all := tainted(slices * 64)
		r.publish(resourceslice.Pool{Devices: all})
		for i := range changes {
			all[0] = device(0, fmt.Sprint(i))
			r.publish(resourceslice.Pool{Devices: all})
		}
		r.expect("while the watch delivers nothing", slices, changes, 0)
		resume()
		r.settle(time.Hour)
		r.expect("when it does", 0, 0, 0)
		r.foreign(func() { apitest.Remove[sliceType](r.s, "", r.slices()[3].Name) })
		r.settle(2 * time.Second)
		r.expect("one slice deleted by another client", 1, 0, 0)
		r.settle(time.Hour)
		r.expect("an hour later", 0, 0, 0)
	})
}

// TestWindowOfABump: all slices one after the other, deletes first, incomplete all the while.
func TestWindowOfABump(t *testing.T) {
	const rtt = 10 * time.Millisecond
	bubble(t, func(r *rig) {
		r.start()
		r.publish(resourceslice.Pool{Devices: tainted(64 * 64)})
		r.s.ResetJournal()
		r.s.Inject(apitest.Fault{Match: apitest.Match{Resource: "resourceslices", Verb: "create,update,delete"}, Latency: rtt})
		before := r.window()
		r.publish(resourceslice.Pool{Devices: tainted(64*64 + 64)})
		r.expect("one slice more, and nine to spare", 1+9, 64, 0)
		// The window opens with the answer to the first write.
		if window, want := r.window()-before, time.Duration((74-1+7)/8)*rtt; window > want {
			t.Errorf("incomplete for %v, want %v at most", window, want)
		}
	})
}

// TestTheWindowBeginsWithAFirstWriteWithoutAnAnswer: it is stored, so the pool is incomplete
// while the controller waits for the answer.
func TestTheWindowBeginsWithAFirstWriteWithoutAnAnswer(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(resourceslice.Pool{Devices: tainted(7 * 64)})
		r.settle(time.Minute)
		before := r.window()
		r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "create,update", Resource: "resourceslices"}, Times: 1, HangResponse: true})
		r.publish(resourceslice.Pool{Devices: tainted(8 * 64)})
		if window := r.window() - before; window < resourceslice.CallTimeout {
			t.Errorf("incomplete for %v, want %v at least", window, resourceslice.CallTimeout)
		}
	})
}

// TestPublishedHasTheTimesOfARepair: the window ends before the deletes, and the latency
// begins with the other writer's change. The helper deletes a slice that is there twice, and
// Pods that wait are not woken up. The consumer of the rig asserts completion by a write.
func TestPublishedHasTheTimesOfARepair(t *testing.T) {
	const rtt = 10 * time.Millisecond
	bubble(t, func(r *rig) {
		r.start()
		r.publish(resourceslice.Pool{Devices: tainted(3 * 64)})
		r.settle(time.Minute)
		r.s.ResetJournal()
		r.s.Inject(apitest.Fault{Match: apitest.Match{Resource: "resourceslices", Verb: "create,update,delete"}, Latency: rtt})
		r.foreign(func() { r.there(live("zz", 1, 3, tainted(1)...)) })
		r.settle(time.Minute)
		r.expect("repair", 0, 3, 1)
		last := r.published[len(r.published)-1]
		if last.Window != rtt || last.Latency != time.Second+3*rtt || !last.Repair || last.Writes != 4 {
			t.Errorf("%+v", last)
		}
	})
}

// TestTwoWriters: two writers rewrite each other's slices without end and without a word.
func TestTwoWriters(t *testing.T) {
	bubble(t, func(r *rig) {
		r.consumer.tolerate(true)
		other := &rig{T: r.T, s: r.s, consumer: r.consumer}
		r.start()
		other.start(func(cfg *resourceslice.Config) { cfg.Name = "other" })
		r.set(pools(device(1, "a")))
		r.settle(time.Second)
		other.set(pools(device(1, "b")))
		r.settle(time.Hour)
		total := 0
		for _, n := range r.writes() {
			total += n
		}
		if total > 60 {
			t.Errorf("%d writes in an hour", total)
		}
		contended, n := has[*resourceslice.ContendedError](r)
		if n != 1 || contended.Manager != "kubewright-other" {
			t.Errorf("reported %v, want the other writer once", r.reported())
		}
		other.halt()
	})
}

// TestNotAllowedToWatch: each list succeeds, and the watch after it is refused. That is one
// failure, and not one that ends and begins again every half minute.
func TestNotAllowedToWatch(t *testing.T) {
	bubble(t, func(r *rig) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(0)))
		again := func() int {
			return strings.Count(logger.GetSink().(ktesting.Underlier).GetBuffer().String(), "works again")
		}
		r.logger = &logger
		allow := r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "watch", Resource: "resourceslices"}, Status: statuserr.Forbidden("resourceslices", "", "cannot watch")})
		r.start()
		r.set(pools(device(1, "a")))
		r.settle(time.Hour)
		if e, n := has[*resourceslice.ForbiddenError](r); n != 1 || !contains(e, "not allowed to list and watch") || again() != 0 {
			t.Errorf("reported %v, and %d times that it works again", r.reported(), again())
		}
		if n := len(r.devices()); n != 1 {
			t.Errorf("%d devices are published, want 1", n)
		}
		allow()
		r.settle(time.Minute)
		if again() != 1 {
			t.Errorf("it works again: %d times", again())
		}
	})
}

// TestAContendedErrorNamesNoDeleter: a deletion has no field manager, and that of the slice is
// this controller's own. A writer that has changed something long ago is not named either.
func TestAContendedErrorNamesNoDeleter(t *testing.T) {
	bubble(t, func(r *rig) {
		r.consumer.tolerate(true)
		r.start()
		r.publish(pools(device(1, "a")))
		slice := r.slices()[0]
		slice.Spec.Devices = nil
		if _, err := r.s.Client(admin).ResourceV1().ResourceSlices().Update(t.Context(), slice, metav1.UpdateOptions{FieldManager: "kubectl-edit"}); err != nil {
			t.Fatal(err)
		}
		r.settle(time.Hour)
		for range 5 {
			apitest.Remove[sliceType](r.s, "", r.slices()[0].Name)
			r.settle(20 * time.Second)
		}
		if e, n := has[*resourceslice.ContendedError](r); n != 1 || e.Manager != "" {
			t.Errorf("reported %v", r.reported())
		}
	})
}

// TestNotAllowedToList: no error is ever reported if slices can't be listed, and the caller
// waits.
func TestNotAllowedToList(t *testing.T) {
	bubble(t, func(r *rig) {
		allow := r.s.Inject(apitest.Fault{Match: apitest.Match{Resource: "resourceslices", User: apitest.NodeUser(node).Name}, Status: statuserr.Forbidden("resourceslices", "", "no")})
		r.start()
		begin := time.Now()
		r.set(pools(device(1, "a")))
		if time.Since(begin) != 0 {
			t.Error("Set waited")
		}
		r.settle(10 * time.Minute)
		forbidden, n := has[*resourceslice.ForbiddenError](r)
		if n != 1 || forbidden.Verb != "list" {
			t.Errorf("reported %v", r.reported())
		}
		allow()
		r.settle(time.Minute)
		if len(r.devices()) != 1 {
			t.Error("not published after the permission was there")
		}
	})
}

// TestRacesAreNotErrors: conflicts and slices that are gone are reported as errors.
func TestRacesAreNotErrors(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(resourceslice.Pool{Devices: tainted(200)})
		r.s.ResetJournal()
		defer r.s.StallWatches(apitest.Match{User: r.user.Name})()
		all := tainted(200)
		for i := range 4 {
			all[i*64] = device(i*64, "b")
		}
		r.consumer.tolerate(true)
		names := r.slices()
		apitest.Remove[sliceType](r.s, "", names[0].Name)
		apitest.Edit(r.s, "", names[1].Name, func(s sliceType) { s.Labels = map[string]string{"a": "b"} })
		r.publish(resourceslice.Pool{Devices: all})
		if n := len(r.reported()); n != 0 {
			t.Errorf("reported %v", r.reported())
		}
		if len(r.devices()) != 200 {
			t.Errorf("%d devices", len(r.devices()))
		}
		for _, s := range r.slices() {
			if s.Name == names[1].Name && s.Labels["a"] != "b" {
				t.Error("somebody else's label is gone")
			}
		}
	})
}

// TestTheAPIIsGoneForAWhile: the first request that finds out is a write. Nothing is taken for
// published, and nothing is written again when the API is back.
func TestTheAPIIsGoneForAWhile(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(resourceslice.Pool{Devices: tainted(200)})
		r.s.ResetJournal()
		r.s.Serve(resourcev1.SchemeGroupVersion, false)
		all := tainted(200)
		all[0] = device(0, "c")
		r.set(resourceslice.Pool{Devices: all})
		r.settle(10 * time.Minute)
		if s, _ := r.c.Status(pool); s.Published == s.Revision {
			t.Errorf("status %+v while ResourceSlices are not served", s)
		}
		if _, n := has[*resourceslice.UnavailableError](r); n != 1 {
			t.Errorf("reported %v, want one UnavailableError", r.reported())
		}
		r.s.Serve(resourcev1.SchemeGroupVersion, true)
		r.settle(6 * time.Minute)
		if got := r.writes(); got["update"] != 2 || got["create"]+got["delete"] != 0 {
			t.Errorf("writes %v, want two updates, of which one failed", got)
		}
		r.s.ResetJournal()
		r.foreign(func() { apitest.Remove[sliceType](r.s, "", r.slices()[0].Name) }) // a genuine 404
		r.settle(time.Minute)
		if n := len(r.s.Requests(apitest.Match{Verb: "list"})); n != 0 {
			t.Errorf("%d lists: a slice that is gone was taken for an API that is gone", n)
		}
	})
}

// TestAWatchThatIsNotServed: a proxy or an aggregator serves the list and not the watch.
func TestAWatchThatIsNotServed(t *testing.T) {
	bubble(t, func(r *rig) {
		r.s.SetGate(apitest.WatchList, false)
		undo := r.s.Inject(apitest.Fault{
			Match:  apitest.Match{Verb: "watch", Resource: "resourceslices", User: apitest.NodeUser(node).Name},
			Status: statuserr.New(404, metav1.StatusReasonNotFound, "the server could not find the requested resource"),
		})
		r.start()
		r.set(pools(device(1, "a")))
		r.settle(10 * time.Second)
		if n := len(r.s.Requests(apitest.Match{Verb: "list"})); n > 5 {
			t.Errorf("%d lists in ten seconds", n)
		}
		r.s.ResetJournal()
		r.settle(time.Hour)
		// A list and a watch, each 30 to 60 s.
		if n := len(r.s.Requests(apitest.Match{})); n > 2*120 {
			t.Errorf("%d requests in an hour", n)
		}
		undo()
		r.settle(6 * time.Minute)
		if len(r.devices()) != 1 {
			t.Error("not published when the watch is served")
		}
	})
}

func TestResourceSlicesAreNotServed(t *testing.T) {
	bubble(t, func(r *rig) {
		r.s.Serve(resourcev1.SchemeGroupVersion, false)
		r.start()
		r.set(pools(device(1, "a")))
		r.settle(time.Hour)
		if _, n := has[*resourceslice.UnavailableError](r); n != 1 {
			t.Errorf("reported %v", r.reported())
		}
		if n := len(r.s.Requests(apitest.Match{})); n > 150 {
			t.Errorf("%d requests in an hour", n)
		}
		r.s.Serve(resourcev1.SchemeGroupVersion, true)
		r.settle(6 * time.Minute)
		if len(r.devices()) != 1 {
			t.Error("not published when it is")
		}
	})
}

// TestPoolOfAnotherNode: two nodes that give their cluster-wide pools one name delete each
// other's slices.
func TestPoolOfAnotherNode(t *testing.T) {
	bubble(t, func(r *rig) {
		r.s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
		all := resourceslice.Pool{Devices: []resourcev1.Device{device(1, "a")}, Nodes: resourceslice.NodeSelection{AllNodes: true}}
		onNode := func(name string) func(*resourceslice.Config) {
			return func(cfg *resourceslice.Config) {
				cs := r.s.Client(apitest.User{})
				cfg.Client, cfg.NodeName, cfg.Owner = cs.ResourceV1(), name, resourceslice.NodeOwner(cs.CoreV1().Nodes(), name)
			}
		}
		other := &rig{T: r.T, s: r.s, consumer: r.consumer}
		other.start(onNode("n2"))
		other.publish(all)
		r.expect("the other node", 1, 0, 0)
		r.start(onNode(node))
		all.Devices = append(all.Devices, device(2, "a"))
		r.set(all)
		r.settle(time.Hour)
		r.expect("this node", 0, 0, 0)
		if _, n := has[*resourceslice.ContendedError](r); n != 1 {
			t.Errorf("reported %v", r.reported())
		}
		r.consumer.remove()
		other.c.Remove(pool)
		other.wait()
		r.settle(2 * time.Minute)
		r.expect("when the other has given it up", 1, 0, 1)
		other.halt()
	})
}

// TestLabelsAndOwners: labels and owners of existing slices are never compared.
func TestLabelsAndOwners(t *testing.T) {
	bubble(t, func(r *rig) {
		s := live("s1", 1, 1, device(1, "a"))
		s.Labels = map[string]string{"theirs": "x"}
		s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: "of-an-earlier-life"}}
		r.foreign(func() { r.s.Put(s) })
		r.start(func(cfg *resourceslice.Config) { cfg.Labels = map[string]string{"ours": "y"} })
		r.publish(pools(device(1, "a")))
		r.expect("adoption", 0, 1, 0)
		got := r.slices()[0]
		owner := apitest.Get[*corev1.Node](r.s, "", node)
		if !maps.Equal(got.Labels, map[string]string{"theirs": "x", "ours": "y"}) || len(got.OwnerReferences) != 1 || got.OwnerReferences[0].UID != owner.UID {
			t.Errorf("metadata %v %v", got.Labels, got.OwnerReferences)
		}
		if got.Spec.Pool.Generation != 1 {
			t.Errorf("generation %d", got.Spec.Pool.Generation)
		}
	})
}

// TestNoRedundantDeletes: the helper deletes slices that are gone already.
func TestNoRedundantDeletes(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(resourceslice.Pool{Devices: tainted(640)})
		r.s.ResetJournal()
		r.consumer.remove()
		defer r.s.StallWatches(apitest.Match{User: r.user.Name})()
		r.c.Remove(pool)
		r.wait()
		r.settle(10 * time.Second)
		r.expect("Remove with a watch that delivers nothing", 0, 0, 10)
	})
}

// TestAFieldWhoseAbsenceIsInvalid: without its gate the API server answers with 422.
func TestAFieldWhoseAbsenceIsInvalid(t *testing.T) {
	bubble(t, func(r *rig) {
		list := device(1, "a")
		list.Attributes["list"] = resourcev1.DeviceAttribute{StringValues: []string{"a", "b"}}
		r.start()
		r.set(pools(list, device(2, "a")))
		r.settle(time.Minute)
		if _, n := has[*resourceslice.InvalidError](r); n != 1 {
			t.Errorf("list attribute: reported %v", r.reported())
		}
		if got := r.devices(); len(got) != 1 || got["dev-00002"].Name == "" {
			t.Errorf("devices %v, want the one without", got)
		}
	})
}
