// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	appsv1apply "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	metav1apply "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/kubewright/kubewright/apitest"
)

// owners lists the managers of an object with their fields, those that end in
// one of the given words.
func owners(obj metav1.Object, words ...string) string {
	var out []string
	for _, e := range obj.GetManagedFields() {
		var has []string
		for _, w := range words {
			if strings.Contains(e.FieldsV1.String(), w) {
				has = append(has, w)
			}
		}
		out = append(out, fmt.Sprintf("%s %s%s %v", e.Manager, e.Operation, e.Subresource, has))
	}
	return strings.Join(out, "; ")
}

func as(manager string) metav1.ApplyOptions { return metav1.ApplyOptions{FieldManager: manager} }

func TestApplyCreatesMergesAndRemoves(t *testing.T) {
	bubble(func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		maps := s.Client(apitest.User{}).CoreV1().ConfigMaps("default")
		made, err := maps.Apply(t.Context(), corev1apply.ConfigMap("c", "default").WithData(map[string]string{"a": "1", "b": "1"}), as("one"))
		if err != nil {
			t.Fatal(err)
		}
		if got := owners(made, `"f:a"`, `"f:b"`); made.UID == "" || got != `one Apply ["f:a" "f:b"]` {
			t.Errorf("created: %s", got)
		}
		time.Sleep(time.Minute)
		same, err := maps.Apply(t.Context(), corev1apply.ConfigMap("c", "default").WithData(map[string]string{"a": "1", "b": "1"}), as("one"))
		if err != nil || same.ResourceVersion != made.ResourceVersion {
			t.Errorf("an apply that changes nothing: %v, version %s after %s", err, same.ResourceVersion, made.ResourceVersion)
		}
		both, err := maps.Apply(t.Context(), corev1apply.ConfigMap("c", "default").WithData(map[string]string{"a": "1", "c": "2"}), as("two"))
		if err != nil {
			t.Fatal(err)
		}
		if got := owners(both, `"f:a"`, `"f:b"`, `"f:c"`); got != `one Apply ["f:a" "f:b"]; two Apply ["f:a" "f:c"]` {
			t.Errorf("shared: %s", got)
		}
		left, err := maps.Apply(t.Context(), corev1apply.ConfigMap("c", "default"), as("one"))
		if err != nil || fmt.Sprint(left.Data) != "map[a:1 c:2]" {
			t.Errorf("what only one manager had stays: %v %v", left.Data, err)
		}
	})(t)
}

func TestApplyMeetsConflictsWithManagersBeforeTheFirstApply(t *testing.T) {
	bubble(func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		maps := s.Client(apitest.User{}).CoreV1().ConfigMaps("default")
		cm, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Data: map[string]string{"a": "1", "b": "1"}}, metav1.CreateOptions{FieldManager: "creator"})
		if err != nil {
			t.Fatal(err)
		}
		created := cm.CreationTimestamp
		time.Sleep(time.Hour)
		cm.Data["b"] = "2"
		if _, err = maps.Update(t.Context(), cm, metav1.UpdateOptions{FieldManager: "updater"}); err != nil {
			t.Fatal(err)
		}
		want := corev1apply.ConfigMap("c", "default").WithData(map[string]string{"a": "9", "b": "9"})
		_, err = maps.Apply(t.Context(), want, as("applier"))
		if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `"creator"`) || !strings.Contains(err.Error(), `"updater"`) || !strings.Contains(err.Error(), ".data.b") {
			t.Fatalf("conflicts: %v", err)
		}
		if causes := err.(apierrors.APIStatus).Status().Details.Causes; len(causes) != 2 || causes[0].Type != metav1.CauseTypeFieldManagerConflict {
			t.Errorf("causes: %v", causes)
		}
		forced, err := maps.Apply(t.Context(), want, metav1.ApplyOptions{FieldManager: "applier", Force: true})
		if err != nil {
			t.Fatal(err)
		}
		if got := owners(forced, `"f:a"`, `"f:b"`); got != `applier Apply ["f:a" "f:b"]; creator Update []` && got != `applier Apply ["f:a" "f:b"]` {
			t.Errorf("forced: %s", got)
		}
		for _, e := range forced.ManagedFields {
			if e.Manager == "creator" && !e.Time.Equal(&created) {
				t.Errorf("the creator wrote at %v, not at %v", created, e.Time)
			}
		}
		// From now on every write is tracked.
		forced.Data["b"] = "3"
		later, err := maps.Update(t.Context(), forced, metav1.UpdateOptions{FieldManager: "updater"})
		if err != nil {
			t.Fatal(err)
		}
		if got := owners(later, `"f:a"`, `"f:b"`); !strings.Contains(got, `applier Apply ["f:a"]`) || !strings.Contains(got, `updater Update ["f:b"]`) {
			t.Errorf("after an update: %s", got)
		}
	})(t)
}

func TestApplyToAnObjectThatATestMade(t *testing.T) {
	bubble(func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		s.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "default"}, Data: map[string]string{"a": "1"}})
		maps := s.Client(apitest.User{}).CoreV1().ConfigMaps("default")
		_, err := maps.Apply(t.Context(), corev1apply.ConfigMap("c", "default").WithData(map[string]string{"a": "2"}), as("me"))
		if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "before-first-apply") {
			t.Errorf("%v", err)
		}
	})(t)
}

func TestApplyOfStatusLeavesTheRestAlone(t *testing.T) {
	bubble(func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		deployments := s.Client(apitest.User{}).AppsV1().Deployments("default")
		want := appsv1apply.Deployment("d", "default").
			WithSpec(appsv1apply.DeploymentSpec().WithReplicas(2).WithSelector(metav1apply.LabelSelector().WithMatchLabels(map[string]string{"a": "b"})).
				WithTemplate(corev1apply.PodTemplateSpec().WithLabels(map[string]string{"a": "b"}).WithSpec(corev1apply.PodSpec().WithContainers(corev1apply.Container().WithName("c").WithImage("i"))))).
			WithStatus(appsv1apply.DeploymentStatus().WithReplicas(7))
		d, err := deployments.Apply(t.Context(), want, as("owner"))
		if err != nil || d.Status.Replicas != 0 || d.Generation != 1 {
			t.Fatalf("%v %+v", err, d)
		}
		status := appsv1apply.Deployment("d", "default").WithSpec(appsv1apply.DeploymentSpec().WithReplicas(9)).WithStatus(appsv1apply.DeploymentStatus().WithReplicas(2))
		d, err = deployments.ApplyStatus(t.Context(), status, as("controller"))
		if err != nil || *d.Spec.Replicas != 2 || d.Status.Replicas != 2 || d.Generation != 1 {
			t.Fatalf("%v %+v", err, d)
		}
		if got := owners(d, `"f:spec"`, `"f:status"`); got != `controller Applystatus ["f:status"]; owner Apply ["f:spec"]` {
			t.Errorf("%s", got)
		}
		if _, err := deployments.ApplyStatus(t.Context(), appsv1apply.Deployment("absent", "default"), as("controller")); !apierrors.IsNotFound(err) {
			t.Errorf("status of an absent object: %v", err)
		}
	})(t)
}

func TestApplyToACustomResource(t *testing.T) {
	bubble(func(t *testing.T) {
		s := apitest.New(apitest.Options{Kinds: []apitest.Kind{{GroupVersionKind: widgetKind}}})
		widgets := dynamic.NewForConfigOrDie(s.Config(apitest.User{})).Resource(widgetResource).Namespace("default")
		apply := func(manager string, size int64) error {
			_, err := widgets.Apply(t.Context(), "w", widget("w", size), as(manager))
			return err
		}
		if err := apply("one", 1); err != nil {
			t.Fatal(err)
		}
		if err := apply("two", 2); !apierrors.IsConflict(err) {
			t.Errorf("another size: %v", err)
		}
		if err := apply("two", 1); err != nil {
			t.Errorf("the same size: %v", err)
		}
	})(t)
}

func TestApplyIsRefused(t *testing.T) {
	const media = types.ApplyYAMLPatchType
	for _, test := range []struct {
		name, object, body, manager string
		want                        int32
	}{
		{"without a manager", "c", `{"apiVersion":"v1","kind":"ConfigMap"}`, "", 422},
		{"of another object", "c", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"d"}}`, "m", 400},
		{"of another version", "c", `{"apiVersion":"v2","kind":"ConfigMap"}`, "m", 400},
		{"of another kind", "c", `{"apiVersion":"v1","kind":"Secret"}`, "m", 400},
		{"that is no YAML", "c", "a: [", "m", 400},
		{"that is empty", "c", "", "m", 400},
		{"with managedFields", "c", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"managedFields":[{"manager":"x"}]}}`, "m", 400},
		{"with a UID of an object that is gone", "absent", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"uid":"u"}}`, "m", 409},
		{"with a stale resourceVersion", "c", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"resourceVersion":"1"},"data":{"k":"v"}}`, "m", 409},
		{"in YAML", "c", "apiVersion: v1\nkind: ConfigMap\ndata:\n  k: v\n", "m", 200},
	} {
		t.Run(test.name, bubble(func(t *testing.T) {
			s := apitest.New(apitest.Options{})
			s.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "default"}})
			_, err := s.Client(apitest.User{}).CoreV1().ConfigMaps("default").Patch(t.Context(), test.object, media, []byte(test.body), metav1.PatchOptions{FieldManager: test.manager})
			code := int32(200)
			if err != nil {
				status, ok := err.(apierrors.APIStatus)
				if !ok {
					t.Fatal(err)
				}
				code = status.Status().Code
			}
			if code != test.want {
				t.Errorf("%d, want %d: %v", code, test.want, err)
			}
		}))
	}
}

var (
	widgetKind     = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
	widgetResource = widgetKind.GroupVersion().WithResource("widgets")
)

func widget(name string, size int64) *unstructured.Unstructured {
	w := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": name}, "spec": map[string]any{"size": size}}}
	w.SetGroupVersionKind(widgetKind)
	return w
}
