// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// The containers of the tables: two that initialize with a sidecar between them,
// and two regular ones.
const (
	init1 = iota
	side
	init2
	app1
	app2
)

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// views returns the five containers, all idle but for what is changed.
func views(change map[int]view) []view {
	always := corev1.ContainerRestartPolicyAlways
	list := []view{
		{spec: &corev1.Container{Name: "init1"}, init: true},
		{spec: &corev1.Container{Name: "side", RestartPolicy: &always}, init: true},
		{spec: &corev1.Container{Name: "init2"}, init: true},
		{spec: &corev1.Container{Name: "app1"}},
		{spec: &corev1.Container{Name: "app2"}},
	}
	for i, v := range change {
		v.spec, v.init = list[i].spec, list[i].init
		list[i] = v
	}
	return list
}

func up() view            { return view{phase: running, started: true} }
func starting() view      { return view{phase: running} }
func exited(n int32) view { return view{phase: ended, exit: n} }

// later returns v with its next start in so many seconds.
func held(v view, seconds int) view {
	v.due = now.Add(time.Duration(seconds) * time.Second)
	return v
}

func TestNext(t *testing.T) {
	at := func(s int) time.Time { return now.Add(time.Duration(s) * time.Second) }
	initialized := func(more map[int]view) map[int]view {
		m := map[int]view{init1: exited(0), side: up(), init2: exited(0)}
		for i, v := range more {
			m[i] = v
		}
		return m
	}
	for name, tc := range map[string]struct {
		policy corev1.RestartPolicy
		views  map[int]view
		want   plan
	}{
		"the first init container comes first":  {"Always", nil, plan{start: []int{init1}}},
		"it runs":                               {"Always", map[int]view{init1: up()}, plan{}},
		"after it the sidecar":                  {"Always", map[int]view{init1: exited(0)}, plan{start: []int{side}}},
		"which must have started":               {"Always", map[int]view{init1: exited(0), side: starting()}, plan{}},
		"then the second":                       {"Always", map[int]view{init1: exited(0), side: up()}, plan{start: []int{init2}}},
		"a sidecar comes back meanwhile":        {"Always", map[int]view{init1: exited(0), side: exited(1), init2: up()}, plan{start: []int{side}}},
		"and holds up the second":               {"Always", map[int]view{init1: exited(0), side: held(exited(1), 5)}, plan{again: at(5)}},
		"then all others at once":               {"Always", initialized(nil), plan{start: []int{app1, app2}}},
		"one of them waits":                     {"Always", initialized(map[int]view{app1: held(view{}, 7)}), plan{start: []int{app2}, again: at(7)}},
		"an init container fails and is tried":  {"OnFailure", map[int]view{init1: exited(1)}, plan{start: []int{init1}}},
		"after a while":                         {"Always", map[int]view{init1: held(exited(1), 3)}, plan{again: at(3)}},
		"or not":                                {"Never", map[int]view{init1: exited(1)}, plan{finished: true}},
		"all run":                               {"Always", initialized(map[int]view{app1: up(), app2: up()}), plan{}},
		"init containers are history":           {"Always", map[int]view{app1: up(), app2: up(), side: up()}, plan{}},
		"sidecars are not":                      {"Always", map[int]view{app1: up(), app2: up()}, plan{start: []int{side}}},
		"Always restarts":                       {"Always", initialized(map[int]view{app1: exited(0), app2: up()}), plan{start: []int{app1}}},
		"the soonest counts":                    {"Always", initialized(map[int]view{app1: held(exited(0), 9), app2: held(exited(1), 4)}), plan{again: at(4)}},
		"OnFailure restarts a failure":          {"OnFailure", initialized(map[int]view{app1: exited(1), app2: up()}), plan{start: []int{app1}}},
		"OnFailure does not restart a success":  {"OnFailure", initialized(map[int]view{app1: exited(0), app2: up()}), plan{}},
		"Never":                                 {"Never", initialized(map[int]view{app1: exited(1), app2: up()}), plan{}},
		"the end leaves sidecars to be stopped": {"Never", initialized(map[int]view{app1: exited(1), app2: exited(0)}), plan{finished: true}},
		"no sidecar is started at the end":      {"Never", initialized(map[int]view{app1: exited(1), app2: exited(0), side: exited(0)}), plan{finished: true}},
	} {
		t.Run(name, func(t *testing.T) {
			got := next(&corev1.PodSpec{RestartPolicy: tc.policy}, views(tc.views), nil, now)
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(plan{})); diff != "" {
				t.Errorf("the plan differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNextOfAPodThatStops(t *testing.T) {
	future, past := now.Add(time.Minute), now.Add(-time.Second)
	for name, tc := range map[string]struct {
		views    map[int]view
		deadline time.Time
		want     plan
	}{
		"nothing has started":          {nil, future, plan{stopped: true}},
		"nothing is restarted":         {map[int]view{app1: exited(1), app2: exited(1)}, future, plan{stopped: true}},
		"regular containers first":     {map[int]view{side: up(), app1: up(), app2: up()}, future, plan{stop: []int{app1, app2}, again: future}},
		"also the last of them":        {map[int]view{side: up(), app1: up(), app2: exited(0)}, future, plan{stop: []int{app1}, again: future}},
		"an init container with them":  {map[int]view{init1: up()}, future, plan{stop: []int{init1}, again: future}},
		"then the sidecar":             {map[int]view{side: up(), app1: exited(0), app2: exited(0)}, future, plan{stop: []int{side}, again: future}},
		"all of them when time is up":  {map[int]view{side: up(), app1: up(), app2: exited(0)}, past, plan{kill: []int{side, app1}}},
		"and at the very moment":       {map[int]view{app1: up()}, now, plan{kill: []int{app1}}},
		"a time that is up ends there": {map[int]view{app1: exited(137)}, past, plan{stopped: true}},
	} {
		t.Run(name, func(t *testing.T) {
			got := next(&corev1.PodSpec{}, views(tc.views), &tc.deadline, now)
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(plan{})); diff != "" {
				t.Errorf("the plan differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSidecarsEndInReverse(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	two := []view{
		{spec: &corev1.Container{RestartPolicy: &always}, init: true, phase: running},
		{spec: &corev1.Container{RestartPolicy: &always}, init: true, phase: running},
	}
	deadline := now.Add(time.Minute)
	if p := next(&corev1.PodSpec{}, two, &deadline, now); len(p.stop) != 1 || p.stop[0] != 1 {
		t.Errorf("stopped: %v, want the last one", p.stop)
	}
	two[1].phase = ended
	if p := next(&corev1.PodSpec{}, two, &deadline, now); len(p.stop) != 1 || p.stop[0] != 0 {
		t.Errorf("stopped: %v, want the first one", p.stop)
	}
}
