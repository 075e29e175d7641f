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

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/listwatch"
)

const (
	// listTimeout is the deadline of a list, which may wait in a queue of the API
	// server for a minute.
	listTimeout = time.Minute
	// refusedWatch is the time between two watches if the API server forbids them.
	refusedWatch = 5 * time.Minute
)

// watchNode watches the Node of Config.NodeName until ctx is done.
func watchNode(ctx context.Context, cfg *Config, handler cache.ResourceEventHandler) {
	nodes := cfg.Client.Nodes()
	var forbidden apierr.Streak
	source := listwatch.New(listwatch.Config{
		List: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return nodes.List(ctx, opts)
		},
		Watch:         nodes.Watch,
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, cfg.NodeName).String(),
		ListTimeout:   listTimeout,
		AnswerTimeout: callTimeout,
		Retries:       backoff.Policy{Base: time.Second, Cap: 30 * time.Second},
		Outcome: func(ctx context.Context, err error) time.Duration {
			switch {
			case err == nil:
				forbidden.OK(ctx, "Watching the Node works again")
			case apierrors.IsForbidden(err):
				forbidden.Fail(ctx, cfg.ErrorHandler, fmt.Errorf("nodestatus: watch node %q: %w", cfg.NodeName, err),
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
	_, _ = informer.AddEventHandler(handler)
	informer.RunWithContext(ctx)
}
