// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/kubewright/kubewright/configcheckpoint"
	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/election/coordinator"
	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/podsync"
)

// A metric is a registered metric.
type metric struct {
	kind   dto.MetricType
	labels []string // sorted
	bounds []string // of the buckets of a histogram
}

// registered returns all metrics of a package by name.
func registered(t *testing.T, s subject) map[string]metric {
	t.Helper()
	families, err := exercised(t, s).Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]metric{}
	for _, family := range families {
		m := metric{kind: family.GetType()}
		for _, label := range family.Metric[0].Label {
			m.labels = append(m.labels, label.GetName())
		}
		slices.Sort(m.labels)
		for _, bucket := range family.Metric[0].GetHistogram().GetBucket() {
			m.bounds = append(m.bounds, fmt.Sprint(bucket.GetUpperBound()))
		}
		all[family.GetName()] = m
	}
	return all
}

// allRegistered returns the metrics of all packages.
func allRegistered(t *testing.T) map[string]metric {
	t.Helper()
	all := map[string]metric{"kubewright_healthy": {kind: dto.MetricType_GAUGE, labels: []string{"controller"}}}
	for _, s := range subjects {
		maps.Copy(all, registered(t, s))
	}
	return all
}

// recommended matches a metric in docs/operations.md, with its labels.
var recommended = regexp.MustCompile(`\b(kubewright_[a-z_]+)(?:\{([a-z,]+)\})?`)

func TestNamesAreThoseOfTheOperationsPage(t *testing.T) {
	packages := map[string]map[string]metric{}
	for _, s := range subjects {
		if packages[s.name] == nil {
			packages[s.name] = map[string]metric{}
		}
		maps.Copy(packages[s.name], registered(t, s))
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	for pkg, here := range packages {
		_, section, found := strings.Cut(string(page), "\n## "+pkg+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		if !found {
			t.Errorf("docs/operations.md has no section for package %s", pkg)
		}
		for _, match := range recommended.FindAllStringSubmatch(section, -1) {
			name, labels := match[1], strings.Split(match[2], ",")
			if match[2] == "" {
				labels = nil
			}
			slices.Sort(labels)
			m, ok := here[name]
			if !ok {
				t.Errorf("package %s recommends %s, which is not registered", pkg, name)
			} else if !slices.Equal(m.labels, labels) {
				t.Errorf("%s has the labels %q, package %s recommends %q", name, m.labels, pkg, labels)
			}
			delete(here, name)
		}
		for name := range here {
			t.Errorf("%s is registered, and package %s does not recommend it", name, pkg)
		}
	}
}

// ruleFile has the fields of docs/alerts.yaml that the tests read.
type ruleFile struct {
	Groups []struct {
		Rules []struct{ Alert, Expr string }
	}
}

func readRules(t *testing.T) (all ruleFile) {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(source, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// The label values that a query selects: those of a regular expression one by one.
var valueInQuery = regexp.MustCompile(`[{,]([a-z]+)(=~|!=|=)"([^"]*)"`)

func TestAlertsQueryWhatIsRegistered(t *testing.T) {
	values := map[string]bool{"result=ok": true, "result=401": true, "result=403": true, "result=error": true, "code=5..": true}
	values["op="+string(election.OpWatch)] = true
	values["action="+coordinator.ActionWatch] = true
	values["reason="+string(configcheckpoint.ReasonSourceFailed)] = true
	for p := lease.PhasePending; p <= lease.PhaseStopped; p++ {
		values["phase="+p.String()] = true
	}
	for c := apierr.None; c <= apierr.Other; c++ {
		values["class="+c.String()] = true
	}
	for _, op := range []podsync.Op{podsync.OpList, podsync.OpWatch} {
		values["op="+string(op)] = true
	}
	all := allRegistered(t)
	for _, m := range all {
		for _, bound := range m.bounds {
			values["le="+bound] = true
		}
	}
	alerts := map[string]bool{}
	for _, group := range readRules(t).Groups {
		for _, rule := range group.Rules {
			if alerts[rule.Alert] {
				t.Errorf("two alerts are named %s", rule.Alert)
			}
			alerts[rule.Alert] = true
			for _, problem := range problemsOf(rule.Expr, all, map[string]bool{}) {
				t.Errorf("%s: %s", rule.Alert, problem)
			}
			for _, match := range valueInQuery.FindAllStringSubmatch(rule.Expr, -1) {
				for value := range strings.SplitSeq(match[3], "|") {
					if !values[match[1]+"="+value] {
						t.Errorf("%s selects %s=%q, which no metric has", rule.Alert, match[1], value)
					}
				}
			}
		}
	}
	if len(alerts) == 0 {
		t.Fatal("docs/alerts.yaml has no alerts: is it read as it is written?")
	}
	// The page says for each alert what to do first.
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range regexp.MustCompile("(?m)^\\| `(Kubewright[A-Za-z]+)` \\|").FindAllStringSubmatch(string(page), -1) {
		if !alerts[match[1]] {
			t.Errorf("docs/operations.md describes the alert %s, which docs/alerts.yaml does not have", match[1])
		}
		delete(alerts, match[1])
	}
	for name := range alerts {
		t.Errorf("docs/operations.md does not describe the alert %s", name)
	}
}

// dashboard has the fields of a Grafana dashboard that the test reads.
type dashboard struct {
	Panels []panel
}

type panel struct {
	Title   string
	Type    string
	GridPos struct{ X, Y, W, H int }
	Panels  []panel // of a collapsed row
	Targets []struct{ Expr string }
}

// The parts of PromQL that the dashboard uses.
var (
	nameInQuery  = regexp.MustCompile(`\b(kubewright_[a-z_]+)(?:\{([^}]*)\})?(\[[^\]]+\])?`)
	labelInQuery = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)`)
	byInQuery    = regexp.MustCompile(`\b(?:by|without)\s*\(([^)]*)\)`)
	// everywhere lists the labels that Prometheus adds to every series.
	everywhere = []string{"job", "instance"}
)

func TestDashboardQueriesWhatIsRegistered(t *testing.T) {
	source, err := os.ReadFile("../dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(source, &d); err != nil {
		t.Fatal(err)
	}
	all := allRegistered(t)
	shown := map[string]bool{}
	queries := 0
	for _, p := range d.Panels {
		if len(p.Targets) == 0 && p.Type != "row" {
			t.Errorf("panel %q shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			queries++
			for _, problem := range problemsOf(target.Expr, all, shown) {
				t.Errorf("panel %q: %s: %s", p.Title, target.Expr, problem)
			}
		}
	}
	if queries == 0 {
		t.Fatal("the dashboard has no queries: is it read as it is written?")
	}
	for name := range all {
		if !shown[name] {
			t.Errorf("no panel shows %s", name)
		}
	}
}

// problemsOf returns the problems of a query, and records the metrics it shows.
func problemsOf(expr string, all map[string]metric, shown map[string]bool) (problems []string) {
	allowed := slices.Clone(everywhere)
	found := nameInQuery.FindAllStringSubmatch(expr, -1)
	if found == nil {
		return []string{"queries no metric of ours"}
	}
	for _, match := range found {
		name, matchers, window := match[1], match[2], match[3]
		m, ok := all[name]
		own := slices.Clone(everywhere)
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base, cut := strings.CutSuffix(name, suffix); cut && !ok && all[base].kind == dto.MetricType_HISTOGRAM {
				name, m, ok = base, all[base], true
				if suffix == "_bucket" {
					allowed, own = append(allowed, "le"), append(own, "le")
				}
			}
		}
		switch counts := m.kind == dto.MetricType_COUNTER || m.kind == dto.MetricType_HISTOGRAM; {
		case !ok:
			problems = append(problems, name+" is not registered")
		case m.kind == dto.MetricType_HISTOGRAM && name == match[1]:
			problems = append(problems, name+" is a histogram and has no series of this name")
		case counts && window == "" && !strings.Contains(expr, "unless "+match[0]+" offset"):
			problems = append(problems, name+" only grows: use rate or increase")
		case !counts && window != "" && !strings.Contains(expr, "max_over_time("+match[0]):
			problems = append(problems, name+" is a gauge, which has no rate")
		}
		shown[name] = true
		allowed = append(allowed, m.labels...)
		for _, label := range labelInQuery.FindAllStringSubmatch(matchers, -1) {
			if !slices.Contains(m.labels, label[1]) && !slices.Contains(own, label[1]) {
				problems = append(problems, name+" has no label "+label[1])
			}
		}
	}
	for _, by := range byInQuery.FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(by[1], ",") {
			if label = strings.TrimSpace(label); !slices.Contains(allowed, label) {
				problems = append(problems, "nothing here has the label "+label)
			}
		}
	}
	if strings.Contains(expr, "histogram_quantile") && !slices.Contains(allowed, "le") {
		problems = append(problems, "a quantile needs buckets")
	}
	return problems
}

func TestProblemsOf(t *testing.T) {
	all := map[string]metric{
		"kubewright_a_total":   {kind: dto.MetricType_COUNTER, labels: []string{"class"}},
		"kubewright_b":         {kind: dto.MetricType_GAUGE},
		"kubewright_c_seconds": {kind: dto.MetricType_HISTOGRAM},
	}
	for expr, want := range map[string]int{
		`sum by (class) (rate(kubewright_a_total{job="x",class="y"}[5m]))`: 0,
		`sum(kubewright_b)`: 0,
		`kubewright_a_total > 0 unless kubewright_a_total offset 5m`:                    0,
		`max_over_time(kubewright_b[1d])`:                                               0,
		`histogram_quantile(0.99, sum by (le) (rate(kubewright_c_seconds_bucket[5m])))`: 0,
		`rate(kubewright_c_seconds_bucket{le="1"}[5m])`:                                 0,
		`rate(kubewright_a_total{le="1"}[5m])`:                                          1,
		`sum(up)`:                                                                       1,
		`rate(kubewright_z_total[5m])`:                                                  1,
		`sum(kubewright_a_total)`:                                                       1,
		`rate(kubewright_b[5m])`:                                                        1,
		`rate(kubewright_c_seconds[5m])`:                                                1,
		`rate(kubewright_a_total{verb="get"}[5m])`:                                      1,
		`sum by (verb) (rate(kubewright_a_total[5m]))`:                                  1,
		`histogram_quantile(0.9, rate(kubewright_a_total[5m]))`:                         1,
	} {
		if got := problemsOf(expr, all, map[string]bool{}); len(got) != want {
			t.Errorf("%s: %q, want %d problems", expr, got, want)
		}
	}
}
