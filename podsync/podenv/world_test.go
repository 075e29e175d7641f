// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

const ns = "shop"

// world is an API server with some objects and a Resolver with a node's
// credentials.
type world struct {
	server   *apitest.Server
	resolver *Resolver
}

func newWorld(t testing.TB, change func(*Config), objects ...runtime.Object) *world {
	t.Helper()
	w := &world{server: apitest.New(apitest.Options{Namespaces: []string{ns}})}
	for _, o := range objects {
		w.server.Put(o)
	}
	core := w.server.Client(apitest.NodeUser("n1")).CoreV1()
	cfg := Config{ConfigMaps: core, Secrets: core, Services: core}
	if change != nil {
		change(&cfg)
	}
	var err error
	if w.resolver, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	return w
}

// pod stores a pod that is bound to the node, since the Node authorizer shows the
// node objects of its own pods only, and returns its Pod.
func (w *world) pod(pod *corev1.Pod) *Pod {
	pod.Namespace, pod.Spec.NodeName = ns, "n1"
	if pod.Name == "" {
		pod.Name = "p"
	}
	return w.resolver.Pod(w.server.Put(pod).(*corev1.Pod))
}

// count returns how many reads of a resource the server has seen.
func (w *world) count(resource string) int {
	return len(w.server.Requests(apitest.Match{Resource: resource, Func: func(r apitest.Request) bool { return r.Verb == "get" || r.Verb == "list" }}))
}

func podOf(c corev1.Container) *corev1.Pod {
	if c.Name == "" {
		c.Name = "app"
	}
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{c}}}
}

func configMap(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Data: data}
}

func secret(name string, data map[string]string) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Data: map[string][]byte{}}
	for k, v := range data {
		s.Data[k] = []byte(v)
	}
	return s
}

func service(namespace, name, ip string, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{ClusterIP: ip, Ports: ports}}
}

func fieldRef(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

func configMapRef(name, object, key string, optional bool) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: object}, Key: key, Optional: &optional}}}
}

func secretRef(name, object, key string, optional bool) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: object}, Key: key, Optional: &optional}}}
}

func fromConfigMap(prefix, name string, optional bool) corev1.EnvFromSource {
	return corev1.EnvFromSource{Prefix: prefix, ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Optional: &optional}}
}

func fromSecret(prefix, name string, optional bool) corev1.EnvFromSource {
	return corev1.EnvFromSource{Prefix: prefix, SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Optional: &optional}}
}

func value(name, v string) corev1.EnvVar { return corev1.EnvVar{Name: name, Value: v} }
