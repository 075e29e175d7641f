// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/kubewright/kubewright/configcheckpoint"
	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/election/coordinator"
	"github.com/kubewright/kubewright/examples/prometheus/metrics"
	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/nodeapi"
	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/resourceslice"
)

// A subject is a package with its metrics.
type subject struct {
	name string // of the package
	// make registers the metrics and returns the hooks, a struct of funcs.
	make func(prometheus.Registerer, any) (any, error)
	none any // the zero Hooks
	// uncounted lists the hooks without a metric.
	uncounted []string
	// samples are events that are counted although zero events are not.
	samples []any
}

// subjects lists all files of this package.
var subjects = []subject{
	{name: "lease", make: adapt(metrics.Lease), none: lease.Hooks{},
		uncounted: []string{"Deleted"}, // the phase covers it
		samples:   []any{lease.PhaseChanged{To: lease.PhaseHeld}}},
	{name: "nodestatus", make: adapt(metrics.NodeStatus), none: nodestatus.Hooks{},
		uncounted: []string{"SpecChanged"}},
	{name: "podsync", make: adapt(metrics.PodSync), none: podsync.Hooks{},
		samples: []any{podsync.MassOrphans{Refs: make([]podsync.Ref, 6)}}},
	{name: "resourceslice", make: adapt(metrics.ResourceSlice), none: resourceslice.Hooks{}},
	{name: "configcheckpoint", make: adapt(metrics.ConfigCheckpoint), none: configcheckpoint.Hooks{},
		uncounted: []string{"Staged"}}, // StatusChanged follows
	{name: "election", make: adapt(balancer), none: election.Hooks{},
		uncounted: []string{"LeaderChanged", "Offered"},
		samples:   []any{election.TermStarted{Vacant: time.Second}}},
	{name: "election", make: adapt(metrics.ElectionController), none: coordinator.Hooks{}},
	{name: "nodeapi", make: adapt(metrics.NodeAPI), none: nodeapi.Hooks{},
		samples: []any{nodeapi.StreamsOpen{Open: 1, Rejected: true}, nodeapi.CertificateUsed{NotAfter: time.Unix(1, 0)}}},
}

// balancer returns the hooks of the election of that name.
func balancer(r prometheus.Registerer, next election.Hooks) (election.Hooks, error) {
	return metrics.Election(r, "balancer", next)
}

func adapt[H any](f func(prometheus.Registerer, H) (H, error)) func(prometheus.Registerer, any) (any, error) {
	return func(r prometheus.Registerer, next any) (any, error) { return f(r, next.(H)) }
}

// hooks returns the hooks of a package on a new registry. They call next with
// the name of each hook that reaches the program.
func (s subject) hooks(t *testing.T, next func(field string)) (reflect.Value, *prometheus.Registry) {
	t.Helper()
	own := reflect.New(reflect.TypeOf(s.none)).Elem()
	for i := range own.NumField() {
		name := own.Type().Field(i).Name
		own.Field(i).Set(reflect.MakeFunc(own.Field(i).Type(), func([]reflect.Value) []reflect.Value {
			next(name)
			return nil
		}))
	}
	registry := prometheus.NewPedanticRegistry()
	hooks, err := s.make(registry, own.Interface())
	if err != nil {
		t.Fatal(err)
	}
	return reflect.ValueOf(hooks), registry
}

// event returns an event for a hook.
func (s subject) event(hook reflect.Type) reflect.Value {
	for _, sample := range s.samples {
		if reflect.TypeOf(sample) == hook.In(0) {
			return reflect.ValueOf(sample)
		}
	}
	return reflect.Zero(hook.In(0))
}

func TestEveryHookIsCountedAndHandedOn(t *testing.T) {
	for _, s := range subjects {
		t.Run(s.name, func(t *testing.T) {
			var reached []string
			hooks, registry := s.hooks(t, func(field string) { reached = append(reached, field) })
			for i := range hooks.NumField() {
				field := hooks.Type().Field(i).Name
				before := gather(t, registry)
				reached = nil
				hooks.Field(i).Call([]reflect.Value{s.event(hooks.Field(i).Type())})
				if !slices.Equal(reached, []string{field}) {
					t.Errorf("%s has called %q of the program's hooks", field, reached)
				}
				if counted := !maps.Equal(before, gather(t, registry)); counted == slices.Contains(s.uncounted, field) {
					t.Errorf("%s: counted: %t", field, counted)
				}
			}
		})
	}
}

func TestHooksOfTheProgramAreOptional(t *testing.T) {
	for _, s := range subjects {
		hooks, err := s.make(prometheus.NewPedanticRegistry(), s.none)
		if err != nil {
			t.Fatal(err)
		}
		for _, hook := range reflect.ValueOf(hooks).Fields() {
			if !hook.IsNil() {
				hook.Call([]reflect.Value{s.event(hook.Type())})
			}
		}
	}
}

func TestRegisteredTwice(t *testing.T) {
	for _, s := range subjects {
		registry := prometheus.NewPedanticRegistry()
		if _, err := s.make(registry, s.none); err != nil {
			t.Fatal(err)
		}
		if _, err := s.make(registry, s.none); err == nil || !strings.Contains(err.Error(), "kubewright_"+s.name+"_") {
			t.Errorf("%s registered twice: %v, want the names", s.name, err)
		}
		for _, controller := range []string{"a", "b"} {
			labelled := prometheus.WrapRegistererWith(prometheus.Labels{"controller": controller}, prometheus.NewPedanticRegistry())
			if _, err := s.make(labelled, s.none); err != nil {
				t.Error(err)
			}
		}
	}
}

// exercised returns the registry of a package after all its hooks were called,
// so that every metric has a series.
func exercised(t *testing.T, s subject) *prometheus.Registry {
	t.Helper()
	hooks, registry := s.hooks(t, func(string) {})
	for _, hook := range hooks.Fields() {
		hook.Call([]reflect.Value{s.event(hook.Type())})
	}
	return registry
}

func TestLint(t *testing.T) {
	for _, s := range subjects {
		problems, err := testutil.GatherAndLint(exercised(t, s))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// gather returns all values in a registry: counters and gauges as
// name{label="value"}, histograms as their count and their sum.
func gather(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		for _, m := range family.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			suffix := ""
			if labels != nil {
				suffix = "{" + strings.Join(labels, ",") + "}"
			}
			switch family.GetType() {
			case dto.MetricType_COUNTER:
				values[family.GetName()+suffix] = m.Counter.GetValue()
			case dto.MetricType_GAUGE:
				values[family.GetName()+suffix] = m.Gauge.GetValue()
			case dto.MetricType_HISTOGRAM:
				values[family.GetName()+"_count"+suffix] = float64(m.Histogram.GetSampleCount())
				values[family.GetName()+"_sum"+suffix] = m.Histogram.GetSampleSum()
			default:
				t.Fatalf("%s is a %v", family.GetName(), family.GetType())
			}
		}
	}
	return values
}
