// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// report builds a Markdown text.
type report struct {
	strings.Builder
	r *results
}

// writeReport writes the report of a run.
func writeReport(w io.Writer, r *results) error {
	b := &report{r: r}
	o := r.Options
	b.line("# %d nodes and %d pods in one process", o.Nodes, o.Pods)
	b.line("")
	b.line("%s, %s, one after the other (%s), each on a fresh control plane (etcd, kube-apiserver %s, kube-controller-manager) that shares the machine.",
		r.When.UTC().Format("2006-01-02 15:04 UTC"), r.Machine, strings.Join(b.columns(func(c *result) string { return c.What }), ", then "), b.kubernetes())
	b.line("")
	b.line("%d nodes; %d pods created at up to %g a second; then for %s %g pods a second deleted and as many created, and %g Nodes a minute deleted; at the end all pods deleted at up to %g a second.",
		o.Nodes, o.Pods, o.Rate, short(o.Duration), o.PodChurn, o.NodeChurn, o.Rate)
	b.line("")
	b.line("![Over time](scale.svg)")
	b.claims()
	b.figures()
	b.requests()
	b.server()
	_, err := io.WriteString(w, b.String())
	return err
}

func (b *report) line(format string, args ...any) { fmt.Fprintf(b, format+"\n", args...) }

// columns returns a text for each contender.
func (b *report) columns(of func(c *result) string) (columns []string) {
	for i := range b.r.Contenders {
		columns = append(columns, of(&b.r.Contenders[i]))
	}
	return columns
}

func (b *report) kubernetes() string {
	versions := b.columns(func(c *result) string { return c.Kubernetes })
	return cmp.Or(versions...)
}

// claims writes the verdicts.
func (b *report) claims() {
	b.line("\n## Claims")
	for i := range b.r.Contenders {
		c := &b.r.Contenders[i]
		b.line("\n%s%s:\n", c.Name, map[bool]string{true: " (these decide the exit status)"}[c.Name == ours])
		b.line("| claim | holds | seen |\n|---|---|---|")
		for _, v := range judge(c, b.r.Options) {
			b.line("| %s | %s | %s |", v.Claim, map[bool]string{true: "yes", false: "**no**"}[v.Holds], cell(v.Seen))
		}
		if c.Trouble.Count > 0 {
			b.line("\nRequests of the load driver that failed and were repeated: %s.", cell(c.Trouble.String()))
		}
	}
}

// cell escapes a text for a table cell.
func cell(s string) string { return strings.NewReplacer("|", "\\|", "\n", " ").Replace(s) }

// row writes a row of the table of figures.
func (b *report) row(what string, of func(c *result) string) {
	b.line("| %s | %s |", what, strings.Join(b.columns(of), " | "))
}

// figures writes the table that compares the contenders.
func (b *report) figures() {
	b.line("\n## Figures\n")
	names := b.columns(func(c *result) string { return c.Name })
	b.line("| | %s |\n|---|%s", strings.Join(names, " | "), strings.Repeat("---|", len(names)))
	b.row("until all Nodes are Ready, s", func(c *result) string { return fmt.Sprintf("%.1f", c.NodesReady) })
	b.row("from the first pod created until all are Running, s", func(c *result) string { return fmt.Sprintf("%.0f", c.RampUp.length()) })
	b.row("from the first pod deleted until all are gone, s", func(c *result) string { return fmt.Sprintf("%.0f", c.Drain.length()) })
	for _, d := range []struct {
		what string
		of   func(c *result) distribution
	}{
		{"bound to Running, churn", func(c *result) distribution { return c.Churn.Starts }},
		{"bound to Running, ramp-up", func(c *result) distribution { return c.RampUp.Starts }},
		{"deleted to gone, churn", func(c *result) distribution { return c.Churn.Ends }},
		{"deleted to gone, all at the end", func(c *result) distribution { return c.Drain.Ends }},
	} {
		b.row(d.what+", ms: p50 / p90 / p99 / most", func(c *result) string { return quantiles(d.of(c), inMillis) })
	}
	b.row("Node gone to Ready again, s: p50 / p90 / p99 / most", func(c *result) string {
		return quantiles(c.Churn.Absences, func(d time.Duration) string { return fmt.Sprintf("%.1f", d.Seconds()) })
	})
	b.row("pods replaced in the churn", func(c *result) string { return fmt.Sprint(c.Churn.Ends.N) })
	b.row("requests in the churn, 1/s", func(c *result) string {
		return fmt.Sprintf("%.0f", c.Churn.perSecond(total(c.Churn.Own)))
	})
	b.row("requests for pods, per pod's life (without watches)", func(c *result) string { return fmt.Sprintf("%.2f", perPod(c)) })
	b.row("lease writes in the churn, per node and minute", func(c *result) string {
		writes := total(only(c.Churn.Own, "leases", "create", "update", "patch"))
		return fmt.Sprintf("%.1f", c.Churn.perSecond(writes)*60/float64(b.r.Options.Nodes))
	})
	b.row("CPU in the churn, cores: the program / the API server", func(c *result) string {
		var own, server []float64
		for _, s := range c.during(c.Churn) {
			own, server = append(own, s.Cores), append(server, s.APIServer)
		}
		return fmt.Sprintf("%.2f / %.2f", mean(own), mean(server))
	})
	for _, f := range []struct {
		what string
		of   func(c *result) footprint
	}{
		{"with Nodes only", func(c *result) footprint { return c.Empty }},
		{"with all pods, before the churn", func(c *result) footprint { return c.Loaded }},
		{"with all pods, after the churn", func(c *result) footprint { return c.Churned }},
		{"when all pods are gone", func(c *result) footprint { return c.Drained }},
	} {
		b.row(f.what+": heap (collected), resident, goroutines", func(c *result) string {
			f := f.of(c)
			return fmt.Sprintf("%s, %s, %d", inMiB(f.Heap), inMiB(f.Resident), f.Goroutines)
		})
	}
	b.row("highest resident memory", func(c *result) string {
		var most uint64
		for _, s := range c.Samples {
			most = max(most, s.Resident)
		}
		return inMiB(most)
	})
}

// quantiles formats a distribution.
func quantiles(d distribution, in func(time.Duration) string) string {
	if d.N == 0 {
		return "–"
	}
	return in(d.P50) + " / " + in(d.P90) + " / " + in(d.P99) + " / " + in(d.Max)
}

func mean(values []float64) (m float64) {
	for _, v := range values {
		m += v / float64(len(values))
	}
	return m
}

func total(all []requests) (n int) {
	for _, r := range all {
		n += r.Count
	}
	return n
}

// only returns the requests for a resource with one of the verbs.
func only(all []requests, resource string, verbs ...string) (some []requests) {
	for _, r := range all {
		if r.Resource == resource && slices.Contains(verbs, r.Verb) {
			some = append(some, r)
		}
	}
	return some
}

// perPod returns the average number of requests that a contender has sent in
// the life of a pod.
func perPod(c *result) float64 {
	verbs := []string{"get", "list", "create", "update", "patch", "delete"}
	n := total(only(c.Whole, "pods", verbs...)) + total(only(c.Whole, "pods/status", verbs...))
	return float64(n) / float64(max(c.Made, 1))
}

// requests writes the requests during the churn, by user agent.
func (b *report) requests() {
	b.line("\n## Requests during the churn")
	b.line("\nExact counts, from the audit log, and the time from a request's arrival to its answer there; of a watch, to its beginning.")
	for i := range b.r.Contenders {
		c := &b.r.Contenders[i]
		b.line("\n%s: %d of its own.\n", c.Name, total(c.Churn.Own))
		b.line("| user agent | verb | resource | status | requests | p50, ms | p90 | p99 |\n|---|---|---|---|---:|---:|---:|---:|")
		for _, r := range sorted(c.Churn.Own) {
			b.line("| %s | %s | %s | %d | %d | %s | %s | %s |", cell(r.Agent), r.Verb, r.Resource, r.Code, r.Count, inMillis(r.Took.P50), inMillis(r.Took.P90), inMillis(r.Took.P99))
		}
		b.line("\nOf other clients: %s.", others(c.Churn.Others))
	}
}

// sorted returns requests in descending order of their count.
func sorted(all []requests) []requests {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b requests) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Agent, b.Agent), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Verb, b.Verb), cmp.Compare(a.Code, b.Code))
	})
	return all
}

// others returns the number of requests of each user agent.
func others(all []requests) string {
	count := make(map[string]int)
	for _, r := range all {
		count[r.Agent] += r.Count
	}
	var sums []requests
	for agent, n := range count {
		sums = append(sums, requests{request: request{Agent: agent}, Count: n})
	}
	var parts []string
	for _, r := range sorted(sums) {
		parts = append(parts, fmt.Sprintf("%s %d", r.Agent, r.Count))
	}
	return strings.Join(parts, ", ")
}

// server writes the latencies that the API server reports.
func (b *report) server() {
	b.line("\n## Latency during the churn, as the API server says")
	b.line("\nFrom its histograms (apiserver_request_duration_seconds), of all clients together. Quantiles are interpolated within buckets.")
	for i := range b.r.Contenders {
		c := &b.r.Contenders[i]
		b.line("\n%s:\n", c.Name)
		b.line("| request | number | p50, ms | p90 | p99 |\n|---|---:|---:|---:|---:|")
		for _, l := range c.Server {
			b.line("| %s | %d | %s | %s | %s |", l.What, l.Count, inMillis(l.P50), inMillis(l.P90), inMillis(l.P99))
		}
	}
}
