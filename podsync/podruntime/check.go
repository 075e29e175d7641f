// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"errors"
	"fmt"
	"strings"
)

// check returns the invariants of the pod and its containers that do not hold, as sentences, or
// nil. Tests call it after each step of each pod; a Provider does not.
func (p *pod) check() error {
	var broken []string
	is := func(ok bool, format string, args ...any) {
		if !ok {
			broken = append(broken, fmt.Sprintf(format, args...))
		}
	}
	is(p.deadline == nil || p.starting.Err() != nil, "a pod that is being stopped starts nothing")
	is(!p.stopped || p.deadline != nil, "a pod has stopped only if it was being stopped")
	is(!p.tornDown || p.deadline != nil, "only a pod that is being stopped is torn down")
	is(!p.tearing || p.sandboxBusy, "a TearDownPod under way is a sandbox call under way")
	is(!p.stopped || !p.sandboxBusy, "a pod that has stopped has no sandbox call under way")
	is((p.sandboxFailures > 0) || p.sandboxFailure == nil || p.deadline != nil, "a sandbox failure is counted")
	for _, c := range p.containers {
		is(!p.stopped || !c.busy && (c.obs == nil || c.obs.State != ContainerRunning), "%s: nothing of a pod that has stopped runs", c.Name)
		for _, sentence := range c.check() {
			broken = append(broken, c.Name+": "+sentence)
		}
	}
	if len(broken) == 0 {
		return nil
	}
	return errors.New(strings.Join(broken, "; "))
}

// check returns the invariants of the container that do not hold.
func (c *container) check() (broken []string) {
	is := func(ok bool, sentence string) {
		if !ok {
			broken = append(broken, sentence)
		}
	}
	running := c.obs != nil && c.obs.State == ContainerRunning
	exited := c.obs != nil && c.obs.State == ContainerExited
	is(c.attempt >= -1, "attempt is at least -1")
	is(c.attempt >= 0 || c.rec == runRecord{} && c.obs == nil, "without a run there are no facts about one")
	is(c.obs == nil || c.obs.ID.Attempt == c.attempt, "obs is about run attempt")
	is(c.prev == nil || c.prev.ID.Attempt < c.attempt, "prev is about an older run")
	for _, attempt := range c.older {
		is(c.prev != nil && attempt < c.prev.ID.Attempt, "older runs are older than prev")
	}
	is(!c.busy || c.sent.IsZero() && c.hook == nil, "a run whose Start is under way is not being stopped")
	is(c.failures > 0 == (c.failure != nil), "the failures of starts are counted, and the last one is known")
	is(c.sent.IsZero() || !c.sentAt.IsZero(), "a Stop that was sent has a time")
	is(c.sentAt.IsZero() || running, "only a run that is listed as running is stopped")
	is(c.hook == nil || running, "only a run that is listed as running has a preStop hook under way")
	is(c.hook == nil || !c.hookBy.IsZero(), "a hook under way has a deadline")
	is(c.endBy.IsZero() || running, "only a run that is listed as running is ended by its probes or hooks")
	is(c.watch == nil || running && c.watch.attempt == c.attempt, "only the run that is listed as running is watched")
	is(!c.rec.Noted || exited, "only the message of a run that has exited is noted")
	is(!c.reading || exited && !c.rec.Noted, "the log is read for the message of a run that has exited")
	is(!c.rec.Ready || c.rec.Started || !running, "a running container is ready only after it has started")
	is(!c.rec.Started || c.rec.PostStarted, "the postStart hook precedes the startup probe")
	is(c.rec.Lost.IsZero() || !c.rec.Ran.IsZero(), "only a run that ran was lost")
	return broken
}
