// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/nodestatus/internal/status"
)

// maxRequests is the number of requests about a node in a row: taints, and a status
// with its conflicts. Others follow after the next round.
const maxRequests = 8

// act sends the requests that a round asks for, if they are still to be sent. The queue
// acts for one node at a time.
func (c *Controller) act(ctx context.Context, name string) {
	ctx = withNode(ctx, name)
	if c.nodes.Part(ctx, name) {
		return
	}
	n, ok := c.nodes.Get(name)
	if !ok {
		return
	}
	for range maxRequests {
		if !c.gates.visit(withNode(c.life, name), n) {
			return // the answer queues the node again
		}
		r := n.next()
		if r.do == status.Nothing {
			break
		}
		if c.request(ctx, n, r); ctx.Err() != nil {
			return
		}
	}
	switch next := n.outlook(); {
	case next.Wait > 0:
		c.nodes.TriggerAfter(name, next.Wait)
	case next.Wants:
		c.Trigger(name)
	}
}

// request sends a request and takes in its answer.
func (c *Controller) request(ctx context.Context, n *node, r request) {
	logger := klog.FromContext(ctx)
	sent := r
	answer, latency, err := c.requests.send(ctx, n.name, r)
	found := false
	if class := apierr.Classify(err); r.do == status.Create && (class == apierr.AlreadyExists || class == apierr.Forbidden && ctx.Err() == nil) {
		// A Node that is there already is read. Who may not create Nodes may still be
		// allowed to keep one up to date.
		logger.V(4).Info("Looking for an existing Node instead of creating it", "err", err)
		existing, getLatency, getErr := c.requests.send(ctx, n.name, request{do: status.Read})
		switch {
		case getErr == nil:
			answer, found, err = existing, true, nil
		case class == apierr.AlreadyExists: // otherwise the first error is the reason why there is none
			sent, latency, err = request{do: status.Read}, getLatency, getErr
		}
	}
	if err != nil {
		c.failed(ctx, n, sent, err, latency)
		return
	}
	news := n.apply(status.Answered{Node: answer, Found: found, Draw: rand.Float64()})
	switch {
	case r.do == status.Taint:
		logger.V(2).Info("Added taints that the Node lacked")
		c.report.ok(ctx, n, tainting)
	case r.do != status.Read && !found:
		c.report.ok(ctx, n, calling)
	}
	c.report.news(ctx, n, news)
	if news.Wake {
		c.Trigger(n.name)
	}
	if r.do == status.Patch {
		logger.V(4).Info("Wrote status", "cause", r.cause, "bytes", len(r.patch), "latency", latency)
		c.report.written(n, Cause(r.cause), r.patch, latency)
	}
}

// failed takes in and reports the error of a request.
func (c *Controller) failed(ctx context.Context, n *node, r request, err error, latency time.Duration) {
	failed := status.Failed{
		Verdict: judge(err, n.name), Err: err, RetryAfter: apierr.RetryAfter(err),
		Committed: r.do == status.Create && apierr.MayHaveCommitted(err), Draw: rand.Float64(),
	}
	if ctx.Err() != nil {
		failed.Verdict = status.HungUp
	} else {
		c.report.failed(n, r.verb(), err, latency)
	}
	news := n.apply(failed)
	c.report.news(ctx, n, news)
	if n.outlook().Resting {
		c.report.leave(n, (*apierr.Group).Leave)
	}
	if news.Deleted != "" && c.cfg.OnDeleted == DeletedExit && n.name == c.cfg.NodeName {
		c.exit(fmt.Errorf("%w: node %q", ErrNodeDeleted, n.name))
	}
	switch {
	case !news.Counts:
	case r.do == status.Taint:
		c.report.fail(ctx, n, tainting, fmt.Errorf("nodestatus: taint node %q: %w", n.name, err), "Failed to add taints that the Node lacks")
	default:
		c.report.fail(ctx, n, calling, explainCall(n.name, r.verb(), err), "Failed to write node")
	}
}

const (
	// callTimeout is the deadline of one API call, its retries inside client-go included.
	callTimeout = 10 * time.Second
	// fieldManager is who managedFields names as the writer of Nodes.
	fieldManager = status.FieldManager
	// taintManager is who managedFields names as the writer of KeepTaints. It is another
	// one, because only a creation writes the spec in the name of fieldManager.
	taintManager = fieldManager + "-taints"
)

// A request is a request to the API server, and its body.
type request struct {
	do     status.Do
	cause  status.Cause
	create *corev1.Node
	patch  []byte
}

// verb returns the verb of the request, as hooks and errors have it.
func (r request) verb() string {
	switch r.do {
	case status.Create:
		return "create"
	case status.Read:
		return "get"
	}
	return "patch"
}

// A sender sends requests about Nodes.
type sender struct{ client corev1client.NodesGetter }

// send sends a request about the Node called name. It returns the time it took too.
func (s sender) send(ctx context.Context, name string, r request) (answer *corev1.Node, latency time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	nodes, begin := s.client.Nodes(), time.Now()
	switch r.do {
	case status.Create:
		answer, err = nodes.Create(ctx, r.create, metav1.CreateOptions{FieldManager: fieldManager})
	case status.Read:
		answer, err = nodes.Get(ctx, name, metav1.GetOptions{})
	case status.Patch:
		// The status subresource lets through all of the metadata: labels and annotations.
		answer, err = nodes.Patch(ctx, name, types.StrategicMergePatchType, r.patch, metav1.PatchOptions{FieldManager: fieldManager}, "status")
	case status.Taint:
		answer, err = nodes.Patch(ctx, name, types.MergePatchType, r.patch, metav1.PatchOptions{FieldManager: taintManager})
	}
	answer, err = apierr.Answer(answer, err, name)
	return answer, time.Since(begin), err
}

// remove deletes the Node if it is still the one with this uid.
func (s sender) remove(ctx context.Context, name string, uid types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return s.client.Nodes().Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
}

// judge returns the meaning of the error of a request about the Node.
func judge(err error, nodeName string) status.Verdict {
	switch apierr.Classify(err) {
	case apierr.NotFound:
		// Too much follows from a deleted Node to take the 404 of a proxy for one.
		if apierr.IsMissing(err, "nodes", nodeName) {
			return status.Gone
		}
		return status.Refused
	case apierr.Conflict:
		return status.Other
	case apierr.Invalid:
		if mentionsUID(err) {
			return status.Other
		}
		return status.Refused
	case apierr.AlreadyExists, apierr.Unauthorized, apierr.Forbidden:
		return status.Refused
	default:
		return status.Away
	}
}

// mentionsUID reports whether a 422 is about metadata.uid, which can't change:
// the patch was made for another object.
func mentionsUID(err error) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) || answer.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(answer.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}
