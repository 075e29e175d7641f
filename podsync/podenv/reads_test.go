// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kubewright/kubewright/apitest"
)

// TestBurst: a thousand pods that start at once and name one ConfigMap, while a
// request takes 10 ms, cost two requests for it, and two for all Services.
func TestBurst(t *testing.T) { synctest.Test(t, testBurst) }

func testBurst(t *testing.T) {
	w := newWorld(t, nil, configMap("settings", map[string]string{"K": "v"}))
	w.server.Inject(apitest.Fault{Latency: 10 * time.Millisecond})
	var pods []*Pod
	for i := range 1000 {
		pod := podOf(corev1.Container{Env: []corev1.EnvVar{configMapRef("A", "settings", "K", false)}})
		pod.Name = fmt.Sprintf("p%d", i)
		pods = append(pods, w.pod(pod))
	}
	start := time.Now()
	var wg sync.WaitGroup
	for _, p := range pods {
		wg.Go(func() {
			if _, err := p.Container(t.Context(), "app", Addresses{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := time.Since(start); got > 100*time.Millisecond {
		t.Errorf("took %v", got)
	}
	if c, s := w.count("configmaps"), w.count("services"); c != 2 || s != 2 {
		t.Errorf("%d reads of the ConfigMap, %d of Services, want 2 each", c, s)
	}
}

// TestFresh: a pod never gets an object that was read before it asked, not even by
// joining a request that is under way.
func TestFresh(t *testing.T) { synctest.Test(t, testFresh) }

func testFresh(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Services, c.ConfigMaps = nil, slowAnswers{ConfigMapsGetter: c.ConfigMaps}
	}, configMap("settings", map[string]string{"K": "old"}))
	pod := func(name string) *Pod {
		pod := podOf(corev1.Container{Env: []corev1.EnvVar{configMapRef("A", "settings", "K", false)}})
		pod.Name = name
		return w.pod(pod)
	}
	get := func(p *Pod) string {
		env, err := p.Container(t.Context(), "app", Addresses{})
		if err != nil {
			t.Error(err)
		}
		v, _ := env.Lookup("A")
		return v
	}
	first, second := pod("first"), pod("second")
	var wg sync.WaitGroup
	wg.Go(func() {
		if got := get(first); got != "old" {
			t.Errorf("the first pod got %q: the test is not about a request under way", got)
		}
	})
	time.Sleep(50 * time.Millisecond)
	apitest.Edit(w.server, ns, "settings", func(cm *corev1.ConfigMap) { cm.Data["K"] = "new" })
	if got := get(second); got != "new" {
		t.Errorf("a pod that asked after the change got %q", got)
	}
	wg.Wait()
	// Two calls of one Pod that wait for two requests have one version.
	third := pod("third")
	both := make([]string, 2)
	for i := range both {
		wg.Go(func() { both[i] = get(third) })
		time.Sleep(50 * time.Millisecond)
		apitest.Edit(w.server, ns, "settings", func(cm *corev1.ConfigMap) { cm.Data["K"] += "!" })
	}
	wg.Wait()
	if both[0] != "new" || both[1] != "new" {
		t.Errorf("calls of one Pod got %q", both)
	}
	// A Pod keeps its version for all its containers; a new one sees the change.
	kept := get(second)
	apitest.Edit(w.server, ns, "settings", func(cm *corev1.ConfigMap) { cm.Data["K"] = "newer" })
	if got := get(second); got != kept {
		t.Errorf("the version changed under a Pod from %q to %q", kept, got)
	}
	if got := get(w.resolver.Pod(second.pod)); got != "newer" {
		t.Errorf("a new Pod got %q", got)
	}
}

// slowAnswers returns the present object 100 ms later.
type slowAnswers struct {
	corev1client.ConfigMapsGetter
	corev1client.ConfigMapInterface
}

func (s slowAnswers) ConfigMaps(namespace string) corev1client.ConfigMapInterface {
	s.ConfigMapInterface = s.ConfigMapsGetter.ConfigMaps(namespace)
	return s
}

func (s slowAnswers) Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.ConfigMap, error) {
	defer time.Sleep(100 * time.Millisecond)
	return s.ConfigMapInterface.Get(ctx, name, opts)
}

// TestHang: a request without an answer ends at CallTimeout, a caller's at its
// ctx, and a caller that goes away takes nothing from the others.
func TestHang(t *testing.T) { synctest.Test(t, testHang) }

func testHang(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Services = nil }, configMap("settings", map[string]string{"K": "v"}))
	w.server.Inject(apitest.Fault{Match: apitest.Match{Resource: "configmaps"}, Hang: true, Times: 1})
	pod := func() *Pod {
		return w.pod(podOf(corev1.Container{Env: []corev1.EnvVar{configMapRef("A", "settings", "K", false)}}))
	}
	start := time.Now()
	var wg sync.WaitGroup
	wg.Go(func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := pod().Container(ctx, "app", Addresses{})
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second || !CanWait(err) {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
	time.Sleep(500 * time.Millisecond)
	// It waits for the request after the one that hangs.
	if _, err := pod().Container(t.Context(), "app", Addresses{}); err != nil {
		t.Error(err)
	}
	if got := time.Since(start); got != DefaultCallTimeout {
		t.Errorf("took %v, want %v", got, DefaultCallTimeout)
	}
	wg.Wait()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	before := w.count("configmaps")
	if _, err := pod().Container(cancelled, "app", Addresses{}); !errors.Is(err, context.Canceled) {
		t.Errorf("with a cancelled ctx: %v", err)
	}
	if n := w.count("configmaps"); n != before {
		t.Error("a request for a cancelled ctx")
	}
}

// TestServiceAge: lists of Services are kept for ServiceAge, and those of unused
// namespaces are forgotten.
func TestServiceAge(t *testing.T) { synctest.Test(t, testServiceAge) }

func testServiceAge(t *testing.T) {
	w := newWorld(t, nil, service(ns, "db", "10.0.0.1", corev1.ServicePort{Port: 1}))
	p := w.pod(podOf(corev1.Container{}))
	get := func() string {
		env, err := p.Container(t.Context(), "app", Addresses{})
		if err != nil {
			t.Fatal(err)
		}
		v, _ := env.Lookup("DB_SERVICE_HOST")
		return v
	}
	get()
	w.server.Put(service(ns, "db", "10.0.0.2", corev1.ServicePort{Port: 1}))
	time.Sleep(DefaultServiceAge)
	if got := get(); got != "10.0.0.1" {
		t.Errorf("after %v: %s", DefaultServiceAge, got)
	}
	if n := w.count("services"); n != 2 {
		t.Errorf("%d reads", n)
	}
	time.Sleep(time.Second)
	if got := get(); got != "10.0.0.2" {
		t.Errorf("a second later: %s", got)
	}
	if n := len(w.resolver.services.entries); n != 2 {
		t.Errorf("%d lists kept, want 2", n)
	}
	synctest.Wait()
	if n := len(w.resolver.reads.flights); n != 0 {
		t.Errorf("%d requests under way", n)
	}
}

// TestObjectsUnchanged: objects of the client are shared; results are private.
func TestObjectsUnchanged(t *testing.T) {
	w := newWorld(t, nil, secret("login", map[string]string{"a": "1"}))
	pod := podOf(corev1.Container{EnvFrom: []corev1.EnvFromSource{fromSecret("", "login", false)}, Args: []string{"$(a)"}})
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "login"}}}}
	p := w.pod(pod)
	for range 2 {
		files, err := p.Volume(t.Context(), "v")
		if err != nil || string(files["a"].Data) != "1" {
			t.Fatalf("%s, %v", files["a"].Data, err)
		}
		files["a"].Data[0] = 'x'
		env, err := p.Container(t.Context(), "app", Addresses{})
		if err != nil || env.Args[0] != "1" {
			t.Fatalf("%v, %v", env, err)
		}
		env.Args[0], env.Vars[0].Value = "x", "x"
	}
}
