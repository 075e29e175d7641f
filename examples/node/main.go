// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Node is a node without pods. It registers itself, renews its lease and
// reports its status, becomes NotReady with the reason when its health check
// fails, recovers, and notices when another client deletes its Node. It
// consists of packages nodestatus and lease.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright"
	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/nodestatus"
)

func main() { start(run) }

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := newFlags("node")
	nodeName := flags.String("node-name", defaultNodeName(), "`name` of the Node")
	unhealthyFile := flags.String("unhealthy-file", "", "`path` of a file: while it exists, the node is not ready, with the file's content as the message")
	syncInterval := flags.Duration("sync-interval", nodestatus.DefaultSyncInterval, "`time` between two health checks")
	nodeCredentials := flags.Bool("node-credentials", false, "the client has the user name system:node:NODE-NAME, like a kubelet")
	exitWhenDeleted := flags.Bool("exit-when-deleted", false, "end when another client deletes the Node, as a kubelet on a real machine should, instead of registering it again")
	if err := flags.parse(args); err != nil {
		return err
	}
	cfg, err := flags.config()
	if err != nil {
		return err
	}
	heart, err := heartbeats(cfg)
	if err != nil {
		return err
	}
	recorder, shutdown, err := newRecorder(ctx, cfg, "kubewright-node")
	if err != nil {
		return err
	}
	defer shutdown()

	// Deleting a Node fences its pods. A virtual node has no pods to fence, so
	// this example registers again by default.
	onDeleted := nodestatus.DeletedReregister
	if *exitWhenDeleted {
		onDeleted = nodestatus.DeletedExit
	}
	leases, err := lease.New(lease.Config{
		Client:           heart.CoordinationV1(),
		ResetConnections: heart.ResetConnections,
		NodeName:         *nodeName,
	})
	if err != nil {
		return err
	}
	node, err := nodestatus.New(nodestatus.Config{
		Client:          heart.CoreV1(),
		NodeName:        *nodeName,
		Lease:           leases, // of two hosts one acts, and a stuck process does not look alive
		Template:        template,
		Setters:         setters(),
		HealthChecks:    []nodestatus.HealthCheck{unlessExists(*unhealthyFile)},
		NodeCredentials: *nodeCredentials,
		SyncInterval:    *syncInterval,
		OnDeleted:       onDeleted,
		OnShutdown:      nodestatus.ShutdownNotReady,
		EventRecorder:   recorder,
		Hooks: nodestatus.Hooks{
			Registered: func(r nodestatus.Registered) {
				fmt.Fprintf(stdout, "node %s: registered, UID %s\n", r.NodeName, r.Node.UID)
			},
			Deleted: func(d nodestatus.Deleted) {
				fmt.Fprintf(stdout, "node %s: deleted by another client; policy: %v\n", d.NodeName, d.Policy)
			},
			ConditionChanged: func(c nodestatus.ConditionChanged) {
				if c.Condition.Type == corev1.NodeReady {
					fmt.Fprintf(stdout, "node %s: Ready=%s, %s: %s\n", c.NodeName, c.Condition.Status, c.Condition.Reason, c.Condition.Message)
				}
			},
		},
	})
	if err != nil {
		return err
	}
	return kubewright.Run(ctx, leases, node) // stops the last one first
}

// newRecorder returns a recorder of events.k8s.io/v1 events, and a function
// that shuts it down.
func newRecorder(ctx context.Context, cfg *rest.Config, component string) (events.EventRecorder, func(), error) {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, nil, err
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		broadcaster.Shutdown()
		return nil, nil, err
	}
	return broadcaster.NewRecorder(scheme.Scheme, component), broadcaster.Shutdown, nil
}

// template is the part of the Node that does not change while the program runs. Nothing here
// runs pods, so only pods that tolerate the taint may be scheduled.
var template = &corev1.Node{Spec: corev1.NodeSpec{
	Taints: []corev1.Taint{{Key: "kubewright.dev/no-pods", Effect: corev1.TaintEffectNoExecute}},
}}

// setters say what the machine is.
func setters() []nodestatus.Setter {
	return nodestatus.Standard(nodestatus.Capacity(corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		corev1.ResourceMemory: resource.MustParse("1Gi"),
	}, nil))
}

// unlessExists returns the health check of this node: it fails while path
// exists. A hardware monitor would create the file.
func unlessExists(path string) nodestatus.HealthCheck {
	return func(context.Context, string) error {
		if path == "" {
			return nil
		}
		content, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		}
		return &nodestatus.NotReadyError{Reason: "HealthCheckFailed", Message: strings.TrimSpace(string(content))}
	}
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
