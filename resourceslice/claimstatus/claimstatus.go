// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package claimstatus writes the status of allocated devices into status.devices of
// their ResourceClaims: conditions, network data and driver-specific data.
//
// If a device in a ResourceSlice has bindingConditions, the scheduler binds a Pod only
// when these conditions are true in the status. Users and other programs also read the
// address of a network device from the status. A DRA driver writes the status after it has
// prepared a claim, or earlier if the scheduler waits for a condition:
//
//	w, err := claimstatus.New(claimstatus.Config{Client: clientset.ResourceV1(), Driver: "nic.example.com"})
//	...
//	status := claimstatus.Bound(&result, "Attached", "The port is up.")
//	status.NetworkData = &resourcev1.NetworkDeviceData{InterfaceName: "net1", IPs: []string{"10.0.0.7/24"}}
//	claim, err = w.Write(ctx, claim, status)
//
// # Behavior
//
// A write is one server-side apply to the status. So drivers with devices in the same
// claim don't overwrite each other's status, and a write needs no read before it. If the
// claim already has the status, no request is sent. The time of a condition changes only
// with its status.
//
// # Permissions
//
// A driver needs the verb patch for resourceclaims/status. From Kubernetes 1.36
// on it also needs the verb associated-node:patch for resourceclaims/driver with
// the driver's name as resource name; a driver whose service account token isn't
// bound to a Pod on the claim's node needs arbitrary-node:patch.
//
// # Compatibility
//
// The package needs resource.k8s.io/v1 (Kubernetes 1.34).
package claimstatus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	resourcev1client "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/lifecycle"
)

// DefaultCallTimeout is the default deadline of the request that Write sends.
const DefaultCallTimeout = 10 * time.Second

var (
	// ErrNotAllocated is wrapped by the error of Write for a device that is not
	// allocated to the claim. The claim was deallocated, or another claim has its name.
	ErrNotAllocated = errors.New("claimstatus: the device is not allocated to the claim")
	// ErrDropped is wrapped by the error of Write if the API server stored the
	// claim without the status, because its feature DRAResourceClaimDeviceStatus
	// is off.
	ErrDropped = errors.New("claimstatus: the API server dropped the status of devices")
)

// Config configures a Writer. The zero value of an optional field means the
// default that its comment states.
type Config struct {
	// Required. Client writes ResourceClaims.
	Client resourcev1client.ResourceClaimsGetter
	// Required. Driver is the name of the DRA driver whose devices get a status.
	Driver string
	// Name is part of the field manager of the status, which is "kubewright-" and Name.
	// If two programs of one driver write to one claim, they need different names, even if
	// they write about different devices. With the same name, a Write of one program
	// removes the conditions and the data of the other. Default: the driver's name.
	Name string
	// CallTimeout is the deadline of the request that Write sends. Default:
	// DefaultCallTimeout.
	CallTimeout time.Duration
}

// A Writer writes the status of the devices of one driver. Its methods may be
// called by any goroutine.
type Writer struct{ cfg Config }

// New returns a Writer for a valid Config. The error lists every invalid field.
func New(cfg Config) (*Writer, error) {
	var problems []error
	if lifecycle.IsNil(cfg.Client) {
		problems = append(problems, field.Required(field.NewPath("Client"), "for example ResourceV1 of a clientset"))
	}
	if cfg.Driver == "" {
		problems = append(problems, field.Required(field.NewPath("Driver"), ""))
	}
	problems = append(problems, lifecycle.DefaultDuration("CallTimeout", &cfg.CallTimeout, DefaultCallTimeout, time.Millisecond)...)
	if cfg.Name == "" {
		cfg.Name = cfg.Driver
	}
	if err := lifecycle.InvalidConfig("claimstatus", problems); err != nil {
		return nil, err
	}
	return &Writer{cfg: cfg}, nil
}

// manager returns the field manager of the status.
func (w *Writer) manager() string { return "kubewright-" + w.cfg.Name }

// Bound returns the status of an allocated device with all its binding
// conditions true. A caller may add further conditions and data.
func Bound(device *resourcev1.DeviceRequestAllocationResult, reason, message string) resourcev1.AllocatedDeviceStatus {
	return statusOf(device, device.BindingConditions, reason, message)
}

// BindingFailed returns the status of an allocated device with its first binding
// failure condition true: the scheduler then gives the claim's devices up and
// looks for others.
func BindingFailed(device *resourcev1.DeviceRequestAllocationResult, reason, message string) resourcev1.AllocatedDeviceStatus {
	return statusOf(device, device.BindingFailureConditions[:min(1, len(device.BindingFailureConditions))], reason, message)
}

func statusOf(device *resourcev1.DeviceRequestAllocationResult, conditions []string, reason, message string) resourcev1.AllocatedDeviceStatus {
	status := resourcev1.AllocatedDeviceStatus{Driver: device.Driver, Pool: device.Pool, Device: device.Device}
	if device.ShareID != nil {
		status.ShareID = new(string(*device.ShareID))
	}
	for _, condition := range conditions {
		status.Conditions = append(status.Conditions, metav1.Condition{Type: condition, Status: metav1.ConditionTrue, Reason: reason, Message: message})
	}
	return status
}

// Write makes devices the status of the driver's devices in a claim, and returns
// the claim as stored. A condition, data or network data that this Writer wrote before
// and that is not in devices is removed; what another field manager wrote stays, also
// in the same device. Write logs a line if it overwrites what another one wrote. A condition
// that this Writer has overwritten can't be removed alone, because the API server refuses a
// condition without a reason: it stays as it is until the other field manager writes it again.
// claim is the claim as read last; Write does not change it. If its managedFields were
// stripped, Write takes the whole status of the driver for its own when it compares.
//
// Driver may be empty in devices. A condition without LastTransitionTime gets the
// time of the condition in claim if that has the same Status, otherwise the
// present time.
//
// The error is that of the API server, or wraps ErrNotAllocated or ErrDropped, or
// names an address in NetworkData.IPs that the API server would refuse: it needs a
// prefix length, as in 10.0.0.7/24.
// apierrors.IsNotFound is true if the claim was deleted; the error wraps
// ErrNotAllocated if another claim has its name now. Write sends at most one request and does not retry:
// the kubelet repeats the call of a driver that fails.
func (w *Writer) Write(ctx context.Context, claim *resourcev1.ResourceClaim, devices ...resourcev1.AllocatedDeviceStatus) (*resourcev1.ResourceClaim, error) {
	devices, err := w.complete(claim, devices)
	if err != nil {
		return nil, err
	}
	devices = w.keep(claim, devices)
	same, overwritten, removed := w.difference(claim, devices)
	if same {
		return claim, nil
	}
	for message, parts := range map[string][]string{
		"Overwriting the device status of another program":                               overwritten,
		"Removing binding conditions; a second program of the driver needs its own Name": removed,
	} {
		if len(parts) > 0 {
			klog.FromContext(ctx).Info(message, "claim", klog.KObj(claim), "driver", w.cfg.Driver, "parts", parts)
		}
	}
	type identity struct {
		Name      string    `json:"name"`
		Namespace string    `json:"namespace"`
		UID       types.UID `json:"uid"` // immutable, so another claim of that name is refused
	}
	patch, err := json.Marshal(map[string]any{
		"apiVersion": resourcev1.SchemeGroupVersion.String(),
		"kind":       "ResourceClaim",
		"metadata":   identity{claim.Name, claim.Namespace, claim.UID},
		"status":     map[string]any{"devices": devices},
	})
	if err != nil {
		return nil, fmt.Errorf("claimstatus: encode the status: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, w.cfg.CallTimeout)
	defer cancel()
	stored, err := w.cfg.Client.ResourceClaims(claim.Namespace).Patch(ctx, claim.Name, types.ApplyPatchType, patch,
		metav1.PatchOptions{FieldManager: w.manager(), Force: new(true)}, "status")
	stored, err = apierr.Answer(stored, err, claim.Name) // an empty answer of a proxy is none
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Details != nil &&
		slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" }) {
		return nil, fmt.Errorf("%w: claim %s/%s is another one now: %w", ErrNotAllocated, claim.Namespace, claim.Name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("claimstatus: write the status of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	for i := range devices {
		if find(stored.Status.Devices, &devices[i]) == nil {
			return stored, fmt.Errorf("%w: claim %s/%s", ErrDropped, claim.Namespace, claim.Name)
		}
	}
	return stored, nil
}

// complete returns devices with the driver's name and the times of conditions.
func (w *Writer) complete(claim *resourcev1.ResourceClaim, devices []resourcev1.AllocatedDeviceStatus) ([]resourcev1.AllocatedDeviceStatus, error) {
	now := metav1.Now().Rfc3339Copy() // the API has whole seconds
	complete := make([]resourcev1.AllocatedDeviceStatus, 0, len(devices))
	for i := range devices {
		device := devices[i].DeepCopy()
		if device.Driver == "" {
			device.Driver = w.cfg.Driver
		}
		if device.Driver != w.cfg.Driver || !allocated(claim, device) {
			return nil, fmt.Errorf("%w: device %s/%s/%s, claim %s/%s", ErrNotAllocated, device.Driver, device.Pool, device.Device, claim.Namespace, claim.Name)
		}
		var before []metav1.Condition
		if is := find(claim.Status.Devices, device); is != nil {
			before = is.Conditions
		}
		if device.NetworkData != nil {
			for j, ip := range device.NetworkData.IPs {
				path := field.NewPath("devices").Index(i).Child("networkData", "ips").Index(j)
				if problems := validation.IsValidInterfaceAddress(path, ip); len(problems) > 0 {
					return nil, fmt.Errorf("claimstatus: claim %s/%s: %w", claim.Namespace, claim.Name, problems.ToAggregate())
				}
			}
		}
		if device.Conditions == nil {
			device.Conditions = []metav1.Condition{} // the API server refuses null
		}
		for j := range device.Conditions {
			condition := &device.Conditions[j]
			if !condition.LastTransitionTime.IsZero() {
				continue
			}
			condition.LastTransitionTime = now
			if was := meta.FindStatusCondition(before, condition.Type); was != nil && was.Status == condition.Status {
				condition.LastTransitionTime = was.LastTransitionTime
			}
		}
		complete = append(complete, *device)
	}
	return complete, nil
}

// find returns the status of a device in all, or nil.
func find(all []resourcev1.AllocatedDeviceStatus, device *resourcev1.AllocatedDeviceStatus) *resourcev1.AllocatedDeviceStatus {
	i := slices.IndexFunc(all, func(is resourcev1.AllocatedDeviceStatus) bool {
		return is.Driver == device.Driver && is.Pool == device.Pool && is.Device == device.Device && equality.Semantic.DeepEqual(is.ShareID, device.ShareID)
	})
	if i < 0 {
		return nil
	}
	return &all[i]
}

func allocated(claim *resourcev1.ResourceClaim, device *resourcev1.AllocatedDeviceStatus) bool {
	if claim.Status.Allocation == nil {
		return false
	}
	return slices.ContainsFunc(claim.Status.Allocation.Devices.Results, func(r resourcev1.DeviceRequestAllocationResult) bool {
		return r.Driver == device.Driver && r.Pool == device.Pool && r.Device == device.Device &&
			(r.ShareID == nil) == (device.ShareID == nil) && (r.ShareID == nil || string(*r.ShareID) == *device.ShareID)
	})
}
