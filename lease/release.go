// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/internal/apierr"
)

// farewell returns the farewell of a node, or nil if OnShutdown leaves the lease.
func (c *Controller) farewell() func(ctx context.Context, nodeName string, n *node) {
	if c.cfg.OnShutdown == ShutdownLeave {
		return nil
	}
	return c.releaseAndReport
}

// releaseAndReport releases the lease of a node that was removed, or of each node
// when Run ends.
func (c *Controller) releaseAndReport(ctx context.Context, nodeName string, n *node) {
	lease := klog.KRef(corev1.NamespaceNodeLease, nodeName)
	switch released, err := c.release(ctx, nodeName, n); {
	case err != nil && errors.Is(ctx.Err(), context.Canceled): // Run ends, and releases the lease
	case err != nil:
		err = fmt.Errorf("lease: release of node %q: %w", nodeName, err)
		c.renewing.Fail(ctx, c.cfg.ErrorHandler, &n.renewing, err, "Failed to release node lease", "lease", lease, "onShutdown", c.cfg.OnShutdown)
	case released:
		klog.FromContext(ctx).V(2).Info("Released node lease", "lease", lease, "onShutdown", c.cfg.OnShutdown)
	}
}

// release applies OnShutdown to the lease, if it is still as we left it. It reports
// whether there was something to do.
func (c *Controller) release(ctx context.Context, nodeName string, n *node) (released bool, err error) {
	defer func() {
		if err != nil && ctx.Err() != nil {
			return // cut short, and perhaps to be tried again
		}
		n.mu.Lock()
		n.forget()
		n.phase = PhasePending
		n.mu.Unlock()
	}()
	if n.version != "" {
		err = c.giveUp(ctx, nodeName, n)
		if class := apierr.Classify(err); class != apierr.Conflict {
			return class == apierr.None, unlessGone(err)
		}
	} else if n.uid == "" && (n.trouble == nil || n.trouble.firstUnsure == 0) {
		return false, nil // nothing is ours
	}
	// A client has written or deleted it, perhaps we ourselves with a write whose
	// answer did not come. A lease that is not as we left it is not ours.
	lease, err := c.read(ctx, nodeName)
	if err != nil {
		return false, unlessGone(err)
	}
	renewTime := microseconds(lease.Spec.RenewTime)
	ours := n.uid == lease.UID && n.renewTime == renewTime || n.unsure(renewTime) && processOf(lease) == c.process
	if ptr.Deref(lease.Spec.HolderIdentity, "") != c.holder(nodeName) || !ours {
		return false, nil
	}
	n.mu.Lock()
	n.adopt(&turn{}, lease)
	n.mu.Unlock()
	err = c.giveUp(ctx, nodeName, n)
	if apierrors.IsConflict(err) {
		return false, nil // another client is writing it all the time
	}
	return err == nil, unlessGone(err)
}

func (c *Controller) read(ctx context.Context, nodeName string) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	return c.leases.Get(ctx, nodeName, metav1.GetOptions{})
}

// giveUp deletes the lease that n has or lets it expire, on condition that it
// is still that object in that version.
func (c *Controller) giveUp(ctx context.Context, nodeName string, n *node) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	if c.cfg.OnShutdown == ShutdownDelete {
		return c.leases.Delete(ctx, nodeName, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: ptr.To(n.uid), ResourceVersion: ptr.To(n.version)},
		})
	}
	_, err := c.leases.Update(ctx, n.expired(nodeName), metav1.UpdateOptions{FieldManager: fieldManager})
	return err
}

// unlessGone returns nil if there is nothing left to release.
func unlessGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
