// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Lease renews the Lease of a Node that another program registers. It uses
// package lease alone, with a Node informer that provides the lease's owner.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kubewright/kubewright"
	"github.com/kubewright/kubewright/lease"
)

func main() { start(run) }

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := newFlags("lease")
	nodeName := flags.String("node-name", defaultNodeName(), "`name` of the Node")
	duration := flags.Duration("lease-duration", lease.DefaultDuration, "`time` after a renewal until the lease expires; the program renews it four times as often")
	if err := flags.parse(args); err != nil {
		return err
	}
	cfg, err := flags.config()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	heart, err := heartbeats(cfg)
	if err != nil {
		return err
	}

	nodes := nodeInformer(client, *nodeName)
	controller, err := lease.New(lease.Config{
		Client:           heart.CoordinationV1(),
		ResetConnections: heart.ResetConnections,
		NodeName:         *nodeName,
		Owner:            lease.NodeOwner(corev1listers.NewNodeLister(nodes.GetIndexer())),
		Duration:         *duration,
		Hooks: lease.Hooks{
			PhaseChanged: func(p lease.PhaseChanged) {
				fmt.Fprintf(stdout, "lease of node %s: %v\n", p.NodeName, p.To)
			},
		},
	})
	if err != nil {
		return err
	}
	// The controller looks up the Node before each renewal anyway. The trigger
	// updates the lease at once when the Node is created, deleted or replaced.
	trigger := func(any) { controller.Trigger(*nodeName) }
	if _, err := nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: trigger,
		UpdateFunc: func(before, after any) {
			if before.(*corev1.Node).UID != after.(*corev1.Node).UID {
				trigger(after)
			}
		},
		DeleteFunc: trigger,
	}); err != nil {
		return err
	}

	// The informer is stopped last, because the controller reads its cache.
	return kubewright.Run(ctx, part(func(ctx context.Context) error {
		nodes.RunWithContext(ctx)
		return nil
	}), part(func(ctx context.Context) error {
		// A Node that is not in the cache counts as deleted, so the cache must
		// be filled first.
		if !cache.WaitForCacheSync(ctx.Done(), nodes.HasSynced) {
			return nil // stopped before it was filled
		}
		return controller.Run(ctx)
	}))
}

// A part is a function that runs like a controller.
type part func(ctx context.Context) error

// Run calls p.
func (p part) Run(ctx context.Context) error { return p(ctx) }

// nodeInformer watches one Node by name: the only selector that the API server
// allows a kubelet's credentials.
func nodeInformer(client kubernetes.Interface, nodeName string) cache.SharedIndexInformer {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, nodeName)
	lw := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", metav1.NamespaceAll, selector)
	return cache.NewSharedIndexInformerWithOptions(lw, &corev1.Node{}, cache.SharedIndexInformerOptions{ResyncPeriod: 12 * time.Hour})
}

// defaultNodeName returns $NODE_NAME, which a pod gets from the downward API,
// or else the host name.
func defaultNodeName() string {
	name := os.Getenv("NODE_NAME")
	if name == "" {
		name, _ = os.Hostname() // an empty name is rejected later, by name
	}
	return name
}
