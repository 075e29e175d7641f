// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

var (
	errLate    = errors.New("did not return in time")
	errPending = errors.New("has not returned from an earlier call")
)

// collect runs the setters and health checks of a node and returns the Node as
// it is to be said, without times. It takes at most twice SetterTimeout, and
// returns nil where ctx ended meanwhile.
func (c *Controller) collect(ctx context.Context, name string, st *state) *corev1.Node {
	checks := c.startChecks(ctx, name, st)
	node, failures := c.runSetters(ctx, name, st)
	failures = append(failures, checks()...)
	if ctx.Err() != nil {
		return nil
	}
	c.reportFailures(ctx, name, st, failures)
	if c.cfg.NodeCredentials {
		c.dropForbiddenLabels(ctx, name, st, node)
	}

	st.mu.Lock()
	defer st.mu.Unlock()
	late := slices.ContainsFunc(failures, func(f failure) bool { return f.late })
	setterFailed := slices.ContainsFunc(failures, func(f failure) bool { return !f.check })
	switch {
	case !late:
		st.lateRounds = 0
	case st.lateRounds < math.MaxUint16:
		st.lateRounds++
	}
	st.complete = st.complete || !setterFailed
	st.lastRound = c.now()
	if setterFailed {
		if err := keepLast(node, st.view.node(), decodeOwnership(st.owned)); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to keep what a setter said last")
		}
	}
	complementConditions(&node.Status, failures, st.complete, c.cfg.OmitPressure)
	canonical(node.Status.Capacity, node.Status.Allocatable)
	for key, value := range node.Annotations {
		node.Annotations[key] = text(value)
	}
	return node
}

// runSetters returns the Node as the setters have made it. Each works on a copy
// of its own, so that one that fails or comes late leaves nothing behind.
func (c *Controller) runSetters(ctx context.Context, name string, st *state) (*corev1.Node, []failure) {
	node := c.cfg.Template // shared by all nodes: only copies of it change
	var failures []failure
	deadline := time.Now().Add(2 * c.cfg.SetterTimeout)
	for i, set := range c.cfg.Setters {
		scratch := node.DeepCopy()
		scratch.Name = name
		share := time.Until(deadline) / time.Duration(len(c.cfg.Setters)-i)
		err := c.call(ctx, name, st, i, min(share, c.cfg.SetterTimeout), func(ctx context.Context) error { return set(ctx, scratch) })
		if err == nil {
			err = checkConditions(scratch.Status.Conditions)
		}
		if err != nil {
			failures = append(failures, failure{field: fmt.Sprintf("Setters[%d]", i), late: isLate(err), err: err})
			continue
		}
		node = scratch
	}
	// The last setter may have put slices and maps of its own into its copy.
	node = node.DeepCopy()
	node.Name = name
	return node, failures
}

// startChecks starts the health checks and returns a function that waits for
// them.
func (c *Controller) startChecks(ctx context.Context, name string, st *state) (wait func() []failure) {
	errs := make([]error, len(c.cfg.HealthChecks))
	var running sync.WaitGroup
	for i, check := range c.cfg.HealthChecks {
		running.Go(func() {
			errs[i] = c.call(ctx, name, st, maxFunctions+i, c.cfg.SetterTimeout, func(ctx context.Context) error { return check(ctx, name) })
		})
	}
	return func() []failure {
		running.Wait()
		var failures []failure
		for i, err := range errs {
			if err != nil {
				failures = append(failures, failure{field: fmt.Sprintf("HealthChecks[%d]", i), check: true, late: isLate(err), err: err})
			}
		}
		return failures
	}
}

func isLate(err error) bool { return errors.Is(err, errLate) || errors.Is(err, errPending) }

// call calls f and waits for it, but no longer than timeout. A function that is
// still under way from an earlier round is not called a second time; when it
// does return, the node is triggered, so that recovery needs no interval.
func (c *Controller) call(ctx context.Context, name string, st *state, number int, timeout time.Duration, f func(context.Context) error) error {
	if !st.begin(number) {
		return errPending
	}
	callCtx, cancel := context.WithTimeout(ctx, timeout)
	done := make(chan error, 1)
	c.running.Go(func() {
		defer cancel()
		err := f(callCtx)
		if callCtx.Err() != nil {
			err = fmt.Errorf("%w (%v)", errLate, timeout)
		}
		missed := st.end(number) // first: who reads done may begin the next round
		done <- err
		if missed {
			c.nodes.Trigger(name)
		}
	})
	select {
	case err := <-done:
		return err
	case <-callCtx.Done():
	}
	select {
	case err := <-done: // it has ended callCtx, after sending
		return err
	default:
		return fmt.Errorf("%w (%v)", errLate, timeout)
	}
}

// begin marks a setter or check as under way. Where it is already, begin
// reports false and remembers that a round has missed it.
func (st *state) begin(number int) bool {
	word, bit := number/maxFunctions, uint64(1)<<(number%maxFunctions)
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.busy[word]&bit != 0 {
		st.missed[word] |= bit
		return false
	}
	st.busy[word] |= bit
	return true
}

// end takes the mark back and reports whether a round has missed the function.
func (st *state) end(number int) bool {
	word, bit := number/maxFunctions, uint64(1)<<(number%maxFunctions)
	st.mu.Lock()
	defer st.mu.Unlock()
	missed := st.missed[word]&bit != 0
	st.busy[word] &^= bit
	st.missed[word] &^= bit
	return missed
}

// reportFailures tells hooks and, once per run of them, the error handler what
// failed.
func (c *Controller) reportFailures(ctx context.Context, name string, st *state, failures []failure) {
	if len(failures) == 0 {
		c.setters.OK(ctx, &st.setters, "All setters and health checks work again")
		return
	}
	var texts []string
	errs := make([]error, len(failures))
	for i, f := range failures {
		errs[i] = fmt.Errorf("%s: %w", f.field, f.err)
		texts = append(texts, f.field)
		if hook := c.cfg.Hooks.SetterFailed; hook != nil {
			hook(SetterFailed{NodeName: name, Field: f.field, Late: f.late, Err: f.err})
		}
	}
	err := fmt.Errorf("nodestatus: node %q: %w", name, errors.Join(errs...))
	msg := "Health check of node failed"
	if !failures[0].check { // setters come first
		msg = "Failed to determine the status of node"
	}
	c.setters.Fail(ctx, c.cfg.ErrorHandler, &st.setters, err, msg, "failed", strings.Join(texts, ","))
}

// dropForbiddenLabels takes out the labels for which the API server would
// refuse everything else that the write contains.
func (c *Controller) dropForbiddenLabels(ctx context.Context, name string, st *state, node *corev1.Node) {
	keys := forbiddenLabels(node.Labels)
	if len(keys) == 0 {
		c.labels.OK(ctx, &st.labels, "No setter sets labels any more that a node may not set")
		return
	}
	for _, key := range keys {
		delete(node.Labels, key)
	}
	err := fmt.Errorf("nodestatus: node %q: node credentials may not set the labels %s: they were left out; see MayLabel", name, strings.Join(keys, ", "))
	c.labels.Fail(ctx, c.cfg.ErrorHandler, &st.labels, err, "A setter has set labels that a node may not set")
}
