// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/slots"
)

// fieldManager is who managedFields names as the writer of leases.
const fieldManager = "kubewright-lease"

// visit is the turn of a node, as its scheduler calls it.
func (c *Controller) visit(ctx context.Context, nodeName string, n *node) slots.Next {
	defer c.progress.Beat()
	if c.isLeaving(n) {
		c.leave(ctx, nodeName, n)
		return slots.Next{Wait: triggerGap} // unless it is gone now
	}
	if nodes := c.nodes.Len(); c.rateLimit.short(nodes, c.cfg.RenewInterval) {
		klog.FromContext(ctx).Info("Client allows fewer requests a second than the node leases need: renewals will be late", "nodes", nodes, "renewInterval", c.cfg.RenewInterval)
	}
	t := &turn{nodeName: nodeName, holder: c.holder(nodeName), process: c.process, mayFail: nodeName == c.cfg.NodeName}
	t.gateErr = c.gate(ctx, nodeName)
	if t.gateErr == nil {
		t.owner, t.ownerErr = c.owner(ctx, nodeName)
	}
	if ctx.Err() != nil {
		return slots.Next{} // what they said under a dead context means nothing
	}
	n.mu.Lock()
	next := n.begin(&c.rules, t, c.now())
	n.mu.Unlock()
	begun := time.Now()
	for next != done && ctx.Err() == nil {
		begun = time.Now()
		next = c.step(ctx, n, t, next)
	}
	if ctx.Err() == nil || t.written {
		c.report(ctx, n, t, time.Since(begun))
	}
	if n.renewed != never {
		t.next.Deadline = c.epoch.Add(n.renewed + c.cfg.Duration)
	}
	return t.next
}

// step carries out a step of a turn and returns the next one.
func (c *Controller) step(ctx context.Context, n *node, t *turn, did step) step {
	if did == ask {
		if hook := c.cfg.Hooks.Deleted; hook != nil {
			hook(Deleted{NodeName: t.nodeName})
		}
		t.owner, t.ownerErr = c.owner(ctx, t.nodeName)
		if ctx.Err() != nil {
			return done
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.asked(&c.rules, t, c.now())
	}
	lease, err := c.send(ctx, n, t, did)
	n.mu.Lock()
	defer n.mu.Unlock()
	if ctx.Err() != nil && err != nil {
		if did != get {
			n.mayBeStored(t)
		}
		return done
	}
	return n.after(&c.rules, t, did, lease, err, c.now())
}

// send sends the request of a step.
func (c *Controller) send(ctx context.Context, n *node, t *turn, did step) (lease *coordinationv1.Lease, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	ctx, ended := c.reset.begin(ctx)
	switch did {
	case create:
		lease, err = c.leases.Create(ctx, n.object(&c.rules, t, c.now()), metav1.CreateOptions{FieldManager: fieldManager})
	case update:
		lease, err = c.leases.Update(ctx, n.object(&c.rules, t, c.now()), metav1.UpdateOptions{FieldManager: fieldManager})
	default:
		lease, err = c.leases.Get(ctx, t.nodeName, metav1.GetOptions{})
	}
	if err == nil && lease.Name != t.nodeName {
		lease, err = nil, errAnswer
	}
	ended(err)
	return lease, err
}

// errAnswer is the error of an answer that can be decoded and still isn't one, such
// as an empty object of a proxy: it is no renewal.
var errAnswer = errors.New("the API server's answer is not about the lease")

// gate asks Gate.
func (c *Controller) gate(ctx context.Context, nodeName string) error {
	if c.cfg.Gate == nil {
		return nil
	}
	limit := c.cfg.RenewInterval / 4
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := c.cfg.Gate(ctx, nodeName); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("lease: gate of node %q: no answer within %v: %w", nodeName, limit, ctx.Err())
	}
	return nil
}

// owner asks Owner.
func (c *Controller) owner(ctx context.Context, nodeName string) (metav1.OwnerReference, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RenewInterval/4)
	defer cancel()
	return c.cfg.Owner(ctx, nodeName)
}

// holder is who we are in the lease of a node.
func (c *Controller) holder(nodeName string) string {
	if c.cfg.HolderIdentity != "" {
		return c.cfg.HolderIdentity
	}
	return nodeName
}
