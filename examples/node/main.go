// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Node is a node without pods: it registers itself, keeps its lease and its
// status true, turns NotReady with an honest reason when its health check
// fails, recovers, and notices when somebody deletes its Node. It is packages
// nodestatus and lease, and the few lines between them.
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/examples/internal/kube"
	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/nodestatus"
)

func main() { kube.Main(run) }

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := kube.NewFlags("node")
	nodeName := flags.NodeName()
	unhealthyFile := flags.String("unhealthy-file", "", "`path` of a file: while it exists the node is not ready, and its content is the reason given")
	syncInterval := flags.Duration("sync-interval", nodestatus.DefaultSyncInterval, "`time` between two health checks")
	nodeCredentials := flags.Bool("node-credentials", false, "the client is system:node:NODE-NAME, as a kubelet is")
	exitWhenDeleted := flags.Bool("exit-when-deleted", false, "end when somebody deletes the Node, as a kubelet on a real machine should, instead of registering it again")
	if err := flags.Parse(args); err != nil {
		return err
	}
	cfg, err := flags.Config()
	if err != nil {
		return err
	}
	heartbeats, err := kube.Heartbeats(cfg)
	if err != nil {
		return err
	}
	recorder, shutdown, err := kube.Events(ctx, cfg, "kubewright-node")
	if err != nil {
		return err
	}
	defer shutdown()

	// Deleting a Node fences its pods; a virtual node has none to fence, so
	// this example comes back unless it is told not to.
	onDeleted := nodestatus.DeletedReregister
	if *exitWhenDeleted {
		onDeleted = nodestatus.DeletedExit
	}
	// Each controller knows something that the other has to act on. Their
	// hooks are called from Run, when both exist.
	var leases *lease.Controller
	node, err := nodestatus.New(nodestatus.Config{
		Client:          heartbeats.CoreV1(),
		NodeName:        *nodeName,
		Template:        template(*nodeName),
		HealthChecks:    []nodestatus.HealthCheck{unlessExists(*unhealthyFile)},
		NodeCredentials: *nodeCredentials,
		SyncInterval:    *syncInterval,
		OnDeleted:       onDeleted,
		OnShutdown:      nodestatus.ShutdownNotReady,
		EventRecorder:   recorder,
		Hooks: nodestatus.Hooks{
			Registered: func(r nodestatus.Registered) {
				fmt.Fprintf(stdout, "node %s: registered, UID %s\n", r.NodeName, r.Node.UID)
				leases.Trigger(r.NodeName) // a new Node: the lease has a new owner
			},
			Deleted: func(d nodestatus.Deleted) {
				fmt.Fprintf(stdout, "node %s: deleted by somebody else; policy: %v\n", d.NodeName, d.Policy)
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
	leases, err = lease.New(lease.Config{
		Client:           heartbeats.CoordinationV1(),
		ResetConnections: heartbeats.ResetConnections,
		NodeName:         *nodeName,
		Owner:            node.OwnerReference, // no lease without its Node
		Gate:             node.Live,           // a stuck process must not look alive
		Hooks: lease.Hooks{
			// After so long a silence somebody may have called the node
			// Unknown, and only a status write undoes that.
			Recovered: func(r lease.Recovered) { node.Resync(r.NodeName) },
			// The garbage collector takes the lease when the Node is gone.
			Deleted: func(d lease.Deleted) { node.Resync(d.NodeName) },
		},
	})
	if err != nil {
		return err
	}
	group := kube.NewGroup(ctx)
	group.Go(node.Run)
	group.Go(leases.Run)
	return group.Wait()
}

// template is what does not change while the program runs.
func template(nodeName string) *corev1.Node {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		corev1.ResourceMemory: resource.MustParse("1Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: nodeName,
			Labels: map[string]string{
				corev1.LabelHostname:   nodeName,
				corev1.LabelOSStable:   runtime.GOOS,
				corev1.LabelArchStable: runtime.GOARCH,
			},
		},
		Spec: corev1.NodeSpec{
			// Nothing here runs pods; only what tolerates that may come.
			Taints: []corev1.Taint{{Key: "kubewright.dev/no-pods", Effect: corev1.TaintEffectNoExecute}},
		},
		Status: corev1.NodeStatus{
			Capacity:    capacity,
			Allocatable: capacity,
			NodeInfo: corev1.NodeSystemInfo{
				OperatingSystem: runtime.GOOS,
				Architecture:    runtime.GOARCH,
				KubeletVersion:  "v1.37.0-kubewright",
			},
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: nodeName}},
		},
	}
}

// unlessExists is the health check of this node: whatever watches the hardware
// leaves a file behind.
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
