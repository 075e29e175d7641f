// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/callback"
	"github.com/kubewright/kubewright/internal/slots"
	"github.com/kubewright/kubewright/lease/internal/plan"
)

// fieldManager is the name of this writer in managedFields.
const fieldManager = "kubewright-lease"

// patience is how long a worker waits for Gate and Owner. For an answer from memory that
// is long, and a thousand nodes whose answers take longer cost the workers 50 s, once.
const patience = 50 * time.Millisecond

// node is a managed node. The lease is written under mu by the one turn that the
// node has at a time, which may read it without mu.
type node struct {
	mu    sync.Mutex
	lease plan.Lease

	asked   callback.Line[plan.Consent] // of the turns
	reports reports
}

func newNode() *node { return &node{lease: plan.New()} }

// visit runs the turn of a node. The scheduler calls it.
func (c *Controller) visit(ctx context.Context, nodeName string, n *node) slots.Next {
	defer c.progress.Beat()
	if c.nodes.Part(ctx, nodeName) {
		return slots.Next{}
	}
	// The call must live as long as Run. The scheduler visits again when it has returned.
	consent, err, wait, ok := c.room.Visit(c.work, nodeName, &n.asked, func(ctx context.Context) (plan.Consent, error) { return c.ask(ctx, nodeName), nil })
	if ctx.Err() != nil {
		return slots.Next{} // answers under a dead context mean nothing
	}
	next := slots.Next{Wait: wait, Unpaced: !ok}
	if ok {
		if err != nil {
			consent = plan.Consent{Gate: err}
		}
		consent.NodeName, consent.Holder = nodeName, c.holder(nodeName)
		c.apply(ctx, nodeName, n, consent)
		next.Wait = c.turn(ctx, nodeName, n, &consent)
	}
	if renewed := n.lease.Renewed(); renewed != plan.Never {
		next.Deadline = c.epoch.Add(renewed + c.cfg.Duration)
	}
	return next
}

// ask calls the gates and, if all are open, Owner.
func (c *Controller) ask(ctx context.Context, nodeName string) (consent plan.Consent) {
	for _, gate := range [...]GateFunc{c.cfg.Gate, c.live} {
		if gate == nil {
			continue
		}
		if consent.Gate = callback.Contain("Gate", func() error { return gate(ctx, nodeName) }); consent.Gate != nil {
			return consent
		}
	}
	owner, err := callback.Get("Owner", func() (metav1.OwnerReference, error) { return c.cfg.Owner(ctx, nodeName) })
	if err != nil {
		consent.OwnerErr, consent.NodeGone = fmt.Errorf("lease: owner of the lease of node %q: %w", nodeName, err), apierrors.IsNotFound(err)
	}
	consent.Owner = owner
	return consent
}

// turn carries out a turn and reports its end. It returns the time until the next one.
func (c *Controller) turn(ctx context.Context, nodeName string, n *node, consent *plan.Consent) time.Duration {
	begun := time.Now()
	action := n.lease.Next(&c.rules, c.now())
	for action.Do != plan.Finish && ctx.Err() == nil {
		begun = time.Now()
		c.apply(ctx, nodeName, n, c.send(ctx, nodeName, action))
		action = n.lease.Next(&c.rules, c.now())
	}
	result := action.Result
	if ctx.Err() == nil || result.Written {
		c.reporter.turn(ctx, nodeName, n, consent, &result, time.Since(begun))
	}
	if result.Written {
		c.ready.Mark()
	}
	c.apply(ctx, nodeName, n, plan.Reported{})
	return result.Wait
}

// apply applies an event. An error is one of this package, and is only reported.
func (c *Controller) apply(ctx context.Context, nodeName string, n *node, event plan.Event) {
	n.mu.Lock()
	err := n.lease.Apply(&c.rules, c.now(), event)
	n.mu.Unlock()
	if check := c.check; check != nil && err == nil {
		err = check(n)
	}
	if err != nil {
		c.reporter.broken(ctx, nodeName, err)
	}
}

// now reads both clocks.
func (c *Controller) now() plan.Instant {
	return plan.Instant{Since: time.Since(c.epoch), Wall: c.wall().UnixMicro()}
}

// send sends the request of an action, and returns what became of it.
func (c *Controller) send(ctx context.Context, nodeName string, action plan.Action) plan.Event {
	call, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	ended := func(error) {}
	if c.reset.reset != nil {
		call, ended = c.reset.begin(call)
	}
	answered := plan.Answered{To: action}
	var err error
	switch action.Do {
	case plan.Get:
		answered.Lease, err = c.leases.Get(call, nodeName, metav1.GetOptions{})
	case plan.Create:
		answered.Lease, err = c.leases.Create(call, action.Lease, metav1.CreateOptions{FieldManager: fieldManager})
	case plan.Update, plan.Expire, plan.Sign:
		answered.Lease, err = c.leases.Update(call, action.Lease, metav1.UpdateOptions{FieldManager: fieldManager})
	case plan.Delete:
		err = c.leases.Delete(call, nodeName, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: ptr.To(action.Lease.UID), ResourceVersion: ptr.To(action.Lease.ResourceVersion)},
		})
	}
	if action.Do != plan.Delete {
		answered.Lease, err = apierr.Answer(answered.Lease, err, nodeName) // an answer about another object is no renewal
	}
	ended(err)
	if err != nil && errors.Is(ctx.Err(), context.Canceled) { // not the end of ShutdownTimeout
		return plan.CutOff{To: action}
	}
	if err == nil && action.Do == plan.Get && c.rules.Shared {
		answered.Dead = c.life.Dead(plan.LifeOf(answered.Lease))
	}
	answered.Answer, answered.RetryAfter = answerOf(err, nodeName), apierr.RetryAfter(err)
	if err != nil {
		answered.Lease, answered.Err = nil, explain(nodeName, err)
	}
	return answered
}

// answerOf returns the kind of an answer.
func answerOf(err error, nodeName string) plan.Answer {
	switch apierr.Classify(err) {
	case apierr.None:
		return plan.OK
	case apierr.Conflict, apierr.AlreadyExists:
		return plan.Conflict
	case apierr.NotFound:
		if apierr.IsMissing(err, "leases", nodeName) {
			return plan.Missing
		}
		return plan.NotFound
	case apierr.Invalid:
		return plan.Invalid
	case apierr.Unauthorized, apierr.Forbidden:
		return plan.Refused
	}
	return plan.Failed
}

// holder returns our holder identity for the lease of a node.
func (c *Controller) holder(nodeName string) string {
	if c.cfg.HolderIdentity != "" {
		return c.cfg.HolderIdentity
	}
	return nodeName
}

// farewell returns the farewell of a node, or nil if OnShutdown leaves the lease, and the
// next process with the name of this one takes it without a word.
func (c *Controller) farewell() func(ctx context.Context, nodeName string, n *node) {
	if c.cfg.OnShutdown == ShutdownLeave && !c.rules.Shared {
		return nil
	}
	return c.release
}

// lastWrites are the last writes of a lease by the policy.
var lastWrites = map[ShutdownPolicy]plan.Do{ShutdownLeave: plan.Sign, ShutdownDelete: plan.Delete, ShutdownExpire: plan.Expire}

// release applies OnShutdown to the lease of a node that was removed, or of each node
// when Run ends.
func (c *Controller) release(ctx context.Context, nodeName string, n *node) {
	c.apply(ctx, nodeName, n, plan.Leaving{NodeName: nodeName, Holder: c.holder(nodeName), Last: lastWrites[c.cfg.OnShutdown]})
	action := n.lease.Next(&c.rules, c.now())
	for action.Do != plan.Finish && ctx.Err() == nil {
		c.apply(ctx, nodeName, n, c.send(ctx, nodeName, action))
		action = n.lease.Next(&c.rules, c.now())
	}
	c.reporter.release(ctx, nodeName, n, &action.Result, c.cfg.OnShutdown)
	c.apply(ctx, nodeName, n, plan.Reported{})
}

// gone ends a node that is no longer managed. It is called after its last turn.
func (c *Controller) gone(ctx context.Context, nodeName string, n *node) {
	c.apply(ctx, nodeName, n, plan.Ended{})
	c.reporter.gone(ctx, nodeName, n)
}
