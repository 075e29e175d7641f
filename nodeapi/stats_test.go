// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"
)

// at is the time of all samples.
var at = metav1.NewTime(time.UnixMilli(1767323045678))

func testSummary() *statsv1alpha1.Summary {
	cpu := func(seconds uint64) *statsv1alpha1.CPUStats {
		return &statsv1alpha1.CPUStats{Time: at, UsageCoreNanoSeconds: ptr.To(seconds * 1e9)}
	}
	memory := func(bytes uint64) *statsv1alpha1.MemoryStats {
		return &statsv1alpha1.MemoryStats{Time: at, WorkingSetBytes: &bytes}
	}
	return &statsv1alpha1.Summary{
		Node: statsv1alpha1.NodeStats{NodeName: nodeName, CPU: cpu(100), Memory: memory(1000), Fs: &statsv1alpha1.FsStats{}},
		Pods: []statsv1alpha1.PodStats{{
			PodRef: statsv1alpha1.PodReference{Namespace: "default", Name: "web", UID: "1234-abcd"}, CPU: cpu(10), Memory: memory(100),
			Network: &statsv1alpha1.NetworkStats{},
			Containers: []statsv1alpha1.ContainerStats{{
				Name: "main", StartTime: metav1.NewTime(time.Unix(1700000000, 5e8)), CPU: cpu(5), Memory: memory(50), Rootfs: &statsv1alpha1.FsStats{},
				Swap: &statsv1alpha1.SwapStats{Time: at, SwapUsageBytes: ptr.To[uint64](3), SwapAvailableBytes: ptr.To[uint64](4)},
			}, {Name: "no-stats"}},
		}},
	}
}

func TestResourceMetricsAreThoseOfTheKubelet(t *testing.T) {
	r := start(t, &testBackend{stats: func(context.Context) (*statsv1alpha1.Summary, error) { return testSummary(), nil }}, nil)
	code, body := r.get("/metrics/resource")
	if code != 200 {
		t.Fatal(code, body)
	}
	for _, line := range []string{
		"# TYPE node_cpu_usage_seconds_total counter",
		"# TYPE container_memory_working_set_bytes gauge",
		"node_cpu_usage_seconds_total 100 1767323045678",
		"node_memory_working_set_bytes 1000 1767323045678",
		`pod_cpu_usage_seconds_total{namespace="default",pod="web"} 10 1767323045678`,
		`pod_memory_working_set_bytes{namespace="default",pod="web"} 100 1767323045678`,
		`container_cpu_usage_seconds_total{container="main",namespace="default",pod="web"} 5 1767323045678`,
		`container_memory_working_set_bytes{container="main",namespace="default",pod="web"} 50 1767323045678`,
		`container_swap_usage_bytes{container="main",namespace="default",pod="web"} 3 1767323045678`,
		`container_swap_limit_bytes{container="main",namespace="default",pod="web"} 7 1767323045678`,
		`container_start_time_seconds{container="main",namespace="default",pod="web"} 1.7000000005e+09`,
		"scrape_error 0",
		"resource_scrape_error 0",
	} {
		if !strings.Contains(body, line+"\n") {
			t.Errorf("no line %q in\n%s", line, body)
		}
	}
	if strings.Contains(body, "no-stats") {
		t.Error("a container without stats has samples")
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	if families, err := parser.TextToMetricFamilies(strings.NewReader(body)); err != nil || len(families) != 11 {
		t.Errorf("%d families, %v", len(families), err)
	}
}

func TestStatsThatFailAreAScrapeError(t *testing.T) {
	r := start(t, &testBackend{stats: func(context.Context) (*statsv1alpha1.Summary, error) { return nil, errors.New("no cgroups") }}, nil)
	if code, body := r.get("/metrics/resource"); code != 200 || !strings.Contains(body, "\nscrape_error 1\n") || strings.Contains(body, "node_cpu") {
		t.Errorf("%d %s", code, body)
	}
	if code, body := r.get("/stats/summary"); code != 500 || !strings.Contains(body, "no cgroups") {
		t.Errorf("%d %q", code, body)
	}
}

func TestStatsThatHangEndAfterCallTimeout(t *testing.T) {
	r := start(t, &testBackend{stats: func(ctx context.Context) (*statsv1alpha1.Summary, error) { <-ctx.Done(); return nil, ctx.Err() }},
		func(cfg *Config) { cfg.CallTimeout = 2 * time.Second })
	if code, _ := r.get("/stats/summary"); code != 504 {
		t.Errorf("%d", code)
	}
}

// ShutdownTimeout closes the connection of the request, which cancels the call and does not end it.
func TestRunReturnsAfterACallThatIsLate(t *testing.T) {
	called, stopped, verdict := make(chan struct{}), make(chan struct{}), make(chan bool, 1)
	r := start(t, &testBackend{stats: func(ctx context.Context) (*statsv1alpha1.Summary, error) {
		close(called)
		<-ctx.Done()
		select {
		case <-stopped:
			verdict <- false
		case <-time.After(100 * time.Millisecond):
			verdict <- true
		}
		return nil, ctx.Err()
	}}, func(cfg *Config) { cfg.ShutdownTimeout = time.Millisecond })
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+"/stats/summary", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer admin")
	client := insecureClient(nil)
	defer client.CloseIdleConnections()
	go func() {
		if resp, err := client.Do(req); err == nil {
			_ = resp.Body.Close()
		}
	}()
	await(t, "the call", called)
	r.stop()
	close(stopped)
	if !await(t, "the end of the call", verdict) {
		t.Error("Run has returned before the call")
	}
}

func TestStatsSummaryCanBeCPUAndMemoryOnly(t *testing.T) {
	r := start(t, &testBackend{stats: func(context.Context) (*statsv1alpha1.Summary, error) { return testSummary(), nil }}, nil)
	for query, whole := range map[string]bool{"": true, "?only_cpu_and_memory=true": false, "?only_cpu_and_memory=false": true} {
		code, body := r.get("/stats/summary" + query)
		var got statsv1alpha1.Summary
		if err := json.Unmarshal([]byte(body), &got); code != 200 || err != nil {
			t.Fatal(code, body)
		}
		if got.Node.CPU == nil || *got.Pods[0].Containers[0].Memory.WorkingSetBytes != 50 || got.Pods[0].PodRef.UID != "1234-abcd" {
			t.Errorf("%s: %s", query, body)
		}
		if (got.Node.Fs != nil) != whole || (got.Pods[0].Network != nil) != whole || (got.Pods[0].Containers[0].Rootfs != nil) != whole {
			t.Errorf("%s: %s", query, body)
		}
	}
}

// metricsBackend computes its metrics without a summary.
type metricsBackend struct{}

func (metricsBackend) MetricsResource(context.Context) ([]*dto.MetricFamily, error) {
	name, kind := "node_cpu_usage_seconds_total", dto.MetricType_COUNTER
	return []*dto.MetricFamily{nil, {Name: ptr.To("empty")}, {Name: &name, Type: &kind, Metric: []*dto.Metric{{Counter: &dto.Counter{Value: ptr.To(4.0)}}}}}, nil
}

func TestABackendMayComputeTheMetrics(t *testing.T) {
	r := start(t, metricsBackend{}, nil)
	if code, body := r.get("/metrics/resource"); code != 200 || !strings.Contains(body, "node_cpu_usage_seconds_total 4\n") || strings.Contains(body, "empty") {
		t.Errorf("%d %q", code, body)
	}
}
