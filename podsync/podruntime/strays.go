// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	core "github.com/kubewright/kubewright/podsync/podruntime/internal/container"
)

// A stray is what the Runtime has of a pod that is not in Root. Provider.mu guards all of it but
// reports.
//
// Invariant: while removing is true, the Provider has no such pod, and no Start of it is under way.
type stray struct {
	reports  reports
	due      time.Time // the earliest time of the next try to remove it
	failures int       // in a row
	removing bool
}

// strayDelay is the time for which containers must have belonged to no pod before
// they are removed. A pod whose directory was lost is started again by podsync in
// that time, and adopts them.
const strayDelay = time.Minute

// sweep removes what the Runtime lists of pods that are not in Root. Each of them has a goroutine
// of its own, because a call about one may hang.
func (p *Provider) sweep(ctx context.Context, listed map[types.UID]listing) {
	var gone []*stray
	defer func() {
		for _, s := range gone {
			s.reports.ok(ctx, straying)
		}
	}()
	p.mu.Lock()
	defer p.mu.Unlock()
	now, owned := time.Now(), func(uid types.UID) bool { return p.pods[uid] != nil || p.starting[uid] }
	for uid, s := range p.strays {
		if _, ok := listed[uid]; !s.removing && (!ok || owned(uid)) {
			delete(p.strays, uid)
			gone = append(gone, s)
		}
	}
	for uid, l := range listed {
		switch s := p.strays[uid]; {
		case owned(uid):
		case s == nil:
			p.strays[uid] = &stray{reports: reports{groups: &p.groups}, due: now.Add(strayDelay)}
		case l.err == nil && !s.removing && !now.Before(s.due):
			s.removing = true
			p.wg.Go(func() { p.removeStray(ctx, uid, s, l.runs) })
		}
	}
}

// removeStray asks the containers of a stray to end, or removes what is left if none runs.
func (p *Provider) removeStray(ctx context.Context, uid types.UID, s *stray, runs []Container) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	running, err := p.stopAll(call, runs, 0)
	if err == nil && !running {
		err = p.forget(call, uid, runs)
	}
	if err != nil && ctx.Err() == nil { // sweep reports the success, when nothing is left
		s.reports.fail(ctx, straying, err, "Containers without a pod are still there", "uid", uid)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	wait := core.KillRetry
	if err == nil {
		s.failures = 0
	} else {
		wait = core.Preparation(s.failures)
		s.failures++
	}
	s.removing, s.due = false, time.Now().Add(wait)
}

// adopt keeps what the Runtime has of a pod while the pod is started, until done is called. It
// returns an error if that is being removed already.
func (p *Provider) adopt(uid types.UID) (done func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.strays[uid]; s != nil && s.removing {
		return nil, errors.New("podruntime: what the runtime had of the pod is being removed")
	}
	p.starting[uid] = true
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.starting, uid)
	}, nil
}

// end ends and removes what the Runtime has of a pod that is not in Root, because the directory
// was lost. It returns an error as long as a container runs.
func (p *Provider) end(ctx context.Context, uid types.UID, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	l, err := p.listPod(ctx, uid)
	if err != nil || len(l.runs) == 0 && l.sandbox == nil {
		return err
	}
	if running, err := p.stopAll(ctx, l.runs, grace); err != nil {
		return err
	} else if running {
		return errors.New("containers of the pod still run")
	}
	return p.forget(ctx, uid, l.runs)
}

// stopAll asks all containers to end, and reports whether one was listed as running. A later
// deadline changes nothing.
func (p *Provider) stopAll(ctx context.Context, runs []Container, grace time.Duration) (running bool, err error) {
	var errs []error
	for _, run := range runs {
		if run.State == ContainerRunning {
			running = true
			errs = append(errs, p.cfg.Runtime.Stop(ctx, run.ID, StopOptions{Deadline: time.Now().Add(max(grace, core.MinWindow))}))
		}
	}
	return running, errors.Join(errs...)
}

// forget removes everything that the Runtime has of a pod that has stopped.
func (p *Provider) forget(ctx context.Context, uid types.UID, runs []Container) error {
	var errs []error
	for _, run := range runs {
		errs = append(errs, p.cfg.Runtime.Remove(ctx, run.ID))
	}
	if s := p.caps.sandboxer; s != nil && errors.Join(errs...) == nil {
		errs = append(errs, s.TearDownPod(ctx, uid), s.RemovePod(ctx, uid))
	}
	return errors.Join(errs...)
}
