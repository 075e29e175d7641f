// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/explore"
)

// findings returns the problems of a report by their plans.
func findings(r explore.Report) map[string]string {
	all := map[string]string{}
	for _, f := range r.Findings {
		all[f.Plan] = f.Problem
	}
	return all
}

// tenant keeps an account for the ConfigMap "app", and a finalizer for it. With the
// bug "late" it adds the finalizer last.
func tenant(bug string) func(w *explore.World) explore.Scenario {
	return func(w *explore.World) explore.Scenario {
		accounts := &machine{}
		return explore.Scenario{
			Outside: []explore.Outside{{Name: "accounts", List: accounts.list}},
			Programs: []explore.Program{{Name: "p", Run: func(ctx context.Context, p *explore.Process) error {
				maps := kubernetes.NewForConfigOrDie(p.Config).CoreV1().ConfigMaps("default")
				const name = "default-app" // the namespace has a ServiceAccount "default", too
				account := func() error {
					if slices.Contains(accounts.list(), name) {
						return nil
					}
					return p.Call("create "+name, func() { accounts.add(name) })
				}
				return loop(ctx, func() error {
					app, err := maps.Get(ctx, "app", metav1.GetOptions{})
					if err != nil {
						return err
					}
					if app.DeletionTimestamp != nil {
						if err := p.Call("delete "+name, func() { accounts.remove(name) }); err != nil {
							return err
						}
						app.Finalizers = nil
						_, err := maps.Update(ctx, app, metav1.UpdateOptions{})
						return err
					}
					if bug == "late" {
						if err := account(); err != nil {
							return err
						}
					}
					if len(app.Finalizers) == 0 {
						app.Finalizers = []string{"example.com/account"}
						if app, err = maps.Update(ctx, app, metav1.UpdateOptions{}); err != nil {
							return err
						}
					}
					return account()
				})
			}}},
			Steps: []explore.Step{
				{Name: "app", Do: func() error {
					w.Server.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app"}})
					return nil
				}, Until: func() bool {
					app := apitest.Get[*corev1.ConfigMap](w.Server, "default", "app")
					return len(accounts.list()) == 1 && app != nil && len(app.Finalizers) == 1
				}},
				{Name: "no app", Do: explore.Delete[*corev1.ConfigMap](w, "default", "app"), Until: func() bool {
					return apitest.Get[*corev1.ConfigMap](w.Server, "default", "app") == nil
				}},
			},
		}
	}
}

// What belongs to an object is found if it stays, also if the object is deleted while the program
// works on it.
func TestLeftoversOfADeletionBetweenTwoWrites(t *testing.T) {
	const stays = "Outside accounts/default-app is named after app, which is gone, and stays (see Outside.Retain)"
	for bug, want := range map[string]map[string]string{
		"": {},
		"late": {
			"delete ConfigMap default/app @ p: call create default-app #1":       stays,
			"delete ConfigMap default/app @ p: update configmaps default/app #1": stays, // which adds the finalizer
		},
	} {
		report := explore.Find(t, only("delete", "recreate"), tenant(bug))
		if got := findings(report); report.Plans == 0 || !maps.Equal(got, want) {
			t.Errorf("bug %q: %q, want %q", bug, got, want)
		}
	}
}

// mirror copies the version of the ConfigMap "in" to "out", and replaces "out" as a whole. With the
// bug "blind" it does not say which "out" it replaces, and "strict" does, and keeps nothing else.
func mirror(bug string) func(w *explore.World) explore.Scenario {
	return func(w *explore.World) explore.Scenario {
		set := func(v string) func() error {
			return func() error {
				w.Server.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "in"}, Data: map[string]string{"v": v}})
				return nil
			}
		}
		copied := func(v string) func() bool {
			return func() bool {
				out := apitest.Get[*corev1.ConfigMap](w.Server, "default", "out")
				return out != nil && out.Data["v"] == v
			}
		}
		return explore.Scenario{
			Programs: []explore.Program{{Name: "p", Run: func(ctx context.Context, p *explore.Process) error {
				maps := kubernetes.NewForConfigOrDie(p.Config).CoreV1().ConfigMaps("default")
				return loop(ctx, func() error {
					in, err := maps.Get(ctx, "in", metav1.GetOptions{})
					if err != nil {
						return err
					}
					want := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "out"}, Data: in.Data}
					out, err := maps.Get(ctx, "out", metav1.GetOptions{})
					if apierrors.IsNotFound(err) {
						_, err = maps.Create(ctx, want, metav1.CreateOptions{})
						return err
					}
					if err != nil || out.Data["v"] == in.Data["v"] && (bug != "strict" || len(out.Annotations) == 0) {
						return err
					}
					if bug != "blind" {
						want.ResourceVersion = out.ResourceVersion
					}
					if bug == "" {
						want.Annotations = out.Annotations
					}
					_, err = maps.Update(ctx, want, metav1.UpdateOptions{})
					return err
				})
			}}},
			Steps: []explore.Step{{Name: "1", Do: set("1"), Until: copied("1")}, {Name: "2", Do: set("2"), Until: copied("2")}},
		}
	}
}

// What another client has written is not lost in an update that does not know of it. A program
// that has seen it may remove it.
func TestAnEditIsNotLost(t *testing.T) {
	lost := "p: an update of ConfigMap default/out without a resourceVersion has removed what another client had written, " +
		"the annotation explore.test/edited (see Config.Ignore)"
	for bug, want := range map[string]map[string]string{
		"":       {},
		"strict": {},
		"blind": {
			"edit ConfigMap default/out @ p: update configmaps default/out #1": lost,
			"edit ConfigMap default/out @ p: rest 1 #1":                        lost,
			"edit ConfigMap default/out @ p: step 2 #1":                        lost,
		},
	} {
		report := explore.Find(t, only("edit"), mirror(bug))
		if got := findings(report); report.Plans == 0 || !maps.Equal(got, want) {
			t.Errorf("bug %q: %q, want %q", bug, got, want)
		}
		cfg := only("edit")
		cfg.Ignore = []string{"ConfigMap.metadata.annotations"}
		if got := findings(explore.Find(t, cfg, mirror(bug))); len(got) > 0 {
			t.Errorf("bug %q: %q, although it is ignored", bug, got)
		}
	}
}

// marker marks the ConfigMap "app" and creates "ready", and deletes that after the deletion of
// "app". With the bug "memory" it remembers that it has marked the app although that failed, and
// with "wait" it does nothing more then. With "ticks" it also creates a ConfigMap each second while
// there is an app.
func marker(bug string) func(w *explore.World) explore.Scenario {
	return func(w *explore.World) explore.Scenario {
		ready := has(w, "ready")
		return explore.Scenario{
			Programs: []explore.Program{{Name: "p", Run: func(ctx context.Context, p *explore.Process) error {
				maps := kubernetes.NewForConfigOrDie(p.Config).CoreV1().ConfigMaps("default")
				marked := false
				return loop(ctx, func() error {
					app, err := maps.Get(ctx, "app", metav1.GetOptions{})
					if apierrors.IsNotFound(err) {
						return maps.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "of=app"})
					}
					if err != nil {
						return err
					}
					if app.Annotations["marked"] == "" && !marked {
						marked = bug == "memory" || bug == "wait"
						app.Annotations = map[string]string{"marked": "yes"}
						if _, err = maps.Update(ctx, app, metav1.UpdateOptions{}); err != nil {
							return err
						}
					}
					if app.Annotations["marked"] == "" && bug == "wait" {
						return nil
					}
					meta := metav1.ObjectMeta{Name: "ready", Labels: map[string]string{"of": "app"}}
					if !ready() {
						if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
							return err
						}
					}
					if bug == "ticks" {
						meta.Name = fmt.Sprint("tick-", p.World.Server.ResourceVersion())
						_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: meta}, metav1.CreateOptions{})
					}
					return err
				})
			}}},
			Steps: []explore.Step{
				{Name: "app", Do: func() error {
					w.Server.Put(&corev1.ConfigMap{
						ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app"},
						Data:       map[string]string{"token": fmt.Sprint(rand.Uint64())},
					})
					return nil
				}, Until: ready},
				{Name: "no app", Do: explore.Delete[*corev1.ConfigMap](w, "default", "app"), Until: func() bool { return !ready() }},
			},
		}
	}
}

// What exists is compared after each step, so that the last one may delete it all.
func TestComparedAfterSteps(t *testing.T) {
	const lacks = `ConfigMap default/app .metadata.annotations: none, in the reference {"marked":"yes"}`
	for bug, want := range map[string]map[string]string{
		"":       {},
		"memory": {"500 @ p: update configmaps default/app #1": "what exists after step \"app\" differs from the reference:\n" + lacks},
		"wait": {"500 @ p: update configmaps default/app #1": "step \"app\" was not reached within 1m0s\n" +
			"what exists differs from the reference after the step:\n" + lacks + "\nConfigMap default/ready: does not exist, but does in the reference"},
		"ticks": {}, // after which there is nothing to compare
	} {
		report := explore.Find(t, only("500"), marker(bug))
		if got := findings(report); report.Plans == 0 || !maps.Equal(got, want) {
			t.Errorf("bug %q: %q, want %q", bug, got, want)
		}
	}
}
