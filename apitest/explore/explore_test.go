// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/explore"
)

// twins makes two children of a parent and then marks the parent as done. The
// names of the children are generated, unless it is mended.
func twins(mended bool) func(ctx context.Context, p *explore.Process) error {
	return func(ctx context.Context, p *explore.Process) error {
		maps := kubernetes.NewForConfigOrDie(p.Config).CoreV1().ConfigMaps("default")
		reconcile := func() error {
			parent, err := maps.Get(ctx, "parent", metav1.GetOptions{})
			if err != nil || parent.Annotations["done"] == "yes" {
				return err
			}
			for i := range 2 {
				meta := metav1.ObjectMeta{GenerateName: "child-"}
				if mended {
					meta = metav1.ObjectMeta{Name: fmt.Sprint("child-", i)}
				}
				_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: meta}, metav1.CreateOptions{})
				if err != nil && !(mended && apierrors.IsAlreadyExists(err)) {
					return err
				}
			}
			_, err = maps.Patch(ctx, "parent", types.MergePatchType, []byte(`{"metadata":{"annotations":{"done":"yes"}}}`), metav1.PatchOptions{})
			return err
		}
		for ctx.Err() == nil {
			_ = reconcile() // again in a second
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
		return nil
	}
}

func twinsScenario(mended bool) func(w *explore.World) explore.Scenario {
	return func(w *explore.World) explore.Scenario {
		w.Server.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "parent"}})
		return explore.Scenario{
			Programs: []explore.Program{{Name: "twins", Run: twins(mended)}},
			Steps: []explore.Step{{Name: "done", Until: func() bool {
				parent := apitest.Get[*corev1.ConfigMap](w.Server, "default", "parent")
				return parent != nil && parent.Annotations["done"] == "yes"
			}}},
		}
	}
}

func TestFindsTwins(t *testing.T) {
	report := explore.Find(t, explore.Config{}, twinsScenario(false))
	plans := map[string]explore.Finding{}
	for _, f := range report.Findings {
		plans[f.Plan] = f
		if f.Failed != f.Runs || f.Runs != 3 {
			t.Errorf("%s failed in %d of %d runs", f.Plan, f.Failed, f.Runs)
		}
	}
	for _, plan := range []string{
		"crash after @ twins: create configmaps default/child-* #1",
		"crash before @ twins: patch configmaps default/parent #1",
		"lost answer @ twins: create configmaps default/child-* #2",
		"503 @ twins: create configmaps default/child-* #2",
		"takeover @ twins: create configmaps default/child-* #1",
	} {
		if _, ok := plans[plan]; !ok {
			t.Errorf("not found: %s", plan)
		}
	}
	for _, plan := range []string{"crash before @ twins: create configmaps default/child-* #1", "late events @ twins: patch configmaps default/parent #1"} {
		if f, ok := plans[plan]; ok {
			t.Errorf("a false finding: %s", f.Story)
		}
	}
	story := plans["crash after @ twins: create configmaps default/child-* #1"].Story
	for _, part := range []string{
		"ConfigMap default/child-* (3 of them): exists, but not in the reference",
		"-- FAULT: crash after",
		"twins: create configmaps default/child-* -> 201 (2 times)        |",
	} {
		if !strings.Contains(story, part) {
			t.Errorf("the story lacks %q:\n%s", part, story)
		}
	}
}

func TestMendedTwins(t *testing.T) {
	explore.Run(t, explore.Config{}, twinsScenario(true))
}
