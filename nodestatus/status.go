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
	"github.com/kubewright/kubewright/nodestatus/internal/status"
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
)

// String returns the name of the phase, fit for a label of a metric.
func (p Phase) String() string {
	return enum.Name(p, "Registering", "Registered", "Deleted")
}

func phaseOf(p status.Phase) Phase {
	switch p {
	case status.Registered:
		return PhaseRegistered
	case status.Deleted:
		return PhaseDeleted
	}
	return PhaseRegistering
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
	// GateClosed says that Gate did not let the Node be written when it was last asked.
	GateClosed bool
	// Failures is the number of API calls that failed since the last success.
	Failures int
	// LateRounds is the number of rounds in a row in which a health check did not
	// return in time.
	LateRounds int
	// Overloaded says that rounds begin more than SyncInterval late, because there are
	// too few Workers for all nodes of the Controller.
	Overloaded bool
	// LastError is the last error of an API call, nil after a success.
	LastError error
}

// Status returns the state of a node, and false if it is
// not managed. It never blocks.
func (c *Controller) Status(nodeName string) (Status, bool) {
	n, ok := c.nodes.Get(nodeName)
	if !ok {
		return Status{}, false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	f := n.state.Figures()
	_, overloaded := c.nodes.Overloaded()
	return Status{
		Phase: phaseOf(n.state.Phase()), UID: n.state.UID(),
		LastRound: c.clock.at(f.LastRound), LastWrite: c.clock.at(f.LastWrite),
		GateClosed: f.Closed, Failures: f.Failures, LateRounds: f.LateRounds, Overloaded: overloaded, LastError: f.Err,
	}, true
}

// Node returns the Node as the API server or the event handler showed it last,
// without managedFields, or nil before it was registered and after it was
// deleted. The caller may keep and change it. It never blocks.
func (c *Controller) Node(nodeName string) *corev1.Node {
	var shown *corev1.Node
	if n, ok := c.nodes.Get(nodeName); ok {
		n.read(func(s *status.State) { shown = s.Node() })
	}
	return shown
}

// OwnerReference returns a reference to the registered Node, for objects that
// are to go when it goes, such as its Lease. It returns an error that
// apierrors.IsNotFound recognizes if the Node is not registered: not yet, or
// no longer. It never blocks and makes no call.
func (c *Controller) OwnerReference(_ context.Context, nodeName string) (metav1.OwnerReference, error) {
	if n, ok := c.nodes.Get(nodeName); ok {
		if uid := n.uid(); uid != "" {
			return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: nodeName, UID: uid}, nil
		}
	}
	return metav1.OwnerReference{}, apierrors.NewNotFound(corev1.Resource("nodes"), nodeName)
}

// Live returns nil while the lease of the node should be renewed, and an error that
// says why if it should not: the Node is not registered; no round was completed for
// three intervals and the time that a round may take; or a health check has been
// late three rounds in a row. A node that is not Ready is alive: its status says so
// faster and better than a lease that runs out. An API server that is away or refuses
// the status is no error: a lease that is renewed keeps the node.
//
// It never blocks and makes no call.
func (c *Controller) Live(_ context.Context, nodeName string) error {
	n, ok := c.nodes.Get(nodeName)
	if !ok {
		return fmt.Errorf("nodestatus: node %q is not managed", nodeName)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.state.Live(n.clock.now(), c.patience()); err != nil {
		return fmt.Errorf("nodestatus: node %q: %w", nodeName, err)
	}
	return nil
}
