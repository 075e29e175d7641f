// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/report"
)

// patientConflicts is how many conflicts in a row are in the order of things.
const patientConflicts = 3

// tell tells the log, the hooks and the ErrorHandler how a request ended.
func (c *Controller) tell(ctx context.Context, e *entry, r *request, err error, well bool) {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "lease", r.key, "action", r.do)
	if r.name != "" {
		logger = klog.LoggerWithValues(logger, "candidate", r.name)
	}
	if err != nil {
		c.tellFailure(klog.NewContext(ctx, logger), e, r, err)
		return
	}
	if well {
		c.electing.OK(ctx, &e.streak, worksAgain)
	}
	previous := ""
	if r.lease != nil {
		previous = r.lease.holder
	}
	switch r.do {
	case assign:
		logger.V(2).Info("Elected a leader", "previous", previous, "strategy", r.strategy, "unrenewed", r.silence)
		if hook := c.cfg.Hooks.Elected; hook != nil {
			hook(Elected{Lease: r.key, Holder: r.name, Previous: previous, Strategy: r.strategy, Unrenewed: r.silence})
		}
	case offer:
		if c.offersWork() {
			logger.Info("The API server keeps preferredHolder again")
		}
		logger.V(2).Info("Asked the holder to give way", "holder", previous)
		if hook := c.cfg.Hooks.Preferred; hook != nil {
			hook(Preferred{Lease: r.key, Holder: previous, PreferredHolder: r.name})
		}
	case collect:
		logger.V(2).Info("Deleted a LeaseCandidate that was not renewed any more")
		if hook := c.cfg.Hooks.Collected; hook != nil {
			hook(Collected{Lease: r.key, Candidate: r.name})
		}
	default:
		logger.V(4).Info("Sent request")
	}
}

func (c *Controller) tellFailure(ctx context.Context, e *entry, r *request, err error) {
	class := apierr.Classify(err)
	if hook := c.cfg.Hooks.RequestFailed; hook != nil {
		hook(RequestFailed{Lease: r.key, Action: r.do.String(), Class: class.String(), Err: err})
	}
	c.mu.Lock()
	failures := e.failures
	first := errors.Is(err, ErrOffersDropped) && !c.dropped.reported
	c.dropped.reported = c.dropped.reported || first
	c.mu.Unlock()
	logger := klog.FromContext(ctx)
	switch {
	case errors.Is(err, ErrOffersDropped):
		if first {
			report.Tell(ctx, c.cfg.ErrorHandler, err, "Better candidates have to wait")
		} else {
			logger.V(4).Info("The API server still drops preferredHolder")
		}
		return
	case class == apierr.NotFound && !r.gone && r.ofCandidate():
		logger.V(4).Info("LeaseCandidates are not served", "err", err) // the watch has said so
		return
	case failures <= patientConflicts && (class == apierr.Conflict || class == apierr.AlreadyExists || class == apierr.NotFound):
		logger.V(4).Info("Somebody else was faster", "err", err)
		return
	case class == apierr.Forbidden:
		resource := "leases"
		if r.ofCandidate() {
			resource = "leasecandidates"
		}
		err = &PermissionError{Verb: r.verb(), Resource: resource, Namespace: r.key.Namespace, Err: err}
	default:
		err = fmt.Errorf("election: %v for Lease %v: %w", r.do, r.key, err)
	}
	c.electing.Fail(ctx, c.cfg.ErrorHandler, &e.streak, err, "Request about a Lease failed")
}

// offersWork notes that an offer was kept, and reports whether that is news.
func (c *Controller) offersWork() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	news := c.dropped.reported
	c.dropped.reported = false
	return news
}

// tellSilent tells of candidates that did not answer.
func (c *Controller) tellSilent(ctx context.Context, key types.NamespacedName, names []string) {
	for _, name := range names {
		klog.FromContext(ctx).V(2).Info("Candidate has not answered", "lease", key, "candidate", name)
		if hook := c.cfg.Hooks.Silent; hook != nil {
			hook(Silent{Lease: key, Candidate: name})
		}
	}
}
