// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/callback"
	"github.com/kubewright/kubewright/nodestatus/internal/status"
)

const (
	// functionTimeout is the longest duration of a setter or health check. All the
	// setters of a round share twice this time.
	functionTimeout = 5 * time.Second
	// setterLife is the time after which a setter's context ends. A round does not wait
	// for as long, but a result that comes late is better than none.
	setterLife = 6 * functionTimeout
	// briefly is the time that a round waits for a function that was late the last time.
	briefly = 20 * time.Millisecond
)

// functions calls the setters and health checks of nodes, which are numbered in this
// order.
type functions struct {
	template *corev1.Node // shared by all nodes: only copies of it change
	setters  []Setter
	checks   []HealthCheck
	fields   []string // each of them as Config spells it
	calls    callback.Calls
	wake     func(name string) // asks for a round
}

// A failure is a setter or health check that failed, or was late.
type failure struct {
	status.Failure
	err error
}

// collect runs the setters and health checks of a node, and returns the Node as the
// setters have made it. It takes at most twice functionTimeout.
func (f *functions) collect(ctx context.Context, n *node) (made *corev1.Node, failures []failure) {
	errs := make([]error, len(f.fields))
	var checks sync.WaitGroup
	for i := len(f.setters); i < len(errs); i++ {
		checks.Go(func() { _, errs[i] = f.run(ctx, n, i, functionTimeout, nil) })
	}
	made = f.template
	deadline := time.Now().Add(2 * functionTimeout)
	for i := range f.setters {
		share := time.Until(deadline) / time.Duration(len(f.setters)-i)
		made, errs[i] = f.run(ctx, n, i, min(share, functionTimeout), made)
	}
	checks.Wait()
	for i, err := range errs {
		if err == nil {
			continue
		}
		late := errors.Is(err, status.ErrLate) || errors.Is(err, status.ErrPending)
		failed := failure{err: err, Failure: status.Failure{Field: f.fields[i], Check: i >= len(f.setters), Late: late, Message: err.Error()}}
		if own, ok := errors.AsType[*NotReadyError](err); ok && failed.Check {
			failed.Reason, failed.Message = own.Reason, own.Message
		}
		failures = append(failures, failed)
	}
	return made, failures
}

// fieldsOf returns the functions of a Config as it spells them.
func fieldsOf(cfg *Config) (fields []string) {
	for i := range cfg.Setters {
		fields = append(fields, fmt.Sprintf("Setters[%d]", i))
	}
	for i := range cfg.HealthChecks {
		fields = append(fields, fmt.Sprintf("HealthChecks[%d]", i))
	}
	return fields
}

// run calls function i and waits for it. It returns what a setter has made of a copy of
// before. Without a result that is a copy with the setter's last values, and an error.
// What the function returns later goes into the next round.
func (f *functions) run(ctx context.Context, n *node, i int, wait time.Duration, before *corev1.Node) (after *corev1.Node, err error) {
	setter, life := i < len(f.setters), functionTimeout
	if setter {
		life = setterLife
		defer func() {
			if err != nil {
				n.read(func(s *status.State) { after = s.LastValues(i, before) })
			}
		}()
	}
	reached := n.apply(status.Reached{Index: i})
	switch reached.Plan {
	case status.Skip:
		return nil, reached.Err
	case status.CallBriefly:
		wait = briefly
	}
	result := status.Returned{Index: i, Before: before}
	if setter {
		after = before.DeepCopy()
		after.Name = n.name
		result.After = after
	}
	begin := time.Now()
	call := f.calls.Begin(ctx, f.fields[i], func(ctx context.Context) error {
		if !setter {
			return f.checks[i-len(f.setters)](ctx, n.name)
		}
		err := f.setters[i](ctx, result.After)
		return cmp.Or(err, status.CheckConditions(result.After.Status.Conditions))
	}, func(err error) {
		result.Err, result.Late = err, time.Since(begin) >= functionTimeout
		if n.apply(result).Wake {
			f.wake(n.name)
		}
	})
	err, ok := call.Wait(ctx, wait)
	switch {
	case ok:
	case ctx.Err() != nil:
		err = ctx.Err()
	case n.apply(status.GaveUp{Index: i}).Late:
		err = status.ErrLate
		call.Leave(life - wait) // the rest is for a function that was late the last time, and is well now
	default:
		err = call.Err() // it has returned this moment
	}
	return after, err
}

// gatePatience is the time that a worker waits for a gate.
const gatePatience = 50 * time.Millisecond

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
