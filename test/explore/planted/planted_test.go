// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/explore"
)

// database is the world of an operator under test, for its steps.
type database struct{ *explore.World }

// set returns a step that writes the data of the database, one after the other, two
// seconds apart.
func (d database) set(key string, values ...string) func() error {
	return func() error {
		for i, v := range values {
			if i > 0 {
				time.Sleep(2 * time.Second)
			}
			if apitest.Edit(d.Server, "default", "db", func(m *corev1.ConfigMap) { m.Data[key] = v }) == nil {
				d.Server.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db", Finalizers: d.finalizers(key)}, Data: map[string]string{key: v}})
			}
		}
		return nil
	}
}

func (d database) finalizers(key string) []string {
	if key == "claim" {
		return []string{finalizer}
	}
	return nil
}

func (d database) get() *corev1.ConfigMap {
	return apitest.Get[*corev1.ConfigMap](d.Server, "default", "db")
}
func (d database) claim(i int) *corev1.PersistentVolumeClaim {
	return apitest.Get[*corev1.PersistentVolumeClaim](d.Server, "default", claim(i))
}
func (d database) member(i int) *corev1.ConfigMap {
	return apitest.Get[*corev1.ConfigMap](d.Server, "default", member(i))
}
func (d database) added(n string) func() bool {
	return func() bool { return d.get().Annotations["added"] == n }
}
func (d database) secret(name string) bool {
	return apitest.Get[*corev1.Secret](d.Server, "default", name) != nil
}

// delete deletes the database as a user does.
func (d database) delete() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return d.Server.Client(apitest.User{}).CoreV1().ConfigMaps("default").Delete(ctx, "db", metav1.DeleteOptions{})
}

// kept is an invariant: claim i of a database is not deleted while needed is true.
func (d database) kept(i int, needed func(db *corev1.ConfigMap) bool) explore.Invariant {
	var seen, of types.UID
	return explore.Invariant{Name: "a claim in use is kept", Holds: func() error {
		db, c := d.get(), d.claim(i)
		if db == nil || !needed(db) {
			seen = ""
			return nil
		}
		if seen != "" && of == db.UID && (c == nil || c.UID != seen) {
			return errors.New("the claim is deleted, and its data is lost")
		}
		if c != nil {
			seen, of = c.UID, db.UID
		}
		return nil
	}}
}

// recreate creates a database, deletes it, and creates it again.
func recreate(d database) explore.Scenario {
	return explore.Scenario{
		Steps: []explore.Step{
			{Name: "create", Do: d.set("claim", "yes"), Until: func() bool { return d.claim(0) != nil }},
			{Name: "delete", Do: d.delete, Until: func() bool { return d.get() == nil }},
			{Name: "create again", Do: d.set("claim", "yes"), Until: func() bool { return d.claim(0) != nil }},
		},
		Always: []explore.Invariant{d.kept(0, func(db *corev1.ConfigMap) bool { return db.DeletionTimestamp == nil })},
	}
}

// bugs are the planted ones, with the issue of the operator that inspired each.
var bugs = []struct {
	name, after, pattern string
	run                  program
	scenario             func(d database) explore.Scenario
}{
	{"keystore", "cass-operator K8SSAND-1023", "intermediate state", every(keystore), func(d database) explore.Scenario {
		return explore.Scenario{Steps: []explore.Step{{Name: "secrets", Until: func() bool { return d.secret("ca") && d.secret("keystore") }}}}
	}},
	{"scale down", "casskop 370", "intermediate state", every(scaleDown), func(d database) explore.Scenario {
		return explore.Scenario{Steps: []explore.Step{
			{Name: "two", Do: d.set("replicas", "2"), Until: func() bool { return d.member(1) != nil }},
			{Name: "one", Do: d.set("replicas", "1"), Until: func() bool { return d.member(1) == nil }},
		}}
	}},
	{"resize", "rabbitmq/cluster-operator 782", "intermediate state", every(resize), func(d database) explore.Scenario {
		size := func(want string) func() bool {
			return func() bool {
				set := apitest.Get[*appsv1.StatefulSet](d.Server, "default", "db")
				return set != nil && set.Annotations["size"] == want
			}
		}
		return explore.Scenario{Steps: []explore.Step{
			{Name: "10Gi", Do: d.set("storage", "10Gi"), Until: size("10Gi")},
			{Name: "15Gi", Do: d.set("storage", "15Gi"), Until: size("15Gi")},
		}}
	}},
	{"node state", "nifikop 49", "intermediate state", every(nodeState), func(d database) explore.Scenario {
		return explore.Scenario{Steps: []explore.Step{
			{Name: "one", Do: d.set("replicas", "1"), Until: d.added("1")},
			{Name: "two", Do: d.set("replicas", "2"), Until: d.added("2")},
		}}
	}},
	{"certificates", "percona-server-mongodb-operator K8SPSMDB-578", "intermediate state", certificates, func(d database) explore.Scenario {
		return explore.Scenario{Steps: []explore.Step{{Name: "secrets", Until: func() bool { return d.secret("ssl") && d.secret("ssl-internal") }}}}
	}},
	{"recreated", "pravega/zookeeper-operator 312", "stale state", every(recreated), recreate},
	{"by label", "instaclustr/cassandra-operator 402", "stale state", every(byLabel), recreate},
	{"arbiter", "percona-server-mongodb-operator K8SPSMDB-438", "stale state", every(arbiter), func(d database) explore.Scenario {
		return explore.Scenario{
			Steps: []explore.Step{
				{Name: "on", Do: d.set("arbiter", "yes"), Until: func() bool { return d.claim(0) != nil }},
				{Name: "off", Do: d.set("arbiter", "no"), Until: func() bool { return d.claim(0) == nil }},
				{Name: "on again", Do: d.set("arbiter", "yes"), Until: func() bool { return d.claim(0) != nil }},
			},
			Always: []explore.Invariant{d.kept(0, func(db *corev1.ConfigMap) bool { return db.Data["arbiter"] == "yes" })},
		}
	}},
	{"scaled again", "pravega/zookeeper-operator 314", "stale state", every(scaledAgain), func(d database) explore.Scenario {
		return explore.Scenario{
			Steps: []explore.Step{
				{Name: "two", Do: d.set("replicas", "2"), Until: func() bool { return d.claim(1) != nil }},
				{Name: "one", Do: d.set("replicas", "1"), Until: func() bool { return d.claim(1) == nil }},
				{Name: "two again", Do: d.set("replicas", "2"), Until: func() bool { return d.claim(1) != nil }},
			},
			Always: []explore.Invariant{d.kept(1, func(db *corev1.ConfigMap) bool { return number(db, "replicas") == 2 })},
		}
	}},
	{"budget", "casskop 321", "stale state", every(budget), func(d database) explore.Scenario {
		get := func() int {
			if b := apitest.Get[*policyv1.PodDisruptionBudget](d.Server, "default", "db"); b != nil {
				return b.Spec.MaxUnavailable.IntValue()
			}
			return 0
		}
		was := 0
		return explore.Scenario{
			Steps: []explore.Step{
				{Name: "1", Do: d.set("unavailable", "1"), Until: func() bool { return get() == 1 }},
				{Name: "2", Do: d.set("unavailable", "2"), Until: func() bool { return get() == 2 }},
			},
			Always: []explore.Invariant{{Name: "the budget does not go back", Holds: func() error {
				now := get()
				if now < was && d.get() != nil && number(d.get(), "unavailable") == was {
					return fmt.Errorf("it is %d, was %d", now, was)
				}
				was = now
				return nil
			}}},
		}
	}},
	{"leaving", "instaclustr/cassandra-operator 398", "unobserved state", leaving, func(d database) explore.Scenario {
		return explore.Scenario{Steps: []explore.Step{
			{Name: "two", Do: func() error {
				for i := range 2 {
					d.Server.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: member(i)}})
				}
				return d.set("replicas", "2")()
			}, Until: func() bool { return d.claim(1) != nil }},
			{Name: "the second leaves", Do: func() error {
				apitest.Edit(d.Server, "default", "db", func(m *corev1.ConfigMap) { m.Data["replicas"] = "1" })
				apitest.Edit(d.Server, "default", member(1), func(m *corev1.ConfigMap) { m.Annotations = map[string]string{"leaving": "yes"} })
				time.Sleep(2 * time.Second)
				apitest.Remove[*corev1.ConfigMap](d.Server, "default", member(1))
				return nil
			}},
		}}
	}},
	{"one by one", "casskop 342", "unobserved state", oneByOne, func(d database) explore.Scenario {
		return explore.Scenario{Steps: []explore.Step{
			{Name: "three", Do: d.set("replicas", "3"), Until: func() bool { return d.member(2) != nil }},
			{Name: "two, one", Do: d.set("replicas", "2", "1")},
		}}
	}},
}

func scenario(run program, mended bool, more func(d database) explore.Scenario) func(w *explore.World) explore.Scenario {
	return func(w *explore.World) explore.Scenario {
		s := more(database{w})
		s.Programs = []explore.Program{{Name: "operator", Run: func(ctx context.Context, p *explore.Process) error {
			return run(ctx, p.Config, mended)
		}}}
		return s
	}
}

// TestEachIsFound prints the table of docs/testing.md with -v.
func TestEachIsFound(t *testing.T) {
	for _, bug := range bugs {
		t.Run(bug.name, func(t *testing.T) {
			report := explore.Find(t, config, scenario(bug.run, false, bug.scenario))
			if len(report.Findings) == 0 {
				t.Fatalf("%d plans, and the bug is not found", report.Plans)
			}
			kind := map[string]string{"intermediate state": "crash ", "stale state": "stale ", "unobserved state": "dropped events "}[bug.pattern]
			at := slices.IndexFunc(report.Findings, func(f explore.Finding) bool { return strings.HasPrefix(f.Plan, kind) && f.Failed == f.Runs })
			if at < 0 {
				t.Fatalf("no %sfinding that is the same in each run: %+v", kind, report.Findings)
			}
			f := report.Findings[at]
			problem, _, _ := strings.Cut(strings.ReplaceAll(f.Problem, ":\n", ": "), "\n")
			t.Logf("| %s | %s | `%s` | %d of %d | %v |", bug.after, bug.pattern, f.Plan, len(report.Findings), report.Plans, report.Took.Round(100*time.Millisecond))
			t.Log(problem)
		})
	}
}

// config has a short deadline, because a finding waits for it. It has no takeover,
// because these operators have no election, so two of them are not expected to work. Nor has
// it faults that change the world: also the mended forms are too simple for these.
var config = explore.Config{Deadline: 2 * time.Minute, Settle: 30 * time.Second,
	Ignore: []string{"PersistentVolumeClaim.metadata.annotations.version"},
	Faults: slices.DeleteFunc(explore.Faults(), func(f explore.Fault) bool { return f.World || f.Name == "takeover" })}

func TestMendedOnesPass(t *testing.T) {
	for _, bug := range bugs {
		t.Run(bug.name, func(t *testing.T) {
			cfg := config
			explore.Run(t, cfg, scenario(bug.run, true, bug.scenario))
		})
	}
}
