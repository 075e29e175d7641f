// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/internal/callback"
)

var (
	errLate    = errors.New("did not return in time")
	errPending = errors.New("has not returned from an earlier call")
)

// collect runs the setters and health checks of a node and returns the Node that
// should be written, without times. It takes at most twice SetterTimeout, and
// returns nil if ctx ended in the meantime.
func (c *Controller) collect(ctx context.Context, name string, st *state) (node *corev1.Node, hash uint64) {
	checks := c.startChecks(ctx, name, st)
	stages, failures := c.runSetters(ctx, name, st)
	failures = append(failures, checks()...)
	if ctx.Err() != nil {
		return nil, 0
	}
	// The last setter may have put slices and maps of its own into its copy.
	node = stages[len(stages)-1].DeepCopy()
	node.Name = name
	c.reportFailures(ctx, name, st, failures)
	c.reportInvalid(ctx, name, st, dropInvalid(node, c.cfg.NodeCredentials))

	st.mu.Lock()
	defer st.mu.Unlock()
	late := slices.ContainsFunc(failures, func(f failure) bool { return f.check && f.late })
	switch {
	case !late:
		st.lateRounds = 0
	case st.lateRounds < math.MaxUint16:
		st.lateRounds++
	}
	st.complete = bits.OnesCount64(st.good) == len(c.cfg.Setters)
	st.lastRound = c.now()
	if st.firstRound == 0 {
		st.firstRound = st.lastRound
	}
	if st.extra != nil && st.extra.notReady != nil {
		failures = slices.Insert(failures, 0, failure{field: "SetNotReady", check: true, err: st.extra.notReady})
	}
	complementConditions(&node.Status, failures, st.complete, c.cfg.OmitPressure)
	canonical(node.Status.Capacity, node.Status.Allocatable)
	for key, value := range node.Annotations {
		node.Annotations[key] = text(value)
	}
	hash = fingerprint(c.seed, node)
	if hash != st.hash {
		st.noteKeys(stages)
	}
	return node, hash
}

// noteKeys records the keys that each setter has set. A status with the same fingerprint
// as before was set by the same setters. st.mu must be held.
func (st *state) noteKeys(stages []*corev1.Node) {
	for i := range len(stages) - 1 {
		st.set = withKeys(st.set, i, contribution(stages[i], stages[i+1]))
	}
}

// runSetters returns the Template, and the Node as each setter leaves it. For a setter
// that fails or is late, that Node has the setter's last values.
func (c *Controller) runSetters(ctx context.Context, name string, st *state) ([]*corev1.Node, []failure) {
	node := c.cfg.Template // shared by all nodes: only copies of it change
	stages := []*corev1.Node{node}
	var failures []failure
	deadline := time.Now().Add(2 * c.cfg.SetterTimeout)
	for i := range c.cfg.Setters {
		share := time.Until(deadline) / time.Duration(len(c.cfg.Setters)-i)
		scratch, err := c.runSetter(ctx, name, st, i, min(share, c.cfg.SetterTimeout), node)
		if err != nil {
			failures = append(failures, failure{field: setterField(i), late: isLate(err), err: err})
		}
		node = scratch
		stages = append(stages, node)
	}
	return stages, failures
}

// setterLife is the time before a setter's context ends, in multiples of SetterTimeout.
// A round does not wait for as long, but a result that comes late is better than
// none.
const setterLife = 6

// runSetter calls a setter with a copy of node and returns that copy as the setter
// has made it. It waits for wait, and not at all if the setter was late the last
// time: many slow nodes must not hold up the rounds of the others. If there is no
// result it returns a copy with the setter's last values, and an error.
func (c *Controller) runSetter(ctx context.Context, name string, st *state, i int, wait time.Duration, node *corev1.Node) (*corev1.Node, error) {
	errTooLate := fmt.Errorf("%w (%v)", errLate, c.cfg.SetterTimeout)
	switch st.beginSetter(i) {
	case setterBusy:
		return st.lastSet(i, node), errPending
	case setterArrived:
		return st.lastSet(i, node), errTooLate
	case setterSlow:
		wait = 0
	}
	scratch := node.DeepCopy()
	scratch.Name = name
	life := c.life
	if life == nil {
		life = ctx
	}
	callCtx, cancel := context.WithTimeout(life, setterLife*c.cfg.SetterTimeout)
	done := make(chan error, 1)
	start := time.Now()
	c.running.Go(func() {
		defer cancel()
		err := callback.Contain(setterField(i), func() error { return c.cfg.Setters[i](callCtx, scratch) })
		if err == nil {
			err = checkConditions(scratch.Status.Conditions)
		}
		arrived := st.endSetter(i, err == nil, time.Since(start) >= c.cfg.SetterTimeout, node, scratch)
		done <- err
		if arrived {
			c.nodes.Trigger(name)
		}
	})
	timer := time.NewTimer(wait)
	defer timer.Stop()
	var err error
	select {
	case err = <-done:
	case <-timer.C:
		if st.abandonSetter(i) {
			return st.lastSet(i, node), errTooLate
		}
		err = <-done // it has ended this moment
	case <-ctx.Done(): // removed, or Run ends
		cancel()
		return node, ctx.Err()
	}
	if err != nil {
		return st.lastSet(i, node), err
	}
	return scratch, nil
}

// The states of a setter in a round.
type setterState int

const (
	setterIdle    setterState = iota
	setterSlow                // idle, but it was late the last time
	setterBusy                // under way from an earlier round
	setterArrived             // it has succeeded since the last round, which has not waited for it
)

// beginSetter marks setter i as under way unless it is busy or has arrived.
func (st *state) beginSetter(i int) setterState {
	st.mu.Lock()
	defer st.mu.Unlock()
	bit, u := uint64(1)<<i, st.unwell
	if st.busySetters&bit != 0 {
		return setterBusy
	}
	if u != nil && u.arrived&bit != 0 {
		u.arrived &^= bit
		st.dropUnwell()
		return setterArrived
	}
	st.busySetters |= bit
	if u != nil && u.slow&bit != 0 {
		return setterSlow
	}
	return setterIdle
}

// abandonSetter makes the call of setter i late, and reports false if it has ended.
func (st *state) abandonSetter(i int) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.busySetters&(1<<i) == 0 {
		return false
	}
	st.markUnwell().late |= 1 << i
	return true
}

// endSetter records the end of a call of setter i, which has made after of before. It
// reports whether the setter has succeeded too late for its round.
func (st *state) endSetter(i int, ok, slow bool, before, after *corev1.Node) (arrived bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	bit := uint64(1) << i
	st.busySetters &^= bit
	if slow {
		st.markUnwell().slow |= bit
	}
	if ok {
		st.good |= bit
	}
	u := st.unwell
	if u == nil {
		return false
	}
	if arrived = u.late&bit != 0 && ok; arrived {
		u.arrived |= bit
		u.last[i] = contribution(before, after)
	}
	u.late &^= bit
	if !slow {
		u.slow &^= bit
		if !arrived {
			delete(u.last, i)
		}
	}
	st.dropUnwell()
	return arrived
}

// lastSet returns a copy of node with the last values of setter i: those that came
// late, or those that the server shows.
func (st *state) lastSet(i int, node *corev1.Node) *corev1.Node {
	st.mu.Lock()
	var last *corev1.Node
	if st.unwell != nil {
		last = st.unwell.last[i]
	}
	view, keys, good := st.view, st.set, st.good&(1<<i) != 0
	st.mu.Unlock()
	node = node.DeepCopy()
	switch {
	case last != nil:
		overlay(node, last.DeepCopy())
	case good && view != nil:
		overlay(node, keysOfSetter(keys, i).pick(view.node()))
	}
	return node
}

// startChecks starts the health checks and returns a function that waits for
// them.
func (c *Controller) startChecks(ctx context.Context, name string, st *state) (wait func() []failure) {
	errs := make([]error, len(c.cfg.HealthChecks))
	var running sync.WaitGroup
	for i := range c.cfg.HealthChecks {
		running.Go(func() {
			errs[i] = c.call(ctx, name, st, i)
		})
	}
	return func() []failure {
		running.Wait()
		var failures []failure
		for i, err := range errs {
			if err != nil {
				failures = append(failures, failure{field: checkField(i), check: true, late: isLate(err), err: err})
			}
		}
		return failures
	}
}

// setterField and checkField return a setter or health check as Config spells it.
func setterField(i int) string { return fmt.Sprintf("Setters[%d]", i) }
func checkField(i int) string  { return fmt.Sprintf("HealthChecks[%d]", i) }

func isLate(err error) bool { return errors.Is(err, errLate) || errors.Is(err, errPending) }

// call calls health check i and waits for it, but no longer than SetterTimeout. A
// check that is still under way from an earlier round is not called a second time;
// when it returns, the node is triggered, so that recovery needs no interval.
func (c *Controller) call(ctx context.Context, name string, st *state, i int) error {
	if !st.beginCheck(i) {
		return errPending
	}
	timeout := c.cfg.SetterTimeout
	callCtx, cancel := context.WithTimeout(ctx, timeout)
	done := make(chan error, 1)
	c.running.Go(func() {
		defer cancel()
		err := callback.Contain(checkField(i), func() error { return c.cfg.HealthChecks[i](callCtx, name) })
		if callCtx.Err() != nil {
			err = fmt.Errorf("%w (%v)", errLate, timeout)
		}
		missed := st.endCheck(i) // first: after done is read the next round may begin
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

// beginCheck marks health check i as under way. If it is already, beginCheck
// reports false and remembers that a round has missed it.
func (st *state) beginCheck(i int) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	bit := uint64(1) << i
	if st.busyChecks&bit != 0 {
		st.missed |= bit
		return false
	}
	st.busyChecks |= bit
	return true
}

// endCheck takes the mark back and reports whether a round has missed the check.
func (st *state) endCheck(i int) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	bit := uint64(1) << i
	missed := st.missed&bit != 0
	st.busyChecks &^= bit
	st.missed &^= bit
	return missed
}

// reportFailures tells hooks and, once per run of them, the error handler what
// failed.
func (c *Controller) reportFailures(ctx context.Context, name string, st *state, failures []failure) {
	if len(failures) == 0 {
		c.setting.OK(ctx, &st.setting, "All setters and health checks work again")
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
	c.setting.Fail(ctx, c.cfg.ErrorHandler, &st.setting, err, msg, "failed", strings.Join(texts, ","))
}

// reportInvalid reports, once, the parts left out of the status because the API
// server would refuse the whole of it.
func (c *Controller) reportInvalid(ctx context.Context, name string, st *state, problems []string) {
	text := strings.Join(problems, "; ")
	hash := maphash.String(c.seed, text)
	st.mu.Lock()
	uid, reported := st.uid, false
	if len(problems) > 0 {
		u := st.markUnwell()
		reported, u.problems = u.problems == hash, hash
	} else if st.unwell != nil {
		st.unwell.problems = 0
		st.dropUnwell()
	}
	st.mu.Unlock()
	if len(problems) == 0 {
		c.invalid.OK(ctx, &st.invalid, "No setter sets anything that the API server refuses")
		return
	}
	err := fmt.Errorf("nodestatus: node %q: left out of the status: %s", name, text)
	c.invalid.Fail(ctx, c.cfg.ErrorHandler, &st.invalid, err, "A setter has set what the API server refuses")
	if !reported {
		c.event(ctx, name, uid, corev1.EventTypeWarning, reasonInvalid, actionUpdate, "Left out of the status: "+text)
	}
}
