// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/examples/crikubelet/internal/criserver"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	os.Exit(m.Run())
}

// clients returns a clientset for an API server in memory with some objects.
func clients(objects ...runtime.Object) kubernetes.Interface {
	api := apitest.New(apitest.Options{})
	for _, o := range objects {
		api.Put(o)
	}
	return api.Client(apitest.User{})
}

// newRuntime returns a Runtime on a server in memory.
func newRuntime(t testing.TB, server *criserver.Server, objects ...runtime.Object) *Runtime {
	t.Helper()
	client := clients(objects...)
	r, err := New(Config{
		Endpoint: server.Endpoint(), Node: "n1", LogDir: t.TempDir(), PullDir: t.TempDir(), Memory: 1 << 30,
		Claims:  &podruntime.Claims{Dir: t.TempDir(), Client: client.ResourceV1(), Drivers: drivers{}},
		Secrets: client.CoreV1(), RuntimeClasses: client.NodeV1(), Poll: DefaultPoll / 50,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// pod returns a pod with a container that runs until it is stopped.
func pod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "uid"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{container0("forever")}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func container0(command ...string) corev1.Container {
	return corev1.Container{Name: "main", Image: "none:1", Command: command}
}
