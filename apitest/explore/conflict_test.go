// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/internal/plan"
)

// rivalry has a program that counts to three in an annotation, and repeats an update after a
// conflict. Another client writes before the first attempts of an update: as often as
// rival(run) has for each of the three. The bug: after the third update, the program makes a
// receipt, and does not if it crashes in between.
func rivalry(rival func(run int) [3]int) func(*World) Scenario {
	run := -1
	return func(w *World) Scenario {
		run++
		left := rival(run)
		w.Server.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "out"}})
		return Scenario{
			Programs: []Program{{Name: "p", Run: func(ctx context.Context, p *Process) error {
				objects := corev1client.NewForConfigOrDie(p.Config).ConfigMaps("default")
				for ctx.Err() == nil {
					if err := count(ctx, w, objects, &left); err == nil {
						break
					}
					time.Sleep(time.Second)
				}
				<-ctx.Done()
				return nil
			}}},
			Steps: []Step{{Name: "three", Until: func() bool {
				return apitest.Get[*corev1.ConfigMap](w.Server, "default", "out").Annotations["n"] == "3"
			}}},
		}
	}
}

func count(ctx context.Context, w *World, objects corev1client.ConfigMapInterface, left *[3]int) error {
	for {
		out, err := objects.Get(ctx, "out", metav1.GetOptions{})
		if err != nil {
			return err
		}
		n := 0
		_, _ = fmt.Sscan(out.Annotations["n"], &n)
		if n == 3 {
			return nil
		}
		if left[n] > 0 {
			left[n]--
			apitest.Edit(w.Server, "default", "out", func(m *corev1.ConfigMap) { m.Data = map[string]string{"rival": fmt.Sprint(*left)} })
		}
		metav1.SetMetaDataAnnotation(&out.ObjectMeta, "n", fmt.Sprint(n+1))
		switch _, err := objects.Update(ctx, out, metav1.UpdateOptions{}); {
		case apierrors.IsConflict(err): // again, at once
		case err != nil:
			return err
		case n == 2:
			_, err := objects.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "receipt"}}, metav1.CreateOptions{})
			return err
		}
	}
}

// However often another client comes first, in the run without faults and in that of a plan,
// places have the same numbers, and the bug behind the last one is found.
func TestConflictsAreNotCounted(t *testing.T) {
	const last = "crash after @ p: update configmaps default/out #3"
	for name, rival := range map[string]func(run int) [3]int{
		"never":                     func(int) [3]int { return [3]int{} },
		"only in the reference":     func(run int) [3]int { return map[bool][3]int{true: {1, 2, 0}}[run < 5] },
		"only with a fault":         func(run int) [3]int { return map[bool][3]int{true: {0, 2, 1}}[run >= 5] },
		"otherwise before the last": func(run int) [3]int { return map[bool][3]int{true: {0, 0, 1}, false: {2, 0, 3}}[run < 5] },
		"differently in each run":   func(run int) [3]int { return [3]int{run % 3, run % 2, (run + 1) % 3} },
	} {
		cfg := Config{Settle: time.Second, Ignore: []string{"ConfigMap.data"}}.withDefaults()
		l := &lab{t: t, cfg: cfg, scenario: rivalry(rival)}
		if err := l.prepare(); err != nil {
			t.Fatal(err)
		}
		var places, found []string
		for _, p := range l.plans {
			if where := p[0].Place.String(); p[0].Place.Verb == "update" && !slices.Contains(places, where) {
				places = append(places, where)
			}
			if p[0].Fault != "crash after" || p[0].Place.Verb != "update" {
				continue
			}
			out := l.run(p, mode{})
			if out.missed {
				t.Errorf("%s: %s was missed", name, p)
			}
			if len(out.problems) > 0 {
				found = append(found, p.String())
			}
		}
		if want := []string{"p: update configmaps default/out #1", "p: update configmaps default/out #2", "p: update configmaps default/out #3"}; !slices.Equal(places, want) {
			t.Errorf("%s: the places are %q, want %q", name, places, want)
		}
		if !slices.Equal(found, []string{last}) {
			t.Errorf("%s: found %q, want %q", name, found, last)
		}
	}
}

// A fault hits a request that would be accepted. What it hits is counted, so that the
// repetition has the next number, and another fault can hit that.
func TestFaultAfterConflict(t *testing.T) {
	const update = "update configmaps default/out -> "
	for line, want := range map[string]string{
		"": "409 200 200 409 409 200",
		"503 @ p: update configmaps default/out #1": "409 503 200 200 409 409 200",
		"503 @ p: update configmaps default/out #3": "409 200 200 409 409 503 200",
		"409 @ p: update configmaps default/out #2": "409 200 409 200 409 409 200",
		// An edit makes a conflict, and the repetition is another place.
		"edit ConfigMap default/out @ p: update configmaps default/out #2":                                             "409 200 409 200 409 409 200",
		"edit ConfigMap default/out @ p: update configmaps default/out #2 + 500 @ p: update configmaps default/out #3": "409 200 409 500 200 409 409 200",
		"409 @ p: update configmaps default/out #3 + 409 @ p: update configmaps default/out #4":                        "409 200 200 409 409 409 409 200",
		"slow @ p: update configmaps default/out":                                                                      "409 200 200 409 409 200",
		"503 @ p: update configmaps default/out #3 + 409 @ p: patch configmaps default/out #1":                         "409 200 200 409 409 503 200",
		"crash before @ p: update configmaps default/out #3 + crash before @ p: update configmaps default/out #4":      "409 200 200 409 409 - - 200",
	} {
		p, err := plan.Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		cfg := Config{Settle: time.Second}.withDefaults()
		out := runPlan(t, cfg, rivalry(func(int) [3]int { return [3]int{1, 0, 2} }), p, mode{}, nil)
		var got []string
		faults := 0
		for _, e := range out.journal {
			if strings.HasPrefix(e.text, "FAULT: slow") {
				faults++
			}
			if result, ok := strings.CutPrefix(strings.TrimPrefix(e.line(), "p: "), update); ok {
				if strings.Contains(result, "crash") {
					result = "-"
				}
				got = append(got, result)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: the updates are answered with %v, want %v", line, got, want)
		}
		if every := 6; strings.HasPrefix(line, "slow") && faults != every { // the place has no number
			t.Errorf("%q: the fault hit %d requests, want %d", line, faults, every)
		}
		if never := strings.Contains(line, "patch"); out.missed != never {
			t.Errorf("%q: missed is %v", line, out.missed)
		}
	}
}

// Only a conflict with another write is not counted. A program does not repeat other requests
// that are refused, and their number does not depend on other clients.
func TestWhatIsCounted(t *testing.T) {
	l := &lab{t: t, cfg: Config{Settle: time.Second}.withDefaults(), scenario: func(w *World) Scenario {
		done := false
		return Scenario{
			Programs: []Program{{Name: "p", Run: func(ctx context.Context, p *Process) error {
				objects := corev1client.NewForConfigOrDie(p.Config).ConfigMaps("default")
				named := func(name string) *corev1.ConfigMap {
					return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"by": "p"}}
				}
				patch := func(kind types.PatchType, body string, opts metav1.PatchOptions) {
					_, _ = objects.Patch(ctx, "a", kind, []byte(body), opts)
				}
				old := "1"
				for range 2 {
					_, _ = objects.Create(ctx, named("a"), metav1.CreateOptions{})                                                                  // the second one exists
					_, _ = objects.Update(ctx, named("none"), metav1.UpdateOptions{})                                                               // not found
					patch(types.MergePatchType, `{"metadata":{"resourceVersion":"1"},"data":{"by":"q"}}`, metav1.PatchOptions{})                    // a conflict
					_ = objects.Delete(ctx, "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &old}})                 // a conflict
					patch(types.ApplyPatchType, `{"apiVersion":"v1","kind":"ConfigMap","data":{"by":"q"}}`, metav1.PatchOptions{FieldManager: "q"}) // of owners
				}
				_ = objects.Delete(ctx, "a", metav1.DeleteOptions{})
				done = true
				<-ctx.Done()
				return nil
			}}},
			Steps: []Step{{Name: "done", Until: func() bool { return done }}},
		}
	}}
	l.cfg.Options.ManagedFields = true
	if err := l.prepare(); err != nil {
		t.Fatal(err)
	}
	var places, answers []string
	for _, s := range l.ref.spots {
		if s.place.IsWrite() {
			places = append(places, strings.TrimPrefix(s.place.String(), "p: "))
		}
	}
	for _, e := range l.ref.journal {
		if e.program != "" {
			answers = append(answers, strings.TrimPrefix(e.result, "-> "))
		}
	}
	want := []string{
		"create configmaps default/a #1", "update configmaps default/none #1", "patch configmaps default/a #1",
		"create configmaps default/a #2", "update configmaps default/none #2", "patch configmaps default/a #2",
		"delete configmaps default/a #1",
	}
	if !slices.Equal(places, want) {
		t.Errorf("the places are %q, want %q", places, want)
	}
	if got, want := strings.Join(answers, " "), "201 404 409 409 409 409 404 409 409 409 200"; got != want {
		t.Errorf("the answers are %s, want %s", got, want)
	}
}

// To ask the server whether it would refuse a request leaves no trace there: it has seen the
// requests that are in the journal of the run, and has stored nothing more.
func TestConflictIsAskedWithoutTrace(t *testing.T) {
	p, err := plan.Parse("crash after @ p: update configmaps default/out #2")
	if err != nil {
		t.Fatal(err)
	}
	var s *apitest.Server
	served := 0
	scenario := rivalry(func(int) [3]int { return [3]int{1, 2, 1} })
	out := runPlan(t, Config{Settle: time.Second}.withDefaults(), func(w *World) Scenario {
		s = w.Server
		s.Inject(apitest.Fault{Match: apitest.Match{Verb: "update"}, Served: func(apitest.Request) { served++ }})
		return scenario(w)
	}, p, mode{}, nil)
	if len(out.problems) > 0 || out.missed {
		t.Errorf("missed is %v, %q", out.missed, out.problems)
	}
	var told, codes []string
	for _, e := range out.journal {
		if strings.HasPrefix(e.text, "update ") {
			told = append(told, strings.TrimPrefix(e.result, "-> "))
		}
	}
	for _, r := range s.Requests(apitest.Match{Verb: "update"}) {
		codes = append(codes, fmt.Sprint(r.Code))
		if r.DryRun {
			t.Errorf("the server has seen %v", r)
		}
	}
	if len(told) != 7 || len(codes) != 7 || served != 7 {
		t.Errorf("the journal has %q, the server %q, and %d were served; want 7 of each", told, codes, served)
	}
}
