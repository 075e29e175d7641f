// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Lease keeps the Lease of a Node renewed that somebody else registers. It is
// package lease alone, with a Node informer for what the package asks of its
// embedder: who owns the lease.
package main

import (
	"context"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kubewright/kubewright/examples/internal/kube"
	"github.com/kubewright/kubewright/lease"
)

func main() { kube.Main(run) }

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := kube.NewFlags("lease")
	nodeName := flags.NodeName()
	duration := flags.Duration("lease-duration", lease.DefaultDuration, "how long after a renewal the lease `expires`; it is renewed four times as often")
	if err := flags.Parse(args); err != nil {
		return err
	}
	cfg, err := flags.Config()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	heartbeats, err := kube.Heartbeats(cfg)
	if err != nil {
		return err
	}

	nodes := nodeInformer(client, *nodeName)
	controller, err := lease.New(lease.Config{
		Client:           heartbeats.CoordinationV1(),
		ResetConnections: heartbeats.ResetConnections,
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
	// The Node is looked up before each renewal anyway; this makes the lease
	// follow at once when it comes, goes or is replaced.
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

	group := kube.NewGroup(ctx)
	group.Go(func(ctx context.Context) error {
		nodes.RunWithContext(ctx)
		return nil
	})
	group.Go(func(ctx context.Context) error {
		// A Node that is not in the cache is taken for deleted, so the cache
		// comes first.
		if !cache.WaitForCacheSync(ctx.Done(), nodes.HasSynced) {
			return nil // stopped before it began
		}
		return controller.Run(ctx)
	})
	return group.Wait()
}

// nodeInformer watches one Node by name: the only selector that the API server
// allows a kubelet's credentials.
func nodeInformer(client kubernetes.Interface, nodeName string) cache.SharedIndexInformer {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, nodeName)
	lw := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", metav1.NamespaceAll, selector)
	return cache.NewSharedIndexInformerWithOptions(lw, &corev1.Node{}, cache.SharedIndexInformerOptions{ResyncPeriod: 12 * time.Hour})
}
