// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/internal/plan"
)

// crowd writes to four objects from four goroutines, which are started in the order of a
// map and wake at the same instants.
func crowd(w *World) Scenario {
	marked := func() bool {
		for i := range 4 {
			m := apitest.Get[*corev1.ConfigMap](w.Server, "default", fmt.Sprint("m", i))
			if m == nil || m.Annotations["step"] != "9" {
				return false
			}
		}
		return true
	}
	return Scenario{
		Programs: []Program{{Name: "crowd", Run: func(ctx context.Context, p *Process) error {
			objects := kubernetes.NewForConfigOrDie(p.Config).CoreV1().ConfigMaps("default")
			var work sync.WaitGroup
			for name := range map[string]bool{"m0": true, "m1": true, "m2": true, "m3": true} {
				work.Go(func() {
					for step := 0; step < 10 && ctx.Err() == nil; {
						_, _ = objects.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
						patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"step":"%d"}}}`, step)
						if _, err := objects.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err == nil {
							step++
						}
						time.Sleep(time.Millisecond)
					}
				})
			}
			work.Wait()
			<-ctx.Done()
			return nil
		}}},
		Steps: []Step{{Name: "all marked", Until: marked}},
	}
}

// Runs of one plan have the same requests of each object in the same order, and the same
// end, however goroutines are scheduled.
func TestRunsOfAPlanAreTheSame(t *testing.T) {
	l := &lab{t: t, cfg: Config{Settle: time.Second}.withDefaults(), scenario: crowd}
	if err := l.prepare(); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"", "crash after @ crowd: patch configmaps default/m1 #3", "lost answer @ crowd: patch configmaps default/m2 #5",
		"503 @ crowd: create configmaps default/m0 #1", "takeover @ crowd: patch configmaps default/m3 #2",
		"crash before @ crowd: patch configmaps default/m0 #4 + slow @ crowd: patch configmaps default/m1 #9",
	} {
		p, err := plan.Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		var first map[string]string
		var end map[string]any
		for i := range 10 {
			out := l.run(p, mode{})
			if len(out.problems) > 0 || out.missed {
				t.Fatalf("%q: missed %v, %q", line, out.missed, out.problems)
			}
			objects := map[string]string{}
			for _, e := range out.journal {
				if f := strings.Fields(e.text); e.program != "" && len(f) == 3 {
					objects[e.program+" "+f[2]] += e.line() + "\n"
				}
			}
			if i == 0 {
				first, end = objects, out.end.all
				continue
			}
			if !maps.Equal(first, objects) {
				t.Errorf("%q: run %d has other requests:\n%v\nthan the first:\n%v", line, i, objects, first)
			}
			if d := differences(end, out.end.all); len(d) > 0 {
				t.Errorf("%q: run %d ends differently: %q", line, i, d)
			}
		}
	}
}

// A scenario in which nothing can be hit is not a success.
func TestNoPlaces(t *testing.T) {
	l := &lab{t: t, cfg: Config{Settle: time.Second}.withDefaults(), scenario: func(*World) Scenario {
		return Scenario{Programs: []Program{{Name: "idle", Run: func(ctx context.Context, _ *Process) error { <-ctx.Done(); return nil }}}}
	}}
	if err := l.prepare(); err == nil || !strings.Contains(err.Error(), "no place for a fault") {
		t.Errorf("got %v", err)
	}
}

func TestProgress(t *testing.T) {
	p := newProgress(time.Time{}, 3400)
	p.ran, p.findings = 850, 2
	if got, want := p.line(10*time.Second), "explore: plan 850 of 3400, 2 findings, 30s left"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	p = newProgress(time.Time{}, 0)
	p.what, p.budget, p.ran = "pair", time.Minute, 10
	if got, want := p.line(20*time.Second), "explore: pair 10, 0 findings, 40s left"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	p.total = 1000 // the budget ends first
	if got, want := p.line(70*time.Second), "explore: pair 10 of 1000, 0 findings, 0s left"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A sample has as many plans of each fault, so that one with a plan for each object does not
// crowd out the others.
func TestSampleIsEven(t *testing.T) {
	var all []string
	for i := range 90 {
		all = append(all, fmt.Sprintf("delete ConfigMap default/m%d @ p: update configmaps default/a #1", i))
		if i%30 == 0 {
			all = append(all, fmt.Sprintf("409 @ p: update configmaps default/a #%d", i+1))
		}
		if i%9 == 0 {
			all = append(all, fmt.Sprintf("crash after @ p: update configmaps default/a #%d", i+1))
		}
	}
	count := func(n int) map[string]int {
		cfg := Config{Sample: n}.withDefaults()
		got := map[string]int{}
		for _, line := range cfg.sample(all) {
			_, name := cfg.faultOf(line)
			got[name]++
		}
		return got
	}
	for n, want := range map[int]map[string]int{
		0:    {"delete": 90, "409": 3, "crash after": 10},
		1000: {"delete": 90, "409": 3, "crash after": 10},
		12:   {"delete": 5, "409": 3, "crash after": 4},
		24:   {"delete": 11, "409": 3, "crash after": 10},
		6:    {"delete": 2, "409": 2, "crash after": 2},
		1:    {"delete": 1},
	} {
		if got := count(n); !maps.Equal(got, want) {
			t.Errorf("a sample of %d has %v, want %v", n, got, want)
		}
	}
}

// -explore.faults takes names, and objects. A name that selects nothing is an error, because a
// test that tries nothing would pass.
func TestSelectedFaults(t *testing.T) {
	all := []string{
		"delete Pod default/a @ p: rest x #1", "delete Pod default/ab @ p: rest x #1", "delete Node n @ p: rest x #1",
		"delete unseen Pod default/a @ p: rest x #1", "409 @ p: update pods default/a #1", "late pods @ p: update pods default/a #1",
	}
	cfg := Config{}.withDefaults()
	for wanted, want := range map[string][]int{
		"delete": {0, 1, 2}, "delete Pod": {0, 1}, "delete Pod default/a": {0}, "delete unseen": {3}, "409,late pods": {4, 5}, "late": {5},
		"late,409": {4, 5}, "delete Pod,delete": {0, 1, 2}, // each plan once, in the order of the plans
		"500": nil, "delete Po": nil, "delete,edit": nil,
	} {
		got, err := cfg.selected(all, strings.Split(wanted, ","))
		if want == nil {
			if err == nil || !strings.Contains(err.Error(), `["delete" "delete unseen" "409" "late"]`) {
				t.Errorf("%q: %v, %v", wanted, got, err)
			}
			continue
		}
		var lines []string
		for _, i := range want {
			lines = append(lines, all[i])
		}
		if err != nil || !slices.Equal(got, lines) {
			t.Errorf("%q: got %q, %v, want %q", wanted, got, err, lines)
		}
	}
}

// What each cluster has by itself is no target, unless the program changes it.
func TestTargets(t *testing.T) {
	l := &lab{t: t, cfg: Config{Settle: time.Second}.withDefaults(), scenario: func(w *World) Scenario {
		w.Server.Put(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}})
		w.Server.Put(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "mine"}})
		w.Server.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kube-root-ca.crt"}})
		return Scenario{
			Programs: []Program{{Name: "p", Run: func(ctx context.Context, p *Process) error {
				accounts := kubernetes.NewForConfigOrDie(p.Config).CoreV1().ServiceAccounts("default")
				_, err := accounts.Patch(ctx, "default", types.MergePatchType, []byte(`{"imagePullSecrets":[{"name":"s"}]}`), metav1.PatchOptions{})
				<-ctx.Done()
				return err
			}}},
			Steps: []Step{
				{Name: "patched", Until: func() bool {
					return len(apitest.Get[*corev1.ServiceAccount](w.Server, "default", "default").ImagePullSecrets) > 0
				}},
				{Name: "end", Do: func() error { return nil }},
			},
		}
	}}
	if err := l.prepare(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Join(l.lines(), "\n")
	for line, want := range map[string]bool{
		"delete ServiceAccount default/default @ p: patch serviceaccounts default/default #1": false, // not yet changed
		"delete ServiceAccount default/default @ p: step end #1":                              true,
		"delete ServiceAccount default/default @ p: rest patched #1":                          true,
		"delete ServiceAccount default/mine @ p: patch serviceaccounts default/default #1":    true,
	} {
		if strings.Contains(lines, line) != want {
			t.Errorf("%q is a plan: %v, want %v", line, !want, want)
		}
	}
	for _, none := range []string{"PriorityClass", "kube-root-ca.crt"} {
		if strings.Contains(lines, none) {
			t.Errorf("there is a plan with %s", none)
		}
	}
}
