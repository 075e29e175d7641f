// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubewright/kubewright/apitest"
)

// everything is a pod with an object of each kind that a Memory has.
func everything() *corev1.Pod {
	pod := podOf(corev1.Container{Env: []corev1.EnvVar{
		configMapRef("C", "settings", "k", false), secretRef("S", "password", "k", false), configMapRef("O", "absent", "k", true),
	}})
	pod.Spec.ServiceAccountName = "default"
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
		{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "password"}}},
	}}}}}
	return pod
}

// memoryWorld is a world with the objects of everything.
func memoryWorld(t testing.TB) *world {
	w := newWorld(t, nil,
		configMap("settings", map[string]string{"k": "of the ConfigMap"}), secret("password", map[string]string{"k": "of the Secret"}),
		&corev1.ServiceAccount{ObjectMeta: configMap("default", nil).ObjectMeta},
		service("default", "kubernetes", "10.0.0.1", corev1.ServicePort{Port: 443}), service(ns, "shop", "10.0.0.2", corev1.ServicePort{Port: 80}))
	w.resolver.cfg.ServiceAccounts = w.server.Client(apitest.NodeUser("n1")).CoreV1()
	return w
}

// resolve returns the variables of the container and the files of the volume.
func resolve(ctx context.Context, p *Pod) (vars []string, files map[string]File, err error) {
	env, err1 := p.Container(ctx, "app", Addresses{})
	files, err2 := p.Volume(ctx, "v")
	return env.Strings(), files, errors.Join(err1, err2)
}

func TestTheMemoryStandsInWhileTheAPIServerIsAway(t *testing.T) {
	for name, tc := range map[string]struct {
		fault apitest.Fault
		away  bool
	}{
		"refused":     {apitest.Fault{Err: errors.New("connection refused")}, true},
		"alone":       {apitest.Fault{Err: errors.New("connection refused")}, true}, // without Services
		"silent":      {apitest.Fault{Hang: true}, true},
		"overloaded":  {apitest.Fault{Status: apierrors.NewTooManyRequestsError("later")}, true},
		"unavailable": {apitest.Fault{Status: apierrors.NewServiceUnavailable("etcd")}, true},
		"failing":     {apitest.Fault{Status: apierrors.NewInternalError(errors.New("etcd"))}, true},
		"denied":      {apitest.Fault{Status: apierrors.NewForbidden(schema.GroupResource{}, "x", errors.New("no"))}, false},
		"gone":        {apitest.Fault{Status: apierrors.NewNotFound(schema.GroupResource{}, "x")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := memoryWorld(t)
				if name == "alone" {
					w.resolver.cfg.Services = nil
				}
				first := w.pod(everything())
				memory := &Memory{}
				vars, files, err := resolve(t.Context(), w.resolver.Recall(first.pod, memory))
				if err != nil || slices.Contains(vars, "SHOP_SERVICE_HOST=10.0.0.2") == (name == "alone") {
					t.Fatalf("%q, %v", vars, err)
				}
				time.Sleep(time.Hour) // no list of Services is that old
				w.server.Inject(tc.fault)
				requests, began := len(w.server.Requests(apitest.Match{})), time.Now()
				again, volume, err := resolve(t.Context(), w.resolver.Recall(first.pod, memory))
				if !tc.away {
					if err == nil {
						t.Errorf("an answer of the API server is ignored: %q", again)
					}
					return
				}
				if err != nil || !slices.Equal(again, vars) || len(volume) != 2 || string(volume["token"].Data) != string(files["token"].Data) {
					t.Errorf("%q, %v, %v, want %q", again, volume, err, vars)
				}
				if volume["token"].Renew.After(time.Now()) {
					t.Error("the token is not asked for again")
				}
				// One request, with the retries of client-go, finds that the server is away.
				if took := time.Since(began); took > 11*time.Second {
					t.Errorf("it took %v", took)
				}
				if n := len(w.server.Requests(apitest.Match{})) - requests; tc.fault.Err != nil && n > 1 {
					t.Errorf("%d requests", n)
				}
				// Without a Memory nothing stands in, and a caller that has given up learns that.
				if _, _, err := resolve(t.Context(), w.resolver.Pod(first.pod)); err == nil {
					t.Error("a pod without a Memory was resolved")
				}
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if _, _, err := resolve(ctx, w.resolver.Recall(first.pod, memory)); err == nil {
					t.Error("a call that was canceled succeeded")
				}
			})
		})
	}
}

// A pod that starts for the first time gets the Services that another pod has read, which
// are a picture of the past for any container, but no ConfigMap: it may have been changed
// for this pod.
func TestANewPodGetsServicesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := memoryWorld(t)
		memory := &Memory{}
		if _, _, err := resolve(t.Context(), w.resolver.Recall(w.pod(everything()).pod, memory)); err != nil {
			t.Fatal(err)
		}
		plain, other := podOf(corev1.Container{}), everything()
		plain.Name, other.Name = "plain", "other"
		first, second := w.pod(plain), w.pod(other)
		time.Sleep(time.Hour)
		w.server.Inject(apitest.Fault{Err: errors.New("connection refused")})
		env, err := w.resolver.Recall(first.pod, &Memory{}).Container(t.Context(), "app", Addresses{})
		if v, _ := env.Lookup("KUBERNETES_SERVICE_HOST"); err != nil || v != "10.0.0.1" {
			t.Errorf("%v, %v", env.Vars, err)
		}
		if env, err := w.resolver.Recall(second.pod, &Memory{}).Container(t.Context(), "app", Addresses{}); err == nil || !CanWait(err) {
			t.Errorf("%v, %v", env.Vars, err)
		}
		if memory.Version() == 0 { // it holds the Services until here
			t.Error("the Memory is empty")
		}
	})
}

// flip is a Sealer for tests: what it seals can't be found with a search.
type flip struct{ broken bool }

func (f flip) Seal(data []byte) ([]byte, error) {
	sealed := bytes.Clone(data)
	for i := range sealed {
		sealed[i] ^= 0xff
	}
	return sealed, nil
}

func (f flip) Open(sealed []byte) ([]byte, error) {
	if f.broken {
		return nil, errors.New("another machine")
	}
	return f.Seal(sealed)
}

func TestAMemoryOnDiskHasSecretsOnlySealed(t *testing.T) {
	for name, tc := range map[string]struct {
		seal, open Sealer
		secrets    bool
	}{
		"sealed":                   {flip{}, flip{}, true},
		"without a Sealer":         {nil, nil, false},
		"on another machine":       {flip{}, flip{broken: true}, false},
		"without a Sealer to open": {flip{}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := memoryWorld(t)
				pod := w.pod(everything()).pod
				memory := &Memory{}
				vars, files, err := resolve(t.Context(), w.resolver.Recall(pod, memory))
				if err != nil {
					t.Fatal(err)
				}
				data, err := memory.Encode(tc.seal)
				if err != nil {
					t.Fatal(err)
				}
				for _, text := range []string{"of the Secret", "b2YgdGhlIFNlY3JldA", string(files["token"].Data)} {
					if strings.Contains(string(data), text) {
						t.Errorf("%q is in %s", text, data)
					}
				}
				// The next process, on which no pod has read anything.
				next := memoryWorld(t)
				next.server.Inject(apitest.Fault{Err: errors.New("connection refused")})
				back, err := next.resolver.Remember(data, tc.open)
				if (err == nil) != (tc.secrets || tc.seal == nil) {
					t.Errorf("Remember: %v", err)
				}
				again, volume, err := resolve(t.Context(), next.resolver.Recall(pod, back))
				if tc.secrets {
					if err != nil || !slices.Equal(again, vars) || len(volume) != 2 {
						t.Errorf("%q, %v, %v, want %q", again, volume, err, vars)
					}
					return
				}
				if err == nil || !strings.Contains(err.Error(), "Secret shop/password") || strings.Contains(err.Error(), "ConfigMap") || !CanWait(err) {
					t.Errorf("it waits for %v", err)
				}
			})
		})
	}
}

func TestManagedFieldsStayInMemoryOnly(t *testing.T) {
	memory := &Memory{}
	settings := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "settings", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}},
		Data:       map[string]string{"k": "v"},
	}
	memory.keep(objectKey{"ConfigMap", ns, "settings"}, &held{object: settings})
	data, err := memory.Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	if text := string(data); strings.Contains(text, "kubectl") || !strings.Contains(text, `"k":"v"`) {
		t.Errorf("on disk is %s", text)
	}
	if len(settings.ManagedFields) != 1 {
		t.Error("Encode changed an object that all pods share")
	}
}

func TestMemoriesShareObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := memoryWorld(t)
		pod := w.pod(everything()).pod
		a, b := &Memory{}, &Memory{}
		read := func(m *Memory) {
			if _, err := w.resolver.Recall(pod, m).Container(t.Context(), "app", Addresses{}); err != nil {
				t.Fatal(err)
			}
		}
		read(a)
		time.Sleep(time.Minute)
		read(b)
		for key, h := range a.held {
			if h.object != nil && b.held[key] != h {
				t.Errorf("%v is in memory twice", key)
			}
		}
		version := b.Version()
		if read(b); b.Version() != version {
			t.Error("the same objects are a change")
		}
		apitest.Edit(w.server, ns, "settings", func(cm *corev1.ConfigMap) { cm.Data["k"] = "new" })
		if read(b); b.Version() != version+1 {
			t.Error("another object is no change")
		}
	})
}

func FuzzRemember(f *testing.F) {
	f.Add([]byte(`{"objects":[{"kind":"ConfigMap","name":"a","object":{}},{"kind":"Service","name":"","object":[]},{"kind":"Secret","name":"b"}],"sealed":"AA=="}`))
	w := newWorld(f, nil)
	f.Fuzz(func(t *testing.T, data []byte) {
		m, _ := w.resolver.Remember(data, flip{})
		again, err := m.Encode(flip{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.resolver.Remember(again, flip{}); err != nil {
			t.Errorf("%v in %s", err, again)
		}
	})
}

func TestModesOfTokens(t *testing.T) {
	user := func(id int64) *corev1.SecurityContext { return &corev1.SecurityContext{RunAsUser: &id} }
	for name, tc := range map[string]struct {
		pod        *corev1.PodSecurityContext
		containers []*corev1.SecurityContext // of an init container and regular ones
		mode       int32
		user       int64
	}{
		"of the image":         {nil, []*corev1.SecurityContext{nil, nil}, 0o644, -1},
		"of the pod":           {&corev1.PodSecurityContext{RunAsUser: new(int64(7))}, []*corev1.SecurityContext{nil, nil}, 0o600, 7},
		"of all containers":    {nil, []*corev1.SecurityContext{user(7), user(7)}, 0o600, 7},
		"of one container":     {nil, []*corev1.SecurityContext{user(7), nil}, 0o644, -1},
		"different users":      {nil, []*corev1.SecurityContext{user(7), user(8)}, 0o644, -1},
		"a container differs":  {&corev1.PodSecurityContext{RunAsUser: new(int64(7))}, []*corev1.SecurityContext{nil, user(8)}, 0o644, -1},
		"root":                 {nil, []*corev1.SecurityContext{user(0), user(0)}, 0o600, 0},
		"fsGroup":              {&corev1.PodSecurityContext{FSGroup: new(int64(9))}, []*corev1.SecurityContext{nil, nil}, 0o600, -1},
		"fsGroup and one user": {&corev1.PodSecurityContext{FSGroup: new(int64(9)), RunAsUser: new(int64(7))}, []*corev1.SecurityContext{nil, nil}, 0o600, 7},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := memoryWorld(t)
				pod := everything()
				pod.Spec.SecurityContext = tc.pod
				pod.Spec.InitContainers = []corev1.Container{{Name: "init", SecurityContext: tc.containers[0]}}
				pod.Spec.Containers[0].SecurityContext = tc.containers[1]
				files, err := w.pod(pod).Volume(t.Context(), "v")
				if err != nil {
					t.Fatal(err)
				}
				token, other := files["token"], files["k"]
				if token.Mode != tc.mode || (token.User == nil) != (tc.user < 0) || token.User != nil && *token.User != tc.user {
					t.Errorf("the token has mode %o and user %v", token.Mode, token.User)
				}
				if other.Mode != 0o644 || other.User != nil {
					t.Errorf("a Secret has mode %o and user %v", other.Mode, other.User)
				}
			})
		})
	}
}
