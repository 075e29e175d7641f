// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package container

import (
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// The containers of the tables: two that initialize with a sidecar between them,
// two regular ones and an ephemeral one.
const (
	init1 = iota
	side
	init2
	app1
	app2
	debugger
)

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }

// views returns the containers, all idle except for the changes. The ephemeral
// container is there only if it is changed.
func views(change map[int]view) []view {
	always := corev1.ContainerRestartPolicyAlways
	rule := corev1.ContainerRestartRule{
		Action:    corev1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{88}},
	}
	never := corev1.ContainerRestartPolicyNever
	list := []view{
		{spec: &corev1.Container{Name: "init1"}, kind: Init},
		{spec: &corev1.Container{Name: "side", RestartPolicy: &always}, kind: Sidecar},
		{spec: &corev1.Container{Name: "init2"}, kind: Init},
		{spec: &corev1.Container{Name: "app1"}, kind: Regular},
		{spec: &corev1.Container{Name: "app2"}, kind: Regular},
	}
	if _, ok := change[debugger]; ok {
		list = append(list, view{spec: &corev1.Container{Name: "debugger"}, kind: Ephemeral})
	}
	for i, v := range change {
		v.spec, v.kind = list[i].spec, list[i].kind
		if v.phase == ended && (v.exit == 88 || v.exit == 87) {
			v.spec = &corev1.Container{Name: v.spec.Name, RestartPolicy: &never, RestartPolicyRules: []corev1.ContainerRestartRule{rule}}
		}
		list[i] = v
	}
	return list
}

func up() view            { return view{phase: running, started: true} }
func begun() view         { return view{phase: running} }
func busy() view          { return view{phase: starting} }
func exited(n int32) view { return view{phase: ended, exit: n} }

// held returns v with its next start in so many seconds.
func held(v view, seconds int) view {
	v.due = at(seconds)
	return v
}

// failing returns v with an end of its own.
func failing(v view, seconds int) view {
	v.endBy = at(seconds)
	return v
}

// hooked returns v with a preStop hook.
func hooked(v view, state hookState, by int) view {
	v.hook, v.hookBy = state, at(by)
	return v
}

// asked returns v after a Stop with a deadline.
func asked(v view, sentAt, deadline int) view {
	v.sentAt, v.sent = at(sentAt), at(deadline)
	return v
}

// superseded returns v after a change of its spec.
func superseded(v view) view {
	v.replace = true
	return v
}

// kept returns v after a restart of the pod.
func kept(v view) view {
	v.kept = true
	return v
}

func initialized(more map[int]view) map[int]view {
	m := map[int]view{init1: exited(0), side: up(), init2: exited(0)}
	maps.Copy(m, more)
	return m
}

func check(t *testing.T, want, got plan) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(plan{}, deadline{})); diff != "" {
		t.Errorf("the plan differs (-want +got):\n%s", diff)
	}
}

func TestContainersStartInOrder(t *testing.T) {
	for name, tc := range map[string]struct {
		policy corev1.RestartPolicy
		views  map[int]view
		want   plan
	}{
		"the first init container comes first":   {"Always", nil, plan{start: []int{init1}}},
		"it is being started":                    {"Always", map[int]view{init1: busy()}, plan{}},
		"it runs":                                {"Always", map[int]view{init1: up()}, plan{}},
		"after it the sidecar":                   {"Always", map[int]view{init1: exited(0)}, plan{start: []int{side}}},
		"which must have started":                {"Always", map[int]view{init1: exited(0), side: begun()}, plan{}},
		"then the second":                        {"Always", map[int]view{init1: exited(0), side: up()}, plan{start: []int{init2}}},
		"a sidecar comes back":                   {"Always", map[int]view{init1: exited(0), side: exited(1), init2: up()}, plan{start: []int{side}}},
		"and holds up the second":                {"Always", map[int]view{init1: exited(0), side: held(exited(1), 5)}, plan{again: at(5)}},
		"then all others at once":                {"Always", initialized(nil), plan{start: []int{app1, app2}}},
		"one of them waits":                      {"Always", initialized(map[int]view{app1: held(view{}, 7)}), plan{start: []int{app2}, again: at(7)}},
		"at its time it waits no longer":         {"Always", initialized(map[int]view{app1: held(view{}, 0), app2: up()}), plan{start: []int{app1}}},
		"one is being started":                   {"Always", initialized(map[int]view{app1: busy()}), plan{start: []int{app2}}},
		"an init container fails and is tried":   {"OnFailure", map[int]view{init1: exited(1)}, plan{start: []int{init1}}},
		"after a while":                          {"Always", map[int]view{init1: held(exited(1), 3)}, plan{again: at(3)}},
		"or not":                                 {"Never", map[int]view{init1: exited(1)}, plan{finished: true}},
		"all run":                                {"Always", initialized(map[int]view{app1: up(), app2: up()}), plan{}},
		"init containers are history":            {"Always", map[int]view{app1: up(), app2: up(), side: up()}, plan{}},
		"they are not before an app has started": {"Always", map[int]view{app1: busy(), side: up()}, plan{start: []int{init1}}},
		"sidecars are not":                       {"Always", map[int]view{app1: up(), app2: up()}, plan{start: []int{side}}},
		"Always restarts":                        {"Always", initialized(map[int]view{app1: exited(0), app2: up()}), plan{start: []int{app1}}},
		"the soonest counts":                     {"Always", initialized(map[int]view{app1: held(exited(0), 9), app2: held(exited(1), 4)}), plan{again: at(4)}},
		"OnFailure restarts a failure":           {"OnFailure", initialized(map[int]view{app1: exited(1), app2: up()}), plan{start: []int{app1}}},
		"OnFailure does not restart a success":   {"OnFailure", initialized(map[int]view{app1: exited(0), app2: up()}), plan{}},
		"Never":                                  {"Never", initialized(map[int]view{app1: exited(1), app2: up()}), plan{}},
		"the end leaves sidecars to be stopped":  {"Never", initialized(map[int]view{app1: exited(1), app2: exited(0)}), plan{finished: true}},
		"no sidecar is started at the end":       {"Never", initialized(map[int]view{app1: exited(1), app2: exited(0), side: exited(0)}), plan{finished: true}},
		"an ephemeral one starts with the first": {"Always", map[int]view{debugger: {}}, plan{start: []int{init1, debugger}}},
		"and is never started again":             {"Always", initialized(map[int]view{app1: up(), app2: up(), debugger: exited(1)}), plan{}},
		"and does not keep the pod":              {"Never", initialized(map[int]view{app1: exited(0), app2: exited(0), debugger: up()}), plan{finished: true}},
		"nor for one that starts again":          {"Always", map[int]view{side: up(), app1: {}, app2: up()}, plan{start: []int{app1}}},
		"a replaced one starts whatever happens": {"Never", initialized(map[int]view{app1: superseded(exited(0)), app2: up()}), plan{start: []int{app1}}},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, tc.want, decide(&corev1.PodSpec{RestartPolicy: tc.policy}, world{views: views(tc.views)}, now))
		})
	}
}

func TestAContainerThatFailedIsEnded(t *testing.T) {
	for name, tc := range map[string]struct {
		app1 view
		want plan
	}{
		"it is stopped":                       {failing(up(), 30), plan{stop: []deadline{{app1, at(30)}}}},
		"with two seconds at least":           {failing(up(), 1), plan{stop: []deadline{{app1, at(2)}}}},
		"after its hook":                      {hooked(failing(up(), 30), hookDue, 0), plan{hook: []deadline{{app1, at(30)}}, again: at(30)}},
		"which goes on":                       {hooked(failing(up(), 30), hookRunning, 30), plan{again: at(30)}},
		"until the deadline":                  {hooked(failing(up(), 0), hookRunning, 0), plan{stop: []deadline{{app1, at(2)}}}},
		"once":                                {asked(failing(up(), 30), -1, 30), plan{again: at(40)}},
		"and again if it does not die":        {asked(failing(up(), -10), -30, -10), plan{stop: []deadline{{app1, now}}}},
		"it is not bothered before that time": {asked(failing(up(), -9), -30, -9), plan{again: at(1)}},
	} {
		t.Run(name, func(t *testing.T) {
			w := world{views: views(initialized(map[int]view{app1: tc.app1, app2: up()}))}
			check(t, tc.want, decide(&corev1.PodSpec{}, w, now))
		})
	}
}

func TestAPodStopsInOrder(t *testing.T) {
	for name, tc := range map[string]struct {
		views    map[int]view
		deadline int
		want     plan
	}{
		"nothing has started":              {nil, 60, plan{stopped: true}},
		"nothing is restarted":             {map[int]view{app1: exited(1), app2: exited(1)}, 60, plan{stopped: true}},
		"a start under way is waited for":  {map[int]view{app1: busy()}, 60, plan{}},
		"and holds up the sidecar":         {map[int]view{side: up(), app1: busy()}, 60, plan{again: at(60)}},
		"regular containers first":         {map[int]view{side: up(), app1: up(), app2: up()}, 60, plan{stop: []deadline{{app2, at(60)}, {app1, at(60)}}, again: at(60)}},
		"also the last of them":            {map[int]view{side: up(), app1: up(), app2: exited(0)}, 60, plan{stop: []deadline{{app1, at(60)}}, again: at(60)}},
		"an init container with them":      {map[int]view{init1: up()}, 60, plan{stop: []deadline{{init1, at(60)}}}},
		"an ephemeral one with them":       {map[int]view{debugger: up()}, 60, plan{stop: []deadline{{debugger, at(60)}}}},
		"then the sidecar":                 {map[int]view{side: up(), app1: exited(0), app2: exited(0)}, 60, plan{stop: []deadline{{side, at(60)}}}},
		"whose hook came with the others":  {map[int]view{side: hooked(up(), hookDue, 0), app1: hooked(up(), hookDue, 0)}, 60, plan{hook: []deadline{{app1, at(60)}, {side, at(60)}}, again: at(60)}},
		"all of them when time is up":      {map[int]view{side: up(), app1: asked(up(), -60, 0)}, 0, plan{stop: []deadline{{side, at(2)}}, again: at(10)}},
		"no hook then":                     {map[int]view{app1: hooked(up(), hookDue, 0)}, 0, plan{stop: []deadline{{app1, at(2)}}}},
		"an earlier deadline is handed on": {map[int]view{app1: asked(up(), -5, 60)}, 10, plan{stop: []deadline{{app1, at(10)}}}},
		"but leaves two seconds":           {map[int]view{app1: asked(up(), -1, 60)}, -5, plan{stop: []deadline{{app1, at(1)}}}},
		"and shortens a hook":              {map[int]view{app1: hooked(up(), hookRunning, 60)}, 10, plan{hook: []deadline{{app1, at(10)}}, again: at(10)}},
		"a later one does not":             {map[int]view{app1: hooked(up(), hookRunning, 10)}, 60, plan{again: at(60)}},
		"no hook follows a Stop":           {map[int]view{app1: hooked(asked(up(), -1, 60), hookDue, 0)}, 60, plan{again: at(70)}},
		"a kill is repeated":               {map[int]view{app1: asked(up(), -40, -10)}, -10, plan{stop: []deadline{{app1, at(0)}}}},
		"and not before ten seconds more":  {map[int]view{app1: asked(up(), -40, 0)}, -10, plan{again: at(10)}},
		"a time that is up ends there":     {map[int]view{app1: exited(137)}, -1, plan{stopped: true}},
	} {
		t.Run(name, func(t *testing.T) {
			end := at(tc.deadline)
			check(t, tc.want, decide(&corev1.PodSpec{}, world{views: views(tc.views), deadline: &end}, now))
		})
	}
}

func TestSidecarsEndInReverse(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	end := at(60)
	for name, tc := range map[string]struct {
		sidecars []view
		want     plan
	}{
		"the last first":               {[]view{up(), up()}, plan{stop: []deadline{{1, end}}, again: end}},
		"then the one before":          {[]view{up(), exited(0)}, plan{stop: []deadline{{0, end}}}},
		"one that has ended is no gap": {[]view{up(), exited(0), up()}, plan{stop: []deadline{{2, end}}, again: end}},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range tc.sidecars {
				tc.sidecars[i].spec, tc.sidecars[i].kind = &corev1.Container{RestartPolicy: &always}, Sidecar
			}
			check(t, tc.want, decide(&corev1.PodSpec{}, world{views: tc.sidecars, deadline: &end}, now))
		})
	}
}

func TestSandboxComesBeforeContainersAndGoesAfterThem(t *testing.T) {
	end := at(60)
	for name, tc := range map[string]struct {
		policy corev1.RestartPolicy
		world  world
		views  map[int]view
		want   plan
	}{
		"it is made first":               {"Always", world{sandbox: SandboxUnset}, nil, plan{setUp: true}},
		"once":                           {"Always", world{sandbox: SandboxBusy}, nil, plan{}},
		"after a failure with a pause":   {"Always", world{sandbox: SandboxUnset, sandboxDue: at(4)}, nil, plan{again: at(4)}},
		"not for those that wait":        {"Always", world{sandbox: SandboxUnset}, map[int]view{init1: held(view{}, 7)}, plan{again: at(7)}},
		"then containers start":          {"Always", world{sandbox: SandboxReady}, nil, plan{start: []int{init1}}},
		"a lost one is made again":       {"Always", world{sandbox: SandboxLost}, nil, plan{setUp: true}},
		"its containers are ended":       {"Always", world{sandbox: SandboxLost}, initialized(map[int]view{app1: up()}), plan{reset: true, stop: []deadline{{side, at(2)}, {app1, at(2)}}}},
		"ephemeral ones too":             {"Always", world{sandbox: SandboxLost}, initialized(map[int]view{app1: up(), debugger: up()}), plan{reset: true, stop: []deadline{{side, at(2)}, {app1, at(2)}, {debugger, at(2)}}}},
		"a start among them too":         {"Always", world{sandbox: SandboxLost}, initialized(map[int]view{side: exited(0), app1: busy()}), plan{reset: true}},
		"and all is history":             {"Always", world{sandbox: SandboxLost}, map[int]view{init1: exited(0)}, plan{reset: true, restart: true}},
		"one that was ended starts":      {"OnFailure", world{sandbox: SandboxLost}, initialized(map[int]view{app1: superseded(exited(0)), app2: exited(0)}), plan{start: nil, reset: true, stop: []deadline{{side, at(2)}}}},
		"results are kept":               {"OnFailure", world{sandbox: SandboxReady}, map[int]view{app1: kept(exited(0))}, plan{start: []int{init1}}},
		"and init containers come first": {"OnFailure", world{sandbox: SandboxReady}, map[int]view{init1: up(), app1: kept(exited(0))}, plan{}},
		"also one that is being started": {"OnFailure", world{sandbox: SandboxReady}, map[int]view{init1: busy(), app1: kept(exited(0))}, plan{}},
		"or that failed":                 {"OnFailure", world{sandbox: SandboxReady}, map[int]view{init1: exited(1), app1: kept(exited(0))}, plan{start: []int{init1}}},
		"and sidecars":                   {"OnFailure", world{sandbox: SandboxReady}, map[int]view{init1: exited(0), side: begun(), app1: kept(exited(0))}, plan{}},
		"then the others":                {"OnFailure", world{sandbox: SandboxReady}, initialized(map[int]view{app1: kept(exited(0))}), plan{start: []int{app2}}},
		"and all are done":               {"OnFailure", world{sandbox: SandboxReady}, initialized(map[int]view{side: exited(1), app1: kept(exited(0)), app2: exited(0)}), plan{finished: true}},
		"and do not restart it twice":    {"OnFailure", world{sandbox: SandboxLost}, map[int]view{app1: kept(exited(0))}, plan{setUp: true}},
		"unless the work was done":       {"OnFailure", world{sandbox: SandboxLost}, initialized(map[int]view{app1: exited(0), app2: exited(0)}), plan{finished: true}},
		"Never is not restarted":         {"Never", world{sandbox: SandboxLost}, initialized(map[int]view{app1: up(), app2: up()}), plan{finished: true}},
		"a stop ends containers first":   {"Always", world{sandbox: SandboxReady, deadline: &end}, map[int]view{app1: up()}, plan{stop: []deadline{{app1, end}}}},
		"and then the sandbox":           {"Always", world{sandbox: SandboxReady, deadline: &end}, nil, plan{tearDown: true}},
		"also one that is not ready":     {"Always", world{sandbox: SandboxLost, deadline: &end}, nil, plan{tearDown: true}},
		"once as well":                   {"Always", world{sandbox: SandboxBusy, deadline: &end}, nil, plan{}},
		"after a failure with one, too":  {"Always", world{sandbox: SandboxLost, deadline: &end, sandboxDue: at(4)}, nil, plan{again: at(4)}},
		"and one that may be half made":  {"Always", world{sandbox: SandboxUnset, deadline: &end}, nil, plan{tearDown: true}},
		"if there is one":                {"Always", world{sandbox: SandboxNone, deadline: &end}, nil, plan{stopped: true}},
	} {
		t.Run(name, func(t *testing.T) {
			tc.world.views = views(tc.views)
			check(t, tc.want, decide(&corev1.PodSpec{RestartPolicy: tc.policy}, tc.world, now))
		})
	}
}

func TestARuleRestartsAllContainers(t *testing.T) {
	for name, tc := range map[string]struct {
		views map[int]view
		want  plan
	}{
		"the others are ended without hooks": {initialized(map[int]view{app1: exited(88), app2: hooked(up(), hookDue, 0)}), plan{reset: true, restarting: true, stop: []deadline{{side, at(2)}, {app2, at(2)}}}},
		"one that is about to start, too":    {initialized(map[int]view{side: exited(0), app1: exited(88), app2: busy()}), plan{reset: true, restarting: true}},
		"ephemeral ones are not":             {initialized(map[int]view{side: exited(0), app1: exited(88), app2: exited(0), debugger: up()}), plan{reset: true, restarting: true, restart: true}},
		"then all is history":                {initialized(map[int]view{side: exited(143), app1: exited(88), app2: exited(143)}), plan{reset: true, restarting: true, restart: true}},
		"another code is not the rule's":     {initialized(map[int]view{app1: exited(87), app2: up()}), plan{}},
		"history begins with the first":      {map[int]view{app1: held(view{}, 5)}, plan{start: []int{init1}}},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, tc.want, decide(&corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever}, world{views: views(tc.views)}, now))
		})
	}
}
