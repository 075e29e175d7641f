// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/explore"
)

// machine runs an app after a setup, which stays as something that has ended.
type machine struct {
	mu     sync.Mutex
	things []string
}

func (m *machine) list() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.things)
}

func (m *machine) ended() []string {
	return slices.DeleteFunc(m.list(), func(name string) bool { return name != "setup" })
}

func (m *machine) add(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.things = append(m.things, name)
}

func (m *machine) remove(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.things = slices.DeleteFunc(m.things, func(x string) bool { return x == name })
}

// keeper keeps what runs on a machine, and writes its state. With the bug "absence" it takes
// a setup that does not exist for one that has failed, with the bug "leak" it doesn't look for what
// an earlier process has started, and with the bugs "stays" and "retained" it ends nothing.
func keeper(bug string) func(w *explore.World) explore.Scenario {
	return func(w *explore.World) explore.Scenario {
		m := &machine{}
		return explore.Scenario{
			Programs: []explore.Program{{Name: "p", Run: func(ctx context.Context, p *explore.Process) error {
				maps := kubernetes.NewForConfigOrDie(p.Config).CoreV1().ConfigMaps("default")
				started := false
				return loop(ctx, func() error {
					app, err := maps.Get(ctx, "app", metav1.GetOptions{})
					if apierrors.IsNotFound(err) && bug != "stays" && bug != "retained" {
						return p.Call("end", func() { m.remove("app") })
					} else if err != nil {
						return err
					}
					things := m.list()
					if bug != "leak" {
						started = slices.Contains(things, "app")
					}
					if !started {
						if !slices.Contains(things, "setup") {
							if err := p.Call("set up", func() { m.add("setup") }); err != nil {
								return err
							}
						}
						if err := p.Call("start", func() { m.add("app") }); err != nil {
							return err
						}
						started = true
					}
					state := "runs"
					if bug == "absence" && !slices.Contains(m.list(), "setup") {
						state = "failed"
					}
					if app.Data["state"] == state {
						return nil
					}
					app.Data = map[string]string{"state": state}
					_, err = maps.Update(ctx, app, metav1.UpdateOptions{})
					return err
				})
			}}},
			Outside: []explore.Outside{{Name: "machine", List: m.list, Rest: m.ended, Delete: m.remove, Retain: bug == "retained"}},
			Steps: []explore.Step{{Name: "app", Do: func() error {
				w.Server.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app"}})
				return nil
			}, Until: func() bool {
				app := apitest.Get[*corev1.ConfigMap](w.Server, "default", "app")
				return app != nil && app.Data["state"] == "runs"
			}}},
		}
	}
}

// What is outside is compared, and deleted when it is at rest.
func TestOutside(t *testing.T) {
	const pruned, deleted = "prune machine/setup @ p: rest app #1", "delete ConfigMap default/app @ p: rest app #1"
	for bug, c := range map[string]struct {
		plan, problem string
	}{
		"":        {},
		"absence": {pruned, `ConfigMap default/app .data.state: "failed", in the reference "runs"`},
		"leak":    {"crash after @ p: call start #1", "Outside machine/app: 2, in the reference 1"},
		"stays":   {deleted, "Outside machine/app is named after app, which is gone, and stays"},
		// It may stay.
		"retained": {},
	} {
		t.Run(bug, func(t *testing.T) {
			report := explore.Find(t, only("prune", "crash after", "delete"), keeper(bug))
			if c.plan == "" {
				if len(report.Findings) > 0 || !slices.Contains(report.Faults, explore.Tried{Fault: "prune", Plans: 1, Acted: 1}) {
					t.Errorf("%+v", report)
				}
				return
			}
			if !slices.ContainsFunc(report.Findings, func(f explore.Finding) bool {
				return f.Plan == c.plan && strings.Contains(f.Problem, c.problem)
			}) {
				t.Errorf("%+v", report.Findings)
			}
		})
	}
}

// Delete in a step is what kubectl does.
func TestDeleteInAStep(t *testing.T) {
	explore.Run(t, only("crash before"), func(w *explore.World) explore.Scenario {
		w.Server.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app", Finalizers: []string{"example.com/f"}}})
		return explore.Scenario{
			Programs: []explore.Program{{Name: "p", Run: func(ctx context.Context, p *explore.Process) error {
				maps := kubernetes.NewForConfigOrDie(p.Config).CoreV1().ConfigMaps("default")
				return loop(ctx, func() error {
					app, err := maps.Get(ctx, "app", metav1.GetOptions{})
					if err != nil || app.DeletionTimestamp == nil {
						return err
					}
					app.Finalizers = nil
					_, err = maps.Update(ctx, app, metav1.UpdateOptions{})
					return err
				})
			}}},
			Steps: []explore.Step{
				{Name: "delete it", Do: func() error {
					if err := explore.Delete[*corev1.ConfigMap](w, "default", "app")(); err != nil {
						return err
					}
					if app := apitest.Get[*corev1.ConfigMap](w.Server, "default", "app"); app == nil || app.DeletionTimestamp == nil {
						return fmt.Errorf("it does not wait for its finalizer: %v", app)
					}
					return nil
				}, Until: func() bool { return apitest.Get[*corev1.ConfigMap](w.Server, "default", "app") == nil }},
				{Name: "again", Do: explore.Delete[*corev1.ConfigMap](w, "default", "app")},
			},
		}
	})
}

// recreated keeps a ConfigMap for a Deployment, and its status.observedGeneration. With the bug
// "twice" it knows the ConfigMap by the UID of the Deployment, and with the bug "observed" it
// writes the status once.
func recreated(bug string) func(w *explore.World) explore.Scenario {
	return func(w *explore.World) explore.Scenario {
		labels := map[string]string{"app": "a"}
		w.Server.Put(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app"}, Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
		}})
		return explore.Scenario{
			Programs: []explore.Program{{Name: "p", Run: func(ctx context.Context, p *explore.Process) error {
				client := kubernetes.NewForConfigOrDie(p.Config)
				maps, deployments := client.CoreV1().ConfigMaps("default"), client.AppsV1().Deployments("default")
				made, observed := map[string]bool{}, false
				return loop(ctx, func() error {
					app, err := deployments.Get(ctx, "app", metav1.GetOptions{})
					if err != nil {
						return err
					}
					list, err := maps.List(ctx, metav1.ListOptions{})
					if err != nil {
						return err
					}
					if !made[string(app.UID)] && (bug == "twice" || len(list.Items) == 0) {
						if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "app-"}}, metav1.CreateOptions{}); err != nil {
							return err
						}
						made[string(app.UID)] = true
					}
					if app.Status.ObservedGeneration == app.Generation || observed && bug == "observed" {
						return nil
					}
					app.Status.ObservedGeneration = app.Generation
					_, err = deployments.UpdateStatus(ctx, app, metav1.UpdateOptions{})
					observed = err == nil
					return err
				})
			}}},
			Steps: []explore.Step{
				{Name: "observed", Until: func() bool {
					return apitest.Get[*appsv1.Deployment](w.Server, "default", "app").Status.ObservedGeneration == 1
				}},
				{Name: "nothing", Do: func() error { return nil }},
			},
		}
	}
}

// After an object was created again, there are not more of what belongs to it than before, and
// its generation is observed.
func TestChecksAfterRecreation(t *testing.T) {
	for bug, want := range map[string]string{
		"":         "",
		"twice":    "there are 2 of ConfigMap default/app-*, and the reference never has more than 1",
		"observed": "Deployment default/app does not have status.observedGeneration of its generation",
	} {
		t.Run(bug, func(t *testing.T) {
			report := explore.Find(t, only("recreate"), recreated(bug))
			at := slices.IndexFunc(report.Findings, func(f explore.Finding) bool {
				return f.Plan == "recreate Deployment default/app @ p: step nothing #1"
			})
			if bug == "" {
				if len(report.Findings) > 0 || report.Plans == 0 {
					t.Errorf("%+v", report)
				}
			} else if at < 0 || report.Findings[at].Problem != want {
				t.Errorf("%+v", report.Findings)
			}
		})
	}
}
