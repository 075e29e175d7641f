// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/internal/enum"
)

// A Phase is the state of a node's registration.
type Phase int

const (
	// PhaseRegistering: the Node is being created or adopted.
	PhaseRegistering Phase = iota
	// PhaseRegistered: the Node is there and its status is kept.
	PhaseRegistered
	// PhaseDeleted: the Node was deleted, and nothing is written.
	PhaseDeleted
	// PhaseReplaced: the Node is another object, and nothing is written.
	PhaseReplaced
)

// String returns the name of the phase, fit for a label of a metric.
func (p Phase) String() string {
	return enum.Name(p, "Registering", "Registered", "Deleted", "Replaced")
}

// Status is the state of a node.
type Status struct {
	// Phase is the state of the registration.
	Phase Phase
	// UID is that of the registered Node, empty unless PhaseRegistered.
	UID types.UID
	// LastRound is when setters and checks ran last, zero before.
	LastRound time.Time
	// LastWrite is when the API server last accepted the status, zero before.
	LastWrite time.Time
	// Gated says that Gate did not let the Node be written when it was last asked.
	Gated bool
	// Failures is the number of API calls that failed since the last success.
	Failures int
	// LateRounds is the number of rounds in a row in which a health check did not
	// return in time.
	LateRounds int
	// LastError is the last error of an API call, nil after a success.
	LastError error
}

// Status returns the state of a node, and false if it is
// not served. It never blocks.
func (c *Controller) Status(nodeName string) (Status, bool) {
	st, ok := c.nodes.Get(nodeName)
	if !ok {
		return Status{}, false
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	s := Status{
		Phase:      st.phase,
		UID:        st.uid,
		LastRound:  c.at(st.lastRound),
		LastWrite:  c.at(st.lastWrite),
		LateRounds: int(st.lateRounds),
		Gated:      st.gated,
	}
	if st.trouble != nil {
		s.Failures, s.LastError = st.trouble.failures, st.trouble.err
	}
	return s, true
}

// at turns a time of state into one of the clock; 0 is never.
func (c *Controller) at(d time.Duration) time.Time {
	if d == 0 {
		return time.Time{}
	}
	return c.epoch.Add(d)
}

// Node returns the Node as the API server or the event handler showed it last,
// without managedFields, or nil before it was registered and after it was
// deleted. The caller may keep and change it. It never blocks.
func (c *Controller) Node(nodeName string) *corev1.Node {
	st, ok := c.nodes.Get(nodeName)
	if !ok {
		return nil
	}
	st.mu.Lock()
	view := st.view
	if st.phase != PhaseRegistered {
		view = nil // being adopted
	}
	st.mu.Unlock()
	return view.node()
}

// OwnerReference returns a reference to the registered Node, for objects that
// are to go when it goes, such as its Lease. It returns an error that
// apierrors.IsNotFound recognizes if the Node is not registered: not yet, or
// no longer. It never blocks and makes no call.
func (c *Controller) OwnerReference(_ context.Context, nodeName string) (metav1.OwnerReference, error) {
	st, ok := c.nodes.Get(nodeName)
	if ok {
		st.mu.Lock()
		defer st.mu.Unlock()
		ok = st.phase == PhaseRegistered
	}
	if !ok {
		return metav1.OwnerReference{}, apierrors.NewNotFound(corev1.Resource("nodes"), nodeName)
	}
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: nodeName, UID: st.uid}, nil
}

// lateRoundsLimit is the number of rounds in a row with a late health check after
// which the node counts as stuck.
const lateRoundsLimit = 3

// Live returns nil while the lease of the node should be renewed, and an error that
// says why if it should not: the Node is not registered; no round was completed for
// three intervals and the time that a round may take; or a health check has been
// late three rounds in a row. With Config.LiveNeedsStatus it is also an error if
// the API server has refused the status for GracePeriod. A node that is not Ready
// is alive: its status says so faster and better than a lease that runs out. An
// API server that is away, or without LiveNeedsStatus one that refuses the status,
// is no error: a lease that is renewed as soon as that is possible keeps the node.
//
// It never blocks and makes no call.
func (c *Controller) Live(_ context.Context, nodeName string) error {
	st, ok := c.nodes.Get(nodeName)
	if !ok {
		return fmt.Errorf("nodestatus: node %q is not served", nodeName)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	now := c.now()
	var refusedFor time.Duration
	if c.cfg.LiveNeedsStatus && st.trouble != nil && st.trouble.refusedSince != 0 {
		refusedFor = now - st.trouble.refusedSince
	}
	age := now - st.lastRound
	switch {
	case st.phase != PhaseRegistered:
		return fmt.Errorf("nodestatus: node %q is not registered (%v)", nodeName, st.phase)
	case age > c.patience():
		return fmt.Errorf("nodestatus: node %q: setters and health checks ran last %v ago", nodeName, age.Round(time.Second))
	case st.lateRounds >= lateRoundsLimit:
		return fmt.Errorf("nodestatus: node %q: a health check did not return in time for %d rounds", nodeName, st.lateRounds)
	case c.cfg.LiveNeedsStatus && refusedFor >= c.cfg.GracePeriod:
		return fmt.Errorf("nodestatus: node %q: the status has been refused for %v: %w", nodeName, refusedFor.Round(time.Second), st.trouble.err)
	}
	return nil
}
