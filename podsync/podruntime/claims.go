// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcev1client "k8s.io/client-go/kubernetes/typed/resource/v1"

	"github.com/kubewright/kubewright/internal/record"
)

// DRADrivers calls the DRA drivers of the node. It is handed in, so that this module
// does not require grpc. Its methods are called for different pods at the same time, in the
// goroutine and with the context of the caller of [Claims].
type DRADrivers interface {
	// Prepare calls NodePrepareResources of a driver for one claim.
	Prepare(ctx context.Context, driver string, claim ClaimReference) ([]ClaimDevice, error)
	// Unprepare calls NodeUnprepareResources. A claim that is not prepared is no error.
	Unprepare(ctx context.Context, driver string, claim ClaimReference) error
}

// A ClaimReference names a ResourceClaim.
type ClaimReference struct {
	// Namespace is the namespace of the claim.
	Namespace string
	// Name is the name of the claim.
	Name string
	// UID is the UID of the claim.
	UID types.UID
}

// A ClaimDevice is a device that a driver has prepared for a claim.
type ClaimDevice struct {
	// Requests are the requests of the claim that the device is for; empty: all.
	Requests []string
	// CDI are the qualified names of its CDI devices.
	CDI []string
}

// Claims prepares the devices of resource claims for a [Runtime]. The Runtime must call
// Prepare before it makes the sandbox of a pod, Devices for each container, and Release
// after the last container has ended. A record of each pod is written to the disk before
// the first driver is called, so that nothing stays prepared if the process is killed.
//
// Its methods may be called concurrently.
type Claims struct {
	// Required. Dir is the directory of the records. It is created if it is missing.
	Dir string
	// Required. Client reads the claims.
	Client resourcev1client.ResourceClaimsGetter
	// Required. Drivers calls the drivers.
	Drivers DRADrivers

	mu   sync.Mutex
	held map[types.UID]chan struct{} // by claim; closed when it is given back
}

// HasClaims reports whether a pod has devices of resource claims: those in its spec, or the claim that the
// scheduler has made for its extended resources (KEP-5004). The [Checker] of a Runtime
// without Claims should reject such a pod.
func HasClaims(pod *corev1.Pod) bool { return len(claimsOf(pod)) > 0 }

// A claimOf is a claim that a pod needs.
type claimOf struct {
	ref  string // its name in the spec of the pod, or extendedRef
	name string // of the ResourceClaim; empty: none is needed
	made bool   // the ResourceClaim was made for the pod
	err  error  // not nil: it is not known yet
}

// extendedRef stands for the claim of a pod's extended resources, which has no name in the spec.
// No claim of a spec can have this name.
const extendedRef = "extended resources"

// claimsOf returns the claims that a pod needs.
func claimsOf(pod *corev1.Pod) (list []claimOf) {
	for i := range pod.Spec.ResourceClaims {
		ref := &pod.Spec.ResourceClaims[i]
		c := claimOf{ref: ref.Name}
		at := slices.IndexFunc(pod.Status.ResourceClaimStatuses, func(s corev1.PodResourceClaimStatus) bool { return s.Name == ref.Name })
		switch {
		case ref.ResourceClaimName != nil:
			c.name = *ref.ResourceClaimName
		case at < 0:
			c.err = errors.New("it has not been created yet")
		case pod.Status.ResourceClaimStatuses[at].ResourceClaimName != nil:
			c.name, c.made = *pod.Status.ResourceClaimStatuses[at].ResourceClaimName, true
		}
		list = append(list, c)
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		list = append(list, claimOf{ref: extendedRef, name: s.ResourceClaimName, made: true})
	}
	return list
}

// claimRecord is a claim of a pod in its record.
type claimRecord struct {
	Ref     string // the name of the claim in the spec of the pod, or extendedRef
	Claim   ClaimReference
	Drivers map[string][]ClaimDevice // nil devices: not prepared
}

func (c *Claims) file(pod types.UID) string { return filepath.Join(c.Dir, string(pod)+".json") }

// Prepare prepares the claims of a pod. It calls the drivers each time, because the
// machine may have been booted since the last call. A claim that has been deleted and created
// again since then is another one: the old one is unprepared first. An error means that the pod
// must wait, and Prepare can be called again.
func (c *Claims) Prepare(ctx context.Context, pod *corev1.Pod) error {
	if !HasClaims(pod) {
		return nil
	}
	var records []claimRecord
	for _, ref := range claimsOf(pod) {
		claim, err := c.allocated(ctx, pod, ref)
		if err != nil {
			return fmt.Errorf("podruntime: resource claim %s: %w", ref.ref, err)
		}
		if claim == nil {
			continue
		}
		r := claimRecord{ref.ref, ClaimReference{claim.Namespace, claim.Name, claim.UID}, map[string][]ClaimDevice{}}
		for _, result := range claim.Status.Allocation.Devices.Results {
			r.Drivers[result.Driver] = nil
		}
		records = append(records, r)
	}
	var before []claimRecord
	if _, err := record.Read(c.file(pod.UID), &before); err != nil {
		return err
	}
	old := slices.DeleteFunc(before, func(b claimRecord) bool {
		return slices.ContainsFunc(records, func(r claimRecord) bool { return r.Claim.UID == b.Claim.UID })
	})
	all := slices.Concat(records, old)
	giveBack, err := c.hold(ctx, all)
	if err != nil {
		return err
	}
	defer giveBack()
	if err := errors.Join(os.MkdirAll(c.Dir, 0o700), record.Write(c.file(pod.UID), all)); err != nil {
		return err
	}
	if err := c.unprepare(ctx, pod.UID, old); err != nil {
		return err
	}
	for _, r := range records {
		for driver := range r.Drivers {
			devices, err := c.Drivers.Prepare(ctx, driver, r.Claim)
			if err != nil {
				return fmt.Errorf("podruntime: prepare resource claim %s: driver %s: %w", r.Claim.Name, driver, err)
			}
			r.Drivers[driver] = append([]ClaimDevice{}, devices...)
		}
	}
	return record.Write(c.file(pod.UID), records)
}

// allocated returns the claim that ref refers to, or nil if the pod needs none.
func (c *Claims) allocated(ctx context.Context, pod *corev1.Pod, ref claimOf) (*resourcev1.ResourceClaim, error) {
	if ref.err != nil || ref.name == "" {
		return nil, ref.err
	}
	claim, err := c.Client.ResourceClaims(pod.Namespace).Get(ctx, ref.name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	ofGroup := func(r resourcev1.ResourceClaimConsumerReference) bool { return r.Resource == "podgroups" }
	mine := func(r resourcev1.ResourceClaimConsumerReference) bool {
		return r.APIGroup == "" && r.Resource == "pods" && r.UID == pod.UID
	}
	switch {
	case slices.ContainsFunc(claim.Status.ReservedFor, ofGroup):
		return nil, fmt.Errorf("%s belongs to a pod group, and claims of pod groups are not supported here", claim.Name)
	case ref.made && !metav1.IsControlledBy(claim, pod):
		return nil, fmt.Errorf("%s was not created for the pod", claim.Name)
	case claim.Status.Allocation == nil || !slices.ContainsFunc(claim.Status.ReservedFor, mine):
		return nil, fmt.Errorf("%s is not allocated to the pod", claim.Name)
	}
	return claim, nil
}

// Devices returns the sorted qualified names of the CDI devices of a container. It
// returns an error if a claim of the container is not prepared.
func (c *Claims) Devices(pod *corev1.Pod, container *corev1.Container) (names []string, err error) {
	wanted := slices.Clone(container.Resources.Claims)
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		for _, m := range s.RequestMappings {
			if m.ContainerName == container.Name {
				wanted = append(wanted, corev1.ResourceClaim{Name: extendedRef, Request: m.RequestName})
			}
		}
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	var records []claimRecord
	if found, err := record.Read(c.file(pod.UID), &records); err != nil {
		return nil, err
	} else if !found {
		return nil, errors.New("podruntime: the resource claims of the pod are not prepared")
	}
	for _, want := range wanted {
		for _, r := range records {
			if r.Ref != want.Name {
				continue
			}
			for driver, devices := range r.Drivers {
				if devices == nil {
					return nil, fmt.Errorf("podruntime: resource claim %s is not prepared by driver %s", r.Claim.Name, driver)
				}
				for _, d := range devices {
					if d.serves(want.Request) {
						names = append(names, d.CDI...)
					}
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// serves reports whether a device is for a request of a container. A request with
// alternatives (firstAvailable) is named as request/alternative by the driver.
func (d *ClaimDevice) serves(request string) bool {
	return request == "" || len(d.Requests) == 0 || slices.ContainsFunc(d.Requests, func(name string) bool {
		base, _, _ := strings.Cut(name, "/")
		return base == request
	})
}

// Release undoes Prepare, except for the claims of other pods. A pod without a record is
// no error.
func (c *Claims) Release(ctx context.Context, pod types.UID) error {
	var records []claimRecord
	if found, err := record.Read(c.file(pod), &records); err != nil || !found {
		return err
	}
	giveBack, err := c.hold(ctx, records)
	if err != nil {
		return err
	}
	defer giveBack()
	if err := c.unprepare(ctx, pod, records); err != nil {
		return err
	}
	return os.Remove(c.file(pod))
}

// unprepare unprepares those claims of a pod that no other pod has. The claims must be held.
func (c *Claims) unprepare(ctx context.Context, pod types.UID, claims []claimRecord) error {
	if len(claims) == 0 {
		return nil
	}
	shared, err := c.others(pod)
	if err != nil {
		return err
	}
	for _, r := range claims {
		if shared[r.Claim.UID] {
			continue
		}
		for driver := range r.Drivers {
			if err := c.Drivers.Unprepare(ctx, driver, r.Claim); err != nil {
				return fmt.Errorf("podruntime: unprepare resource claim %s: driver %s: %w", r.Claim.Name, driver, err)
			}
		}
	}
	return nil
}

// hold waits until no other call is about one of the claims, or ctx ends. If two pods have
// one claim, it must not be unprepared for one while it is prepared for the other. Calls
// about other claims go on, because a driver may hang.
func (c *Claims) hold(ctx context.Context, records []claimRecord) (giveBack func(), err error) {
	var mine []types.UID
	giveBack = func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, uid := range mine {
			close(c.held[uid])
			delete(c.held, uid)
		}
	}
	var wanted []types.UID
	for _, r := range records {
		wanted = append(wanted, r.Claim.UID)
	}
	slices.Sort(wanted) // in one order, so that no two calls wait for each other
	for _, uid := range slices.Compact(wanted) {
		for {
			other := c.take(uid)
			if other == nil {
				break
			}
			select {
			case <-other:
			case <-ctx.Done():
				giveBack()
				return nil, fmt.Errorf("podruntime: another call about the resource claim %s goes on: %w", uid, ctx.Err())
			}
		}
		mine = append(mine, uid)
	}
	return giveBack, nil
}

// take takes a claim, unless another call has it: then it returns the channel that is
// closed when it is given back.
func (c *Claims) take(claim types.UID) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if other := c.held[claim]; other != nil {
		return other
	}
	if c.held == nil {
		c.held = map[types.UID]chan struct{}{}
	}
	c.held[claim] = make(chan struct{})
	return nil
}

// others returns the claims in the records of all other pods.
func (c *Claims) others(pod types.UID) (map[types.UID]bool, error) {
	entries, err := os.ReadDir(c.Dir) // not Glob, which ignores errors and knows patterns in Dir
	if err != nil {
		return nil, err
	}
	claims := map[types.UID]bool{}
	for _, e := range entries {
		var records []claimRecord
		uid, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || uid == string(pod) {
			continue
		}
		if _, err := record.Read(filepath.Join(c.Dir, e.Name()), &records); err != nil {
			return nil, err
		}
		for _, r := range records {
			claims[r.Claim.UID] = true
		}
	}
	return claims, nil
}
