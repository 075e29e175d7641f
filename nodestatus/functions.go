// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

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

var (
	errLate    = fmt.Errorf("did not return in time (%v)", functionTimeout)
	errPending = errors.New("has not returned from an earlier call")
)

func isLate(err error) bool { return errors.Is(err, errLate) || errors.Is(err, errPending) }

// functions calls the setters and health checks of nodes.
type functions struct {
	template *corev1.Node // shared by all nodes: only copies of it change
	setters  []Setter
	checks   []HealthCheck
	running  sync.WaitGroup    // calls under way
	wake     func(name string) // asks for a round
}

// A failure is a setter or health check that failed, or was late.
type failure struct {
	status.Failure
	err error
}

// collect runs the setters and health checks of a node. It takes at most twice
// functionTimeout, and reports false if ctx ended in the meantime.
func (f *functions) collect(ctx context.Context, n *node) (ended status.RoundEnded, failures []failure, ok bool) {
	checks := f.startChecks(ctx, n)
	ended = status.RoundEnded{Name: n.name, Stages: []*corev1.Node{f.template}}
	deadline := time.Now().Add(2 * functionTimeout)
	for i := range f.setters {
		share := time.Until(deadline) / time.Duration(len(f.setters)-i)
		stage, err := f.runSetter(ctx, n, i, min(share, functionTimeout), ended.Stages[i])
		ended.Stages = append(ended.Stages, stage)
		if err == nil {
			ended.Fresh = append(ended.Fresh, i)
		} else {
			failures = append(failures, newFailure(setterField(i), false, err))
		}
	}
	for i, err := range checks() {
		if err != nil {
			failures = append(failures, newFailure(checkField(i), true, err))
		}
	}
	for _, f := range failures {
		ended.Failures = append(ended.Failures, f.Failure)
	}
	return ended, failures, ctx.Err() == nil
}

// setterField and checkField return a setter or health check as Config spells it.
func setterField(i int) string { return fmt.Sprintf("Setters[%d]", i) }
func checkField(i int) string  { return fmt.Sprintf("HealthChecks[%d]", i) }

func newFailure(field string, check bool, err error) failure {
	f := failure{err: err, Failure: status.Failure{Field: field, Check: check, Late: isLate(err), Message: err.Error()}}
	if own, ok := errors.AsType[*NotReadyError](err); ok && check {
		f.Reason, f.Message = own.Reason, own.Message
	}
	return f
}

// runSetter calls setter i with a copy of before, waits for it, and returns the copy as
// the setter has made it. If there is no result it returns a copy with the setter's
// last values, and an error.
func (f *functions) runSetter(ctx context.Context, n *node, i int, wait time.Duration, before *corev1.Node) (*corev1.Node, error) {
	plan, _ := n.begin(i)
	switch plan {
	case status.Pending:
		return n.lastValues(i, before), errPending
	case status.Take:
		return n.lastValues(i, before), errLate
	case status.CallBriefly:
		wait = briefly
	}
	after := before.DeepCopy()
	after.Name = n.name
	callCtx, cancel := context.WithTimeout(ctx, setterLife)
	err := f.call(ctx, n, i, wait, func() status.Returned {
		defer cancel()
		err := callback.Contain(setterField(i), func() error { return f.setters[i](callCtx, after) })
		if err == nil {
			err = status.CheckConditions(after.Status.Conditions)
		}
		return status.Returned{Err: err, Before: before, After: after}
	})
	if err != nil {
		return n.lastValues(i, before), err
	}
	return after, nil
}

// startChecks starts the health checks and returns a function that waits for their errors.
func (f *functions) startChecks(ctx context.Context, n *node) (wait func() []error) {
	errs := make([]error, len(f.checks))
	var running sync.WaitGroup
	for i := range f.checks {
		running.Go(func() { errs[i] = f.runCheck(ctx, n, i) })
	}
	return func() []error {
		running.Wait()
		return errs
	}
}

// runCheck calls health check i and waits for it.
func (f *functions) runCheck(ctx context.Context, n *node, i int) error {
	index := len(f.setters) + i
	plan, arrived := n.begin(index)
	wait := functionTimeout
	switch plan {
	case status.Pending:
		return errPending
	case status.Take:
		return arrived
	case status.CallBriefly:
		wait = briefly
	}
	callCtx, cancel := context.WithCancel(ctx)
	err := f.call(ctx, n, index, wait, func() status.Returned {
		defer cancel()
		return status.Returned{Err: callback.Contain(checkField(i), func() error { return f.checks[i](callCtx, n.name) })}
	})
	if isLate(err) {
		// The rest of the time is for a check that was late the last time, and is well now.
		time.AfterFunc(functionTimeout-wait, cancel)
	}
	return err
}

// call calls a function of the node, and waits for it. What it returns later goes into
// the next round.
func (f *functions) call(ctx context.Context, n *node, index int, wait time.Duration, function func() status.Returned) error {
	done := make(chan error, 1)
	begin := time.Now()
	f.running.Go(func() {
		result := function()
		result.Index, result.Late = index, time.Since(begin) >= functionTimeout
		news := n.apply(result)
		done <- result.Err
		if news.Wake {
			f.wake(n.name)
		}
	})
	if err, ok := patience(wait).await(ctx, done, time.After); ok {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if n.giveUp(index) {
		return errLate
	}
	return <-done // it has returned this moment
}

// patience is a time to wait. It is counted in a few steps, each of which counts for no
// more than its length: a process that was stopped for a while has not waited, and what
// it waits for may be well.
type patience time.Duration

const patienceSteps = 5

// await waits for a value of done, and reports false if none came, or ctx is done.
func (p patience) await(ctx context.Context, done <-chan error, after func(time.Duration) <-chan time.Time) (error, bool) {
	for range patienceSteps {
		select {
		case err := <-done:
			return err, true
		case <-after(time.Duration(p) / patienceSteps):
		case <-ctx.Done():
			return nil, false
		}
	}
	return nil, false
}
