// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/internal/record"
	core "github.com/kubewright/kubewright/podsync/podruntime/internal/container"
)

// steps are steps of a wall clock while a process runs.
var steps = []time.Duration{-48 * time.Hour, -time.Hour, 0, time.Hour, 48 * time.Hour}

// step returns what time.Now would have returned instead of now after a step of the wall clock, which
// leaves the monotonic clock alone. A bubble has no monotonic clock.
func step(t *testing.T, now time.Time, by time.Duration) time.Time {
	t.Helper()
	type reading struct { // as in package time
		wall uint64
		ext  int64
		loc  *time.Location
	}
	stepped := now.Add(by)
	(*reading)(unsafe.Pointer(&stepped)).ext = (*reading)(unsafe.Pointer(&now)).ext
	if got := stepped.Round(0).Sub(now.Round(0)); got != by || stepped.Sub(now) != 0 {
		t.Fatalf("the wall clock has moved by %v, want %v, and the monotonic one by %v", got, by, stepped.Sub(now))
	}
	return stepped
}

// TestAStepOfTheClockMovesNoDeadlineFromDisk: the process that has read it runs on.
func TestAStepOfTheClockMovesNoDeadlineFromDisk(t *testing.T) {
	now := time.Now()
	for name, kept := range map[string]time.Time{"this version": now, "an earlier version": {}} {
		stop := stopRecord{Deadline: now.Add(30 * time.Second).Round(0), Kept: kept.Round(0)}
		due := stop.due(now.Add(10 * time.Second))
		for _, by := range steps {
			if left := due.Sub(step(t, now.Add(15*time.Second), by)); left != 15*time.Second {
				t.Errorf("%s, a step of %v: %v are left, want 15s", name, by, left)
			}
		}
	}
}

// TestAStepOfTheClockMovesNoEndOfARunFromDisk: a probe had failed in the process before.
func TestAStepOfTheClockMovesNoEndOfARunFromDisk(t *testing.T) {
	dir, n := t.TempDir(), &node{cfg: Config{Backoff: Backoff{Initial: time.Second, Max: time.Minute, Reset: time.Hour}}, room: newRoom(nil, false, false, nil)}
	pod := &corev1.Pod{}
	pod.UID = "uid"
	pod.Spec.Containers = []corev1.Container{{Name: "c"}}
	now := time.Now()
	if err := errors.Join(
		record.Write(filepath.Join(dir, "pod.json"), podRecord{Pod: pod, Accepted: now}),
		makeDirs(dir),
		record.Write(runFile(dir, "c", 0), core.Record{Ran: now.Add(-time.Hour).Round(0), EndBy: now.Add(20 * time.Second).Round(0)}),
	); err != nil {
		t.Fatal(err)
	}
	p, err := n.load(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer p.end()
	for _, by := range steps {
		left := p.containers[0].m.Record.EndBy.Sub(step(t, now, by))
		if off := left - 20*time.Second; off.Abs() > time.Millisecond { // the two readings of the clock are not one
			t.Errorf("a step of %v: %v are left, want 20s", by, left)
		}
	}
}

// TestAStepOfTheClockMovesNoBackOff and no end of a run, in the process that has computed them.
func TestAStepOfTheClockMovesNoBackOff(t *testing.T) {
	pod := &core.Pod{Backoff: core.Backoff{Initial: 10 * time.Second, Max: time.Minute, Reset: 10 * time.Minute}, Grace: 30 * time.Second}
	spec := &corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways, Containers: []corev1.Container{{Name: "c"}}}
	decide := func(c *core.Container, now time.Time) core.Plan {
		return core.Decide(spec, core.World{Containers: []*core.Container{c}}, now)
	}
	now := time.Now()
	for _, by := range steps {
		c := core.New(pod, core.Regular, &spec.Containers[0])
		c.Recall(1, core.Record{}) // the first restart is not held back
		exited := core.Run{Attempt: 1, State: core.Exited, StartedAt: now.Add(-time.Second).Round(0), FinishedAt: now.Round(0)}
		if err := c.Apply(now, core.Listed{Runs: []core.Run{exited}}); err != nil {
			t.Fatal(err)
		}
		for after, starts := range map[time.Duration]int{9 * time.Second: 0, 10 * time.Second: 1} {
			later := step(t, now.Add(after), by)
			if err := c.Apply(later, core.Listed{Runs: []core.Run{exited}}); err != nil { // each list has the run again
				t.Fatal(err)
			}
			if p := decide(c, later); len(p.Start) != starts {
				t.Errorf("a step of %v: %v after the end %d starts, want %d", by, after, len(p.Start), starts)
			}
		}

		c = core.New(pod, core.Regular, &spec.Containers[0])
		c.Recall(0, core.Record{Ran: now.Round(0)})
		running := core.Listed{Runs: []core.Run{{State: core.Running, StartedAt: now.Round(0)}}}
		for _, e := range []core.Event{running, core.Unhealthy{By: now.Add(30 * time.Second)}} {
			if err := c.Apply(now, e); err != nil {
				t.Fatal(err)
			}
		}
		p := decide(c, step(t, now.Add(20*time.Second), by))
		if len(p.Stop) != 1 || p.Stop[0].By.Sub(now) != 30*time.Second {
			t.Errorf("a step of %v: %+v, want a stop by the same deadline", by, p.Stop)
		}
	}
}

// healthy is a Runtime in which each command succeeds.
type healthy struct{}

func (healthy) Exec(context.Context, ContainerID, []string) (ExecResult, error) {
	return ExecResult{}, nil
}

// TestTheFirstProbeDoesNotWaitForTheClock: the Runtime has a time from before the clock was set back.
func TestTheFirstProbeDoesNotWaitForTheClock(t *testing.T) {
	for started, want := range map[time.Duration]time.Duration{
		48 * time.Hour: 30 * time.Second, time.Second: 30 * time.Second, 0: 30 * time.Second, -10 * time.Second: 20 * time.Second, -48 * time.Hour: 0,
	} {
		synctest.Test(t, func(t *testing.T) {
			begin, first := time.Now(), time.Duration(-1)
			tg := target{execer: healthy{}, spec: &corev1.Container{}, panics: &panics{}}
			probe := &corev1.Probe{InitialDelaySeconds: 30, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{}}}
			tg.poll(t.Context(), probe, begin.Add(started), func(error) {}, func(bool) bool { first = time.Since(begin); return false })
			if first != want {
				t.Errorf("started at %v: the first probe is after %v, want %v", started, first, want)
			}
		})
	}
}
