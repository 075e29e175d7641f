// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPatch changes a status in one way at a time. Each patch is exactly the
// expected one and, applied by apimachinery, gives exactly the wanted status.
func TestPatch(t *testing.T) {
	q := resource.MustParse
	base := corev1.PodStatus{
		ObservedGeneration: 1, Phase: corev1.PodRunning, Reason: "R", Message: "m", QOSClass: corev1.PodQOSBurstable,
		HostIP: "192.168.0.1", HostIPs: []corev1.HostIP{{IP: "192.168.0.1"}},
		PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}},
		StartTime: new(metav1.NewTime(t0)),
		Conditions: []corev1.PodCondition{
			{Type: "PodScheduled", Status: "True", LastTransitionTime: metav1.NewTime(t0)},
			{Type: "Ready", Status: "False", Reason: "R", Message: "m", LastTransitionTime: metav1.NewTime(t0)},
			{Type: "PodResizePending", Status: "True", LastTransitionTime: metav1.NewTime(t0)},
		},
		ContainerStatuses:  testStatus("c1=wait").ContainerStatuses,
		AllocatedResources: corev1.ResourceList{"cpu": q("1"), "memory": q("1Gi")},
		Resources:          &corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": q("2")}},
	}
	for _, tc := range []struct {
		name   string
		change func(s *corev1.PodStatus)
		want   string // the status part; "" = no patch
	}{
		{"nothing", func(s *corev1.PodStatus) {}, ``},
		{"nothing but spelling", func(s *corev1.PodStatus) {
			s.AllocatedResources["cpu"], s.InitContainerStatuses = q("1000m"), []corev1.ContainerStatus{}
		}, ``},
		{"phase", func(s *corev1.PodStatus) { s.Phase = corev1.PodFailed }, `{"phase":"Failed"}`},
		{"generation", func(s *corev1.PodStatus) { s.ObservedGeneration = 2 }, `{"observedGeneration":2}`},
		{"reason goes", func(s *corev1.PodStatus) { s.Reason, s.Message = "", "" }, `{"message":null,"reason":null}`},
		{"condition changes", func(s *corev1.PodStatus) {
			s.Conditions[1] = corev1.PodCondition{Type: "Ready", Status: "True", LastTransitionTime: metav1.NewTime(t1)}
		}, `{"conditions":[{"type":"Ready","status":"True","lastTransitionTime":"2026-05-01T12:01:00Z","reason":null,"message":null}]}`},
		{"condition comes", func(s *corev1.PodStatus) {
			s.Conditions = append(s.Conditions, corev1.PodCondition{Type: "a/b", Status: "True", ObservedGeneration: 1})
		}, `{"conditions":[{"type":"a/b","observedGeneration":1,"status":"True"}]}`},
		{"condition goes", func(s *corev1.PodStatus) { s.Conditions = s.Conditions[:2] }, `{"conditions":[{"$patch":"delete","type":"PodResizePending"}]}`},
		{"address changes", func(s *corev1.PodStatus) { s.PodIP, s.PodIPs = "10.0.0.2", []corev1.PodIP{{IP: "10.0.0.2"}} },
			`{"podIP":"10.0.0.2","podIPs":[{"$patch":"replace"},{"ip":"10.0.0.2"}]}`},
		{"addresses change places", func(s *corev1.PodStatus) {
			s.PodIP, s.PodIPs = "fd00::1", []corev1.PodIP{{IP: "fd00::1"}, {IP: "10.0.0.1"}}
		},
			`{"podIP":"fd00::1","podIPs":[{"$patch":"replace"},{"ip":"fd00::1"},{"ip":"10.0.0.1"}]}`},
		{"addresses go", func(s *corev1.PodStatus) { s.PodIP, s.PodIPs, s.HostIP, s.HostIPs = "", nil, "", nil },
			`{"hostIP":null,"hostIPs":null,"podIP":null,"podIPs":null}`},
		{"start time", func(s *corev1.PodStatus) { s.StartTime = nil }, `{"startTime":null}`},
		{"container", func(s *corev1.PodStatus) { s.ContainerStatuses = testStatus("c1=run").ContainerStatuses },
			`{"containerStatuses":[{"name":"c1","state":{"running":{"startedAt":"2026-05-01T12:00:00Z"}},"lastState":{},"ready":false,"restartCount":0,"image":"img","imageID":"","started":true}]}`},
		{"containers go", func(s *corev1.PodStatus) { s.ContainerStatuses = nil }, `{"containerStatuses":null}`},
		{"init container comes", func(s *corev1.PodStatus) { s.InitContainerStatuses = testStatus("i1=wait").InitContainerStatuses },
			`{"initContainerStatuses":[{"name":"i1","state":{"waiting":{"reason":"ContainerCreating"}},"lastState":{},"ready":false,"restartCount":0,"image":"img","imageID":"","started":false}]}`},
		{"resources change", func(s *corev1.PodStatus) {
			s.AllocatedResources = corev1.ResourceList{"cpu": q("2"), "x": q("1")}
			s.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": q("2")}}
		}, `{"allocatedResources":{"cpu":"2","x":"1","memory":null},"resources":{"limits":null,"requests":{"cpu":"2"}}}`},
		{"resources go", func(s *corev1.PodStatus) { s.AllocatedResources, s.Resources = nil, nil }, `{"allocatedResources":null,"resources":null}`},
		{"what is others'", func(s *corev1.PodStatus) { s.QOSClass, s.NominatedNodeName, s.Resize = "", "n", "Proposed" }, ``},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := testPod("Always c1")
			pod.Status = *base.DeepCopy()
			next := base.DeepCopy()
			tc.change(next)
			got := Patch(pod, next)
			want := tc.want
			if want != "" {
				want = `{"metadata":{"uid":"u"},"status":` + want + `}`
			}
			if string(got) != want {
				t.Fatalf("got  %s\nwant %s", got, want)
			}
			if got == nil {
				return
			}
			if stored := store(t, pod, got); !Equal(&stored.Status, next) {
				t.Errorf("stored as %+v", stored.Status)
			}
		})
	}
}

func TestMinimal(t *testing.T) {
	pod := testPod("Never c1|Running c1=ready")
	next, _ := Next(pod, Update{Stopped: true, Failure: &Failure{Reason: "Evicted", Message: "m"}, Observed: corev1.PodStatus{PodIP: "10.0.0.1"}, Now: t1})
	minimal := Minimal(pod, &next)
	got := string(Patch(pod, &minimal))
	for _, is := range []string{`"phase":"Failed"`, `"reason":"Evicted"`, `"message":"m"`, `"type":"Ready"`, `"type":"ContainersReady"`} {
		if !strings.Contains(got, is) {
			t.Errorf("patch lacks %s: %s", is, got)
		}
	}
	for _, no := range []string{"podIP", "containerStatuses", "startTime", "Initialized"} {
		if strings.Contains(got, no) {
			t.Errorf("patch has %s: %s", no, got)
		}
	}
}

// TestEqualSeesEveryField changes each field of a status, and of all that is in it,
// and expects a difference, also in fields that a later version of the API adds.
func TestEqualSeesEveryField(t *testing.T) {
	full := reflect.New(reflect.TypeFor[corev1.PodStatus]())
	fill(full.Elem())
	n := 0
	eachField(full.Elem(), "status", func(path string, change func() (undo func())) {
		a := full.Interface().(*corev1.PodStatus).DeepCopy()
		undo := change()
		defer undo()
		n++
		if Equal(a, full.Interface().(*corev1.PodStatus)) {
			t.Errorf("a change of %s makes no difference", path)
		}
	})
	if n < 100 {
		t.Errorf("only %d fields: the walk is broken", n)
	}
}

// fill gives v, which is addressable, a value in every part.
func fill(v reflect.Value) {
	switch x := v.Addr().Interface().(type) {
	case *metav1.Time:
		*x = metav1.NewTime(t0)
		return
	case *resource.Quantity:
		*x = resource.MustParse("1")
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		value := reflect.New(v.Type().Elem()).Elem()
		fill(value)
		key := reflect.New(v.Type().Key()).Elem()
		fill(key)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("a")
	case reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Bool:
		v.SetBool(true)
	default:
		panic("a kind of field that the test doesn't know: " + v.Kind().String())
	}
}

// eachField calls visit for every leaf of v with a function that changes it.
func eachField(v reflect.Value, path string, visit func(path string, change func() (undo func()))) {
	leaf := func(set func()) {
		visit(path, func() func() {
			old := reflect.New(v.Type()).Elem()
			old.Set(v)
			set()
			return func() { v.Set(old) }
		})
	}
	switch x := v.Addr().Interface().(type) {
	case *metav1.Time:
		leaf(func() { *x = metav1.NewTime(t1) })
		return
	case *resource.Quantity:
		leaf(func() { *x = resource.MustParse("2") })
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		leaf(func() { v.SetZero() })
		eachField(v.Elem(), path, visit)
	case reflect.Struct:
		for i := range v.NumField() {
			eachField(v.Field(i), path+"."+v.Type().Field(i).Name, visit)
		}
	case reflect.Slice:
		leaf(func() { v.SetZero() })
		eachField(v.Index(0), path+"[0]", visit)
	case reflect.Map:
		leaf(func() { v.SetZero() })
	case reflect.String:
		leaf(func() { v.SetString("b") })
	case reflect.Int32, reflect.Int64:
		leaf(func() { v.SetInt(2) })
	case reflect.Bool:
		leaf(func() { v.SetBool(false) })
	}
}
