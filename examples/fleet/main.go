// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Fleet runs thousands of virtual nodes and tens of thousands of simulated pods
// in one process, with one lease controller, one status controller and one pod
// controller for all of them.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/kubewright/kubewright/examples/internal/kube"
	"github.com/kubewright/kubewright/examples/prometheus/metrics"
	"github.com/kubewright/kubewright/internal/dirlock"
	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/podsync"
)

func main() { kube.Main(run) }

// counters are the figures of the progress line.
type counters struct {
	renewals, patches, failures atomic.Int64
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := kube.NewFlags("fleet")
	nodes := flags.Int("nodes", 100, "`number` of nodes")
	prefix := flags.String("node-prefix", "fleet-", "`prefix` of their names; a number follows")
	unregister := flags.Bool("unregister", false, "delete the Nodes at the end; the identity must be allowed to")
	runFor := flags.Duration("pod-duration", time.Minute, "`time` after which pods that must not be restarted succeed")
	profiles := flags.String("pprof-address", "", "`address` to serve /debug/pprof at, such as 127.0.0.1:6060; none by default")
	probeAddress := flags.String("probe-address", "", "`address` that answers the probes of a Pod at /healthz and /readyz, and /metrics, such as :8081; none by default")
	report := flags.Duration("report-interval", 10*time.Second, "`time` between two progress lines")
	lockDir := flags.String("lock-dir", filepath.Join(os.TempDir(), fmt.Sprintf("kubewright-nodes-%d", os.Getuid())), "`folder` in which the processes of this machine lock their node prefixes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case *nodes < 0:
		return fmt.Errorf("--nodes must not be negative: %d", *nodes)
	case *report <= 0:
		return fmt.Errorf("--report-interval must be positive: %v", *report)
	}
	cfg, err := flags.Config()
	if err != nil {
		return err
	}
	// The leases let only one of two processes act. The lock saves the second one the
	// requests for thousands of leases that it can't have.
	lock, err := dirlock.ForName(ctx, *lockDir, fmt.Sprintf("%s-%.4x", *prefix, sha256.Sum256([]byte(cfg.Host))), func() {
		fmt.Fprintf(stdout, "another process manages the nodes %s*: waiting for its end\n", *prefix)
	})
	if err != nil {
		return fmt.Errorf("lock the nodes %s*: %w", *prefix, err)
	}
	defer func() { _ = lock.Close() }()
	// Decoding a pod from protobuf costs a fraction of decoding it from JSON.
	cfg.ContentType = apiruntime.ContentTypeProtobuf
	cfg.AcceptContentTypes = apiruntime.ContentTypeProtobuf + "," + apiruntime.ContentTypeJSON
	heartbeats, err := kube.Heartbeats(cfg)
	if err != nil {
		return err
	}

	var count counters
	var leases *lease.Controller
	// Of two processes with the same node name, on two machines, one acts and the other
	// waits.
	holds := func(ctx context.Context, name string) error { return leases.Holds(ctx, name) }
	// Each package's hooks become metrics, and then call those of this program.
	registry := prometheus.NewRegistry()
	var status *nodestatus.Controller
	statusHooks, err1 := metrics.NodeStatus(registry, nodestatus.Hooks{
		Registered: func(r nodestatus.Registered) { leases.Trigger(r.NodeName) },
		Written:    func(nodestatus.Written) { count.patches.Add(1) },
		Failed:     func(nodestatus.Failed) { count.failures.Add(1) },
	})
	leaseHooks, err2 := metrics.Lease(registry, lease.Hooks{
		Renewed:      func(lease.Renewed) { count.renewals.Add(1) },
		Failed:       func(lease.Failed) { count.failures.Add(1) },
		PhaseChanged: func(p lease.PhaseChanged) { status.Trigger(p.NodeName) }, // the gates may be open
		Recovered:    func(r lease.Recovered) { status.Resync(r.NodeName) },
		Deleted:      func(d lease.Deleted) { status.Resync(d.NodeName) },
	})
	podHooks, err3 := metrics.PodSync(registry, podsync.Hooks{})
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	onShutdown := nodestatus.ShutdownLeave
	if *unregister {
		onShutdown = nodestatus.ShutdownUnregister
	}
	status, err = nodestatus.New(nodestatus.Config{
		Client:     heartbeats.CoreV1(),
		Fleet:      true,
		Template:   template(),
		Setters:    []nodestatus.Setter{nodestatus.StandardLabels()},
		Gate:       holds,
		OnDeleted:  nodestatus.DeletedReregister,
		OnShutdown: onShutdown,
		// Enough time to delete all nodes at a few hundred requests a second.
		ShutdownTimeout: nodestatus.DefaultShutdownTimeout + time.Duration(*nodes)*10*time.Millisecond,
		Hooks:           statusHooks,
	})
	if err != nil {
		return err
	}
	leases, err = lease.New(lease.Config{
		Client:           heartbeats.CoordinationV1(),
		Fleet:            true,
		ResetConnections: heartbeats.ResetConnections,
		Owner:            status.OwnerReference,
		Gate:             status.Live,
		Hooks:            leaseHooks,
	})
	if err != nil {
		return err
	}
	names := make([]string, *nodes)
	for i := range names {
		names[i] = fmt.Sprintf("%s%d", *prefix, i)
		if err := status.Add(names[i]); err != nil {
			return err
		}
		if err := leases.Add(names[i]); err != nil {
			return err
		}
	}
	// Nodes that are registered and whose leases are held. It counts on each
	// call, because the number can decrease.
	registered := func() (count int) {
		for _, name := range names {
			if s, ok := status.Status(name); ok && s.Phase == nodestatus.PhaseRegistered && holds(ctx, name) == nil {
				count++
			}
		}
		return count
	}

	client, err := kube.Unlimited(cfg)
	if err != nil {
		return err
	}
	pods, informer, provider, err := newPods(client, *prefix, *runFor, holds, podHooks)
	if err != nil {
		return err
	}

	if err := metrics.Health(registry, leases, status, pods); err != nil {
		return err
	}
	p := probes{address: *probeAddress, parts: []part{leases, status, pods}, metrics: metrics.Handler(registry)}
	return p.during(ctx, func(ctx context.Context) error {
		group := newGroup(ctx)
		group.Last(leases.Run) // a node is alive while it ends
		group.Go(status.Run)
		group.Go(func(ctx context.Context) error {
			informer.RunWithContext(ctx)
			return nil
		})
		group.Go(pods.Run)
		group.Go(func(ctx context.Context) error {
			count.print(ctx, stdout, *nodes, *report, registered, provider.Running)
			return nil
		})
		if *profiles != "" {
			group.Go(func(ctx context.Context) error { return profile(ctx, *profiles, stdout) })
		}
		return group.Wait()
	})
}

// print prints a line every interval until ctx is done.
func (c *counters) print(ctx context.Context, stdout io.Writer, nodes int, interval time.Duration, registered, pods func() int) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var renewals, patches int64
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		r, p := c.renewals.Load(), c.patches.Load()
		var mem runtime.MemStats
		runtime.ReadMemStats(&mem)
		fmt.Fprintf(stdout, "%d of %d nodes registered, %d pods running, %.0f lease renewals/s, %.1f status writes/s, %d failures, %d goroutines, %d MiB heap\n",
			registered(), nodes, pods(), float64(r-renewals)/interval.Seconds(), float64(p-patches)/interval.Seconds(), c.failures.Load(), runtime.NumGoroutine(), mem.HeapAlloc>>20)
		renewals, patches = r, p
	}
}

// template returns the common content of the fleet's nodes.
func template() *corev1.Node {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("4"),
		corev1.ResourceMemory: resource.MustParse("16Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"type": "virtual-kubewright"}},
		Spec: corev1.NodeSpec{
			Taints: []corev1.Taint{{Key: "kubewright.dev/virtual", Effect: corev1.TaintEffectNoSchedule}},
		},
		Status: corev1.NodeStatus{
			Capacity:    capacity,
			Allocatable: capacity,
			NodeInfo:    corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: runtime.GOARCH, KubeletVersion: "v1.37.0-kubewright", ContainerRuntimeVersion: "podsim://1"},
		},
	}
}
