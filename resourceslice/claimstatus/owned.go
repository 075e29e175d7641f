// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package claimstatus

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/utils/ptr"
)

// part is a part of the status of devices that one field manager can own alone: a
// condition, the data, or a field of the network data. The part with an empty name is
// the entry of the device.
type part struct{ driver, pool, device, share, name string }

const (
	dataPart      = "data"
	conditionPart = "conditions/"
	networkPart   = "networkData/"
)

// partOf returns the entry of a device.
func partOf(d *resourcev1.AllocatedDeviceStatus) part {
	return part{driver: d.Driver, pool: d.Pool, device: d.Device, share: ptr.Deref(d.ShareID, "")}
}

// partsOf returns the parts that a status has, with their values.
func partsOf(devices []resourcev1.AllocatedDeviceStatus) map[part]any {
	parts := make(map[part]any)
	for i := range devices {
		d := &devices[i]
		at := partOf(d)
		add := func(name string, value any) {
			at.name = name
			parts[at] = value
		}
		add("", true)
		for _, c := range d.Conditions {
			add(conditionPart+c.Type, c)
		}
		if d.Data != nil {
			add(dataPart, canonical(d.Data))
		}
		if n := d.NetworkData; n != nil {
			for name, value := range map[string]string{
				"interfaceName": n.InterfaceName, "ips": strings.Join(n.IPs, " "), "hardwareAddress": n.HardwareAddress,
			} {
				if value != "" {
					add(networkPart+name, value)
				}
			}
		}
	}
	return parts
}

// canonical returns data as JSON in a form that does not depend on who has encoded it: the
// API server sorts the keys of an object.
func canonical(data *runtime.RawExtension) string {
	raw, err := json.Marshal(data)
	var value any
	if err == nil && utiljson.Unmarshal(raw, &value) == nil { // it reads numbers as the API server does
		raw, err = json.Marshal(value)
	}
	if err != nil {
		return string(data.Raw)
	}
	return string(raw)
}

// fields are the fields of a condition that field managers own, such as f:reason. Other
// parts have none.
type fields map[string]json.RawMessage

// owned returns the parts of the status of a claim that a field manager has applied, and
// those that all others own.
func owned(claim *resourcev1.ResourceClaim, manager string) (own, others map[part]fields) {
	own, others = make(map[part]fields), make(map[part]fields)
	for _, entry := range claim.ManagedFields {
		if entry.Subresource != "status" || entry.FieldsV1 == nil {
			continue
		}
		parts := others
		if entry.Manager == manager && entry.Operation == metav1.ManagedFieldsOperationApply {
			parts = own
		}
		add := func(at part, inner json.RawMessage) {
			has := parts[at]
			if has == nil {
				has = fields{}
				parts[at] = has
			}
			_ = json.Unmarshal(inner, &has)
		}
		var of struct {
			Status struct {
				Devices map[string]map[string]json.RawMessage `json:"f:devices"`
			} `json:"f:status"`
		}
		if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &of) != nil {
			continue // then a write that may not be necessary makes it known again
		}
		for key, has := range of.Status.Devices {
			var id struct{ Driver, Pool, Device, ShareID, Type string }
			_ = json.Unmarshal([]byte(strings.TrimPrefix(key, "k:")), &id)
			at := part{driver: id.Driver, pool: id.Pool, device: id.Device, share: id.ShareID}
			add(at, nil)
			for field, inner := range has {
				var names map[string]json.RawMessage
				_ = json.Unmarshal(inner, &names)
				switch field {
				case "f:data":
					at.name = dataPart
					add(at, nil)
				case "f:conditions":
					for name, inner := range names {
						_ = json.Unmarshal([]byte(strings.TrimPrefix(name, "k:")), &id)
						at.name = conditionPart + id.Type
						add(at, inner)
					}
				case "f:networkData":
					for name := range names {
						if field, ok := strings.CutPrefix(name, "f:"); ok {
							at.name = networkPart + field
							add(at, nil)
						}
					}
				}
			}
		}
	}
	return own, others
}

// requiredFields are the fields that the API server requires of a condition.
var requiredFields = []string{"f:status", "f:reason", "f:lastTransitionTime"}

// keep adds to devices the conditions that the Writer wrote, no longer wants and can't
// remove: another field manager wrote them too, and this one took a required field from
// it. The API server would refuse the rest.
func (w *Writer) keep(claim *resourcev1.ResourceClaim, devices []resourcev1.AllocatedDeviceStatus) []resourcev1.AllocatedDeviceStatus {
	wanted := partsOf(devices)
	own, others := owned(claim, w.manager())
	for i := range claim.Status.Devices {
		live := &claim.Status.Devices[i]
		at := partOf(live)
		for _, condition := range live.Conditions {
			at.name = conditionPart + condition.Type
			rest := others[at]
			isWhole := !slices.ContainsFunc(requiredFields, func(field string) bool { return rest[field] == nil })
			if wanted[at] != nil || own[at] == nil || rest == nil || isWhole {
				continue
			}
			device := find(devices, live)
			if device == nil {
				devices = append(devices, resourcev1.AllocatedDeviceStatus{Driver: live.Driver, Pool: live.Pool, Device: live.Device, ShareID: live.ShareID})
				device = &devices[len(devices)-1]
			}
			device.Conditions = append(device.Conditions, condition)
		}
	}
	return devices
}

// difference compares the status that is wanted with a claim. same reports that a write
// would change nothing. overwritten has the parts that the write takes from another
// program, removed the binding conditions that it removes from a device that keeps a
// status and whose binding has not failed.
func (w *Writer) difference(claim *resourcev1.ResourceClaim, devices []resourcev1.AllocatedDeviceStatus) (same bool, overwritten, removed []string) {
	wanted, live := partsOf(devices), partsOf(claim.Status.Devices)
	own, _ := owned(claim, w.manager())
	if len(claim.ManagedFields) == 0 {
		// An informer may strip them. Then every part of the driver counts as own.
		for at := range live {
			if at.driver == w.cfg.Driver {
				own[at] = fields{}
			}
		}
	}
	same = len(own) == len(wanted)
	for at, value := range wanted {
		is, exists := live[at]
		equal := exists && equality.Semantic.DeepEqual(is, value)
		same = same && equal && own[at] != nil
		if exists && !equal && own[at] == nil {
			overwritten = append(overwritten, at.device+" "+at.name)
		}
	}
	for at := range own {
		device := at
		device.name = ""
		if wanted[at] == nil && wanted[device] != nil && bindingCondition(claim, at, wanted) {
			removed = append(removed, at.device+" "+at.name)
		}
	}
	return same, slices.Sorted(slices.Values(overwritten)), slices.Sorted(slices.Values(removed))
}

// bindingCondition reports whether a part is a condition for which the scheduler waits,
// and wanted has no failure of that device.
func bindingCondition(claim *resourcev1.ResourceClaim, at part, wanted map[part]any) bool {
	condition, ok := strings.CutPrefix(at.name, conditionPart)
	return ok && claim.Status.Allocation != nil && slices.ContainsFunc(claim.Status.Allocation.Devices.Results, func(r resourcev1.DeviceRequestAllocationResult) bool {
		failed := slices.ContainsFunc(slices.Collect(maps.Keys(wanted)), func(other part) bool {
			failure, ok := strings.CutPrefix(other.name, conditionPart)
			return ok && other.device == at.device && other.pool == at.pool && slices.Contains(r.BindingFailureConditions, failure)
		})
		return r.Driver == at.driver && r.Pool == at.pool && r.Device == at.device && slices.Contains(r.BindingConditions, condition) && !failed
	})
}
