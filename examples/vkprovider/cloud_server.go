// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	vkapi "github.com/virtual-kubelet/virtual-kubelet/node/api"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// The methods by which the provider serves kubectl, with the signatures of
// virtual-kubelet. Since the provider runs nothing, its answers are made up from
// the pod.

// GetContainerLogs returns one line for each variable of the container.
func (c *cloud) GetContainerLogs(ctx context.Context, namespace, podName, containerName string, opts vkapi.ContainerLogOpts) (io.ReadCloser, error) {
	pod, err := c.GetPod(ctx, namespace, podName)
	if err != nil {
		return nil, err
	}
	began := pod.Status.StartTime.Time
	var lines []string
	for _, line := range logOf(pod, containerName) {
		if opts.Timestamps {
			line = began.UTC().Format(time.RFC3339Nano) + " " + line
		}
		lines = append(lines, line+"\n")
	}
	if opts.Tail > 0 {
		lines = lines[max(0, len(lines)-opts.Tail):]
	}
	if opts.SinceSeconds > 0 && time.Since(began) > time.Duration(opts.SinceSeconds)*time.Second || began.Before(opts.SinceTime) {
		lines = nil
	}
	text := strings.Join(lines, "")
	if opts.LimitBytes > 0 {
		text = text[:min(len(text), opts.LimitBytes)]
	}
	if !opts.Follow {
		return io.NopCloser(strings.NewReader(text)), nil
	}
	// A provider that does not end the follow of a container that has ended, as
	// many do: the Server does.
	reader, writer := io.Pipe()
	go func() {
		_, _ = io.WriteString(writer, text)
		<-ctx.Done()
		_ = writer.Close()
	}()
	return reader, nil
}

// logOf returns the lines that a container would have printed.
func logOf(pod *corev1.Pod, name string) (lines []string) {
	for _, c := range pod.Spec.Containers {
		if c.Name == name {
			lines = append(lines, "container "+name+" of image "+c.Image)
			for _, v := range c.Env {
				lines = append(lines, v.Name+"="+v.Value)
			}
		}
	}
	return lines
}

// RunInContainer echoes its input, or its command if it has none.
func (c *cloud) RunInContainer(_ context.Context, namespace, podName, containerName string, cmd []string, attach vkapi.AttachIO) error {
	if attach.Stdin() != nil && attach.Stdout() != nil {
		_, err := io.Copy(attach.Stdout(), attach.Stdin())
		return err
	}
	if out := attach.Stdout(); out != nil {
		_, err := fmt.Fprintf(out, "%s/%s/%s: %s\n", namespace, podName, containerName, strings.Join(cmd, " "))
		return err
	}
	return nil
}

// AttachToContainer echoes lines until the input ends.
func (c *cloud) AttachToContainer(_ context.Context, _, _, _ string, attach vkapi.AttachIO) error {
	if attach.Stdin() == nil || attach.Stdout() == nil {
		return nil
	}
	for lines := bufio.NewScanner(attach.Stdin()); lines.Scan(); {
		if _, err := fmt.Fprintln(attach.Stdout(), lines.Text()); err != nil {
			return err
		}
	}
	return nil
}

// PortForward echoes the bytes that are sent to any port.
func (c *cloud) PortForward(_ context.Context, _, _ string, _ int32, stream io.ReadWriteCloser) error {
	_, err := io.Copy(stream, stream)
	return err
}

// GetStatsSummary returns a summary with every pod and container.
func (c *cloud) GetStatsSummary(ctx context.Context) (*statsv1alpha1.Summary, error) {
	pods, err := c.GetPods(ctx)
	if err != nil {
		return nil, err
	}
	now := metav1.Now()
	usage := func(since time.Time) (*statsv1alpha1.CPUStats, *statsv1alpha1.MemoryStats) {
		cpu, memory := uint64(time.Since(since)/10), uint64(64<<20)
		return &statsv1alpha1.CPUStats{Time: now, UsageCoreNanoSeconds: &cpu}, &statsv1alpha1.MemoryStats{Time: now, WorkingSetBytes: &memory}
	}
	summary := &statsv1alpha1.Summary{Node: statsv1alpha1.NodeStats{NodeName: c.nodeName}}
	summary.Node.CPU, summary.Node.Memory = usage(c.began)
	for _, pod := range pods {
		stats := statsv1alpha1.PodStats{
			PodRef:    statsv1alpha1.PodReference{Name: pod.Name, Namespace: pod.Namespace, UID: string(pod.UID)},
			StartTime: *pod.Status.StartTime,
		}
		stats.CPU, stats.Memory = usage(pod.Status.StartTime.Time)
		for _, container := range pod.Spec.Containers {
			one := statsv1alpha1.ContainerStats{Name: container.Name, StartTime: *pod.Status.StartTime}
			one.CPU, one.Memory = usage(pod.Status.StartTime.Time)
			stats.Containers = append(stats.Containers, one)
		}
		summary.Pods = append(summary.Pods, stats)
	}
	return summary, nil
}

// GetMetricsResource returns the CPU time of every pod and container.
func (c *cloud) GetMetricsResource(ctx context.Context) ([]*dto.MetricFamily, error) {
	summary, err := c.GetStatsSummary(ctx)
	if err != nil {
		return nil, err
	}
	family := func(name string) *dto.MetricFamily {
		kind := dto.MetricType_COUNTER
		return &dto.MetricFamily{Name: &name, Type: &kind}
	}
	metric := func(cpu *statsv1alpha1.CPUStats, labels ...string) *dto.Metric {
		value, ms := float64(*cpu.UsageCoreNanoSeconds)/1e9, cpu.Time.UnixMilli()
		m := &dto.Metric{Counter: &dto.Counter{Value: &value}, TimestampMs: &ms}
		for i := 0; i < len(labels); i += 2 {
			m.Label = append(m.Label, &dto.LabelPair{Name: &labels[i], Value: &labels[i+1]})
		}
		return m
	}
	node, pods, containers := family("node_cpu_usage_seconds_total"), family("pod_cpu_usage_seconds_total"), family("container_cpu_usage_seconds_total")
	node.Metric = append(node.Metric, metric(summary.Node.CPU))
	for _, pod := range summary.Pods {
		pods.Metric = append(pods.Metric, metric(pod.CPU, "namespace", pod.PodRef.Namespace, "pod", pod.PodRef.Name))
		for _, one := range pod.Containers {
			// virtual-kubelet's tests read the pod from the second label.
			containers.Metric = append(containers.Metric, metric(one.CPU, "container", one.Name, "pod", pod.PodRef.Name, "namespace", pod.PodRef.Namespace))
		}
	}
	return []*dto.MetricFamily{node, pods, containers}, nil
}
