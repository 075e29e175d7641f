// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/listwatch"
	"github.com/kubewright/kubewright/internal/report"
)

// newInformer returns an informer of the pods bound to the node, and of no
// others: a node's credentials allow nothing else.
func (c *Controller) newInformer() cache.SharedIndexInformer {
	pods := c.cfg.Client.Pods(metav1.NamespaceAll)
	source := listwatch.New(listwatch.Config{
		List: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			if opts.ResourceVersion == "0" {
				// A reflector begins with any state of the past, as an API
				// server may have it that is behind. Pods that are gone would
				// be in it, and be started (k/k #59848).
				opts.ResourceVersion = ""
			}
			list, err := pods.List(ctx, opts)
			if err == nil && list.ResourceVersion == "" {
				return nil, errAnswer // not a list without pods, which would end them all
			}
			return list, err
		},
		Watch:         pods.Watch,
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", c.cfg.NodeName).String(),
		ListTimeout:   max(listTimeout, c.cfg.CallTimeout),
		AnswerTimeout: c.cfg.CallTimeout,
		Retries:       c.breaker.policy,
		Outcome:       (&cacheErrors{handler: c.cfg.ErrorHandler}).note,
	})
	informer := cache.NewSharedIndexInformerWithOptions(source, &corev1.Pod{}, cache.SharedIndexInformerOptions{})
	// A quarter of a pod's memory is who wrote which field when.
	_ = informer.SetTransform(func(obj any) (any, error) { // fails only once it runs
		if pod, ok := obj.(*corev1.Pod); ok {
			pod.ManagedFields = nil
		}
		return obj, nil
	})
	return informer
}

// cacheErrors reports what the informer's list and watch fail with, once.
type cacheErrors struct {
	handler report.Handler
	streak  report.Streak
}

func (e *cacheErrors) note(ctx context.Context, err error) time.Duration {
	if err == nil {
		e.streak.OK(ctx, "Watching pods works again")
	} else {
		e.streak.Fail(ctx, e.handler, fmt.Errorf("podsync: watch pods: %w", err), "Failed to watch pods")
	}
	return 0
}

// watchEnded is the informer's handler of errors. They have been noted.
func watchEnded(ctx context.Context, _ *cache.Reflector, err error) {
	klog.FromContext(ctx).V(4).Info("Watch of pods ended", "err", err)
}
