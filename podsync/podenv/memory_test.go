// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/apierr"
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
		"a page":      {apitest.Fault{Answer: page(http.StatusNotFound)}, true},
		"denied page": {apitest.Fault{Answer: page(http.StatusForbidden)}, true},
		"made up":     {apitest.Fault{Answer: empty}, true},
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

// page returns the answer of a proxy that has no API server behind it.
func page(code int) func(apitest.Request) (*http.Response, error) {
	return func(apitest.Request) (*http.Response, error) {
		return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"text/html"}}, Body: io.NopCloser(strings.NewReader("<html>default backend</html>"))}, nil
	}
}

// empty is the answer of a proxy that makes up an object.
func empty(apitest.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader("{}"))}, nil
}

// What a proxy answers is about no object: a Memory loses nothing by it, and nothing is missing.
func TestAProxysAnswerSaysNothing(t *testing.T) {
	for name, answer := range map[string]func(apitest.Request) (*http.Response, error){"a page": page(http.StatusNotFound), "an empty object": empty} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := memoryWorld(t)
				clientset := w.server.Client(apitest.NodeUser("n1"))
				w.resolver.cfg.Certificates = clientset.CertificatesV1()
				w.resolver.cfg.Nodes = clientset.CoreV1()
				w.server.Put(bundle("all", signer, anchor("a"), nil))
				pod := everything()
				sources := &pod.Spec.Volumes[0].Projected.Sources
				*sources = append(*sources,
					corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}, Items: []corev1.KeyToPath{{Key: "k", Path: "settings"}}, Optional: new(true)}},
					corev1.VolumeProjection{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Path: "one", Name: new("all"), Optional: new(true)}},
					corev1.VolumeProjection{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Path: "list", SignerName: new(signer), LabelSelector: &metav1.LabelSelector{}, Optional: new(true)}})
				pod = w.pod(pod).pod
				memory := &Memory{}
				vars, files, err := resolve(t.Context(), w.resolver.Recall(pod, memory))
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour) // no list of Services is that old
				remove, version := w.server.Inject(apitest.Fault{Answer: answer}), memory.Version()
				// One request after the other, as each may find that the API server is away.
				for range 2 {
					p := w.resolver.Recall(pod, memory)
					for key := range maps.Clone(memory.held) {
						p.noAnswer = false
						switch key.kind {
						case "ConfigMap":
							_, _ = p.configMap(t.Context(), key.name)
						case "Secret":
							_, _ = p.secret(t.Context(), key.name)
						case "ClusterTrustBundle":
							_, _ = p.trustBundle(t.Context(), key.name)
						case "ClusterTrustBundleList":
							_, _ = p.trustBundles(t.Context(), key.name)
						case kindServices:
							_, _ = p.serviceLinks(t.Context(), key.namespace, key.name)
						}
					}
					p.noAnswer = false
					if files, err := p.Volume(t.Context(), "v"); err != nil || len(files["token"].Data) == 0 {
						t.Errorf("%d files, %v", len(files), err)
					}
				}
				if memory.Version() != version {
					t.Error("the Memory has changed")
				}
				// A pod that has read nothing waits, also for what is optional.
				if env, err := w.resolver.Recall(pod, &Memory{}).Container(t.Context(), "app", Addresses{}); err == nil || errors.Is(err, ErrMissing) || !CanWait(err) {
					t.Errorf("a new pod has %v, %v", env.Vars, err)
				}
				if files, err := w.resolver.Recall(pod, &Memory{}).Volume(t.Context(), "v"); err == nil || errors.Is(err, ErrMissing) || !CanWait(err) {
					t.Errorf("a new pod has %d files, %v", len(files), err)
				}
				remove()
				w.server.Inject(apitest.Fault{Err: errors.New("connection refused")})
				again, volume, err := resolve(t.Context(), w.resolver.Recall(pod, memory))
				if err != nil || !slices.Equal(again, vars) || len(volume) != len(files) || string(volume["list"].Data) != string(files["list"].Data) {
					t.Errorf("afterwards %q and %d files, %v, want %q and %d", again, len(volume), err, vars, len(files))
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
				p := w.pod(pod)
				p.pod.Spec.SecurityContext = tc.pod // without the API server's default
				files, err := p.Volume(t.Context(), "v")
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

// TestTheSameVersionIsSharedOnly says which objects of one name are the same.
func TestTheSameVersionIsSharedOnly(t *testing.T) {
	object := func(uid, version string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), ResourceVersion: version}}
	}
	links := func(name, value string) []serviceLinks { return []serviceLinks{{name, []Var{{"A", value}}}} }
	list := func(name, version string) *certificatesv1.ClusterTrustBundleList {
		return &certificatesv1.ClusterTrustBundleList{ListMeta: metav1.ListMeta{ResourceVersion: version}, Items: []certificatesv1.ClusterTrustBundle{{ObjectMeta: metav1.ObjectMeta{Name: name}}}}
	}
	for name, tc := range map[string]struct {
		a, b any
		want bool
	}{
		"the same":                     {object("u", "1"), object("u", "1"), true},
		"changed":                      {object("u", "1"), object("u", "2"), false},
		"made again":                   {object("u", "1"), object("v", "1"), false},
		"without a version":            {object("u", ""), object("u", ""), false},
		"an object and a list":         {object("u", "1"), list("a", "1"), false},
		"a list and an object":         {list("a", "1"), object("u", "1"), false},
		"the same Services":            {links("s", "1"), links("s", "1"), true},
		"a Service with other values":  {links("s", "1"), links("s", "2"), false},
		"another Service":              {links("s", "1"), links("t", "1"), false},
		"Services and an object":       {links("s", "1"), object("u", "1"), false},
		"no object of the API":         {"x", object("u", "1"), false},
		"no object of the API, second": {object("u", "1"), "x", false},
		"bundles of another version":   {list("a", "1"), list("a", "2"), true},
		"other bundles":                {list("a", "1"), list("b", "1"), false},
	} {
		if got := sameVersion(tc.a, tc.b); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestAShelfKeepsNothing(t *testing.T) {
	var s shelf
	key := func(name string) objectKey { return objectKey{"ConfigMap", ns, name} }
	a := s.share(key("a"), configMap("a", nil), time.Time{})
	s.held[key("gone")] = shelved{weak.Pointer[held]{}, time.Time{}}
	b := s.share(key("b"), configMap("b", nil), time.Time{})
	if len(s.held) != 2 {
		t.Errorf("%d objects are known, want 2", len(s.held))
	}
	for key, want := range map[objectKey]*held{key("a"): a, key("b"): b, key("gone"): nil} {
		if got, ok := s.find(key); got != want || ok != (want != nil) {
			t.Errorf("%v: %v, %v, want %v", key, got, ok, want)
		}
	}
}

// TestWhatAMemoryOnDiskMeans reads files that another process has written, or that are damaged.
func TestWhatAMemoryOnDiskMeans(t *testing.T) {
	sealed := func(text string) string {
		data, _ := flip{}.Seal([]byte(text))
		return base64.StdEncoding.EncodeToString(data)
	}
	for name, tc := range map[string]struct {
		data   string
		sealer Sealer
		fails  string
		want   map[objectKey]any // nil: the API server has none
	}{
		"empty":           {`{}`, nil, "", nil},
		"no JSON":         {`{`, nil, "unexpected end", nil},
		"a kind of later": {`{"objects":[{"kind":"Lease","name":"a","object":{}}]}`, nil, "", nil},
		"absent":          {`{"objects":[{"kind":"ConfigMap","namespace":"shop","name":"a"}]}`, nil, "", map[objectKey]any{{"ConfigMap", ns, "a"}: nil}},
		"a damaged one": {`{"objects":[{"kind":"ConfigMap","namespace":"shop","name":"a","object":[]},{"kind":"ConfigMap","namespace":"shop","name":"b","object":{"data":{"k":"v"}}}]}`, nil,
			"podenv: ConfigMap shop/a: ", map[objectKey]any{{"ConfigMap", ns, "b"}: &corev1.ConfigMap{Data: map[string]string{"k": "v"}}}},
		"Services": {`{"objects":[{"kind":"Service","namespace":"shop","name":"","object":[{"service":"s","vars":[]}]}]}`, nil, "",
			map[objectKey]any{{"Service", ns, ""}: []serviceLinks{{"s", []Var{}}}}},
		"bundles": {`{"objects":[{"kind":"ClusterTrustBundle","name":"a","object":{}},{"kind":"ClusterTrustBundleList","name":"","object":{}}]}`, nil, "",
			map[objectKey]any{{"ClusterTrustBundle", "", "a"}: &certificatesv1.ClusterTrustBundle{}, {"ClusterTrustBundleList", "", ""}: &certificatesv1.ClusterTrustBundleList{}}},
		"sealed": {`{"sealed":"` + sealed(`[{"kind":"Token","namespace":"shop","name":"default/","object":{"token":"x"}}]`) + `"}`, flip{}, "",
			map[objectKey]any{{"Token", ns, "default/"}: &keptToken{Token: "x"}}},
		"sealed, damaged": {`{"sealed":"` + sealed(`{`) + `","objects":[{"kind":"Secret","name":"a"}]}`, flip{}, "podenv: the sealed objects: unexpected end", map[objectKey]any{{"Secret", "", "a"}: nil}},
		"no Sealer":       {`{"sealed":"AA=="}`, nil, "podenv: the sealed objects: there is no Sealer", nil},
		"another key":     {`{"sealed":"AA=="}`, flip{broken: true}, "podenv: the sealed objects: another machine", nil},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := newWorld(t, nil).resolver.Remember([]byte(tc.data), tc.sealer)
			if (err == nil) != (tc.fails == "") || err != nil && !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("%v, want %s", err, tc.fails)
			}
			got := map[objectKey]any{}
			for key, h := range m.held {
				got[key] = h.object
			}
			if len(got)+len(tc.want) > 0 && !reflect.DeepEqual(got, tc.want) {
				t.Errorf("it holds %v, want %v", got, tc.want)
			}
			if m.Version() != 0 {
				t.Error("what was read is a change")
			}
		})
	}
}

// noSeal is a Sealer that fails.
type noSeal struct{ flip }

func (noSeal) Seal([]byte) ([]byte, error) { return nil, errors.New("no key") }

// TestEncodeSortsAndSeals writes the objects by kind, namespace and name, and Secrets and tokens
// only sealed.
func TestEncodeSortsAndSeals(t *testing.T) {
	m := &Memory{}
	for _, key := range []objectKey{{"Service", "b", ""}, {"ConfigMap", "b", "a"}, {"ConfigMap", "a", "b"}, {"ConfigMap", "a", "a"}} {
		m.keep(key, &held{})
	}
	const plain = `{"objects":[{"kind":"ConfigMap","namespace":"a","name":"a"},{"kind":"ConfigMap","namespace":"a","name":"b"},` +
		`{"kind":"ConfigMap","namespace":"b","name":"a"},{"kind":"Service","namespace":"b","name":""}]}`
	if data, err := m.Encode(noSeal{}); err != nil || string(data) != plain {
		t.Errorf("without Secrets: %s, %v", data, err)
	}
	m.keep(objectKey{"Secret", "a", "a"}, &held{})
	m.keep(objectKey{"Token", "a", "a"}, &held{&keptToken{Token: "x"}})
	if data, err := m.Encode(nil); err != nil || string(data) != plain {
		t.Errorf("without a Sealer: %s, %v", data, err)
	}
	if _, err := m.Encode(noSeal{}); err == nil || err.Error() != "podenv: seal: no key" {
		t.Errorf("with a Sealer that fails: %v", err)
	}
	var out keptMemory
	data, err := m.Encode(flip{})
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if open, _ := (flip{}).Open(out.Sealed); err != nil || len(out.Objects) != 4 || !strings.HasPrefix(string(open), `[{"kind":"Secret","namespace":"a","name":"a"},{"kind":"Token",`) {
		t.Errorf("%s, %v, sealed is %s", data, err, open)
	}
}

// TestWhatSaysThatTheAPIServerIsAway: an answer does not, nor does a call that was canceled.
func TestWhatSaysThatTheAPIServerIsAway(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		ctx  context.Context
		err  error
		want bool
	}{
		"success":          {t.Context(), nil, false},
		"refused":          {t.Context(), errors.New("connection refused"), true},
		"canceled":         {canceled, context.Canceled, false},
		"success too late": {canceled, nil, false},
		"denied":           {t.Context(), apierrors.NewForbidden(schema.GroupResource{}, "x", nil), false},
		"absent":           {t.Context(), apierrors.NewNotFound(schema.GroupResource{}, "x"), false},
		"overloaded":       {t.Context(), apierrors.NewServiceUnavailable("x"), true},
		"a page":           {t.Context(), apierrors.NewGenericServerResponse(http.StatusNotFound, "get", schema.GroupResource{}, "x", "<html>", 0, true), true},
		"a denied page":    {t.Context(), apierrors.NewGenericServerResponse(http.StatusForbidden, "get", schema.GroupResource{}, "x", "<html>", 0, true), true},
		"another object":   {t.Context(), apierr.ErrAnswer, true},
	} {
		if got := unreachable(tc.ctx, tc.err); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestATokenIsNewWhileTheAPIServerAnswers: the one in the Memory is for an outage only.
func TestATokenIsNewWhileTheAPIServerAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := memoryWorld(t)
		pod, memory := w.pod(everything()).pod, &Memory{}
		var tokens []string
		for range 2 {
			files, err := w.resolver.Recall(pod, memory).Volume(t.Context(), "v")
			if err != nil {
				t.Fatal(err)
			}
			token := files["token"]
			tokens = append(tokens, string(token.Data))
			if life := time.Until(token.Renew); life < 47*time.Minute || life > 48*time.Minute {
				t.Errorf("it is renewed after %v, want 80 %% of an hour", life)
			}
			time.Sleep(time.Minute)
		}
		if tokens[0] == tokens[1] {
			t.Errorf("twice the token %s", tokens[0])
		}
	})
}

// TestARefreshKeepsWhatNeedsNoRenewal: it reads changes beside a token and a certificate that are kept.
func TestARefreshKeepsWhatNeedsNoRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSigningWorld(t, configMap("settings", map[string]string{"k": "old"}))
		pod := podWith(certificateSource("ED25519"))
		sources := &pod.Spec.Volumes[0].Projected.Sources
		for i, seconds := range []int64{3600, 7200} {
			*sources = append(*sources, corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: fmt.Sprint("token-", i), ExpirationSeconds: &seconds}})
		}
		*sources = append(*sources, corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}})
		pod = w.pod(pod).pod
		memory := &Memory{}
		read := func(p *Pod) map[string]File {
			t.Helper()
			var signing sync.WaitGroup
			signing.Go(func() {
				time.Sleep(time.Second / 2)
				w.sign()
			})
			defer signing.Wait()
			files, err := p.Volume(t.Context(), "v")
			if err != nil || len(files) != 6 {
				t.Fatalf("%d files, %v", len(files), err)
			}
			return files
		}
		first := read(w.resolver.Recall(pod, memory))
		apitest.Edit(w.server, ns, "settings", func(cm *corev1.ConfigMap) { cm.Data["k"] = "new" })
		began := time.Now()
		for _, step := range []struct {
			after   time.Duration
			renewed []string
		}{
			{time.Minute, nil},
			{47 * time.Minute, nil},
			{49 * time.Minute, []string{"token-0"}},
			{91 * time.Minute, []string{"bundle.pem", "chain.pem", "key.pem"}},
			{97*time.Minute + 10*time.Second, []string{"token-0", "token-1"}},
			{98 * time.Minute, nil},
		} {
			time.Sleep(time.Until(began.Add(step.after)))
			files := read(w.resolver.Refresh(pod, memory))
			var renewed []string
			for _, name := range slices.Sorted(maps.Keys(files)) {
				if file := files[name]; !file.Renew.IsZero() {
					if !bytes.Equal(file.Data, first[name].Data) {
						renewed = append(renewed, name)
					}
					if !file.Renew.After(time.Now()) || !file.Renew.Before(file.Expires) {
						t.Errorf("after %v %s is renewed at %v and expires at %v", step.after, name, file.Renew, file.Expires)
					}
					file.Data[0]++ // the files are the caller's
				}
			}
			if !slices.Equal(renewed, step.renewed) || string(files["k"].Data) != "new" {
				t.Errorf("after %v it has renewed %q, and has %q, want %q", step.after, renewed, files["k"].Data, step.renewed)
			}
			first = read(w.resolver.Refresh(pod, memory))
		}
		if data, err := memory.Encode(flip{}); err != nil || bytes.Contains(data, []byte("ertificate")) {
			t.Errorf("on disk is %s, %v", data, err)
		}
	})
}

// TestPodsShareTheReadsOfARefresh: the ConfigMap with the cluster's CA is in each pod.
func TestPodsShareTheReadsOfARefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, configMap("ca", map[string]string{"k": "0"}))
		var pods []*corev1.Pod
		var memories []*Memory
		read := func(p *Pod) string {
			files, err := p.Volume(t.Context(), "v")
			if err != nil {
				t.Error(err)
			}
			return string(files["k"].Data)
		}
		for i := range 20 {
			pod := podWith(corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "ca"}}})
			pod.Name = fmt.Sprint("p", i)
			pods, memories = append(pods, w.pod(pod).pod), append(memories, &Memory{})
			read(w.resolver.Recall(pods[i], memories[i]))
		}
		time.Sleep(time.Hour)
		before, age := w.count("configmaps"), 0
		if before != 20 { // a pod that starts reads for itself
			t.Errorf("%d reads for the starts of 20 pods", before)
		}
		for second := range 600 { // each pod once a minute
			apitest.Edit(w.server, ns, "ca", func(cm *corev1.ConfigMap) { cm.Data["k"] = fmt.Sprint(second) })
			if second%3 == 0 {
				i := second / 3 % 20
				got, err := strconv.Atoi(read(w.resolver.Refresh(pods[i], memories[i])))
				if err != nil {
					t.Fatal(err)
				}
				age = max(age, second-got)
			}
			time.Sleep(time.Second)
		}
		// One each 33 s, the first time that a pod asks after half a minute.
		if n := w.count("configmaps") - before; n != 19 || age != 30 {
			t.Errorf("%d reads in ten minutes, want 19; a pod had an object that was %d s old", n, age)
		}
	})
}

// TestAMemoryHasTheLastAnswer: an object may be made, changed or deleted between two answers.
func TestAMemoryHasTheLastAnswer(t *testing.T) {
	m, key := &Memory{}, objectKey{"ConfigMap", ns, "a"}
	absent, first, second := &held{}, &held{configMap("a", nil)}, &held{configMap("a", nil)}
	for i, step := range []struct {
		answer  *held
		version int
	}{{absent, 1}, {&held{}, 1}, {first, 2}, {first, 2}, {second, 3}, {absent, 4}, {first, 5}} {
		m.keep(key, step.answer)
		if got, ok := m.recall(key); !ok || got.object != step.answer.object || m.Version() != step.version {
			t.Errorf("answer %d: %+v, version %d, want %+v, %d", i, got, m.Version(), step.answer, step.version)
		}
	}
}
