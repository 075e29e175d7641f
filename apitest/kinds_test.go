// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
)

// deploymentSpec is the spec of a Deployment whose pods have the label a=b.
func deploymentSpec(replicas int32) appsv1.DeploymentSpec {
	labels := map[string]string{"a": "b"}
	return appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
	}
}

func TestKindsOfTheSchemeAreServed(t *testing.T) {
	bubble(func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		deployments := s.Client(apitest.User{}).AppsV1().Deployments("default")
		w, err := deployments.Watch(t.Context(), metav1.ListOptions{LabelSelector: "a=b"})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		d, err := deployments.Create(t.Context(), &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: "d", Labels: map[string]string{"a": "b"}, Finalizers: []string{"example.com/f"}},
			Spec:       deploymentSpec(1), Status: appsv1.DeploymentStatus{Replicas: 3},
		}, metav1.CreateOptions{})
		if err != nil || d.UID == "" || d.Generation != 1 || d.Status.Replicas != 0 {
			t.Fatalf("created: %v %+v", err, d)
		}
		stale := d.DeepCopy()
		d.Spec.Replicas, d.Status.Replicas = ptr.To[int32](2), 9
		if d, err = deployments.Update(t.Context(), d, metav1.UpdateOptions{}); err != nil || d.Generation != 2 || d.Status.Replicas != 0 {
			t.Fatalf("updated: %v %+v", err, d)
		}
		if _, err = deployments.Update(t.Context(), stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			t.Errorf("a stale update: %v", err)
		}
		d.Status.Replicas, d.Spec.Replicas = 2, ptr.To[int32](7)
		if d, err = deployments.UpdateStatus(t.Context(), d, metav1.UpdateOptions{}); err != nil || d.Generation != 2 || d.Status.Replicas != 2 || *d.Spec.Replicas != 2 {
			t.Fatalf("status: %v %+v", err, d)
		}
		if err := deployments.Delete(t.Context(), "d", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if d, err = deployments.Get(t.Context(), "d", metav1.GetOptions{}); err != nil || d.DeletionTimestamp == nil {
			t.Fatalf("with a finalizer: %v %+v", err, d)
		}
		if _, err := deployments.Patch(t.Context(), "d", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, want := range []watch.EventType{watch.Added, watch.Modified, watch.Modified, watch.Modified, watch.Deleted} {
			if ev := <-w.ResultChan(); ev.Type != want {
				t.Fatalf("%v, want %s", ev, want)
			}
		}
		if list, err := deployments.List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=d"}); err != nil || len(list.Items) != 0 {
			t.Errorf("%v %v", list, err)
		}
	})(t)
}

// TestEveryKindOfTheClientsetCanBeCreated goes through discovery, so that a new
// version of client-go brings no kind that the server gets wrong.
func TestEveryKindOfTheClientsetCanBeCreated(t *testing.T) {
	bubble(func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		_, lists, err := s.Client(apitest.User{}).Discovery().ServerGroupsAndResources()
		if err != nil {
			t.Fatal(err)
		}
		client := dynamic.NewForConfigOrDie(s.Config(apitest.User{}))
		kinds := 0
		for _, list := range lists {
			for _, r := range list.APIResources {
				if strings.Contains(r.Name, "/") {
					continue
				}
				kinds++
				gv, _ := schema.ParseGroupVersion(list.GroupVersion)
				obj := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "x", "labels": map[string]any{"l": "x"}}}}
				obj.SetGroupVersionKind(gv.WithKind(r.Kind))
				var resource dynamic.ResourceInterface = client.Resource(gv.WithResource(r.Name))
				if r.Namespaced {
					resource = client.Resource(gv.WithResource(r.Name)).Namespace("default")
				}
				made, err := resource.Create(t.Context(), obj, metav1.CreateOptions{})
				if apierrors.IsInvalid(err) {
					continue // a kind with rules of its own
				}
				if err != nil || made.GetUID() == "" {
					t.Errorf("%s %s: %v", gv, r.Kind, err)
					continue
				}
				if list, err := resource.List(t.Context(), metav1.ListOptions{LabelSelector: "l=x"}); err != nil || len(list.Items) != 1 {
					t.Errorf("list %s %s: %v", gv, r.Kind, err)
				}
			}
		}
		if kinds < 55 {
			t.Errorf("%d kinds", kinds)
		}
	})(t)
}

func TestUnknownKindSaysHowToRegisterIt(t *testing.T) {
	bubble(func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		widgets := dynamic.NewForConfigOrDie(s.Config(apitest.User{})).Resource(widgetResource).Namespace("default")
		_, err := widgets.Get(t.Context(), "w", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "Server.Register") || !strings.Contains(err.Error(), "example.com") {
			t.Errorf("%v", err)
		}
		defer func() {
			if said := fmt.Sprint(recover()); !strings.Contains(said, "Server.Register") {
				t.Errorf("Put of an unknown kind: %s", said)
			}
		}()
		s.Put(widget("w", 1))
	})(t)
}

// Widget is a Go type of a kind that client-go does not have.
type Widget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              struct {
		Size int64 `json:"size"`
	} `json:"spec"`
	Status struct {
		Ready bool `json:"ready,omitempty"`
	} `json:"status,omitzero"`
}

func (w *Widget) DeepCopyObject() runtime.Object {
	c := *w
	w.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	return &c
}

func TestRegisteredKindIsServed(t *testing.T) {
	bubble(func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		s.Register(apitest.Kind{GroupVersionKind: widgetKind, Type: &Widget{}})
		widgets := dynamic.NewForConfigOrDie(s.Config(apitest.User{})).Resource(widgetResource).Namespace("default")
		w, err := widgets.Watch(t.Context(), metav1.ListOptions{AllowWatchBookmarks: true})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		testCustomResource(t, widgets)
		for _, want := range []watch.EventType{watch.Bookmark, watch.Added, watch.Modified, watch.Modified, watch.Modified, watch.Deleted} {
			if ev := <-w.ResultChan(); ev.Type != want {
				t.Fatalf("%v, want %s", ev, want)
			}
		}
		typed := &Widget{ObjectMeta: metav1.ObjectMeta{Name: "typed", Namespace: "default"}}
		typed.Spec.Size = 4
		if put := s.Put(typed).(*Widget); put.UID == "" || put.Spec.Size != 4 {
			t.Errorf("put: %+v", put)
		}
		apitest.Edit(s, "default", "typed", func(w *Widget) { w.Status.Ready = true })
		if got := apitest.Get[*Widget](s, "default", "typed"); !got.Status.Ready || got.Generation != 1 {
			t.Errorf("got: %+v", got)
		}
		if list := apitest.List[*Widget](s, ""); len(list) != 1 {
			t.Errorf("list: %v", list)
		}
		if !apitest.Remove[*Widget](s, "default", "typed") {
			t.Error("not deleted")
		}
	})(t)
}

// testCustomResource checks that a custom resource behaves as on the real server.
func testCustomResource(t *testing.T, widgets dynamic.ResourceInterface) {
	t.Helper()
	sent := widget("w", 1)
	sent.Object["status"] = map[string]any{"ready": true}
	made, err := widgets.Create(t.Context(), sent, metav1.CreateOptions{})
	if err != nil || made.GetUID() == "" || made.GetGeneration() != 1 || made.Object["status"] != nil {
		t.Fatalf("created: %v %v", err, made)
	}
	stale := made.DeepCopy()
	made.Object["spec"] = map[string]any{"size": int64(2)}
	made.Object["status"] = map[string]any{"ready": true}
	made, err = widgets.Update(t.Context(), made, metav1.UpdateOptions{})
	if err != nil || made.GetGeneration() != 2 || made.Object["status"] != nil {
		t.Fatalf("updated: %v %v", err, made)
	}
	if _, err := widgets.Update(t.Context(), stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("a stale update: %v", err)
	}
	blind := made.DeepCopy()
	blind.SetResourceVersion("")
	if _, err := widgets.Update(t.Context(), blind, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("an update without a resourceVersion: %v", err)
	}
	made.Object["spec"] = map[string]any{"size": int64(9)}
	made.Object["status"] = map[string]any{"ready": true}
	made.SetLabels(map[string]string{"not": "by status"})
	made, err = widgets.UpdateStatus(t.Context(), made, metav1.UpdateOptions{})
	if size, _, _ := unstructured.NestedInt64(made.Object, "spec", "size"); err != nil || made.GetGeneration() != 2 || size != 2 || made.GetLabels() != nil || made.Object["status"] == nil {
		t.Fatalf("status: %v %v", err, made)
	}
	made, err = widgets.Patch(t.Context(), "w", types.MergePatchType, []byte(`{"spec":{"size":3}}`), metav1.PatchOptions{})
	if err != nil || made.GetGeneration() != 3 || made.Object["status"] == nil {
		t.Fatalf("patched: %v %v", err, made)
	}
	if _, err := widgets.Patch(t.Context(), "w", types.StrategicMergePatchType, []byte(`{}`), metav1.PatchOptions{}); !apierrors.IsUnsupportedMediaType(err) {
		t.Errorf("a strategic merge patch: %v", err)
	}
	if list, err := widgets.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 || list.GetResourceVersion() == "" {
		t.Errorf("list: %v %v", list, err)
	}
	if err := widgets.Delete(t.Context(), "w", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

func widgetDefinition() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "widgets.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced", "names": map[string]any{"plural": "widgets", "kind": "Widget"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}},
				"selectableFields": []any{map[string]any{"jsonPath": ".spec.size"}},
			}},
		},
	}}
}

func TestDefinedKindIsServedAndGoesWithItsDefinition(t *testing.T) {
	bubble(func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		client := dynamic.NewForConfigOrDie(s.Config(apitest.User{}))
		crd, err := client.Resource(definitions).Create(t.Context(), widgetDefinition(), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if names, _, _ := unstructured.NestedString(crd.Object, "status", "acceptedNames", "listKind"); names != "WidgetList" {
			t.Errorf("status: %v", crd.Object["status"])
		}
		widgets := client.Resource(widgetResource).Namespace("default")
		testCustomResource(t, widgets)
		for size := range int64(3) {
			if _, err := widgets.Create(t.Context(), widget(fmt.Sprint("w", size), size), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if list, err := widgets.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.size=2"}); err != nil || len(list.Items) != 1 {
			t.Errorf("selected: %v %v", list, err)
		}
		if _, err := widgets.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.colour=2"}); !apierrors.IsBadRequest(err) {
			t.Errorf("selected by an unknown field: %v", err)
		}
		w, err := widgets.Watch(t.Context(), metav1.ListOptions{ResourceVersion: s.ResourceVersion()})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		if err := unstructured.SetNestedField(crd.Object, []any{"wd"}, "spec", "names", "shortNames"); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Resource(definitions).Update(t.Context(), crd, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if list, err := widgets.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 3 {
			t.Errorf("after an update of the definition: %v %v", list, err)
		}
		if err := client.Resource(definitions).Delete(t.Context(), "widgets.example.com", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if ev := <-w.ResultChan(); ev.Type != watch.Deleted {
			t.Errorf("with its definition goes the object: %v", ev)
		}
		if _, err := widgets.List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("after the definition is gone: %v", err)
		}
	})(t)
}

func TestDefinitionIsRefused(t *testing.T) {
	for name, change := range map[string]func(spec map[string]any){
		"without a group":   func(spec map[string]any) { delete(spec, "group") },
		"without a name":    func(spec map[string]any) { delete(spec["names"].(map[string]any), "kind") },
		"of an odd scope":   func(spec map[string]any) { spec["scope"] = "Odd" },
		"without a version": func(spec map[string]any) { delete(spec, "versions") },
		"with another name": func(spec map[string]any) { spec["names"].(map[string]any)["plural"] = "others" },
		"with a bad version": func(spec map[string]any) {
			spec["versions"] = []any{map[string]any{"name": "V1", "served": true, "storage": true}}
		},
		"with a bad plural": func(spec map[string]any) { spec["names"].(map[string]any)["plural"] = "Others" },
		"of another type":   func(spec map[string]any) { spec["versions"] = []any{"v1"} },
		"with two stored versions": func(spec map[string]any) {
			spec["versions"] = []any{map[string]any{"name": "v1", "storage": true}, map[string]any{"name": "v2", "storage": true}}
		},
	} {
		t.Run(name, bubble(func(t *testing.T) {
			s := apitest.New(apitest.Options{})
			crd := widgetDefinition()
			change(crd.Object["spec"].(map[string]any))
			_, err := dynamic.NewForConfigOrDie(s.Config(apitest.User{})).Resource(definitions).Create(t.Context(), crd, metav1.CreateOptions{})
			if !apierrors.IsInvalid(err) && !(name == "of another type" && apierrors.IsBadRequest(err)) {
				t.Errorf("%v", err)
			}
		}))
	}
}

type warnings []string

func (w *warnings) HandleWarningHeader(_ int, _, text string) { *w = append(*w, text) }

// The answer is that of a real server. What to do in a test is in a warning, which
// client-go logs.
func TestAMissingNamespaceComesWithAdvice(t *testing.T) {
	bubble(func(t *testing.T) {
		s := apitest.New(apitest.Options{Namespaces: []string{"agents"}})
		var said warnings
		cfg := s.Config(apitest.User{})
		cfg.WarningHandler = &said
		client := kubernetes.NewForConfigOrDie(cfg).CoreV1()
		for _, ns := range []string{"agents", "others", "others"} { // once, however often it is tried
			_, err := client.ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{})
			if apierrors.IsNotFound(err) != (ns == "others") {
				t.Errorf("%s: %v", ns, err)
			}
		}
		if len(said) != 1 || !strings.Contains(said[0], `name the namespace "others" in Options.Namespaces`) {
			t.Errorf("warnings: %q", said)
		}
	})
}

func TestNamespaceGoesWithWhatIsInIt(t *testing.T) {
	bubble(func(t *testing.T) {
		s := apitest.New(apitest.Options{Namespaces: []string{"ns"}, Kinds: []apitest.Kind{{GroupVersionKind: widgetKind}}})
		s.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "ns"}})
		s.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "elsewhere", Namespace: "default"}})
		s.Put(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "r", Namespace: "ns", Finalizers: []string{"example.com/f"}}})
		inNS := widget("w", 1)
		inNS.SetNamespace("ns")
		s.Put(inNS)
		running := podOn("p", "n")
		running.Namespace = "ns"
		s.Put(running)
		cs := s.Client(apitest.User{})
		if err := cs.CoreV1().Namespaces().Delete(t.Context(), "ns", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		phase := func() corev1.NamespacePhase {
			synctest.Wait()
			if ns := apitest.Get[*corev1.Namespace](s, "", "ns"); ns != nil {
				return ns.Status.Phase
			}
			return "gone"
		}
		time.Sleep(time.Second)
		if got := phase(); got != corev1.NamespaceTerminating || apitest.Get[*corev1.ConfigMap](s, "ns", "c") != nil {
			t.Errorf("after a second: %s", got)
		}
		if p := apitest.Get[*corev1.Pod](s, "ns", "p"); p == nil || p.DeletionTimestamp == nil {
			t.Errorf("the pod is not being deleted gracefully: %v", p)
		}
		if err := cs.CoreV1().Pods("ns").Delete(t.Context(), "p", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if got := phase(); got != corev1.NamespaceTerminating {
			t.Errorf("with a finalizer left: %s", got)
		}
		if _, err := cs.RbacV1().Roles("ns").Patch(t.Context(), "r", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if got := phase(); got != "gone" {
			t.Errorf("empty: %s", got)
		}
		if apitest.Get[*corev1.ConfigMap](s, "default", "elsewhere") == nil {
			t.Error("an object of another namespace is gone")
		}
		s.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}) // it can come back
		if got := phase(); got != corev1.NamespaceActive {
			t.Errorf("made again: %s", got)
		}
	})(t)
}

func TestWhatTheSchemeHasIsNotRegistered(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("registered a built-in kind")
		}
	}()
	gvks, _, _ := scheme.Scheme.ObjectKinds(&corev1.Pod{})
	apitest.New(apitest.Options{Kinds: []apitest.Kind{{GroupVersionKind: gvks[0]}}})
}
