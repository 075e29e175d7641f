// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"io"
	"net"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/kubewright/kubewright/examples/internal/kube"
	"github.com/kubewright/kubewright/examples/internal/machine"
	"github.com/kubewright/kubewright/examples/kubelet/internal/process"
	"github.com/kubewright/kubewright/examples/kubelet/internal/shim"
	"github.com/kubewright/kubewright/examples/prometheus/metrics"
	"github.com/kubewright/kubewright/nodeapi"
	"github.com/kubewright/kubewright/podsync/crilog"
)

// newServer returns the server of the node: logs, exec, attach, port-forward and
// stats of its pods.
func (k *kubelet) newServer(ctx context.Context, client kubernetes.Interface, cfg *rest.Config) (*nodeapi.Server, error) {
	hooks, err := metrics.NodeAPI(k.registry, nodeapi.Hooks{})
	if err != nil {
		return nil, err
	}
	server := nodeapi.Config{
		NodeName: k.nodeName,
		Client:   client,
		Listener: k.listener,
		Backend:  &backend{k},
		Pods:     k.pods.Pods,
		Checks:   []nodeapi.Check{k.node, k.leases, k.pods},
		Metrics:  metrics.Handler(k.registry),
		Hooks:    hooks,
		Certificate: nodeapi.Certificate{
			CertFile: k.certFile, KeyFile: k.keyFile, Hosts: []string{k.nodeIP},
		},
	}
	if k.rotateServing {
		server.Certificate.Dir = k.certDir
	}
	var note string
	if server.ClientCAFile, server.ClientCA, note = kube.ClientCA(k.clientCAFile, cfg, k.listener.Addr()); note != "" {
		klog.FromContext(ctx).Info(note)
	}
	return nodeapi.New(server)
}

// listen opens the port of the server, which the Node reports.
func (k *kubelet) listen() (err error) {
	k.listener, err = net.Listen("tcp", net.JoinHostPort(k.nodeIP, strconv.Itoa(k.port)))
	if err == nil {
		k.port = k.listener.Addr().(*net.TCPAddr).Port
	}
	return err
}

// A backend has the capabilities of the node for nodeapi.
type backend struct{ *kubelet }

var (
	_ nodeapi.LogSource     = (*backend)(nil)
	_ nodeapi.Executor      = (*backend)(nil)
	_ nodeapi.Attacher      = (*backend)(nil)
	_ nodeapi.PortForwarder = (*backend)(nil)
	_ nodeapi.StatsSource   = (*backend)(nil)
)

// Logs implements nodeapi.LogSource.
func (b *backend) Logs(_ context.Context, c nodeapi.Container, opts nodeapi.LogOptions) (io.ReadCloser, error) {
	run, err := b.runtime.Find(c.UID, c.Name, opts.Previous)
	if err != nil {
		return nil, err
	}
	return run.Log(crilog.OptionsOf(&opts, time.Now(), run.Over))
}

// Exec implements nodeapi.Executor.
func (b *backend) Exec(ctx context.Context, c nodeapi.Container, command []string, s nodeapi.Streams) error {
	run, err := b.runtime.Find(c.UID, c.Name, false)
	if err != nil {
		return err
	}
	return run.Exec(ctx, command, streamsOf(ctx, s))
}

// Attach implements nodeapi.Attacher.
func (b *backend) Attach(ctx context.Context, c nodeapi.Container, s nodeapi.Streams) error {
	run, err := b.runtime.Find(c.UID, c.Name, false)
	if err != nil {
		return err
	}
	return run.Attach(ctx, streamsOf(ctx, s))
}

// streamsOf converts the streams of a request. The conversion of terminal sizes
// ends with the request.
func streamsOf(ctx context.Context, s nodeapi.Streams) process.IO {
	streams := process.IO{Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr}
	if s.TTY {
		sizes := make(chan shim.Size)
		streams.Resize = sizes
		go func() {
			defer close(sizes)
			for size := range s.Resize {
				select {
				case sizes <- shim.Size{Rows: size.Height, Columns: size.Width}:
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	return streams
}

// PortForward implements nodeapi.PortForwarder. All pods have the node's address.
func (b *backend) PortForward(ctx context.Context, _ nodeapi.Pod, port uint16, stream io.ReadWriteCloser) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(b.nodeIP, strconv.Itoa(int(port))))
	if err != nil {
		return err
	}
	return nodeapi.Copy(ctx, stream, conn)
}

// StatsSummary implements nodeapi.StatsSource.
func (b *backend) StatsSummary(context.Context) (*statsv1alpha1.Summary, error) {
	now := metav1.Now()
	usage, err := b.runtime.Usage()
	if err != nil {
		return nil, err
	}
	node, err := machine.ReadUsage()
	if err != nil {
		return nil, err
	}
	summary := &statsv1alpha1.Summary{Node: statsv1alpha1.NodeStats{
		NodeName: b.nodeName, StartTime: metav1.NewTime(node.Booted),
		CPU: cpuStats(now, node.CPU), Memory: memoryStats(now, node.Memory),
	}}
	for pod := range b.pods.Pods {
		containers := usage[pod.UID]
		if len(containers) == 0 {
			continue
		}
		var whole process.Usage
		stats := statsv1alpha1.PodStats{PodRef: statsv1alpha1.PodReference{Name: pod.Name, Namespace: pod.Namespace, UID: string(pod.UID)}}
		if pod.Status.StartTime != nil {
			stats.StartTime = *pod.Status.StartTime
		}
		for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses) {
			u, ok := containers[status.Name]
			if !ok || status.State.Running == nil {
				continue
			}
			whole.CPU, whole.Memory = whole.CPU+u.CPU, whole.Memory+u.Memory
			stats.Containers = append(stats.Containers, statsv1alpha1.ContainerStats{
				Name: status.Name, StartTime: status.State.Running.StartedAt, CPU: cpuStats(now, u.CPU), Memory: memoryStats(now, u.Memory),
			})
		}
		stats.CPU, stats.Memory = cpuStats(now, whole.CPU), memoryStats(now, whole.Memory)
		summary.Pods = append(summary.Pods, stats)
	}
	return summary, nil
}

func cpuStats(at metav1.Time, used time.Duration) *statsv1alpha1.CPUStats {
	ns := uint64(used)
	return &statsv1alpha1.CPUStats{Time: at, UsageCoreNanoSeconds: &ns}
}

func memoryStats(at metav1.Time, bytes uint64) *statsv1alpha1.MemoryStats {
	return &statsv1alpha1.MemoryStats{Time: at, WorkingSetBytes: &bytes}
}
