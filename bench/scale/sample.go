// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// sample holds the observations at the end of an interval or during it.
type sample struct {
	At         float64 `json:"at"`         // seconds since the start of the contender
	Resident   uint64  `json:"resident"`   // bytes
	Heap       uint64  `json:"heap"`       // bytes, including garbage
	Goroutines int     `json:"goroutines"` // of the contender
	Cores      float64 `json:"cores"`      // used by the contender, on average
	APIServer  float64 `json:"apiServer"`  // cores
	Others     float64 `json:"others"`     // cores: etcd, the controller manager, and this program
	Requests   float64 `json:"requests"`   // of the contender, per second
	Running    int     `json:"running"`    // pods
	Ready      int     `json:"ready"`      // Nodes
	// Durations that ended in the interval: pods from bound to Running, and
	// from deleted to gone.
	Starts distribution `json:"starts"`
	Ends   distribution `json:"ends"`
}

// observer observes a running contender.
type observer struct {
	contender contender
	program   *program
	cluster   *cluster
	audit     *auditLog
	pods      *pods
	nodes     *nodes
	start     time.Time

	last    time.Time
	cpu     map[int]time.Duration // by PID
	samples []sample
}

// run takes samples until ctx is done.
func (o *observer) run(ctx context.Context, interval time.Duration) error {
	o.cpu = make(map[int]time.Duration)
	o.last = o.start
	if _, _, _, err := o.cores(time.Second); err != nil {
		return err
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		s, err := o.sample(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("sample: %w", err)
		}
		o.samples = append(o.samples, s)
	}
}

// sample takes one sample.
func (o *observer) sample(ctx context.Context) (s sample, err error) {
	now := time.Now()
	took := now.Sub(o.last)
	if err := o.audit.follow(); err != nil {
		return s, err
	}
	s.At = now.Sub(o.start).Seconds()
	_, s.Running = o.pods.counts()
	_, s.Ready = o.nodes.counts()
	s.Starts, s.Ends = o.pods.took(o.last, now)
	for _, r := range o.audit.between(o.last, now, o.is) {
		s.Requests += float64(r.Count) / took.Seconds()
	}
	var errs [4]error
	s.Cores, s.APIServer, s.Others, errs[0] = o.cores(took)
	s.Resident, errs[1] = residentSize(o.program.cmd.Process.Pid)
	s.Heap, errs[2] = heap(ctx, o.program.base, false)
	s.Goroutines, errs[3] = goroutines(ctx, o.program.base)
	o.last = now
	return s, errors.Join(errs[:]...)
}

// is reports whether agent is a user agent of the contender.
func (o *observer) is(agent string) bool { return strings.Contains(agent, o.contender.agent) }

// cores returns the number of cores used since the last call, which was took
// ago.
func (o *observer) cores(took time.Duration) (own, apiServer, others float64, err error) {
	used := func(pid int) float64 {
		now, e := cpuTime(pid)
		err = errors.Join(err, e)
		before := o.cpu[pid]
		o.cpu[pid] = now
		return (now - before).Seconds() / took.Seconds()
	}
	own = used(o.program.cmd.Process.Pid)
	apiServer = used(o.cluster.pid("kube-apiserver"))
	others = used(o.cluster.pid("etcd")) + used(o.cluster.pid("kube-controller-manager")) + used(os.Getpid())
	return own, apiServer, others, err
}
