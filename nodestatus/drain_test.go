// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// A drain of ten minutes: the node is not Ready from the first second, and never
// Unknown, and nothing holds its lease back.
func TestANodeThatDrainsIsNotReadyAndAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		health := &knob[error]{}
		w := start(t, s, Config{HealthChecks: []HealthCheck{healthCheck(health)}, ReportInterval: 30 * time.Second, ErrorHandler: func(_ context.Context, err error, _ string) {
			if !strings.Contains(err.Error(), "disk") {
				t.Errorf("reported: %v", err)
			}
		}})
		w.pass(time.Minute)
		w.c.SetNotReady(node1, &NotReadyError{Reason: "NodeDraining", Message: "the machine will be rebooted"})
		w.pass(time.Second)
		ready := w.condition(corev1.NodeReady)
		if ready.Status != corev1.ConditionFalse || ready.Reason != "NodeDraining" || ready.Message != "the machine will be rebooted" {
			t.Fatalf("Ready is %+v", ready)
		}
		before := ready.LastHeartbeatTime
		for range 20 {
			w.pass(30 * time.Second)
			if err := w.c.Live(t.Context(), node1); err != nil {
				t.Fatal(err)
			}
		}
		again := w.condition(corev1.NodeReady)
		if again.Reason != "NodeDraining" || !again.LastTransitionTime.Equal(&ready.LastTransitionTime) || again.LastHeartbeatTime.Sub(before.Time) < 9*time.Minute {
			t.Errorf("Ready is %+v after ten minutes, was %+v", again, ready)
		}
		// The reason of the drain goes first; a check that fails is named too.
		health.set(errors.New("disk is gone"))
		w.pass(DefaultSyncInterval + time.Second)
		if c := w.condition(corev1.NodeReady); c.Reason != "NodeDraining" || c.Message != "the machine will be rebooted; disk is gone" {
			t.Errorf("Ready is %+v", c)
		}
		health.set(nil)
		w.c.SetNotReady(node1, nil)
		w.pass(time.Second)
		if c := w.condition(corev1.NodeReady); c.Status != corev1.ConditionTrue {
			t.Errorf("Ready is %+v after the drain was called off", c)
		}
		w.c.SetNotReady("unknown", nil)
	})
}

// Later changes to the error have no effect, and an empty reason, which
// the API server would refuse, is replaced.
func TestSetNotReadyCopiesItsArgument(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		w := start(t, s, Config{})
		cause := &NotReadyError{Message: "drain"}
		w.c.SetNotReady(node1, cause)
		cause.Message = "changed"
		w.pass(time.Second)
		if c := w.condition(corev1.NodeReady); c.Status != corev1.ConditionFalse || c.Reason != ReasonHealthCheckFailed || c.Message != "drain" {
			t.Errorf("Ready is %+v", c)
		}
	})
}

func TestARebootIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		boot := &knob[string]{value: "boot-1"}
		var reboots []Rebooted
		rec := &recorder{}
		cfg := Config{EventRecorder: rec, Hooks: Hooks{Rebooted: func(r Rebooted) { reboots = append(reboots, r) }}, Setters: []Setter{func(_ context.Context, n *corev1.Node) error {
			n.Status.NodeInfo.BootID = boot.get()
			return nil
		}}}
		first := start(t, s, cfg)
		first.pass(time.Minute)
		if err := first.stop(); err != nil {
			t.Fatal(err)
		}
		again := start(t, s, cfg)
		again.pass(time.Minute)
		if err := again.stop(); err != nil {
			t.Fatal(err)
		}
		if len(reboots) != 0 {
			t.Fatalf("a restart of the process was taken for a reboot: %v", reboots)
		}
		// The first write after the reboot fails: it is reported with the second.
		boot.set("boot-2")
		s.Inject(apitest.Fault{Match: patches, Status: statuserr.InternalError(""), Times: 1})
		cfg.ErrorHandler = func(context.Context, error, string) {}
		w := start(t, s, cfg)
		w.pass(time.Hour)
		if len(reboots) != 1 || reboots[0] != (Rebooted{NodeName: node1, OldBootID: "boot-1", NewBootID: "boot-2"}) {
			t.Errorf("reboots are %+v", reboots)
		}
		n := 0
		for _, e := range rec.seen {
			if e == "Warning Rebooted UpdateStatus" {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d events in %q", n, rec.seen)
		}
	})
}
