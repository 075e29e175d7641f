// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// summary returns the stats of the backend.
func (s *Server) summary(ctx context.Context) (summary *statsv1alpha1.Summary, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.CallTimeout)
	defer cancel()
	err = guard(func() (err error) { summary, err = s.backend.stats.StatsSummary(ctx); return err })
	if err == nil && summary == nil {
		summary = &statsv1alpha1.Summary{}
	}
	return summary, err
}

func (s *Server) serveStats(w *response, r *http.Request, query url.Values) error {
	if s.backend.stats == nil {
		return missing("stats", "StatsSource")
	}
	only := false
	if value := query.Get("only_cpu_and_memory"); value != "" {
		var err error
		if only, err = strconv.ParseBool(value); err != nil {
			return badRequest("the query parameter only_cpu_and_memory is malformed: %s", abbreviated(value))
		}
	}
	summary, err := s.summary(r.Context())
	if err != nil {
		return err
	}
	if only {
		summary = cpuAndMemory(summary)
	}
	return writeJSON(w, summary)
}

// cpuAndMemory returns the part of a summary that only_cpu_and_memory asks for.
func cpuAndMemory(in *statsv1alpha1.Summary) *statsv1alpha1.Summary {
	containers := func(list []statsv1alpha1.ContainerStats) (out []statsv1alpha1.ContainerStats) {
		for _, c := range list {
			out = append(out, statsv1alpha1.ContainerStats{Name: c.Name, StartTime: c.StartTime, CPU: c.CPU, Memory: c.Memory, Swap: c.Swap})
		}
		return out
	}
	out := &statsv1alpha1.Summary{Node: statsv1alpha1.NodeStats{
		NodeName: in.Node.NodeName, StartTime: in.Node.StartTime, CPU: in.Node.CPU, Memory: in.Node.Memory, Swap: in.Node.Swap,
		SystemContainers: containers(in.Node.SystemContainers),
	}}
	for _, p := range in.Pods {
		out.Pods = append(out.Pods, statsv1alpha1.PodStats{
			PodRef: p.PodRef, StartTime: p.StartTime, CPU: p.CPU, Memory: p.Memory, Swap: p.Swap, Containers: containers(p.Containers),
		})
	}
	return out
}

func (s *Server) serveResource(w *response, r *http.Request) error {
	var (
		families []*dto.MetricFamily
		err      error
	)
	switch {
	case s.backend.metrics != nil:
		ctx, cancel := context.WithTimeout(r.Context(), s.cfg.CallTimeout)
		defer cancel()
		if err := guard(func() (err error) { families, err = s.backend.metrics.MetricsResource(ctx); return err }); err != nil {
			return err
		}
	case s.backend.stats != nil:
		var summary *statsv1alpha1.Summary
		if summary, err = s.summary(r.Context()); err != nil {
			s.report(r.Context(), err, "No stats for /metrics/resource")
		}
		families = resourceMetrics(summary, err != nil) // a scraper reads scrape_error
	default:
		return missing("resource metrics", "StatsSource or nodeapi.MetricsSource")
	}
	format := expfmt.Negotiate(r.Header)
	w.Header().Set("Content-Type", string(format))
	encoder := expfmt.NewEncoder(w, format)
	for _, family := range families {
		if family == nil || len(family.Metric) == 0 {
			continue
		}
		if err := encoder.Encode(family); err != nil {
			return err
		}
	}
	if closer, ok := encoder.(expfmt.Closer); ok {
		return closer.Close()
	}
	return nil
}

// A metricSet collects families in the order of their first metric.
type metricSet struct {
	order  []string
	byName map[string]*dto.MetricFamily
}

// add adds a metric. labels are name, value, name, value, …
func (m *metricSet) add(name, help string, kind dto.MetricType, value float64, at metav1.Time, labels ...string) {
	family := m.byName[name]
	if family == nil {
		family = &dto.MetricFamily{Name: &name, Help: &help, Type: &kind}
		m.byName[name] = family
		m.order = append(m.order, name)
	}
	metric := &dto.Metric{}
	for pair := range slices.Chunk(labels, 2) {
		metric.Label = append(metric.Label, &dto.LabelPair{Name: &pair[0], Value: &pair[1]})
	}
	if !at.IsZero() {
		ms := at.UnixMilli()
		metric.TimestampMs = &ms
	}
	if kind == dto.MetricType_COUNTER {
		metric.Counter = &dto.Counter{Value: &value}
	} else {
		metric.Gauge = &dto.Gauge{Value: &value}
	}
	family.Metric = append(family.Metric, metric)
}

// usage adds the CPU, memory and swap of a node, pod or container.
func (m *metricSet) usage(of string, cpu *statsv1alpha1.CPUStats, memory *statsv1alpha1.MemoryStats, swap *statsv1alpha1.SwapStats, labels ...string) {
	if cpu != nil && cpu.UsageCoreNanoSeconds != nil {
		m.add(of+"_cpu_usage_seconds_total", "Cumulative CPU time of the "+of+" in core-seconds", dto.MetricType_COUNTER,
			float64(*cpu.UsageCoreNanoSeconds)/float64(time.Second), cpu.Time, labels...)
	}
	if memory != nil && memory.WorkingSetBytes != nil {
		m.add(of+"_memory_working_set_bytes", "Working set of the "+of+" in bytes", dto.MetricType_GAUGE,
			float64(*memory.WorkingSetBytes), memory.Time, labels...)
	}
	if swap == nil {
		return
	}
	used := 0.0
	if swap.SwapUsageBytes != nil {
		used = float64(*swap.SwapUsageBytes)
		m.add(of+"_swap_usage_bytes", "Swap usage of the "+of+" in bytes", dto.MetricType_GAUGE, used, swap.Time, labels...)
	}
	if of == "container" && swap.SwapAvailableBytes != nil {
		m.add(of+"_swap_limit_bytes", "Swap limit of the "+of+" in bytes", dto.MetricType_GAUGE, used+float64(*swap.SwapAvailableBytes), swap.Time, labels...)
	}
}

// resourceMetrics returns the families that the kubelet serves for a summary,
// which may be nil if failed is set.
func resourceMetrics(summary *statsv1alpha1.Summary, failed bool) (families []*dto.MetricFamily) {
	m := &metricSet{byName: make(map[string]*dto.MetricFamily)}
	if summary != nil && !failed {
		m.usage("node", summary.Node.CPU, summary.Node.Memory, summary.Node.Swap)
		for _, pod := range summary.Pods {
			labels := []string{"namespace", pod.PodRef.Namespace, "pod", pod.PodRef.Name}
			for _, c := range pod.Containers {
				labels := append([]string{"container", c.Name}, labels...)
				if c.StartTime.Unix() > 0 {
					m.add("container_start_time_seconds", "Start time of the container since the Unix epoch in seconds", dto.MetricType_GAUGE,
						float64(c.StartTime.UnixNano())/float64(time.Second), metav1.Time{}, labels...)
				}
				m.usage("container", c.CPU, c.Memory, c.Swap, labels...)
			}
			m.usage("pod", pod.CPU, pod.Memory, pod.Swap, labels...)
		}
	}
	value := 0.0
	if failed {
		value = 1
	}
	for _, name := range []string{"scrape_error", "resource_scrape_error"} {
		m.add(name, "1 if there was an error while getting container metrics, 0 otherwise", dto.MetricType_GAUGE, value, metav1.Time{})
	}
	for _, name := range m.order {
		families = append(families, m.byName[name])
	}
	return families
}

// serveWith serves an endpoint that the program brings along.
func serveWith(w *response, r *http.Request, handler http.Handler, path, field string) error {
	if handler == nil {
		return unset(path, field)
	}
	handler.ServeHTTP(w, r)
	return nil
}
