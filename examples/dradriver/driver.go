// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/kubewright/kubewright/resourceslice"
	"github.com/kubewright/kubewright/resourceslice/claimstatus"
	"github.com/kubewright/kubewright/resourceslice/claimstore"
	"github.com/kubewright/kubewright/resourceslice/sysfs"
)

// cdiKind is the vendor and class of the CDI devices.
const cdiKind = driverName + "/claim"

// driver answers the kubelet's calls.
type driver struct {
	sys    fs.FS
	cdiDir string
	pool   string
	claims *claimstore.Store[prepared]
	status *claimstatus.Writer
	stdout io.Writer
	fail   context.CancelCauseFunc

	mu      sync.Mutex
	devices map[string]nic
	changed chan struct{} // closed when devices are replaced
}

var _ kubeletplugin.DRAPlugin = (*driver)(nil)

// describe returns the device for a network interface, or nil if it is not on a
// PCI bus.
func describe(sys fs.FS, name string) (*nic, error) {
	dir := path.Join("class/net", name)
	attributes, err := sysfs.Attributes(sys, dir)
	if errors.Is(err, sysfs.ErrNotPCI) || errors.Is(err, fs.ErrNotExist) {
		return nil, nil // a virtual interface, or one that went away just now
	}
	if err != nil {
		return nil, err
	}
	one := &nic{MAC: read(sys, path.Join(dir, "address")), link: cmp.Or(read(sys, path.Join(dir, "operstate")), "unknown")}
	// The address stays when udev renames the interface.
	one.Name = "pci-" + strings.NewReplacer(":", "-", ".", "-").Replace(*attributes[sysfs.PCIBusID].StringValue)
	attributes["interfaceName"] = resourcev1.DeviceAttribute{StringValue: &name}
	one.Attributes = attributes
	return one, nil
}

// read returns the content of a file, empty if it can't be read.
func read(sys fs.FS, name string) string {
	content, err := fs.ReadFile(sys, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

// found records the present devices and wakes the health streams.
func (d *driver) found(devices map[string]nic) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.devices = devices
	close(d.changed)
	d.changed = make(chan struct{})
}

// prepared is what the driver remembers of a claim: the answer for the kubelet, the
// interfaces, which it can't see while a Pod has them, and the content of the CDI file, so
// that restore can write it again. The file has the UID of the claim in its name.
type prepared struct {
	Devices    []kubeletplugin.Device `json:"devices"`
	Interfaces []nic                  `json:"interfaces"`
	CDI        cdi.Spec               `json:"cdi"`
}

// PrepareResourceClaims writes a CDI file and the status of each claim. The
// kubelet calls it again until it succeeds, also after a restart.
func (d *driver) PrepareResourceClaims(ctx context.Context, claims []*resourcev1.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := make(map[types.UID]kubeletplugin.PrepareResult)
	for _, claim := range claims {
		state, err := d.claims.Prepare(ctx, claim, func(_ context.Context, begin func(prepared) error) (prepared, error) {
			return d.prepare(claim, begin)
		})
		if err == nil {
			_, err = d.status.Write(ctx, claim, d.statuses(claim, state)...)
		}
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: state.Devices, Err: err}
	}
	return results, nil
}

// prepare writes the CDI file of a claim.
func (d *driver) prepare(claim *resourcev1.ResourceClaim, begin func(prepared) error) (state prepared, err error) {
	// 1.1.0 is the first version with NetDevices.
	state.CDI = cdi.Spec{Version: "1.1.0", Kind: cdiKind}
	for _, result := range d.results(claim) {
		one, ok := d.device(result.Device)
		if !ok {
			return state, fmt.Errorf("device %s is not on this node", result.Device)
		}
		state.Interfaces = append(state.Interfaces, one)
		name := *one.Attributes["interfaceName"].StringValue
		// The name has the claim's UID, because runtimes cache CDI devices.
		id := string(claim.UID) + "-" + result.Device
		state.CDI.Devices = append(state.CDI.Devices, cdi.Device{Name: id, ContainerEdits: cdi.ContainerEdits{
			Env:        []string{"NIC_" + strings.ToUpper(strings.ReplaceAll(result.Request, "-", "_")) + "=" + name},
			NetDevices: []*cdi.LinuxNetDevice{{HostInterfaceName: name, Name: name}},
		}})
		state.Devices = append(state.Devices, kubeletplugin.Device{
			Requests: []string{result.Request}, PoolName: result.Pool, DeviceName: result.Device, CDIDeviceIDs: []string{cdiKind + "=" + id}, ShareID: result.ShareID,
		})
	}
	if err := begin(state); err != nil {
		return state, err
	}
	if err := d.writeCDI(claim.UID, &state.CDI); err != nil {
		return state, err
	}
	fmt.Fprintf(d.stdout, "prepared claim %s/%s\n", claim.Namespace, claim.Name)
	return state, nil
}

// statuses returns the status of the devices of a claim that is prepared. It is that of the
// record: a driver that has just started may not have seen the devices yet.
func (d *driver) statuses(claim *resourcev1.ResourceClaim, state prepared) (statuses []resourcev1.AllocatedDeviceStatus) {
	for _, result := range d.results(claim) {
		at := slices.IndexFunc(state.Interfaces, func(one nic) bool { return one.Name == result.Device })
		if at < 0 {
			continue
		}
		one := state.Interfaces[at]
		status := claimstatus.Bound(result, "Prepared", "The interface is ready for the Pod.")
		status.NetworkData = &resourcev1.NetworkDeviceData{InterfaceName: *one.Attributes["interfaceName"].StringValue, HardwareAddress: one.MAC}
		statuses = append(statuses, status)
	}
	return statuses
}

// results returns the allocation results of a claim that are for this driver.
func (d *driver) results(claim *resourcev1.ResourceClaim) (mine []*resourcev1.DeviceRequestAllocationResult) {
	for i := range claim.Status.Allocation.Devices.Results {
		if result := &claim.Status.Allocation.Devices.Results[i]; result.Driver == driverName && result.Pool == d.pool {
			mine = append(mine, result)
		}
	}
	return mine
}

func (d *driver) device(name string) (nic, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	one, ok := d.devices[name]
	return one, ok
}

// UnprepareResourceClaims removes the CDI files. The claims may be gone already.
func (d *driver) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := make(map[types.UID]error)
	for _, claim := range claims {
		results[claim.UID] = d.claims.Unprepare(ctx, claim.NamespacedName, claim.UID)
	}
	return results, nil
}

// unprepare undoes prepare, whatever of it was done.
func (d *driver) unprepare(_ context.Context, claim claimstore.Claim, _ prepared, _ claimstore.Phase) error {
	file := d.cdiFile(claim.UID)
	for _, name := range []string{file + unfinished, file} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	fmt.Fprintf(d.stdout, "unprepared claim %s\n", claim.NamespacedName)
	return nil
}

// restore writes the CDI file again if it is missing: /var/run is a tmpfs, and a node that
// is a container keeps its boot ID when it restarts. A driver with mounts, daemons or
// partitions looks at those too.
func (d *driver) restore(_ context.Context, claim claimstore.Claim, state prepared) (prepared, error) {
	content, err := json.Marshal(&state.CDI)
	if err != nil {
		return state, err
	}
	if now, err := os.ReadFile(d.cdiFile(claim.UID)); err == nil && bytes.Equal(now, content) {
		return state, nil
	}
	fmt.Fprintf(d.stdout, "restored claim %s\n", claim.NamespacedName)
	return state, d.writeCDI(claim.UID, &state.CDI)
}

// sweep removes CDI files whose claim has no record. A file names the devices of its claim,
// so it is left over if no record names the first of them.
func (d *driver) sweep(ctx context.Context) error {
	files, err := filepath.Glob(d.cdiFile("*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, file := range files {
		uid := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), driverName+"-"), ".json")
		var spec cdi.Spec
		content, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(content, &spec)
		}
		if err == nil && len(spec.Devices) == 0 {
			err = errors.New("it has none")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("the devices of %s: %w", file, err))
			continue
		}
		device := claimstore.Device{Pool: d.pool, Name: strings.TrimPrefix(spec.Devices[0].Name, uid+"-")}
		err = d.claims.Sweep(ctx, device, func(context.Context) error { return os.Remove(file) })
		if _, used := errors.AsType[*claimstore.DeviceHeldError](err); err != nil && !used {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// publisher returns the controller that publishes the devices.
func (d *driver) publisher(client kubernetes.Interface, hooks resourceslice.Hooks) (*resourceslice.Controller, error) {
	return resourceslice.New(resourceslice.Config{
		Client:   client.ResourceV1(),
		NodeName: d.pool,
		Owner:    resourceslice.NodeOwner(client.CoreV1().Nodes(), d.pool),
		Driver:   driverName,
		// A driver that starts before the kernel's drivers finds no device.
		HoldEmpty: 10 * time.Second,
		Hooks:     hooks,
		// The publisher recovers from all its errors.
		ErrorHandler: func(ctx context.Context, err error, msg string) {
			d.HandleError(ctx, fmt.Errorf("%w: %w", kubeletplugin.ErrRecoverable, err), msg)
		},
	})
}

// HandleError ends the driver after errors that it can't recover from.
func (d *driver) HandleError(ctx context.Context, err error, msg string) {
	klog.FromContext(ctx).Error(err, msg)
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		d.fail(fmt.Errorf("%s: %w", msg, err))
	}
}

// healthInterval is the interval of health reports; the kubelet forgets one
// after 30 seconds.
const healthInterval = 10 * time.Second

// WatchHealthStatus reports whether the interfaces have a link. The kubelet shows
// it in the status of Pods.
func (d *driver) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	for {
		var report kubeletplugin.DeviceHealthReport
		d.mu.Lock()
		changed := d.changed
		for name, one := range d.devices {
			health := kubeletplugin.DeviceHealth{PoolName: d.pool, DeviceName: name, Health: kubeletplugin.HealthStatusHealthy, LastUpdated: time.Now()}
			switch one.link {
			case "up":
			case "":
				health.Health, health.Message = kubeletplugin.HealthStatusUnknown, "The interface is in the network of a Pod, or it was unplugged there."
			default:
				health.Health, health.Message = kubeletplugin.HealthStatusUnhealthy, "The interface has no link."
			}
			report.Devices = append(report.Devices, health)
		}
		d.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case reports <- report:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-time.After(healthInterval):
		}
	}
}

func (d *driver) cdiFile(claim types.UID) string {
	return filepath.Join(d.cdiDir, driverName+"-"+string(claim)+".json")
}

// unfinished ends the name of a CDI file that is being written. A driver that is killed then
// leaves it, and runtimes ignore it.
const unfinished = ".tmp"

// writeCDI replaces a CDI file in one step, because a runtime may read it at any
// time.
func (d *driver) writeCDI(claim types.UID, spec *cdi.Spec) error {
	content, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.cdiDir, 0o755); err != nil {
		return err
	}
	name := d.cdiFile(claim)
	if err := os.WriteFile(name+unfinished, content, 0o644); err != nil {
		return err
	}
	return os.Rename(name+unfinished, name)
}
