// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/callback"
	"github.com/kubewright/kubewright/nodestatus/internal/status"
)

const (
	// gateLimit is the time after which a gate that has not answered counts as closed.
	gateLimit = 2500 * time.Millisecond
	// gatePatience is the time that a worker waits for a gate.
	gatePatience = 50 * time.Millisecond
)

// gates ask Config.Gate. A round waits for the answer without a worker. A worker that is
// about to send a request does not wait for long: when the answer is there, the node is
// queued again.
type gates struct {
	allows []GateFunc // all of them must be open
	room   callback.Room[struct{}]
	report *reporter
}

// gatesOf returns the gates of a Config.
func gatesOf(cfg *Config) (all []GateFunc) {
	if cfg.Gate != nil {
		all = append(all, cfg.Gate)
	}
	if cfg.Lease != nil {
		all = append(all, cfg.Lease.Holds)
	}
	return all
}

// call asks all gates.
func (g *gates) call(ctx context.Context, name string) error {
	for _, allows := range g.allows {
		if err := allows(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// ask asks the gate about a node, and reports whether it is closed, and whether that is
// because it gave no answer. ctx is for the wait; life must live as long as the node.
func (g *gates) ask(ctx context.Context, n *node) (closed, late bool) {
	if len(g.allows) == 0 {
		return false, false
	}
	_, err := g.room.Ask(ctx, n.name, &n.gate, func(ctx context.Context) (struct{}, error) { return struct{}{}, g.call(ctx, n.name) })
	if ctx.Err() != nil {
		return true, false
	}
	return g.answered(ctx, n, err)
}

// visit is ask for a worker. It reports false if there is no answer yet.
func (g *gates) visit(ctx context.Context, n *node) bool {
	if len(g.allows) == 0 {
		return true
	}
	_, err, _, ok := g.room.Visit(ctx, n.name, &n.gate, func(ctx context.Context) (struct{}, error) { return struct{}{}, g.call(ctx, n.name) })
	if ok {
		g.answered(ctx, n, err)
	}
	return ok
}

// answered takes in the answer of the gate of a node.
func (g *gates) answered(ctx context.Context, n *node, err error) (closed, late bool) {
	if callback.Failed(err) {
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
	_, late = errors.AsType[*callback.LateError](err)
	return err != nil, late
}
