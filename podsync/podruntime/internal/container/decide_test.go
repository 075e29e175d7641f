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

func check(t *testing.T, want, got Plan) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the plan differs (-want +got):\n%s", diff)
	}
}

func TestContainersStartInOrder(t *testing.T) {
	for name, tc := range map[string]struct {
		policy corev1.RestartPolicy
		views  map[int]view
		want   Plan
	}{
		"the first init container comes first":   {"Always", nil, Plan{Start: []int{init1}}},
		"it is being started":                    {"Always", map[int]view{init1: busy()}, Plan{}},
		"it runs":                                {"Always", map[int]view{init1: up()}, Plan{}},
		"after it the sidecar":                   {"Always", map[int]view{init1: exited(0)}, Plan{Start: []int{side}}},
		"which must have started":                {"Always", map[int]view{init1: exited(0), side: begun()}, Plan{}},
		"then the second":                        {"Always", map[int]view{init1: exited(0), side: up()}, Plan{Start: []int{init2}}},
		"a sidecar comes back":                   {"Always", map[int]view{init1: exited(0), side: exited(1), init2: up()}, Plan{Start: []int{side}}},
		"and holds up the second":                {"Always", map[int]view{init1: exited(0), side: held(exited(1), 5)}, Plan{Again: at(5)}},
		"a failure before it has ended the pod":  {"Never", map[int]view{init1: exited(0), side: held(exited(1), 5), init2: exited(1)}, Plan{Finished: true}},
		"also if it never starts again":          {"Never", map[int]view{init1: exited(0), side: begun(), init2: exited(1)}, Plan{Finished: true}},
		"but not if the second is to run again":  {"OnFailure", map[int]view{init1: exited(0), side: begun(), init2: exited(1)}, Plan{}},
		"then all others at once":                {"Always", initialized(nil), Plan{Start: []int{app1, app2}}},
		"one of them waits":                      {"Always", initialized(map[int]view{app1: held(view{}, 7)}), Plan{Start: []int{app2}, Again: at(7)}},
		"at its time it waits no longer":         {"Always", initialized(map[int]view{app1: held(view{}, 0), app2: up()}), Plan{Start: []int{app1}}},
		"one is being started":                   {"Always", initialized(map[int]view{app1: busy()}), Plan{Start: []int{app2}}},
		"an init container fails and is tried":   {"OnFailure", map[int]view{init1: exited(1)}, Plan{Start: []int{init1}}},
		"after a while":                          {"Always", map[int]view{init1: held(exited(1), 3)}, Plan{Again: at(3)}},
		"or not":                                 {"Never", map[int]view{init1: exited(1)}, Plan{Finished: true}},
		"all run":                                {"Always", initialized(map[int]view{app1: up(), app2: up()}), Plan{}},
		"init containers are history":            {"Always", map[int]view{app1: up(), app2: up(), side: up()}, Plan{}},
		"they are not before an app has started": {"Always", map[int]view{app1: busy(), side: up()}, Plan{Start: []int{init1}}},
		"sidecars are not":                       {"Always", map[int]view{app1: up(), app2: up()}, Plan{Start: []int{side}}},
		"Always restarts":                        {"Always", initialized(map[int]view{app1: exited(0), app2: up()}), Plan{Start: []int{app1}}},
		"the soonest counts":                     {"Always", initialized(map[int]view{app1: held(exited(0), 9), app2: held(exited(1), 4)}), Plan{Again: at(4)}},
		"OnFailure restarts a failure":           {"OnFailure", initialized(map[int]view{app1: exited(1), app2: up()}), Plan{Start: []int{app1}}},
		"OnFailure does not restart a success":   {"OnFailure", initialized(map[int]view{app1: exited(0), app2: up()}), Plan{}},
		"Never":                                  {"Never", initialized(map[int]view{app1: exited(1), app2: up()}), Plan{}},
		"the end leaves sidecars to be stopped":  {"Never", initialized(map[int]view{app1: exited(1), app2: exited(0)}), Plan{Finished: true}},
		"no sidecar is started at the end":       {"Never", initialized(map[int]view{app1: exited(1), app2: exited(0), side: exited(0)}), Plan{Finished: true}},
		"an ephemeral one starts with the first": {"Always", map[int]view{debugger: {}}, Plan{Start: []int{init1, debugger}}},
		"and is never started again":             {"Always", initialized(map[int]view{app1: up(), app2: up(), debugger: exited(1)}), Plan{}},
		"and does not keep the pod":              {"Never", initialized(map[int]view{app1: exited(0), app2: exited(0), debugger: up()}), Plan{Finished: true}},
		"nor for one that starts again":          {"Always", map[int]view{side: up(), app1: {}, app2: up()}, Plan{Start: []int{app1}}},
		"a replaced one starts whatever happens": {"Never", initialized(map[int]view{app1: superseded(exited(0)), app2: up()}), Plan{Start: []int{app1}}},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, tc.want, decide(&corev1.PodSpec{RestartPolicy: tc.policy}, world{views: views(tc.views)}, now))
		})
	}
}

func TestAContainerThatFailedIsEnded(t *testing.T) {
	for name, tc := range map[string]struct {
		app1 view
		want Plan
	}{
		"it is stopped":                       {failing(up(), 30), Plan{Stop: []Timed{{app1, at(30)}}}},
		"with two seconds at least":           {failing(up(), 1), Plan{Stop: []Timed{{app1, at(2)}}}},
		"after its hook":                      {hooked(failing(up(), 30), hookDue, 0), Plan{Hook: []Timed{{app1, at(30)}}, Again: at(30)}},
		"which goes on":                       {hooked(failing(up(), 30), hookRunning, 30), Plan{Again: at(30)}},
		"until the deadline":                  {hooked(failing(up(), 0), hookRunning, 0), Plan{Stop: []Timed{{app1, at(2)}}}},
		"once":                                {asked(failing(up(), 30), -1, 30), Plan{Again: at(40)}},
		"and again if it does not die":        {asked(failing(up(), -10), -30, -10), Plan{Stop: []Timed{{app1, now}}}},
		"it is not bothered before that time": {asked(failing(up(), -9), -30, -9), Plan{Again: at(1)}},
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
		want     Plan
	}{
		"nothing has started":              {nil, 60, Plan{Stopped: true}},
		"nothing is restarted":             {map[int]view{app1: exited(1), app2: exited(1)}, 60, Plan{Stopped: true}},
		"a start under way is waited for":  {map[int]view{app1: busy()}, 60, Plan{}},
		"and holds up the sidecar":         {map[int]view{side: up(), app1: busy()}, 60, Plan{Again: at(60)}},
		"regular containers first":         {map[int]view{side: up(), app1: up(), app2: up()}, 60, Plan{Stop: []Timed{{app2, at(60)}, {app1, at(60)}}, Again: at(60)}},
		"also the last of them":            {map[int]view{side: up(), app1: up(), app2: exited(0)}, 60, Plan{Stop: []Timed{{app1, at(60)}}, Again: at(60)}},
		"an init container with them":      {map[int]view{init1: up()}, 60, Plan{Stop: []Timed{{init1, at(60)}}}},
		"an ephemeral one with them":       {map[int]view{debugger: up()}, 60, Plan{Stop: []Timed{{debugger, at(60)}}}},
		"then the sidecar":                 {map[int]view{side: up(), app1: exited(0), app2: exited(0)}, 60, Plan{Stop: []Timed{{side, at(60)}}}},
		"whose hook came with the others":  {map[int]view{side: hooked(up(), hookDue, 0), app1: hooked(up(), hookDue, 0)}, 60, Plan{Hook: []Timed{{app1, at(60)}, {side, at(60)}}, Again: at(60)}},
		"all of them when time is up":      {map[int]view{side: up(), app1: asked(up(), -60, 0)}, 0, Plan{Stop: []Timed{{side, at(2)}}, Again: at(10)}},
		"no hook then":                     {map[int]view{app1: hooked(up(), hookDue, 0)}, 0, Plan{Stop: []Timed{{app1, at(2)}}}},
		"an earlier deadline is handed on": {map[int]view{app1: asked(up(), -5, 60)}, 10, Plan{Stop: []Timed{{app1, at(10)}}}},
		"but leaves two seconds":           {map[int]view{app1: asked(up(), -1, 60)}, -5, Plan{Stop: []Timed{{app1, at(1)}}}},
		"and shortens a hook":              {map[int]view{app1: hooked(up(), hookRunning, 60)}, 10, Plan{Hook: []Timed{{app1, at(10)}}, Again: at(10)}},
		"a later one does not":             {map[int]view{app1: hooked(up(), hookRunning, 10)}, 60, Plan{Again: at(60)}},
		"no hook follows a Stop":           {map[int]view{app1: hooked(asked(up(), -1, 60), hookDue, 0)}, 60, Plan{Again: at(70)}},
		"a kill is repeated":               {map[int]view{app1: asked(up(), -40, -10)}, -10, Plan{Stop: []Timed{{app1, at(0)}}}},
		"and not before ten seconds more":  {map[int]view{app1: asked(up(), -40, 0)}, -10, Plan{Again: at(10)}},
		"a time that is up ends there":     {map[int]view{app1: exited(137)}, -1, Plan{Stopped: true}},
	} {
		t.Run(name, func(t *testing.T) {
			end := at(tc.deadline)
			check(t, tc.want, decide(&corev1.PodSpec{}, world{World: World{Deadline: &end}, views: views(tc.views)}, now))
		})
	}
}

func TestSidecarsEndInReverse(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	end := at(60)
	for name, tc := range map[string]struct {
		sidecars []view
		want     Plan
	}{
		"the last first":               {[]view{up(), up()}, Plan{Stop: []Timed{{1, end}}, Again: end}},
		"then the one before":          {[]view{up(), exited(0)}, Plan{Stop: []Timed{{0, end}}}},
		"one that has ended is no gap": {[]view{up(), exited(0), up()}, Plan{Stop: []Timed{{2, end}}, Again: end}},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range tc.sidecars {
				tc.sidecars[i].spec, tc.sidecars[i].kind = &corev1.Container{RestartPolicy: &always}, Sidecar
			}
			check(t, tc.want, decide(&corev1.PodSpec{}, world{World: World{Deadline: &end}, views: tc.sidecars}, now))
		})
	}
}

func TestSandboxComesBeforeContainersAndGoesAfterThem(t *testing.T) {
	end := at(60)
	for name, tc := range map[string]struct {
		policy corev1.RestartPolicy
		world  World
		views  map[int]view
		want   Plan
	}{
		"it is made first":               {"Always", World{Sandbox: SandboxUnset}, nil, Plan{SetUp: true}},
		"once":                           {"Always", World{Sandbox: SandboxBusy}, nil, Plan{}},
		"after a failure with a pause":   {"Always", World{Sandbox: SandboxUnset, SandboxDue: at(4)}, nil, Plan{Again: at(4)}},
		"not for those that wait":        {"Always", World{Sandbox: SandboxUnset}, map[int]view{init1: held(view{}, 7)}, Plan{Again: at(7)}},
		"then containers start":          {"Always", World{Sandbox: SandboxReady}, nil, Plan{Start: []int{init1}}},
		"a lost one is made again":       {"Always", World{Sandbox: SandboxLost}, nil, Plan{SetUp: true}},
		"its containers are ended":       {"Always", World{Sandbox: SandboxLost}, initialized(map[int]view{app1: up()}), Plan{Reset: true, Stop: []Timed{{side, at(2)}, {app1, at(2)}}}},
		"ephemeral ones too":             {"Always", World{Sandbox: SandboxLost}, initialized(map[int]view{app1: up(), debugger: up()}), Plan{Reset: true, Stop: []Timed{{side, at(2)}, {app1, at(2)}, {debugger, at(2)}}}},
		"a start among them too":         {"Always", World{Sandbox: SandboxLost}, initialized(map[int]view{side: exited(0), app1: busy()}), Plan{Reset: true}},
		"and all is history":             {"Always", World{Sandbox: SandboxLost}, map[int]view{init1: exited(0)}, Plan{Reset: true, Restart: true}},
		"one that was ended starts":      {"OnFailure", World{Sandbox: SandboxLost}, initialized(map[int]view{app1: superseded(exited(0)), app2: exited(0)}), Plan{Start: nil, Reset: true, Stop: []Timed{{side, at(2)}}}},
		"results are kept":               {"OnFailure", World{Sandbox: SandboxReady}, map[int]view{app1: kept(exited(0))}, Plan{Start: []int{init1}}},
		"and init containers come first": {"OnFailure", World{Sandbox: SandboxReady}, map[int]view{init1: up(), app1: kept(exited(0))}, Plan{}},
		"also one that is being started": {"OnFailure", World{Sandbox: SandboxReady}, map[int]view{init1: busy(), app1: kept(exited(0))}, Plan{}},
		"or that failed":                 {"OnFailure", World{Sandbox: SandboxReady}, map[int]view{init1: exited(1), app1: kept(exited(0))}, Plan{Start: []int{init1}}},
		"and sidecars":                   {"OnFailure", World{Sandbox: SandboxReady}, map[int]view{init1: exited(0), side: begun(), app1: kept(exited(0))}, Plan{}},
		"then the others":                {"OnFailure", World{Sandbox: SandboxReady}, initialized(map[int]view{app1: kept(exited(0))}), Plan{Start: []int{app2}}},
		"and all are done":               {"OnFailure", World{Sandbox: SandboxReady}, initialized(map[int]view{side: exited(1), app1: kept(exited(0)), app2: exited(0)}), Plan{Finished: true}},
		"and do not restart it twice":    {"OnFailure", World{Sandbox: SandboxLost}, map[int]view{app1: kept(exited(0))}, Plan{SetUp: true}},
		"unless the work was done":       {"OnFailure", World{Sandbox: SandboxLost}, initialized(map[int]view{app1: exited(0), app2: exited(0)}), Plan{Finished: true}},
		"Never is not restarted":         {"Never", World{Sandbox: SandboxLost}, initialized(map[int]view{app1: up(), app2: up()}), Plan{Finished: true}},
		"a stop ends containers first":   {"Always", World{Sandbox: SandboxReady, Deadline: &end}, map[int]view{app1: up()}, Plan{Stop: []Timed{{app1, end}}}},
		"and then the sandbox":           {"Always", World{Sandbox: SandboxReady, Deadline: &end}, nil, Plan{TearDown: true}},
		"also one that is not ready":     {"Always", World{Sandbox: SandboxLost, Deadline: &end}, nil, Plan{TearDown: true}},
		"once as well":                   {"Always", World{Sandbox: SandboxBusy, Deadline: &end}, nil, Plan{}},
		"after a failure with one, too":  {"Always", World{Sandbox: SandboxLost, Deadline: &end, SandboxDue: at(4)}, nil, Plan{Again: at(4)}},
		"and one that may be half made":  {"Always", World{Sandbox: SandboxUnset, Deadline: &end}, nil, Plan{TearDown: true}},
		"if there is one":                {"Always", World{Sandbox: SandboxNone, Deadline: &end}, nil, Plan{Stopped: true}},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, tc.want, decide(&corev1.PodSpec{RestartPolicy: tc.policy}, world{tc.world, views(tc.views)}, now))
		})
	}
}

func TestARuleRestartsAllContainers(t *testing.T) {
	for name, tc := range map[string]struct {
		views map[int]view
		want  Plan
	}{
		"the others are ended without hooks": {initialized(map[int]view{app1: exited(88), app2: hooked(up(), hookDue, 0)}), Plan{Reset: true, Restarting: true, Stop: []Timed{{side, at(2)}, {app2, at(2)}}}},
		"one that is about to start, too":    {initialized(map[int]view{side: exited(0), app1: exited(88), app2: busy()}), Plan{Reset: true, Restarting: true}},
		"ephemeral ones are not":             {initialized(map[int]view{side: exited(0), app1: exited(88), app2: exited(0), debugger: up()}), Plan{Reset: true, Restarting: true, Restart: true}},
		"then all is history":                {initialized(map[int]view{side: exited(143), app1: exited(88), app2: exited(143)}), Plan{Reset: true, Restarting: true, Restart: true}},
		"another code is not the rule's":     {initialized(map[int]view{app1: exited(87), app2: up()}), Plan{}},
		"history begins with the first":      {map[int]view{app1: held(view{}, 5)}, Plan{Start: []int{init1}}},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, tc.want, decide(&corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever}, world{views: views(tc.views)}, now))
		})
	}
}
