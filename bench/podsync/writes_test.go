// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/podsync/podstatus"
	"github.com/kubewright/kubewright/test/e2e/harness"
)

// A statusWrite stores next as the status of pod.
type statusWrite func(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, next corev1.PodStatus) (sent int, err error)

// statusWrites are the ways to write one and the same status. In each the body
// names the UID. All but the first carry the resourceVersion, because they replace
// what other clients have written since.
var statusWrites = []struct {
	name  string
	write statusWrite
}{
	{"strategic-merge-patch", func(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, next corev1.PodStatus) (int, error) {
		body := podstatus.Patch(pod, &next)
		_, err := client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, podstatus.PatchType, body, metav1.PatchOptions{FieldManager: "bench"}, "status")
		return len(body), err
	}},
	{"json-merge-patch", func(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, next corev1.PodStatus) (int, error) {
		body, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion},
			"status":   next, // whole, because a merge patch replaces lists
		})
		if err != nil {
			return 0, err
		}
		_, err = client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: "bench"}, "status")
		return len(body), err
	}},
	{"put", func(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, next corev1.PodStatus) (int, error) {
		pod = pod.DeepCopy()
		pod.Status = next
		_, err := client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{FieldManager: "bench"})
		return pod.Size(), err
	}},
	{"put-without-spec", func(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, next corev1.PodStatus) (int, error) {
		pod = &corev1.Pod{ObjectMeta: pod.ObjectMeta, Status: next}
		pod.ManagedFields = nil
		_, err := client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{FieldManager: "bench"})
		return pod.Size(), err
	}},
}

// BenchmarkStatusWrite measures the cost to etcd and kube-apiserver of the two
// status writes in a pod's life, by kind of request: by one client, as fast as
// the server answers. The timer runs all the time, since [testing.B.Loop] counts
// what it shows, but only the metrics say anything.
func BenchmarkStatusWrite(b *testing.B) {
	const pods = 1000
	cluster := harness.Start(b, harness.Options{Without: []string{harness.ControllerManager, harness.Scheduler}})
	cfg := cluster.AdminConfig()
	cfg.QPS = -1
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	cfg.DisableCompression = true
	client := kubernetes.NewForConfigOrDie(cfg)
	for _, kind := range statusWrites {
		b.Run(kind.name, func(b *testing.B) {
			var writes, sent int
			var took, server time.Duration
			for b.Loop() {
				created := createPods(b, client, "bench-"+kind.name, pods)
				for range 2 {
					type write struct {
						pod  *corev1.Pod
						next corev1.PodStatus
					}
					byName := make(map[string]write, pods)
					for _, pod := range created {
						report := running(pod)
						if pod.Status.Phase == corev1.PodRunning {
							terminated(&report)
						}
						next, problems := podstatus.Next(pod, podstatus.Update{
							Observed: report, Stopped: report.Phase == corev1.PodSucceeded, Generation: pod.Generation, Now: time.Now(),
						})
						if len(problems) > 0 {
							b.Fatal(problems.ToAggregate())
						}
						byName[pod.Name] = write{pod, next}
					}
					bytes := make(chan int, pods)
					cpu, begin := serverCPU(b, cluster), time.Now()
					parallel(b, created, func(pod *corev1.Pod) error {
						w := byName[pod.Name]
						n, err := kind.write(b.Context(), client, w.pod, w.next)
						bytes <- n
						return err
					})
					took += time.Since(begin)
					server += serverCPU(b, cluster) - cpu
					for range pods {
						sent += <-bytes
					}
					writes += pods
					list, err := client.CoreV1().Pods("default").List(b.Context(), metav1.ListOptions{LabelSelector: "bench=bench-" + kind.name})
					if err != nil {
						b.Fatal(err)
					}
					for i := range created {
						created[i] = &list.Items[i]
					}
				}
				if err := client.CoreV1().Pods("default").DeleteCollection(b.Context(), metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, metav1.ListOptions{LabelSelector: "bench=bench-" + kind.name}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(writes)/took.Seconds(), "status-writes/s")
			b.ReportMetric(float64(server.Microseconds())/float64(writes), "server-CPU-µs/write")
			b.ReportMetric(float64(sent)/float64(writes), "B/write")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// serverCPU returns the processor time of etcd and kube-apiserver so far.
func serverCPU(b *testing.B, cluster *harness.Cluster) (total time.Duration) {
	b.Helper()
	for _, component := range cluster.Components(b) {
		if component.PID == 0 {
			continue
		}
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", component.PID))
		if err != nil {
			b.Fatal(err)
		}
		// The fields after the name, which may have spaces: utime and stime are the
		// 14th and 15th of all, in hundredths of a second.
		_, rest, _ := strings.Cut(string(line), ") ")
		fields := strings.Fields(rest)
		for _, field := range fields[11:13] {
			ticks, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			total += time.Duration(ticks) * 10 * time.Millisecond
		}
	}
	return total
}
