// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import "github.com/kubewright/kubewright/internal/enum"

// A DeletedPolicy says what to do when the Node was deleted by somebody else.
type DeletedPolicy int

const (
	// DeletedExit ends Run with [ErrNodeDeleted] where the node is
	// Config.NodeName; a node that came with Add falls idle as with
	// DeletedIdle, so that one of ten thousand does not end the others.
	// Deleting the Node is how StatefulSets are fenced from a lost machine: a
	// process that registers it again by itself undoes that.
	DeletedExit DeletedPolicy = iota
	// DeletedReregister creates the Node again after a SyncInterval. It is what
	// virtual nodes want, whose pods nobody fences.
	DeletedReregister
	// DeletedIdle makes no further call for the node until the event handler
	// sees a Node of this name, Resync asks to look for one, or it is removed
	// and added again.
	DeletedIdle
)

// String returns the name of the policy.
func (p DeletedPolicy) String() string {
	return enum.Name(p, "Exit", "Reregister", "Idle")
}

// A ReplacedPolicy says what to do when the Node of this name is another object
// than the one that was registered: it was deleted and created again.
type ReplacedPolicy int

const (
	// ReplacedAdopt serves the new object: the name is the identity.
	ReplacedAdopt ReplacedPolicy = iota
	// ReplacedExit ends Run with [ErrNodeReplaced] where the node is
	// Config.NodeName; a node that came with Add falls idle, and Resync adopts
	// the new object.
	ReplacedExit
)

// String returns the name of the policy.
func (p ReplacedPolicy) String() string {
	return enum.Name(p, "Adopt", "Exit")
}

// A ShutdownPolicy says what is written last for a node: before Run returns, and
// after Remove.
type ShutdownPolicy int

const (
	// ShutdownLeave writes nothing: a restart within the grace period is
	// invisible.
	ShutdownLeave ShutdownPolicy = iota
	// ShutdownNotReady makes Ready False with the reason [ReasonShutdown], so
	// that the scheduler and endpoints know at once.
	ShutdownNotReady
	// ShutdownUnregister deletes the Node, if it is still the object that was
	// served. A kubelet's identity may not: New refuses the combination with
	// Config.NodeCredentials.
	ShutdownUnregister
)

// String returns the name of the policy.
func (p ShutdownPolicy) String() string {
	return enum.Name(p, "Leave", "NotReady", "Unregister")
}
