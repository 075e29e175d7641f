// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"fmt"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
)

func TestGarbageCollector(t *testing.T) { bubble(testGarbageCollector)(t) }

func testGarbageCollector(t *testing.T) {
	s := apitest.New(apitest.Options{})
	node := s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}).(*corev1.Node)
	lease := func(name string, refs ...metav1.OwnerReference) {
		s.Put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "kube-node-lease", OwnerReferences: refs}})
	}
	ref := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "n", UID: node.UID}
	dead := ref
	dead.UID = "dead"
	unknown := metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Thing", Name: "t", UID: "t"}
	lease("owned", ref)
	lease("orphan", dead)
	lease("both", dead, ref)
	lease("free")
	lease("unknown", unknown)
	if got := fmt.Sprint(s.CollectGarbage()); got != "[leases/kube-node-lease/orphan]" {
		t.Errorf("collected %s", got)
	}
	apitest.Remove[*corev1.Node](s, "", "n")
	s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}) // the same name is not the same owner
	if got := fmt.Sprint(s.CollectGarbage()); got != "[leases/kube-node-lease/both leases/kube-node-lease/owned]" {
		t.Errorf("after the owner went, collected %s", got)
	}
	left := ""
	for _, l := range apitest.List[*coordinationv1.Lease](s, "kube-node-lease") {
		left += l.Name + " "
	}
	if left != "free unknown " {
		t.Errorf("left %s", left)
	}
}

// TestPropagation checks the deletion policies that wait for the collector.
func TestPropagation(t *testing.T) { bubble(testPropagation)(t) }

func testPropagation(t *testing.T) {
	for _, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan} {
		s := apitest.New(apitest.Options{})
		owner := s.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner", Namespace: "default"}}).(*corev1.ConfigMap)
		s.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "dependent", Namespace: "default",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: owner.UID}}}})
		if err := s.Client(apitest.User{}).CoreV1().ConfigMaps("default").Delete(t.Context(), "owner", metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
			t.Fatal(err)
		}
		if apitest.Get[*corev1.ConfigMap](s, "default", "owner") == nil {
			t.Errorf("%s: gone at once", policy)
		}
		s.CollectGarbage()
		if apitest.Get[*corev1.ConfigMap](s, "default", "owner") != nil {
			t.Errorf("%s: the owner is left", policy)
		}
		dep := apitest.Get[*corev1.ConfigMap](s, "default", "dependent")
		if policy == metav1.DeletePropagationOrphan && (dep == nil || len(dep.OwnerReferences) > 0) || policy == metav1.DeletePropagationForeground && dep != nil {
			t.Errorf("%s: dependent %v", policy, dep)
		}
	}
}

// An object that has another owner is kept, without the reference to the one that is gone.
func TestAnotherOwnerKeepsAnObject(t *testing.T) { bubble(testAnotherOwner)(t) }

func testAnotherOwner(t *testing.T) {
	for _, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationForeground, metav1.DeletePropagationBackground} {
		s := apitest.New(apitest.Options{})
		put := func(name string, refs ...metav1.OwnerReference) metav1.OwnerReference {
			m := s.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", OwnerReferences: refs}})
			return metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: name, UID: m.(*corev1.ConfigMap).UID, BlockOwnerDeletion: new(true)}
		}
		a, b := put("a"), put("b")
		put("shared", a, b)
		maps := s.Client(apitest.User{}).CoreV1().ConfigMaps("default")
		left := func() (names []string) {
			for _, m := range apitest.List[*corev1.ConfigMap](s, "default") {
				for _, ref := range m.OwnerReferences {
					names = append(names, ref.Name+" owns")
				}
				names = append(names, m.Name)
			}
			return names
		}
		if err := maps.Delete(t.Context(), "a", metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
			t.Fatal(err)
		}
		if got := s.CollectGarbage(); len(got) > 0 {
			t.Errorf("%s: collected %q", policy, got)
		}
		if got := fmt.Sprint(left()); got != "[b b owns shared]" {
			t.Errorf("%s: left %s", policy, got)
		}
		if err := maps.Delete(t.Context(), "b", metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(s.CollectGarbage(), left()); got != "[configmaps/default/shared] []" {
			t.Errorf("%s: collected and left %s", policy, got)
		}
	}
}

// With Foreground, dependents hold up the deletion only if their reference says so.
func TestOnlyBlockingDependentsHoldUpTheirOwner(t *testing.T) { bubble(testBlocking)(t) }

func testBlocking(t *testing.T) {
	policy := metav1.DeletePropagationForeground
	for _, block := range []bool{false, true} {
		s := apitest.New(apitest.Options{})
		owner := s.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner", Namespace: "default"}}).(*corev1.ConfigMap)
		s.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "dependent", Namespace: "default", Finalizers: []string{"example.com/f"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: owner.UID, BlockOwnerDeletion: &block}}}})
		if err := s.Client(apitest.User{}).CoreV1().ConfigMaps("default").Delete(t.Context(), "owner", metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
			t.Fatal(err)
		}
		s.CollectGarbage()
		if left := apitest.Get[*corev1.ConfigMap](s, "default", "owner") != nil; left != block {
			t.Errorf("block %v: the owner is left: %v", block, left)
		}
		if m := apitest.Get[*corev1.ConfigMap](s, "default", "dependent"); m == nil || m.DeletionTimestamp == nil {
			t.Errorf("block %v: the dependent is not being deleted: %v", block, m)
		}
	}
}
