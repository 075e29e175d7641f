// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	"github.com/virtual-kubelet/virtual-kubelet/node"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/lineartest"
	"github.com/kubewright/kubewright/podsync/podenv"
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
		"values":                         {[]corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "$(A)2"}}, nil, []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "12"}}, nil},
		"a key":                          {[]corev1.EnvVar{secret("there", "key", false)}, nil, []corev1.EnvVar{{Name: "V", Value: "secret"}}, nil},
		"all keys":                       {nil, []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "there"}}}}, []corev1.EnvVar{{Name: "key", Value: "public"}}, nil},
		"a field":                        {[]corev1.EnvVar{field("metadata.name")}, nil, []corev1.EnvVar{{Name: "V", Value: "web"}}, nil},
		"the address":                    {[]corev1.EnvVar{field("status.podIP")}, nil, []corev1.EnvVar{field("status.podIP")}, nil},
		"a field that is none":           {[]corev1.EnvVar{field("metadata.nonsense")}, nil, nil, nil},
		"no Secret":                      {[]corev1.EnvVar{secret("absent", "key", false)}, nil, nil, []string{"MandatorySecretNotFound"}},
		"no ConfigMap":                   {[]corev1.EnvVar{configMap("absent", "key", false)}, nil, nil, []string{"MandatoryConfigMapNotFound"}},
		"no key":                         {[]corev1.EnvVar{configMap("there", "absent", false)}, nil, nil, []string{"MandatoryConfigMapKeyNotFound"}},
		"neither of two":                 {[]corev1.EnvVar{configMap("absent", "key", false), secret("there", "absent", false)}, nil, nil, []string{"MandatoryConfigMapNotFound", "MandatorySecretKeyNotFound"}},
		"no optional Secret":             {[]corev1.EnvVar{secret("absent", "key", true)}, nil, []corev1.EnvVar{}, []string{"OptionalSecretNotFound"}},
		"no optional key":                {[]corev1.EnvVar{secret("there", "absent", true)}, nil, []corev1.EnvVar{}, []string{"OptionalSecretKeyNotFound"}},
		"no optional ConfigMap":          {[]corev1.EnvVar{configMap("absent", "key", true)}, nil, []corev1.EnvVar{}, []string{"OptionalConfigMapNotFound"}},
		"no optional source":             {nil, []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "absent"}, Optional: &yes}}}, []corev1.EnvVar{}, []string{"OptionalSecretNotFound"}},
		"no optional ConfigMap source":   {nil, []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "absent"}, Optional: &yes}}}, []corev1.EnvVar{}, []string{"OptionalConfigMapNotFound"}},
		"an optional source is there":    {nil, []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "there"}, Optional: &yes}}}, []corev1.EnvVar{{Name: "key", Value: "secret"}}, nil},
		"no optional key of a ConfigMap": {[]corev1.EnvVar{configMap("there", "absent", true)}, nil, []corev1.EnvVar{}, []string{"OptionalConfigMapKeyNotFound"}},
		"an optional one is there":       {[]corev1.EnvVar{configMap("there", "key", true)}, nil, []corev1.EnvVar{{Name: "V", Value: "public"}}, nil},
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

// An object that can't be read is neither missing nor without the key.
func TestObjectsThatCanNotBeRead(t *testing.T) {
	for what, optional := range map[string]bool{"mandatory": false, "optional": true} {
		s := apitest.New(apitest.Options{})
		s.Inject(apitest.Fault{Match: apitest.Match{Resource: "secrets"}, Err: apitest.ErrConnRefused})
		recorder := events.NewFakeRecorder(10)
		a, err := New(stub{}, Config{NodeName: "vk", Client: s.Client(apitest.User{}).CoreV1(), EventRecorder: recorder})
		if err != nil {
			t.Fatal(err)
		}
		pod := webPod("1", "")
		pod.Spec.EnableServiceLinks = new(bool)
		pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "V", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "there"}, Key: "key", Optional: &optional,
		}}}}
		if _, err := a.environment.prepare(t.Context(), pod); err == nil {
			t.Errorf("%s: the pod is handed over", what)
		}
		if event := <-recorder.Events; !strings.HasPrefix(event, "Warning FailedToReadMandatorySecret ") || len(recorder.Events) > 0 {
			t.Errorf("%s: event %q", what, event)
		}
	}
}

// The API server refuses the note of an event that is longer than 1,024 bytes.
func TestALongErrorIsAnEvent(t *testing.T) {
	recorder := events.NewFakeRecorder(1)
	environment{events: recorder}.event(webPod("1", ""), "Warning", "Reason", "Action", strings.Repeat("x", 3000))
	if note := strings.TrimPrefix(<-recorder.Events, "Warning Reason "); len(note) != 1024 {
		t.Errorf("the note has %d bytes", len(note))
	}
	environment{}.event(webPod("1", ""), "Warning", "Reason", "Action", "without a recorder")
}

// mounter is a provider that reads the volumes of a pod from the Resolver that it shares with
// the adapter.
type mounter struct {
	node.PodLifecycleHandler
	resolver *podenv.Resolver
	files    map[string]string // by volume and path
}

func (m *mounter) GetPod(context.Context, string, string) (*corev1.Pod, error) {
	return nil, errdefs.NotFound("no such pod")
}

func (m *mounter) CreatePod(ctx context.Context, pod *corev1.Pod) error {
	resolved := m.resolver.Pod(pod)
	for _, volume := range pod.Spec.Volumes {
		files, err := resolved.Volume(ctx, volume.Name)
		if err != nil {
			return err
		}
		for path, file := range files {
			m.files[volume.Name+"/"+path] = string(file.Data)
		}
	}
	return nil
}

func TestAProviderMountsWithTheResolver(t *testing.T) {
	s := apitest.New(apitest.Options{})
	s.Put(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "there"}, Data: map[string][]byte{"key": []byte("secret")}})
	s.Put(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}})
	client := s.Client(apitest.User{}).CoreV1()
	resolver, err := podenv.New(podenv.Config{ConfigMaps: client, Secrets: client, Services: client, ServiceAccounts: client})
	if err != nil {
		t.Fatal(err)
	}
	m := &mounter{resolver: resolver, files: map[string]string{}}
	a, err := New(m, Config{NodeName: "vk", Client: client, Resolver: resolver})
	if err != nil {
		t.Fatal(err)
	}
	token := &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: new(int64(3600))}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "1", Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{
			NodeName: "vk", ServiceAccountName: "default", Containers: []corev1.Container{{Name: "c", Image: "none"}},
			Volumes: []corev1.Volume{
				{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "there"}}},
				{Name: "access", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{ServiceAccountToken: token},
					{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "app", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['app']"}}}}},
				}}}},
			},
		},
	}
	s.Put(pod)
	if _, err := a.Start(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if m.files["secret/key"] != "secret" || m.files["access/app"] != "web" || m.files["access/token"] == "" || len(m.files) != 3 {
		t.Errorf("the provider has mounted %q", m.files)
	}
	if err := client.Secrets("default").Delete(t.Context(), "there", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	pod.Name, pod.UID = "other", "2"
	s.Put(pod)
	if _, err := a.Start(t.Context(), pod); err == nil {
		t.Error("a pod whose Secret is missing was created")
	}
}

// TestManyVariablesAreLinear: a user may give a container as many variables as the API server stores.
func TestManyVariablesAreLinear(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector, which runs with -short, changes what a call costs")
	}
	for name, from := range map[string]*corev1.EnvVarSource{
		"with values":   nil,
		"that are late": {FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := apitest.New(apitest.Options{})
			a, err := New(stub{}, Config{NodeName: "vk", Client: s.Client(apitest.User{}).CoreV1()})
			if err != nil {
				t.Fatal(err)
			}
			lineartest.Check(t, 3000, func(n int) func() {
				pod := webPod("1", "")
				pod.Spec.EnableServiceLinks = new(bool)
				for i := range n {
					pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%05d", i), ValueFrom: from})
				}
				return func() {
					if got, err := a.environment.prepare(t.Context(), pod); err != nil || len(got.Spec.Containers[0].Env) != n {
						t.Fatal(err)
					}
				}
			})
		})
	}
}

// A pod may refer to one object thousands of times. Each request of the adapter delays others of the client.
func TestAnObjectIsAskedAboutOnce(t *testing.T) {
	for what, optional := range map[string]bool{"mandatory": false, "optional": true} {
		s := apitest.New(apitest.Options{})
		s.Put(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "there"}, Data: map[string][]byte{"key": []byte("secret")}})
		a, err := New(stub{}, Config{NodeName: "vk", Client: s.Client(apitest.User{}).CoreV1()})
		if err != nil {
			t.Fatal(err)
		}
		pod := webPod("1", "")
		pod.Spec.EnableServiceLinks = new(bool)
		for i := range 50 {
			for _, name := range []string{"there", "absent"} {
				pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprint("V", i, name), ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
					LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: "another", Optional: &optional,
				}}})
			}
		}
		if _, err := a.environment.prepare(t.Context(), pod); (err == nil) != optional {
			t.Errorf("%s: %v", what, err)
		}
		if n := len(s.Requests(apitest.Match{Verb: "get", Resource: "secrets"})); n > 110 {
			t.Errorf("%s: %d requests about two Secrets", what, n)
		}
	}
}
