// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/internal/report"
)

// Nodes are the Node objects that own leases. A *nodestatus.Controller has these methods.
// The type is an alias, so that another package can name it without an import of this one.
type Nodes = interface {
	// OwnerReference is an [OwnerFunc]. It is called if Config.Owner is nil.
	OwnerReference(ctx context.Context, nodeName string) (metav1.OwnerReference, error)
	// Live is a [GateFunc]. It is called after Config.Gate.
	Live(ctx context.Context, nodeName string) error
	// Trigger is called after the phase of the lease has changed, because Holds may return
	// something else from then on. It must not block.
	Trigger(nodeName string)
	// Resync is called after the lease was renewed again after it had expired, and after
	// another client has deleted it: the Node may be Unknown, or may not exist. It must not
	// block.
	Resync(nodeName string)
}

// Follow makes the leases follow nodes: a lease is renewed while its Node is registered and
// alive, and nodes learns of changes of the lease before the hooks are called. nodestatus.New
// calls it for nodestatus.Config.Lease. It returns an error after Run was called, at a second
// call, and if nodes is nil.
func (c *Controller) Follow(nodes Nodes) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case lifecycle.IsNil(nodes):
		return errors.New("lease: follow: no nodes")
	case c.once.Begun():
		return errors.New("lease: follow: Run was called before, without these nodes")
	case c.reporter.nodes != nil:
		return errors.New("lease: follow: the leases follow other nodes")
	}
	c.reporter.nodes, c.live = nodes, nodes.Live
	if c.cfg.Owner == nil {
		c.cfg.Owner = nodes.OwnerReference
	}
	return nil
}

// trigger calls Trigger of the nodes that the leases follow.
func (r *reporter) trigger(ctx context.Context, nodeName string) {
	if r.nodes != nil {
		report.Call(ctx, r.handler, "Trigger", func() { r.nodes.Trigger(nodeName) }, "lease", leaseRef(nodeName))
	}
}

// resync calls Resync of the nodes that the leases follow.
func (r *reporter) resync(ctx context.Context, nodeName string) {
	if r.nodes != nil {
		report.Call(ctx, r.handler, "Resync", func() { r.nodes.Resync(nodeName) }, "lease", leaseRef(nodeName))
	}
}
