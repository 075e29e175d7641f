// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"iter"

	corev1 "k8s.io/api/core/v1"
)

// The interfaces below are optional capabilities of a Provider. New looks for
// them once, by type assertion: a decorator must have the methods of what it
// wraps.

// An Updater takes changes of a running pod's spec. A provider without it is
// not told of them, and they are acknowledged in status.observedGeneration.
type Updater interface {
	// Update brings the running pod to a new spec. It is repeated until it
	// returns nil, always with the newest pod; the rules of [Provider] for
	// Start hold for it. It is never called for a pod that is to stop.
	Update(ctx context.Context, pod *corev1.Pod) (State, error)
}

// A Watcher reports changes by itself, so that List is needed only to catch
// what was missed.
type Watcher interface {
	// Watch calls report for each change until ctx is done, and then returns.
	// It is where a provider that needs a loop of its own runs it. If it
	// returns sooner, whatever it returns, it is called again after a
	// backoff, and List is called.
	//
	// report never blocks and may be called from any goroutine, also during
	// other calls. It must not be called after Watch has returned; use
	// [Controller.Report] for that.
	Watch(ctx context.Context, report func(State)) error
}

// An Inspector looks up one pod, cheaply. With it a pod that List left out is
// known to be lost at once and not after a second List.
type Inspector interface {
	// Inspect returns the state of the pod, or an error that wraps
	// [ErrNotFound] if the provider does not hold it. Any other error means
	// that nothing is known.
	Inspect(ctx context.Context, ref Ref) (State, error)
}

// A Releaser separates ending a pod from forgetting it. With it the exit codes
// of a stopped pod survive a crash of this process, because List still returns
// them: a provider whose pods outlive the process should have it.
type Releaser interface {
	// Release forgets a stopped pod: its exit codes, logs and disks. It is
	// called once the API does not need them any more, and repeated until it
	// returns nil. A pod that the provider does not know is no error.
	Release(ctx context.Context, ref Ref) error
}

// An Admitter decides whether a pod may start at all, knowing those that have
// been admitted.
type Admitter interface {
	// Admit returns nil to let pod start, a rejection (see [Reject]) to fail it
	// for good, or another error to be asked again later. It is called once
	// for each new pod before its first Start, for one pod of this Controller
	// at a time, so that two pods are not both given the last place; it should
	// decide from memory, since the next pod waits. active are the pods admitted
	// before that have not stopped, including those adopted at the start. They
	// are copies made on iteration.
	Admit(ctx context.Context, pod *corev1.Pod, active iter.Seq[*corev1.Pod]) error
}

// capabilities are the optional methods of a provider, nil where it has none.
type capabilities struct {
	updater   Updater
	watcher   Watcher
	inspector Inspector
	releaser  Releaser
	admitter  Admitter
}

func capabilitiesOf(p Provider) (c capabilities) {
	c.updater, _ = p.(Updater)
	c.watcher, _ = p.(Watcher)
	c.inspector, _ = p.(Inspector)
	c.releaser, _ = p.(Releaser)
	c.admitter, _ = p.(Admitter)
	return c
}
