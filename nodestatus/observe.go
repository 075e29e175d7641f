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
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/listwatch"
	"github.com/kubewright/kubewright/internal/report"
)

// EventHandler returns a handler for an informer of Nodes. With it the controller
// sees at once, and without a request of its own, that a Node was deleted or
// replaced, and that another client has overwritten a condition that it owns, as
// kube-controller-manager does after an outage.
//
// A program that has an informer of Nodes must call EventHandler before Run: Run
// then starts no watch. Otherwise Run watches the Node of Config.NodeName. Nodes that
// came with [Controller.Add] are not watched without this handler: such changes are
// then seen in the answer to the next write.
//
// Nodes that are not managed are ignored. A program with a watch of its own may
// call the methods of the handler; they never block and do not keep the object.
func (c *Controller) EventHandler() cache.ResourceEventHandler {
	c.handled.Store(true)
	return c.handler()
}

func (c *Controller) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { c.observe(obj, false) },
		UpdateFunc: func(_, obj any) { c.observe(obj, false) },
		DeleteFunc: func(obj any) { c.observe(obj, true) },
	}
}

const (
	// listTimeout is the deadline of a list, which may wait in a queue of the API
	// server for a minute.
	listTimeout = time.Minute
	// refusedWatch is the time between two watches if the API server forbids them.
	refusedWatch = 5 * time.Minute
)

// watch watches the Node of Config.NodeName until ctx is done.
func (c *Controller) watch(ctx context.Context) {
	nodes := c.cfg.Client.Nodes()
	var forbidden report.Streak
	source := listwatch.New(listwatch.Config{
		List: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return nodes.List(ctx, opts)
		},
		Watch:         nodes.Watch,
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, c.cfg.NodeName).String(),
		ListTimeout:   max(listTimeout, c.cfg.CallTimeout),
		AnswerTimeout: c.cfg.CallTimeout,
		Retries:       backoff.Policy{Base: time.Second, Cap: 30 * time.Second},
		Outcome: func(ctx context.Context, err error) time.Duration {
			switch {
			case err == nil:
				forbidden.OK(ctx, "Watching the Node works again")
			case apierrors.IsForbidden(err):
				forbidden.Fail(ctx, c.cfg.ErrorHandler, fmt.Errorf("nodestatus: watch node %q: %w", c.cfg.NodeName, err),
					"Failed to watch the Node: changes by other clients are seen with the next write")
				return refusedWatch
			default: // the writes report an API server that is away
				klog.FromContext(ctx).V(4).Info("Failed to watch the Node", "err", err)
			}
			return 0
		},
	})
	informer := cache.NewSharedIndexInformerWithOptions(source, &corev1.Node{}, cache.SharedIndexInformerOptions{})
	// The calls fail only after the informer was started.
	_ = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		klog.FromContext(ctx).V(4).Info("Watch of the Node ended", "err", err)
	})
	_, _ = informer.AddEventHandler(c.handler())
	informer.RunWithContext(ctx)
}

// observe records an object that an informer shows.
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

// observe records an object that an informer shows, and reports whether it calls for
// a round.
func (st *state) observe(node *corev1.Node, deleted bool) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.phase == PhaseRegistering:
		return false // registering finds out on its own
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
