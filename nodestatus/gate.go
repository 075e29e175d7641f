// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/callback"
	"github.com/kubewright/kubewright/nodestatus/internal/status"
)

// A gateAsker asks Config.Gate.
type gateAsker struct {
	allows GateFunc // nil: always open
	report *reporter
}

// ask asks the gate about a node, and reports whether it is closed.
func (g gateAsker) ask(ctx context.Context, n *node) (closed bool) {
	if g.allows == nil {
		return false
	}
	err := callback.Contain("Gate", func() error { return g.allows(ctx, n.name) })
	if _, panicked := errors.AsType[*callback.PanicError](err); panicked {
		g.report.fail(ctx, n, asking, fmt.Errorf("nodestatus: gate of node %q: %w", n.name, err), "Failed to ask the gate of the Node")
	} else {
		g.report.ok(ctx, n, asking)
	}
	switch turned := n.apply(status.GateAnswered{Closed: err != nil}).Gate; {
	case turned && err != nil:
		klog.FromContext(ctx).V(2).Info("Not writing the Node: the gate is closed", "reason", err)
	case turned:
		klog.FromContext(ctx).V(2).Info("Writing the Node again: the gate is open")
	}
	return err != nil
}
