// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

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
			stream, err := boundedWatch(ctx, c.cfg.CallTimeout, opts, pods.Watch)
			return stream, c.cacheErrors.note(ctx, err)
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

// cacheErrors reports what the informer's list and watch fail with, once.
type cacheErrors struct {
	mu     sync.Mutex
	streak report.Streak
}

func (e *cacheErrors) handler(handler report.Handler) cache.WatchErrorHandlerWithContext {
	return func(ctx context.Context, _ *cache.Reflector, err error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if ctx.Err() == nil {
			e.streak.Fail(ctx, handler, err, "Watching pods failed")
		}
	}
}

// note takes the result of a list or watch, and returns it.
func (e *cacheErrors) note(ctx context.Context, err error) error {
	if err == nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.streak.OK(ctx, "Watching pods works again")
	}
	return err
}
