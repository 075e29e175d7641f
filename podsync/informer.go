// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/report"
)

// watchSlack is how much longer than it asked the server for a watch may last
// before it is taken to be dead.
const watchSlack = 30 * time.Second

// newInformer returns an informer of the pods bound to the node, and of no
// others: a node's credentials allow nothing else.
func (c *Controller) newInformer() cache.SharedIndexInformer {
	selector := fields.OneTermEqualSelector("spec.nodeName", c.cfg.NodeName).String()
	pods := c.cfg.Client.Pods(metav1.NamespaceAll)
	informer := cache.NewSharedIndexInformerWithOptions(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			ctx, cancel := context.WithTimeout(ctx, max(listTimeout, c.cfg.CallTimeout))
			defer cancel()
			opts.FieldSelector = selector
			list, err := pods.List(ctx, opts)
			return list, c.cacheErrors.note(ctx, err)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			opts.FieldSelector = selector
			for {
				stream, err := boundedWatch(ctx, c.cfg.CallTimeout, opts, pods.Watch)
				switch err = c.cacheErrors.note(ctx, err); {
				case err == nil:
					return stream, nil
				case ctx.Err() != nil:
					return nil, ctx.Err()
				case !isWaitedFor(err):
					return nil, err
				}
			}
		},
	}, &corev1.Pod{}, cache.SharedIndexInformerOptions{})
	// A quarter of a pod's memory is who wrote which field when.
	_ = informer.SetTransform(func(obj any) (any, error) { // fails only once it runs
		if pod, ok := obj.(*corev1.Pod); ok {
			pod.ManagedFields = nil
		}
		return obj, nil
	})
	return informer
}

// boundedWatch opens a watch that can't hang: the answer must come within
// timeout, and the stream must end when the server was asked to end it, or soon
// after. Reflectors wait for both without a limit.
func boundedWatch(ctx context.Context, timeout time.Duration, opts metav1.ListOptions,
	open func(context.Context, metav1.ListOptions) (watch.Interface, error),
) (watch.Interface, error) {
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(timeout, cancel)
	stream, err := open(ctx, opts)
	if err != nil {
		timer.Stop()
		cancel()
		return nil, err
	}
	if opts.TimeoutSeconds != nil {
		timer.Reset(time.Duration(*opts.TimeoutSeconds)*time.Second + watchSlack)
	} else {
		timer.Stop()
	}
	return &boundedStream{Interface: stream, timer: timer, cancel: cancel}, nil
}

type boundedStream struct {
	watch.Interface
	timer  *time.Timer
	cancel context.CancelFunc
}

// Stop implements watch.Interface.
func (s *boundedStream) Stop() {
	s.timer.Stop()
	s.cancel()
	s.Interface.Stop()
}

// isWaitedFor reports whether a watch failed in a way after which a reflector
// waits, for up to half a minute and whatever becomes of its context.
func isWaitedFor(err error) bool {
	return utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err)
}

// isExpired reports whether a watch failed in a way after which a reflector
// streams the list again, at once and for ever.
func isExpired(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// cacheErrors reports what the informer's list and watch fail with, once, and
// waits where a reflector does not, or not as it should.
type cacheErrors struct {
	handler report.Handler
	policy  backoff.Policy

	mu      sync.Mutex
	streak  report.Streak
	refused int // answers in a row after which we wait
	expired int // answers in a row that the version asked for is gone
}

// note takes the result of a list or watch, and returns it.
func (e *cacheErrors) note(ctx context.Context, err error) error {
	e.mu.Lock()
	var delay time.Duration
	switch {
	case err == nil:
		e.expired, e.refused = 0, 0
		e.streak.OK(ctx, "Watching pods works again")
	case ctx.Err() != nil:
	case isWaitedFor(err):
		e.refused++
		delay = e.policy.Delay(e.refused)
	case isExpired(err):
		delay = e.policy.Delay(e.expired) // the first one is in the order of things
		e.expired++
	}
	if err != nil && ctx.Err() == nil {
		e.streak.Fail(ctx, e.handler, err, "Watching pods failed")
	}
	e.mu.Unlock()
	if delay > 0 {
		sleep(ctx, delay)
	}
	return err
}

// ended is the informer's handler of errors. They have been noted.
func (*cacheErrors) ended(ctx context.Context, _ *cache.Reflector, err error) {
	klog.FromContext(ctx).V(4).Info("Watch of pods ended", "err", err)
}
