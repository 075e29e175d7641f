// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/resourceslice/internal/core"
)

// newWriting makes a job with one writer.
func newWriting(t *testing.T) (j *job, stop, kill context.CancelFunc) {
	outlives, kill := context.WithCancel(t.Context())
	ctx, stop := context.WithCancel(outlives)
	t.Cleanup(kill)
	p := newPool(testID, core.New(new(core.Instance), 0))
	c := &Controller{tokens: make(chan struct{}, 1), outlives: outlives, progress: lifecycle.NewProgress("test", time.Minute)}
	return &job{c: c, ctx: ctx, p: p, w: &p.work}, stop, kill
}

// TestNoWriteFollowsAResultThatItCantMakeGood: after a write that can't succeed now
// no other one begins. While the pool is incomplete none begins after an outdated or
// refused one either: it could complete the pool with content that is not the plan's.
func TestNoWriteFollowsAResultThatItCantMakeGood(t *testing.T) {
	for _, tc := range []struct {
		first           verdict
		complete, inGap int // writes that begin, of three
	}{
		{stored, 3, 3},
		{outdated, 3, 1},
		{refused, 3, 1},
		{waiting, 1, 1},
		{failure, 1, 1},
		{done, 1, 1},
	} {
		for window, want := range map[bool]int{false: tc.complete, true: tc.inGap} {
			j, _, _ := newWriting(t)
			var begun atomic.Int32
			worst := parallel(j, []verdict{tc.first, stored, stored}, window, func(v verdict) result {
				begun.Add(1)
				return result{verdict: v}
			})
			if int(begun.Load()) != want || worst.verdict != tc.first {
				t.Errorf("verdict %d, window %v: %d writes begin, with verdict %d, want %d", tc.first, window, begun.Load(), worst.verdict, want)
			}
			if len(j.c.tokens) != 0 {
				t.Errorf("verdict %d, window %v: %d tokens are not returned", tc.first, window, len(j.c.tokens))
			}
		}
	}
}

// TestWhatIsInTheWayOfAWrite: a version that is older than the one that was to be replaced
// shows that the API server was restored from a backup.
func TestWhatIsInTheWayOfAWrite(t *testing.T) {
	at := func(id PoolID, node string, uid types.UID, version string) *record {
		return &record{ObjectMeta: metav1.ObjectMeta{UID: uid, ResourceVersion: version}, id: id, nodeName: node}
	}
	slice := &resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{NodeName: new("n1")}}
	update, create := &request{slice: slice, rec: at(testID, "n1", "u1", "10")}, &request{slice: slice}
	j, _, _ := newWriting(t)
	for _, tc := range []struct {
		req   *request
		found *record
		want  core.Finding
	}{
		{update, at(testID, "n1", "u1", "10"), core.Same},
		{update, at(testID, "n1", "u1", "11"), core.Newer},
		{update, at(testID, "n1", "u2", "10"), core.Newer},
		{update, at(testID, "n1", "u1", "9"), core.Older},
		{update, at(testID, "n1", "u2", "9"), core.Older},
		{update, at(PoolID{testID.Driver, "other"}, "n1", "u1", "10"), core.Stranger},
		{create, at(testID, "n1", "u1", "9"), core.Newer},
		{create, at(testID, "n2", "u1", "10"), core.Stranger},
		{create, at(testID, "", "u1", "10"), core.Stranger},
		{create, at(PoolID{"other.example.com", testID.Name}, "n1", "u1", "10"), core.Stranger},
	} {
		if got := j.compare(tc.req, tc.found); got != tc.want {
			t.Errorf("create %v, found %v %s %s at %s: %s, want %s", tc.req == create, tc.found.id, tc.found.nodeName, tc.found.UID, tc.found.ResourceVersion, got, tc.want)
		}
	}
}

// TestWritesBeginAfterTheStopOnlyForAHalfPublishedPool, and only as long as there is
// time.
func TestWritesBeginAfterTheStopOnlyForAHalfPublishedPool(t *testing.T) {
	for name, tc := range map[string]struct {
		half, killed bool
		want         verdict
	}{
		"complete":                      {false, false, done},
		"half published":                {true, false, stored},
		"half published, and time over": {true, true, done},
	} {
		j, stop, kill := newWriting(t)
		if tc.half {
			j.openWindow(1)
		}
		if stop(); tc.killed {
			kill()
		}
		if r := parallel(j, []int{1, 2}, true, func(int) result { return result{} }); r.verdict != tc.want {
			t.Errorf("%s: verdict %d, want %d", name, r.verdict, tc.want)
		}
	}
}

// TestAListThatLosesElementsIsOneMissingField: elements have no names to compare them
// by, so the path of the list is reported, once.
func TestAListThatLosesElementsIsOneMissingField(t *testing.T) {
	taint := func(key string) resourcev1.DeviceTaint {
		return resourcev1.DeviceTaint{Key: key, Value: key, Effect: resourcev1.DeviceTaintEffectNoSchedule}
	}
	spec := func(taints ...resourcev1.DeviceTaint) *resourcev1.ResourceSliceSpec {
		return &resourcev1.ResourceSliceSpec{Devices: []resourcev1.Device{{Name: "d", Taints: taints}}}
	}
	a, b, c := taint("a"), taint("b"), taint("c")
	for name, tc := range map[string]struct {
		sent, got *resourcev1.ResourceSliceSpec
		want      []string
	}{
		"the same":                       {spec(a, b), spec(a, b), nil},
		"none":                           {spec(a, b), spec(), []string{"devices.taints"}},
		"the last is missing":            {spec(a, b), spec(a), []string{"devices.taints"}},
		"the first is missing":           {spec(a, b), spec(b), []string{"devices.taints"}},
		"more, but not the one sent":     {spec(a), spec(b, c), []string{"devices.taints"}},
		"as many, one with other fields": {spec(a, b), spec(a, resourcev1.DeviceTaint{Key: "b", Effect: b.Effect}), []string{"devices.taints.value"}},
		"another is added before it":     {spec(a), spec(b, a), nil},
		"another order":                  {spec(a, b), spec(b, a), nil},
		"the device is missing":          {spec(a), &resourcev1.ResourceSliceSpec{}, []string{"devices"}},
	} {
		if got := missingFields(tc.sent, tc.got)["d"]; !slices.Equal(got, tc.want) {
			t.Errorf("%s: missing %v, want %v", name, got, tc.want)
		}
	}
}

// TestAMissingFieldHasThePathOfItsFields: names of attributes, capacities and counters are
// left out, also if one is that of a field, and nothing else.
func TestAMissingFieldHasThePathOfItsFields(t *testing.T) {
	spec := func(change func(*resourcev1.Device)) *resourcev1.ResourceSliceSpec {
		d := resourcev1.Device{
			Name:       "d",
			Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"counters": {StringValue: new("x")}},
			Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {
				Value: resource.MustParse("8"), RequestPolicy: &resourcev1.CapacityRequestPolicy{
					Default: new(resource.MustParse("1")), ValidRange: &resourcev1.CapacityRequestPolicyRange{Min: new(resource.MustParse("1")), Step: new(resource.MustParse("1"))},
				},
			}},
		}
		change(&d)
		return &resourcev1.ResourceSliceSpec{Devices: []resourcev1.Device{d}}
	}
	sent := spec(func(*resourcev1.Device) {})
	for want, drop := range map[string]func(*resourcev1.Device){
		"devices.attributes.string": func(d *resourcev1.Device) {
			d.Attributes["counters"] = resourcev1.DeviceAttribute{IntValue: new(int64(1))}
		},
		"devices.attributes": func(d *resourcev1.Device) { d.Attributes = nil },
		"devices.capacity.requestPolicy.validRange.step": func(d *resourcev1.Device) {
			d.Capacity["memory"].RequestPolicy.ValidRange.Step = nil
		},
		"devices.capacity.requestPolicy.default": func(d *resourcev1.Device) { d.Capacity["memory"].RequestPolicy.Default = nil },
	} {
		if got := missingFields(sent, spec(drop))["d"]; !slices.Equal(got, []string{want}) {
			t.Errorf("missing %v, want %s", got, want)
		}
	}
}
