// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
)

// spin never waits, so virtual time can't move.
func spin(ctx context.Context) {
	for n := 0; ; n++ {
		if n == 0 && ctx == nil {
			return
		}
	}
}

// soon makes a run count as stuck after three seconds, in this process and in its children.
func soon(t *testing.T) {
	was := stuckAfter
	stuckAfter = 3
	t.Cleanup(func() { stuckAfter = was })
}

// spinner spins in a process of the program.
func spinner(start int) func(w *World) Scenario {
	return func(w *World) Scenario {
		return Scenario{
			Programs: []Program{{Name: "p", Run: func(ctx context.Context, p *Process) error {
				if p.Start == start {
					spin(ctx)
				}
				maps := kubernetes.NewForConfigOrDie(p.Config).CoreV1().ConfigMaps("default")
				for ctx.Err() == nil {
					_, _ = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
					select {
					case <-ctx.Done():
					case <-time.After(time.Second):
					}
				}
				return nil
			}}},
			Steps: []Step{{Name: "a", Until: func() bool { return apitest.Get[*corev1.ConfigMap](w.Server, "default", "a") != nil }}},
		}
	}
}

func TestSpin(t *testing.T) {
	soon(t)
	cfg := Config{Settle: 10 * time.Second, Deadline: time.Minute, Faults: Faults()[1:2]} // crash after
	report := Find(t, cfg, spinner(1))
	if len(report.Findings) != 1 {
		t.Fatalf("%+v", report.Findings)
	}
	f := report.Findings[0]
	if f.Runs != 1 || f.Failed != 1 || !strings.Contains(f.Cause, "without an end, in ") || !strings.Contains(f.Story, "explore.spin(") || !strings.Contains(f.Story, "-- p crashes") {
		t.Errorf("failed in %d of %d runs, cause %q: %s", f.Failed, f.Runs, f.Cause, f.Story)
	}
}

// TestSpinOfTheReference asks a child, because Find would fail this test.
func TestSpinOfTheReference(t *testing.T) {
	soon(t)
	call := callOf(t)
	if os.Getenv(childEnv) == call {
		l := &lab{t: t, cfg: Config{}.withDefaults(), scenario: spinner(0)}
		l.serve()
	}
	staff := &children{call: call, test: t.Name()}
	defer staff.close()
	_, err := staff.prepare()
	if err == nil || !strings.Contains(err.Error(), "explore.spin(") || !strings.Contains(err.Error(), "the run without faults") {
		t.Errorf("%v", err)
	}
}
