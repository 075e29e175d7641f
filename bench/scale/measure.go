// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

const (
	// settle is the pause before the churn.
	settle = 10 * time.Second
	// patience bounds operations that should take seconds.
	patience = 2 * time.Minute
)

// trial is the run of one contender.
type trial struct {
	contender contender
	env       *environment
	o         options
	cluster   *cluster
	program   *program
	observer  *observer
	driver    *driver
	result    *result
}

// measure runs a contender on a fresh control plane. The result holds all
// measurements made, even if the run was aborted.
func measure(ctx context.Context, env *environment, launcher, name string, o options) *result {
	t := &trial{contender: contenders[name], env: env, o: o, result: &result{Name: name, What: contenders[name].what}}
	if err := t.run(ctx, launcher, name); err != nil {
		t.result.Error = err.Error()
	}
	return t.result
}

func (t *trial) run(ctx context.Context, launcher, name string) (err error) {
	executable, err := t.contender.build(ctx, t.env)
	if err != nil {
		return err
	}
	t.say("starting a control plane")
	if t.cluster, err = startCluster(ctx, launcher, fmt.Sprintf("scale-%d-%s", os.Getpid(), name)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.cluster.stop()) }()
	t.result.Kubernetes = t.cluster.Version
	if err := t.contender.grant(ctx, t.env, t.cluster); err != nil {
		return err
	}
	kubeconfig, err := t.cluster.serviceAccount(ctx, t.contender.account)
	if err != nil {
		return err
	}
	pods, nodes := newPods(), newNodes()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watchPods(ctx, t.cluster.client, pods)
	watchNodes(ctx, t.cluster.client, nodes)

	started := time.Now()
	if t.program, err = startProgram(ctx, t.env, name, executable, t.o, kubeconfig); err != nil {
		return err
	}
	defer func() { _ = t.program.stop(0) }() // the result already has the reason
	t.observer = &observer{
		contender: t.contender, program: t.program, cluster: t.cluster,
		audit: newAuditLog(t.cluster.AuditLog), pods: pods, nodes: nodes, start: started,
	}
	t.driver = newDriver(t.cluster.client, pods, nodes, t.o, t.contender.registers)

	sampling, stopSampling := context.WithCancel(ctx)
	var sampler sync.WaitGroup
	var sampleErr error
	sampler.Go(func() { sampleErr = t.observer.run(sampling, t.o.Interval) })
	running, ended := context.WithCancelCause(ctx)
	go func() {
		<-t.program.done
		ended(fmt.Errorf("the program ended unexpectedly: %w", t.program.err))
	}()
	err = t.stages(running)
	stopSampling()
	sampler.Wait()
	t.result.Samples = t.observer.samples
	t.result.Made = t.driver.made
	t.result.Trouble = t.driver.faults()
	t.result.Lost = pods.faults()
	if err := errors.Join(err, sampleErr); err != nil {
		return err
	}
	return t.finish(ctx)
}

// stages generates the load: ramp-up, churn and drain.
func (t *trial) stages(ctx context.Context) error {
	o, r, pods, nodes := t.o, t.result, t.observer.pods, t.observer.nodes
	allReady := func() bool { _, ready := nodes.counts(); return ready == o.Nodes }
	allRunning := func() bool { there, running := pods.counts(); return there == o.Pods && running == o.Pods }
	noneThere := func() bool { there, _ := pods.counts(); return there == 0 }

	if !t.contender.registers {
		t.driver.createNodes(ctx)
	}
	if err := t.wait(ctx, patience, "all Nodes to be Ready", allReady); err != nil {
		return err
	}
	r.NodesReady = time.Since(t.observer.start).Seconds()
	t.say("%d Nodes are Ready after %.0f s", o.Nodes, r.NodesReady)
	if err := t.footprint(ctx, &r.Empty); err != nil {
		return err
	}

	from := time.Now()
	t.driver.createPods(ctx)
	if err := t.wait(ctx, patience+t.slow(), "all pods to be Running", allRunning); err != nil {
		return err
	}
	if err := t.stage(&r.RampUp, from); err != nil {
		return err
	}
	t.say("%d pods are Running after %.0f s", o.Pods, r.RampUp.length())

	if err := sleep(ctx, settle); err != nil {
		return err
	}
	if err := t.footprint(ctx, &r.Loaded); err != nil {
		return err
	}
	before, err := serverHistograms(ctx, t.cluster.client)
	if err != nil {
		return err
	}
	flips := nodes.faults()
	from = time.Now()
	churning, stop := context.WithTimeout(ctx, o.Duration)
	t.driver.churn(churning)
	stop()
	if err := t.stage(&r.Churn, from); err != nil {
		return err
	}
	after, err := serverHistograms(ctx, t.cluster.client)
	if err != nil {
		return err
	}
	r.Server = latencies(before, after)
	// The checks report a load that does not settle.
	_ = t.wait(ctx, patience/2, "the churn to be worked off", func() bool { return allRunning() && allReady() })
	t.driver.away.Wait()
	r.Churn.Starts, r.Churn.Ends = pods.took(from, time.Now())
	r.Churn.Absences = nodes.took(from, time.Now())
	if err := t.afterChurn(ctx, flips); err != nil {
		return err
	}
	t.say("churn is over: %d of %d pods are Running, %d of %d Nodes Ready", r.Found.Running, o.Pods, r.Found.Ready, o.Nodes)

	from = time.Now()
	t.driver.deletePods(ctx)
	if t.wait(ctx, patience, "all pods to be gone", noneThere) != nil {
		var err error
		if r.Stuck, err = t.driver.forceDelete(ctx); err != nil {
			return err
		}
	}
	if err := t.stage(&r.Drain, from); err != nil {
		return err
	}
	t.say("all pods are gone after %.0f s; %d had to be deleted by force", r.Drain.length(), r.Stuck)
	if err := sleep(ctx, settle); err != nil {
		return err
	}
	return t.footprint(ctx, &r.Drained)
}

// afterChurn records the state after the churn. flips counts the flips before
// the churn.
func (t *trial) afterChurn(ctx context.Context, flips faults) (err error) {
	t.result.Flips = t.observer.nodes.faults()
	t.result.Flips.Count -= flips.Count
	t.result.Flips.Examples = t.result.Flips.Examples[len(flips.Examples):]
	if t.result.Found, err = look(ctx, t.cluster.client); err != nil {
		return err
	}
	return t.footprint(ctx, &t.result.Churned)
}

// finish stops the program, and records the objects that remain.
func (t *trial) finish(ctx context.Context) error {
	// Requests that the program aborts at its end do not count.
	end := time.Now()
	if err := t.program.stop(patience); err != nil {
		t.result.Ended = err.Error()
	}
	if !t.contender.registers {
		t.driver.deleteNodes(ctx)
	}
	// The leases belong to the Nodes, so the garbage collector deletes them.
	// The checks report those that remain.
	for deadline := time.Now().Add(patience); ; {
		var err error
		if t.result.Left, err = look(ctx, t.cluster.client); err != nil {
			return err
		}
		if t.result.Left == (survey{}) || time.Now().After(deadline) {
			break
		}
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
	}
	if err := t.observer.audit.follow(); err != nil {
		return err
	}
	t.result.Whole = t.observer.audit.between(t.observer.start, end, t.observer.is)
	return nil
}

// stage completes a stage that began at from and ends now.
func (t *trial) stage(s *stage, from time.Time) error {
	to := time.Now()
	if err := t.observer.audit.follow(); err != nil {
		return err
	}
	s.From, s.To = from.Sub(t.observer.start).Seconds(), to.Sub(t.observer.start).Seconds()
	s.Starts, s.Ends = t.observer.pods.took(from, to)
	s.Absences = t.observer.nodes.took(from, to)
	s.Own = t.observer.audit.between(from, to, t.observer.is)
	s.Others = t.observer.audit.between(from, to, func(agent string) bool { return !t.observer.is(agent) })
	return nil
}

// footprint records the current resource use of the program.
func (t *trial) footprint(ctx context.Context, f *footprint) error {
	var errs [3]error
	f.Resident, errs[0] = residentSize(t.program.cmd.Process.Pid)
	f.Heap, errs[1] = heap(ctx, t.program.base, true)
	f.Goroutines, errs[2] = goroutines(ctx, t.program.base)
	return errors.Join(errs[:]...)
}

// slow returns the additional time that a slow machine may need for all pods.
func (t *trial) slow() time.Duration { return time.Duration(t.o.Pods) * 20 * time.Millisecond }

// wait waits until a condition holds, at most for patience.
func (t *trial) wait(ctx context.Context, patience time.Duration, what string, holds func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("waited %v for %s", patience, what))
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}

// say prints the progress.
func (t *trial) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s %s: %s\n", time.Now().Format(time.TimeOnly), t.result.Name, fmt.Sprintf(format, args...))
}

// sleep waits for d, or returns the cause if ctx is done first.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
