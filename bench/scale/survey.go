// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// page is the number of objects that a list requests at once.
const page = 2000

// look counts the existing objects with lists, without a cache of this program.
func look(ctx context.Context, client kubernetes.Interface) (s survey, err error) {
	for o := (metav1.ListOptions{Limit: page}); ; {
		list, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, o)
		if err != nil {
			return s, fmt.Errorf("list pods: %w", err)
		}
		for i := range list.Items {
			s.Pods++
			s.Running += toInt(viewPod(&list.Items[i]).Running && list.Items[i].DeletionTimestamp == nil)
		}
		if o.Continue = list.Continue; o.Continue == "" {
			break
		}
	}
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return s, fmt.Errorf("list Nodes: %w", err)
	}
	s.Nodes = len(list.Items)
	for i := range list.Items {
		s.Ready += toInt(viewNode(&list.Items[i]).Ready)
	}
	leases, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{})
	if err != nil {
		return s, fmt.Errorf("list leases: %w", err)
	}
	s.Leases = len(leases.Items)
	return s, nil
}

// serverHistograms returns the API server's latency histograms, by verb and
// resource.
func serverHistograms(ctx context.Context, client kubernetes.Interface) (map[string]histogram, error) {
	data, err := client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("metrics of the API server: %w", err)
	}
	return readHistograms(bytes.NewReader(data), "apiserver_request_duration_seconds", requestKey)
}

// watched lists the resources whose latency is reported.
var watched = []string{"pods", "nodes", "leases"}

// requestKey returns a name for a kind of request, or "" for kinds that are not
// reported. The duration of a watch has no meaning.
func requestKey(labels map[string]string) string {
	if !slices.Contains(watched, labels["resource"]) || labels["verb"] == "WATCH" || labels["verb"] == "CONNECT" {
		return ""
	}
	key := labels["verb"] + " " + labels["resource"]
	if labels["subresource"] != "" {
		key += "/" + labels["subresource"]
	}
	return key
}

// latencies returns the latencies of the requests between two states of the
// histograms, the most frequent first.
func latencies(before, after map[string]histogram) (all []latency) {
	for _, key := range slices.Sorted(maps.Keys(after)) {
		h := after[key].since(before[key])
		if h.count() > 0 {
			all = append(all, latency{key, int(h.count()), h.quantile(0.5), h.quantile(0.9), h.quantile(0.99)})
		}
	}
	slices.SortStableFunc(all, func(a, b latency) int { return cmp.Compare(b.Count, a.Count) })
	return all
}
