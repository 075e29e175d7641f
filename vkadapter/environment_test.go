// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter

import (
	"slices"
	"strings"
	"testing"

	"github.com/virtual-kubelet/virtual-kubelet/node"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright/apitest"
)

// stub is a provider that is never called.
type stub struct{ node.PodLifecycleHandler }

func TestVariablesAreResolvedBeforeTheProviderGetsThePod(t *testing.T) {
	secret := func(name, key string, optional bool) corev1.EnvVar {
		return corev1.EnvVar{Name: "V", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key, Optional: &optional,
		}}}
	}
	configMap := func(name, key string, optional bool) corev1.EnvVar {
		return corev1.EnvVar{Name: "V", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key, Optional: &optional,
		}}}
	}
	field := func(path string) corev1.EnvVar {
		return corev1.EnvVar{Name: "V", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	yes := true
	for name, c := range map[string]struct {
		env    []corev1.EnvVar
		from   []corev1.EnvFromSource
		want   []corev1.EnvVar // nil: the pod is not created
		events []string
	}{
		"values":                   {[]corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "$(A)2"}}, nil, []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "12"}}, nil},
		"a key":                    {[]corev1.EnvVar{secret("there", "key", false)}, nil, []corev1.EnvVar{{Name: "V", Value: "secret"}}, nil},
		"all keys":                 {nil, []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "there"}}}}, []corev1.EnvVar{{Name: "key", Value: "public"}}, nil},
		"a field":                  {[]corev1.EnvVar{field("metadata.name")}, nil, []corev1.EnvVar{{Name: "V", Value: "web"}}, nil},
		"the address":              {[]corev1.EnvVar{field("status.podIP")}, nil, []corev1.EnvVar{field("status.podIP")}, nil},
		"no Secret":                {[]corev1.EnvVar{secret("absent", "key", false)}, nil, nil, []string{"MandatorySecretNotFound"}},
		"no ConfigMap":             {[]corev1.EnvVar{configMap("absent", "key", false)}, nil, nil, []string{"MandatoryConfigMapNotFound"}},
		"no key":                   {[]corev1.EnvVar{configMap("there", "absent", false)}, nil, nil, []string{"MandatoryConfigMapKeyNotFound"}},
		"neither of two":           {[]corev1.EnvVar{configMap("absent", "key", false), secret("there", "absent", false)}, nil, nil, []string{"MandatoryConfigMapNotFound", "MandatorySecretKeyNotFound"}},
		"no optional Secret":       {[]corev1.EnvVar{secret("absent", "key", true)}, nil, []corev1.EnvVar{}, []string{"OptionalSecretNotFound"}},
		"no optional key":          {[]corev1.EnvVar{secret("there", "absent", true)}, nil, []corev1.EnvVar{}, []string{"OptionalSecretKeyNotFound"}},
		"no optional ConfigMap":    {[]corev1.EnvVar{configMap("absent", "key", true)}, nil, []corev1.EnvVar{}, []string{"OptionalConfigMapNotFound"}},
		"no optional source":       {nil, []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "absent"}, Optional: &yes}}}, []corev1.EnvVar{}, []string{"OptionalSecretNotFound"}},
		"an optional one is there": {[]corev1.EnvVar{configMap("there", "key", true)}, nil, []corev1.EnvVar{{Name: "V", Value: "public"}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := apitest.New(apitest.Options{})
			there := metav1.ObjectMeta{Namespace: "default", Name: "there"}
			s.Put(&corev1.Secret{ObjectMeta: there, Data: map[string][]byte{"key": []byte("secret")}})
			s.Put(&corev1.ConfigMap{ObjectMeta: there, Data: map[string]string{"key": "public"}})
			recorder := events.NewFakeRecorder(10)
			a, err := New(stub{}, Config{NodeName: "vk", Client: s.Client(apitest.User{}).CoreV1(), EventRecorder: recorder})
			if err != nil {
				t.Fatal(err)
			}
			links := false
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "1"},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}},
			}
			pod.Spec.EnableServiceLinks = &links
			pod.Spec.Containers[0].Env, pod.Spec.Containers[0].EnvFrom = c.env, c.from
			before := pod.DeepCopy()
			got, err := a.environment.prepare(t.Context(), pod)
			if (err != nil) != (c.want == nil) {
				t.Fatalf("%v", err)
			}
			if err == nil {
				vars := slices.DeleteFunc(got.Spec.Containers[0].Env, func(v corev1.EnvVar) bool { return strings.HasPrefix(v.Name, "KUBERNETES_") })
				if !slices.EqualFunc(vars, c.want, func(a, b corev1.EnvVar) bool { return a.String() == b.String() }) || got.Spec.Containers[0].EnvFrom != nil {
					t.Errorf("the provider gets %v, want %v", vars, c.want)
				}
			}
			if pod.String() != before.String() {
				t.Error("the caller's pod was changed")
			}
			for _, reason := range c.events {
				select {
				case event := <-recorder.Events:
					if !strings.HasPrefix(event, "Warning "+reason+" ") {
						t.Errorf("event %q, want %s", event, reason)
					}
				default:
					t.Errorf("no event %s", reason)
				}
			}
			if len(recorder.Events) > 0 {
				t.Errorf("one more event: %q", <-recorder.Events)
			}
		})
	}
}
