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
	fields   []string          // each of them as Config spells it
	running  sync.WaitGroup    // calls under way
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
	callCtx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	begin := time.Now()
	f.running.Go(func() {
		defer cancel()
		result.Err = callback.Contain(f.fields[i], func() error {
			if !setter {
				return f.checks[i-len(f.setters)](callCtx, n.name)
			}
			err := f.setters[i](callCtx, result.After)
			return cmp.Or(err, status.CheckConditions(result.After.Status.Conditions))
		})
		result.Late = time.Since(begin) >= functionTimeout
		news := n.apply(result)
		done <- result.Err
		if news.Wake {
			f.wake(n.name)
		}
	})
	err, ok := patience(wait).await(ctx, done, time.After)
	switch {
	case ok:
	case ctx.Err() != nil:
		err = ctx.Err()
	case n.apply(status.GaveUp{Index: i}).Late:
		err = status.ErrLate
		// The rest of the time is for a function that was late the last time, and is well now.
		time.AfterFunc(life-wait, cancel)
	default:
		err = <-done // it has returned this moment
	}
	return after, err
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
