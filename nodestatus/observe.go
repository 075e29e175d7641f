// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// EventHandler returns a handler for the informer of Nodes that the embedder
// has, if it has one: all Nodes of a fleet, or the one of a kubelet by field
// selector metadata.name. With it the controller sees at once, and at no cost
// to the API server, that the Node was deleted or replaced, and that somebody
// has overwritten a condition it owns, as kube-controller-manager does after an
// outage. Without it the same is seen in the answer to the next write.
//
// Objects of nodes that are not served are ignored. A program that watches by
// itself may call the handler's methods; they never block and do not keep the
// object.
func (c *Controller) EventHandler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { c.observe(obj, false) },
		UpdateFunc: func(_, obj any) { c.observe(obj, false) },
		DeleteFunc: func(obj any) { c.observe(obj, true) },
	}
}

// observe takes in what an informer shows.
func (c *Controller) observe(obj any, deleted bool) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	node, ok := obj.(*corev1.Node)
	if !ok {
		return
	}
	st, ok := c.nodes.Get(node.Name)
	if ok && st.observe(node, deleted) {
		c.nodes.Trigger(node.Name)
	}
}

// observe takes in what an informer shows, and reports whether it calls for a
// round.
func (st *state) observe(node *corev1.Node, deleted bool) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.phase == PhaseRegistering:
		return false // registering finds out by itself
	case st.phase == PhaseReplaced:
		return false // it is not ours, and only Resync may take it
	case st.phase == PhaseDeleted:
		// A Node that is there is worth a look; that it goes, not.
		st.look = st.look || !deleted
	case deleted || node.UID != st.uid:
		if node.UID != st.uid && !newer(node.ResourceVersion, st.view.resourceVersion) {
			return false // about an object that was here before ours
		}
		// What informers say of the past is not always so: a read decides.
		st.look = true
	default:
		st.watched = true
		before := st.view
		if !st.see(node) {
			return false // our own write, or older
		}
		st.foreign = true
		st.specChanged = st.specChanged || specDiffers(before.node(), node)
	}
	return true
}
