// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestIsLeaderIsTrueDuringATermOnly(t *testing.T) {
	inRig(t, func(r *rig) {
		a := r.start("a")
		b := r.start("b")
		r.sleep(time.Minute)
		if b.leads() {
			a, b = b, a
		}
		if !a.IsLeader() || b.IsLeader() {
			t.Errorf("leader %v, other %v", a.IsLeader(), b.IsLeader())
		}
		a.Resign()
		r.sleep(5 * time.Second)
		if a.IsLeader() || !b.IsLeader() {
			t.Errorf("after it resigned: leader %v, other %v", a.IsLeader(), b.IsLeader())
		}
	})
}

func TestACreatedLeaseHasTheConfiguredLabelsAndOwners(t *testing.T) {
	inRig(t, func(r *rig) {
		labels := map[string]string{"app": "agent"}
		r.start("a", func(cfg *Config) {
			cfg.Labels = labels
			cfg.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "agent", UID: "u"}}
		})
		labels["app"] = "changed later"
		r.sleep(time.Minute)
		l := r.lease()
		if l.Labels["app"] != "agent" || len(l.OwnerReferences) != 1 || l.OwnerReferences[0].UID != "u" {
			t.Errorf("labels %v, owners %v", l.Labels, l.OwnerReferences)
		}
	})
	if _, err := New(Config{Labels: map[string]string{"no label": ""}}); err == nil {
		t.Error("New accepts an invalid label")
	}
}

func TestAHolderThatIsGoneIsReplacedAtOnce(t *testing.T) {
	for _, exclusive := range []bool{false, true} {
		inRig(t, func(r *rig) {
			a := r.start("a", func(cfg *Config) { cfg.ExclusiveIdentity = exclusive })
			r.sleep(time.Minute)
			b := r.start("b")
			r.sleep(time.Second)
			a.crash()
			for _, other := range []string{"", "b", "a_", "other"} {
				b.HolderGone(other)
			}
			r.sleep(time.Second)
			if b.leads() {
				t.Fatal("b leads although another holder was reported gone")
			}
			b.HolderGone("a")
			r.sleep(time.Second)
			r.expectLeader(b)
		})
	}
}

// An informer lists several Pods that have terminated.
func TestAllHoldersThatAreGoneCount(t *testing.T) {
	inRig(t, func(r *rig) {
		a := r.start("a")
		r.sleep(time.Minute)
		b := r.start("b")
		r.sleep(time.Second)
		a.crash()
		for _, name := range []string{"x", "a", "y", "z"} {
			b.HolderGone(name)
		}
		r.sleep(time.Second)
		r.expectLeader(b)
	})
}

// An edit by hand that leaves the holder alone costs no term.
func TestEditsThatKeepTheHolderCostNoTerm(t *testing.T) {
	inRig(t, func(r *rig) {
		ended := false
		r.start("a", func(cfg *Config) {
			lead := cfg.Lead
			cfg.Lead = func(ctx context.Context, term Term) error { defer func() { ended = true }(); return lead(ctx, term) }
		})
		for range 100 {
			r.sleep(1700 * time.Millisecond)
			r.edit(func(l *coordinationv1.Lease) {
				metav1.SetMetaDataAnnotation(&l.ObjectMeta, "note", time.Now().String())
				metav1.SetMetaDataLabel(&l.ObjectMeta, "team", "a")
				*l.Spec.LeaseDurationSeconds = 20
			})
		}
		if ended {
			t.Error("the term ended")
		}
	})
}
