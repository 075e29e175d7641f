// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/nodestatus/internal/status"
)

// Functions that hang on many nodes, from the start or from some time on, silence no
// other node: neither those that mind their context nor those that do not.
func TestFunctionsThatHangOnSomeNodesSilenceNoOther(t *testing.T) {
	n, workers := 1000, 32
	if testing.Short() {
		n, workers = 100, 4
	}
	for name, hang := range map[string]func(ctx context.Context){
		"until the context is done": func(ctx context.Context) { <-ctx.Done() },
		"for an hour":               func(context.Context) { time.Sleep(time.Hour) },
	} {
		for _, from := range []time.Duration{0, time.Minute} {
			t.Run(name+" from "+from.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testSomeNodesHang(t, n, workers, from, hang) })
			})
		}
	}
}

func testSomeNodesHang(t *testing.T, n, workers int, from time.Duration, hang func(ctx context.Context)) {
	s := apitest.New(apitest.Options{})
	names := fleet(n)
	sick := make(map[string]bool, n)
	for i, name := range names {
		sick[name] = i%3 != 0
	}
	begin := time.Now()
	w := start(t, s, Config{Client: s.Client(apitest.User{}).CoreV1(), Workers: workers, HealthChecks: []HealthCheck{
		func(ctx context.Context, name string) error {
			if sick[name] && time.Since(begin) >= from {
				hang(ctx)
			}
			return ctx.Err()
		},
	}})
	for _, name := range names {
		if err := w.c.Add(name); err != nil {
			t.Fatal(err)
		}
	}
	w.pass(from + 50*time.Second)
	for range 10 {
		w.pass(10 * time.Second)
		lost, alive := 0, 0
		for _, name := range names {
			switch err := w.c.Live(t.Context(), name); {
			case err != nil && !sick[name]:
				lost++
			case err == nil && sick[name]:
				alive++
			}
		}
		if lost > 0 {
			t.Fatalf("%d nodes that are well lost their lease after %v", lost, time.Since(begin))
		}
		if alive > 0 && time.Since(begin) > from+90*time.Second {
			t.Fatalf("%d nodes that hang are alive after %v", alive, time.Since(begin))
		}
	}
	for _, name := range names {
		ready := status.FindCondition(apitest.Get[*corev1.Node](s, "", name).Status.Conditions, corev1.NodeReady)
		if (ready.Status == corev1.ConditionTrue) == sick[name] {
			t.Fatalf("node %s, sick %v: Ready is %+v", name, sick[name], ready)
		}
	}
}

// Too few workers are said once, with the arithmetic, to the hook and in the status.
func TestTooFewWorkersAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		slow := &knob[time.Duration]{value: 250 * time.Millisecond}
		var said notes[Overloaded]
		w := start(t, s, Config{
			Client: s.Client(apitest.User{}).CoreV1(), Workers: 2, Hooks: Hooks{Overloaded: said.add},
			HealthChecks: []HealthCheck{func(context.Context, string) error { time.Sleep(slow.get()); return nil }},
		})
		for _, name := range fleet(500) {
			if err := w.c.Add(name); err != nil {
				t.Fatal(err)
			}
		}
		w.pass(2 * time.Minute)
		all := said.get()
		if len(all) != 1 || all[0].Ended || all[0].Nodes != 501 || all[0].Workers != 2 || all[0].Late <= DefaultSyncInterval || all[0].Round < 50*time.Millisecond {
			t.Fatalf("said %+v", all)
		}
		if status, _ := w.c.Status(node1); !status.Overloaded {
			t.Errorf("the status is %+v", status)
		}
		slow.set(0)
		w.pass(2 * time.Minute)
		if all = said.get(); len(all) != 2 || !all[1].Ended {
			t.Errorf("said %+v", all)
		}
		if status, _ := w.c.Status(node1); status.Overloaded {
			t.Errorf("the status is %+v", status)
		}
	})
}

// A node whose program asks for rounds all the time is late for no longer than others.
func TestTriggersDoNotShortenThePatienceWithAHealthCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		hang := &knob[time.Duration]{}
		w := start(t, s, Config{HealthChecks: []HealthCheck{func(context.Context, string) error { time.Sleep(hang.get()); return nil }}})
		w.pass(time.Minute)
		hang.set(12 * time.Second)
		for range 110 {
			w.c.Trigger(node1)
			w.pass(100 * time.Millisecond)
			if err := w.c.Live(t.Context(), node1); err != nil {
				t.Fatal(err)
			}
		}
	})
}
