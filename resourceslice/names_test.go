// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/requests"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/resourceslice"
)

// The rest of the upstream helper's cases, by their names; most are in
// TestCases.

// gates are those that keep fields of slices.
var gates = []apitest.Gate{
	apitest.DRADeviceTaints, apitest.DRAPartitionableDevices, apitest.DRADeviceBindingConditions, apitest.DRAConsumableCapacity,
	apitest.DRADeviceCompatibilityGroups, apitest.DRANodeAllocatableResources, apitest.DRAListTypeAttributes,
	apitest.DRAPartitionableDevicesType, apitest.DRAOptionalNodeOperations,
}

func TestUpstreamCreate(t *testing.T) {
	binding := device(1, "a")
	binding.BindsToNode = new(true)
	binding.BindingConditions = []string{"example.com/attached"}
	binding.BindingFailureConditions = []string{"example.com/failed"}
	for name, p := range map[string]resourceslice.Pool{
		"create-slice-with-skip-node-operations": {
			Devices: []resourcev1.Device{device(1, "a")}, SkipNodeOperations: []resourcev1.SkipNodeOperation{"*"},
		},
		"create-device-with-binding-condition": {Devices: []resourcev1.Device{binding}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				for _, gate := range gates {
					r.s.SetGate(gate, true)
				}
				r.start()
				r.publish(p)
				r.expect("publish", 1, 0, 0)
				spec := r.slices()[0].Spec
				if !slices.Equal(spec.SkipNodeOperations, p.SkipNodeOperations) || spec.Pool.Generation != 1 || spec.Pool.ResourceSliceCount != 1 || *spec.NodeName != node {
					t.Errorf("spec %+v", spec)
				}
				if d := spec.Devices[0]; !slices.Equal(d.BindingConditions, p.Devices[0].BindingConditions) || (d.BindsToNode == nil) != (p.Devices[0].BindsToNode == nil) {
					t.Errorf("device %+v", d)
				}
				r.settle(time.Hour)
				r.expect("an hour later", 0, 0, 0)
			})
		})
	}
}

// TestUpstreamDrop: with its feature off a field is dropped without a word. That
// is one write and one error, and the same Set again is nothing.
func TestUpstreamDrop(t *testing.T) {
	with := func(change func(*resourcev1.Device)) resourceslice.Pool {
		d := device(1, "a")
		change(&d)
		return pools(d)
	}
	partitionable, grouped := gpus(1), gpus(1)
	for i := range grouped.Devices {
		grouped.Devices[i].ConsumesCounters[0].CompatibilityGroups = []string{"a"}
	}
	for _, tc := range []struct {
		name   string
		gate   apitest.Gate
		pool   resourceslice.Pool
		fields []string
	}{
		{"drop-taints", apitest.DRADeviceTaints, resourceslice.Pool{Devices: tainted(1)}, []string{"devices.taints"}},
		{"drop-consumable-capacity-field", apitest.DRAConsumableCapacity, with(func(d *resourcev1.Device) {
			d.AllowMultipleAllocations = new(true)
			d.Capacity["memory"] = resourcev1.DeviceCapacity{Value: resource.MustParse("8Gi"), RequestPolicy: &resourcev1.CapacityRequestPolicy{
				Default: new(resource.MustParse("1Gi")), ValidRange: &resourcev1.CapacityRequestPolicyRange{Min: new(resource.MustParse("1Gi"))},
			}}
		}), []string{"devices.allowMultipleAllocations", "devices.capacity.requestPolicy"}},
		{"drop-optional-node-operations-field", apitest.DRAOptionalNodeOperations,
			resourceslice.Pool{Devices: []resourcev1.Device{device(1, "a")}, SkipNodeOperations: []resourcev1.SkipNodeOperation{"*"}}, []string{"skipNodeOperations"}},
		{"drop-device-with-binding-condition", apitest.DRADeviceBindingConditions, with(func(d *resourcev1.Device) {
			d.BindsToNode = new(true)
			d.BindingConditions, d.BindingFailureConditions = []string{"example.com/attached"}, []string{"example.com/failed"}
		}), []string{"devices.bindingConditions", "devices.bindingFailureConditions", "devices.bindsToNode"}},
		{"drop-compatibility-groups-field", apitest.DRADeviceCompatibilityGroups, grouped, []string{"devices.consumesCounters.compatibilityGroups"}},
		{"drop-partitionable-devices", apitest.DRAPartitionableDevices, partitionable, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				for _, gate := range gates {
					r.s.SetGate(gate, gate != tc.gate)
				}
				r.start()
				r.set(tc.pool)
				r.settle(time.Minute)
				first := r.writes()["create"]
				r.s.ResetJournal()
				for range 3 {
					r.set(tc.pool)
					r.settle(time.Minute)
				}
				r.settle(30 * time.Minute)
				r.expect("again and again", 0, 0, 0)
				dropped, n := has[*resourceslice.DroppedFieldsError](r)
				if n != 1 && tc.fields != nil || tc.fields != nil && fmt.Sprint(dropped.Fields) != fmt.Sprint(tc.fields) || first == 0 {
					t.Errorf("%d writes, reported %v", first, r.reported())
				}
				if len(r.reported()) == 0 {
					t.Error("nothing was reported")
				}
			})
		})
	}
}

// TestUpstreamReconcilePoolWithName: a controller of a node publishes a pool
// that other nodes see, and looks at no other node's.
func TestUpstreamReconcilePoolWithName(t *testing.T) {
	selector := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}},
	}}}
	perDevice := device(1, "a")
	perDevice.NodeSelector = selector
	for name, p := range map[string]resourceslice.Pool{
		"reconcile-with-pool-name-create-slice-no-node-name":    {Devices: []resourcev1.Device{device(1, "a")}, Nodes: resourceslice.NodeSelection{AllNodes: true}},
		"reconcile-with-pool-name-with-node-selector":           {Devices: []resourcev1.Device{device(1, "a")}, Nodes: resourceslice.NodeSelection{Selector: selector}},
		"reconcile-with-pool-name-with-perdevice-node-selector": {Devices: []resourcev1.Device{perDevice}, Nodes: resourceslice.NodeSelection{PerDevice: true}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				for _, gate := range gates {
					r.s.SetGate(gate, true)
				}
				r.user = admin
				other := live("s1", 1, 1, device(1, "b"))
				other.Spec.NodeName, other.Spec.AllNodes, other.Spec.Pool.Name = nil, new(true), "n2"
				r.foreign(func() { r.s.Put(other) })
				r.start()
				r.publish(p)
				r.expect("publish", 1, 0, 0)
				for _, s := range r.slices() {
					if s.Spec.Pool.Name == node && (s.Spec.NodeName != nil || len(s.OwnerReferences) != 1 || s.OwnerReferences[0].Name != node) {
						t.Errorf("slice %+v", s)
					}
				}
				r.settle(time.Hour)
				r.expect("an hour later", 0, 0, 0)
				r.consumer.remove()
				r.c.Remove(pool)
				r.wait()
				r.expect("Remove", 0, 0, 1) // and not the other node's
			})
		})
	}
}

// TestUpstreamPoolNameFieldSelector: a node watches only its own cluster pool if
// the API server can select a pool by name.
func TestUpstreamPoolNameFieldSelector(t *testing.T) {
	byPool := apitest.Match{Resource: "resourceslices", Func: func(q apitest.Request) bool { return contains(fmt.Errorf("%s", q.FieldSelector), "spec.pool.name=") }}
	unsupported := statuserr.New(400, metav1.StatusReasonBadRequest, `field label not supported: spec.pool.name`)
	for _, tc := range []struct {
		name    string
		verb    string // that is refused
		watches int    // of one pool, in the end
	}{
		{"field-selector-supported", "", 1},
		{"field-selector-unsupported-for-list", "list", 0},
		{"field-selector-unsupported-for-watch", "watch", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.user = admin
				if tc.verb != "" {
					m := byPool
					m.Verb = tc.verb
					r.s.Inject(apitest.Fault{Match: m, Status: unsupported})
					if tc.verb == "list" { // which is only sent if the watch has no initial events
						m.Verb = "watch"
						r.s.Inject(apitest.Fault{Match: m, Times: 1, Status: statuserr.New(422, metav1.StatusReasonInvalid, "sendInitialEvents")})
					}
				}
				r.start()
				r.publish(resourceslice.Pool{Devices: devices(200), Nodes: resourceslice.NodeSelection{AllNodes: true}})
				r.settle(time.Minute)
				if n := len(r.slices()); n != 4 {
					t.Errorf("%d slices", n)
				}
				if n := requests.OpenWatches(r.s, byPool); n != tc.watches {
					t.Errorf("%d watches of a pool, want %d", n, tc.watches)
				}
				r.s.ResetJournal()
				r.settle(time.Hour)
				r.expect("an hour later", 0, 0, 0)
				if n := len(r.s.Requests(byPool)); tc.watches == 0 && n > 0 {
					t.Errorf("%d requests in an hour of what was refused", n)
				}
				if errs := r.reported(); len(errs) > 0 {
					t.Errorf("reported %v", errs)
				}
			})
		})
	}
}
