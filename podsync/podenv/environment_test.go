// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/lineartest"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/internal/testlog"
)

func TestContainer(t *testing.T) {
	settings := configMap("settings", map[string]string{"MODE": "fast", "COLOR": "red", "with.dot": "1", "tricky": "$(MODE)"})
	settings.BinaryData = map[string][]byte{"LOGO": {0xff}}
	login := secret("login", map[string]string{"USER": "ann", "COLOR": "blue"})
	for _, tc := range []struct {
		name       string
		env        []corev1.EnvVar
		from       []corev1.EnvFromSource
		args       []string
		want       string // NAME=value, by semicolons
		late       string
		wantedArgs string
	}{
		{name: "nothing", want: ""},
		{name: "values in the order of the spec", env: []corev1.EnvVar{value("B", "1"), value("A", "2"), value("C", "")}, want: "B=1;A=2;C="},
		{name: "the last definition counts", env: []corev1.EnvVar{value("A", "1"), value("B", "2"), value("A", "3")}, want: "B=2;A=3"},
		{name: "references go back", env: []corev1.EnvVar{value("A", "1"), value("B", "<$(A)$(C)>"), value("C", "3")}, want: "A=1;B=<1$(C)>;C=3"},
		{name: "references see what is redefined later", env: []corev1.EnvVar{value("A", "1"), value("B", "$(A)"), value("A", "2")}, want: "B=1;A=2"},
		{name: "a variable can refer to what it replaces", env: []corev1.EnvVar{value("PATH", "/a"), value("PATH", "$(PATH):/b")}, want: "PATH=/a:/b"},
		{name: "a value before its source", env: []corev1.EnvVar{{Name: "A", Value: "1", ValueFrom: configMapRef("", "none", "K", false).ValueFrom}}, want: "A=1"},
		{name: "v1 is the version of fields", env: []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.annotations['note']"}}}}, want: "A=7"},
		{name: "escapes", env: []corev1.EnvVar{value("A", "1"), value("B", "$$(A) $$$(A) $A $")}, want: "A=1;B=$(A) $1 $A $"},

		{name: "all of a ConfigMap", from: []corev1.EnvFromSource{fromConfigMap("", "settings", false)}, want: "COLOR=red;MODE=fast;tricky=$(MODE);with.dot=1"},
		{name: "prefix", from: []corev1.EnvFromSource{fromSecret("DB_", "login", false)}, want: "DB_COLOR=blue;DB_USER=ann"},
		{name: "later sources over earlier ones, env over both", from: []corev1.EnvFromSource{fromConfigMap("", "settings", false), fromSecret("", "login", false)},
			env: []corev1.EnvVar{value("MODE", "slow $(COLOR)")}, want: "tricky=$(MODE);with.dot=1;COLOR=blue;USER=ann;MODE=slow blue"},
		{name: "optional sources", from: []corev1.EnvFromSource{fromConfigMap("", "none", true), fromSecret("", "none", true)}, want: ""},

		{name: "keys", env: []corev1.EnvVar{configMapRef("A", "settings", "MODE", false), secretRef("B", "login", "USER", false), value("C", "$(A)$(B)")}, want: "A=fast;B=ann;C=fastann"},
		{name: "values from objects aren't expanded", env: []corev1.EnvVar{value("MODE", "x"), configMapRef("A", "settings", "tricky", false)}, want: "MODE=x;A=$(MODE)"},
		{name: "optional keys keep what was there", env: []corev1.EnvVar{value("A", "1"), configMapRef("A", "settings", "NONE", true), secretRef("B", "none", "NONE", true)}, want: "A=1"},

		{name: "fields", env: []corev1.EnvVar{fieldRef("N", "metadata.name"), fieldRef("NS", "metadata.namespace"), fieldRef("U", "metadata.uid"), fieldRef("L", "metadata.labels['app']"),
			fieldRef("X", "metadata.annotations['none']"), fieldRef("NODE", "spec.nodeName"), fieldRef("HOST", "spec.host"), fieldRef("SA", "spec.serviceAccountName")},
			want: "N=p;NS=shop;U=uid-1;L=web;X=;NODE=n1;HOST=n1;SA=robot"},
		{name: "addresses come late", env: []corev1.EnvVar{value("POD_IP", "old"), fieldRef("POD_IP", "status.podIP"), fieldRef("ALL", "status.podIPs"), fieldRef("HOST", "status.hostIP"),
			fieldRef("HOSTS", "status.hostIPs"), value("URL", "http://$(POD_IP)"), value("X", "$(URL)"), value("LITERAL", "$$(POD_IP)"), value("ALL", "none")},
			args: []string{"--ip=$(POD_IP)", "--x=$(LITERAL)"}, want: "LITERAL=$(POD_IP);ALL=none", late: "HOST HOSTS POD_IP URL X", wantedArgs: "--ip=$(POD_IP) --x=$(POD_IP)"},
		{name: "command and args", env: []corev1.EnvVar{value("A", "1")}, args: []string{"$(A)", "$(B)", "$$(A)", ""}, want: "A=1", wantedArgs: "1 $(B) $(A) "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, nil, settings.DeepCopy(), login.DeepCopy())
			pod := podOf(corev1.Container{Env: tc.env, EnvFrom: tc.from, Args: tc.args, Command: tc.args})
			pod.ObjectMeta = metav1.ObjectMeta{UID: "uid-1", Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"note": "7"}}
			pod.Spec.ServiceAccountName = "robot"
			p := w.pod(pod)
			for range 3 {
				env, err := p.Container(t.Context(), "app", Addresses{})
				if err != nil {
					t.Fatal(err)
				}
				if got := strings.Join(env.Strings(), ";"); got != tc.want {
					t.Errorf("got  %s\nwant %s", got, tc.want)
				}
				if got := strings.Join(env.Late, " "); got != tc.late {
					t.Errorf("late %s, want %s", got, tc.late)
				}
				if got := strings.Join(env.Args, " "); got != tc.wantedArgs || !slices.Equal(env.Command, env.Args) {
					t.Errorf("args %q, command %q, want %q", env.Args, env.Command, tc.wantedArgs)
				}
			}
			for _, resource := range []string{"configmaps", "secrets"} {
				if n := w.count(resource); n > 3 {
					t.Errorf("%d reads of %s", n, resource)
				}
			}
		})
	}
}

// TestContainerAddresses: where addresses come from, once there are any.
func TestContainerAddresses(t *testing.T) {
	env := []corev1.EnvVar{fieldRef("IP", "status.podIP"), fieldRef("IPS", "status.podIPs"), fieldRef("HOST", "status.hostIP"), fieldRef("HOSTS", "status.hostIPs"), value("URL", "http://$(IP)/")}
	for _, tc := range []struct {
		name      string
		addresses Addresses
		status    corev1.PodStatus
		host      bool
		want      string
		late      int
	}{
		{name: "given", addresses: Addresses{PodIPs: []string{"10.0.0.1", "fd00::1"}, HostIPs: []string{"192.168.0.1"}}, status: corev1.PodStatus{PodIP: "10.9.9.9"},
			want: "IP=10.0.0.1;IPS=10.0.0.1,fd00::1;HOST=192.168.0.1;HOSTS=192.168.0.1;URL=http://10.0.0.1/"},
		{name: "of the status", status: corev1.PodStatus{PodIP: "10.0.0.1", HostIP: "192.168.0.1", HostIPs: []corev1.HostIP{{IP: "192.168.0.1"}, {IP: "fd00::2"}}},
			want: "IP=10.0.0.1;IPS=10.0.0.1;HOST=192.168.0.1;HOSTS=192.168.0.1,fd00::2;URL=http://10.0.0.1/"},
		{name: "of the host", host: true, addresses: Addresses{HostIPs: []string{"192.168.0.1"}},
			want: "IP=192.168.0.1;IPS=192.168.0.1;HOST=192.168.0.1;HOSTS=192.168.0.1;URL=http://192.168.0.1/"},
		{name: "lists of the status", status: corev1.PodStatus{PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}, HostIP: "192.168.0.1"},
			want: "IP=10.0.0.1;IPS=10.0.0.1,fd00::1;HOST=192.168.0.1;HOSTS=192.168.0.1;URL=http://10.0.0.1/"},
		{name: "given before those of the status", addresses: Addresses{HostIPs: []string{"192.168.0.1"}}, status: corev1.PodStatus{PodIP: "10.0.0.1", HostIP: "192.168.9.9", HostIPs: []corev1.HostIP{{IP: "192.168.9.9"}}},
			want: "IP=10.0.0.1;IPS=10.0.0.1;HOST=192.168.0.1;HOSTS=192.168.0.1;URL=http://10.0.0.1/"},
		{name: "its own before those of the host", host: true, addresses: Addresses{PodIPs: []string{"10.0.0.1"}, HostIPs: []string{"192.168.0.1"}},
			want: "IP=10.0.0.1;IPS=10.0.0.1;HOST=192.168.0.1;HOSTS=192.168.0.1;URL=http://10.0.0.1/"},
		{name: "none at all", host: true, late: 5},
		{name: "of nobody", addresses: Addresses{HostIPs: []string{"192.168.0.1"}}, want: "HOST=192.168.0.1;HOSTS=192.168.0.1", late: 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, nil)
			pod := podOf(corev1.Container{Env: env})
			pod.Status, pod.Spec.HostNetwork = tc.status, tc.host
			got, err := w.pod(pod).Container(t.Context(), "app", tc.addresses)
			if err != nil {
				t.Fatal(err)
			}
			if s := strings.Join(got.Strings(), ";"); s != tc.want || len(got.Late) != tc.late {
				t.Errorf("got  %s, late %v\nwant %s", s, got.Late, tc.want)
			}
		})
	}
}

// TestContainerErrors: everything that is missing is named at once.
func TestContainerErrors(t *testing.T) {
	for _, tc := range []struct {
		name string
		env  []corev1.EnvVar
		from []corev1.EnvFromSource
		want []string // errors
		wait bool
	}{
		{name: "all at once", env: []corev1.EnvVar{configMapRef("A", "settings", "NONE", false), secretRef("B", "none", "USER", false)}, from: []corev1.EnvFromSource{fromConfigMap("", "none", false)}, wait: true,
			want: []string{
				"podenv: container app: envFrom[0]: ConfigMap shop/none: missing",
				`podenv: container app: env A: key "NONE" of ConfigMap shop/settings: missing`,
				`podenv: container app: env B: key "USER" of Secret shop/none: missing`,
			}},
		{name: "never", env: []corev1.EnvVar{fieldRef("A", "status.phase"), configMapRef("B", "none", "K", false)}, want: []string{
			`podenv: container app: env A: no field "status.phase" can be referred to`,
			`podenv: container app: env B: key "K" of ConfigMap shop/none: missing`,
		}},
		{name: "no source", env: []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{}}}, from: []corev1.EnvFromSource{{}}, want: []string{
			"podenv: container app: envFrom[0]: a source that is not known here",
			"podenv: container app: env A: a source that is not known here",
		}},
		{name: "names that no process can have", env: []corev1.EnvVar{value("", "1"), value("A=B", "1"), value("A\x00", "1")}, wait: true, want: []string{
			`podenv: container app: env : "" is no name of a variable`,
			`podenv: container app: env A=B: "A=B" is no name of a variable`,
			`podenv: container app: env A` + "\x00" + `: "A\x00" is no name of a variable`,
		}},
		{name: "a field whose end is missing", env: []corev1.EnvVar{fieldRef("A", "metadata.labels['app'"), fieldRef("B", "metadata.annotations['app'")}, want: []string{
			`podenv: container app: env A: no field "metadata.labels['app'" can be referred to`,
			`podenv: container app: env B: no field "metadata.annotations['app'" can be referred to`,
		}},
		{name: "resource of no container", env: []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "none", Resource: "limits.cpu"}}}}, want: []string{
			`podenv: container app: env A: the pod has no container "none"`,
		}},
		{name: "version of a field", env: []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v2", FieldPath: "metadata.name"}}}}, want: []string{
			`podenv: container app: env A: no fields of version "v2"`,
		}},
		{name: "NUL", from: []corev1.EnvFromSource{fromSecret("", "nul", false)}, wait: true, want: []string{
			"podenv: container app: envFrom[0]: the value has a NUL byte, at which a process would take it to end",
		}},
		{name: "file without ReadFile", env: []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{VolumeName: "v", Path: "f", Key: "k"}}}}, want: []string{
			"podenv: container app: env A: variables from files are not supported on this node",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, nil, configMap("settings", nil), secret("nul", map[string]string{"K": "a\x00b"}))
			p := w.pod(podOf(corev1.Container{Env: tc.env, EnvFrom: tc.from}))
			_, err := p.Container(t.Context(), "app", Addresses{})
			if err == nil || err.Error() != strings.Join(tc.want, "\n") {
				t.Errorf("got  %v\nwant %s", err, strings.Join(tc.want, "\n"))
			}
			if CanWait(err) != tc.wait {
				t.Errorf("CanWait = %v, want %v", !tc.wait, tc.wait)
			}
		})
	}
	w := newWorld(t, nil)
	_, err := w.pod(podOf(corev1.Container{})).Container(t.Context(), "other", Addresses{})
	var source *SourceError
	if !errors.As(err, &source) || source.Container != "other" || CanWait(err) {
		t.Errorf("a container that the pod doesn't have: %v", err)
	}
}

// TestMissingThenCreated: the same Pod finds a missing object or key once it exists.
func TestMissingThenCreated(t *testing.T) {
	for kind, env := range map[string]corev1.EnvVar{"ConfigMap": configMapRef("A", "late", "K", false), "Secret": secretRef("A", "late", "K", false)} {
		w := newWorld(t, nil)
		p := w.pod(podOf(corev1.Container{Env: []corev1.EnvVar{env}}))
		for n, step := range []struct {
			do      func()
			missing bool
		}{
			{func() {}, true},
			{func() {
				w.server.Put(configMap("late", nil))
				w.server.Put(secret("late", nil))
			}, true},
			{func() {
				apitest.Edit(w.server, ns, "late", func(cm *corev1.ConfigMap) { cm.Data = map[string]string{"K": "v"} })
				apitest.Edit(w.server, ns, "late", func(s *corev1.Secret) { s.Data = map[string][]byte{"K": []byte("v")} })
			}, false},
		} {
			step.do()
			_, err := p.Container(t.Context(), "app", Addresses{})
			if errors.Is(err, ErrMissing) != step.missing || (err != nil) != step.missing {
				t.Fatalf("%s, step %d: got %v, missing should be %v", kind, n, err, step.missing)
			}
		}
	}
}

// TestAVolumeIsMissingThenCreated: the same Pod reads an object again that lacked something.
func TestAVolumeIsMissingThenCreated(t *testing.T) {
	for kind, source := range map[string]corev1.VolumeSource{
		"ConfigMap": {ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "late"}, Items: []corev1.KeyToPath{{Key: "K", Path: "k"}}}},
		"Secret":    {Secret: &corev1.SecretVolumeSource{SecretName: "late", Items: []corev1.KeyToPath{{Key: "K", Path: "k"}}}},
	} {
		w := newWorld(t, nil, configMap("late", nil), secret("late", nil))
		p := w.pod(&corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: source}}}})
		if _, err := p.Volume(t.Context(), "v"); !errors.Is(err, ErrMissing) {
			t.Errorf("%s: %v", kind, err)
		}
		apitest.Edit(w.server, ns, "late", func(cm *corev1.ConfigMap) { cm.Data = map[string]string{"K": "v"} })
		apitest.Edit(w.server, ns, "late", func(s *corev1.Secret) { s.Data = map[string][]byte{"K": []byte("v")} })
		if files, err := p.Volume(t.Context(), "v"); err != nil || string(files["k"].Data) != "v" {
			t.Errorf("%s: %v, %v", kind, files, err)
		}
	}
}

// TestContainerKinds: init and ephemeral containers have environments too.
func TestContainerKinds(t *testing.T) {
	w := newWorld(t, nil)
	pod := podOf(corev1.Container{Env: []corev1.EnvVar{value("WHO", "app")}})
	pod.Spec.InitContainers = []corev1.Container{{Name: "init", Env: []corev1.EnvVar{value("WHO", "init")}}}
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Env: []corev1.EnvVar{value("WHO", "debug")}}}}
	p := w.pod(pod)
	for _, name := range []string{"app", "init", "debug"} {
		env, err := p.Container(t.Context(), name, Addresses{})
		if err != nil {
			t.Fatal(err)
		}
		if who, _ := env.Lookup("WHO"); who != name {
			t.Errorf("%s has the environment of %s", name, who)
		}
	}
}

// TestAPIErrors: a failure of the API is not an absence.
func TestAPIErrors(t *testing.T) {
	for _, optional := range []bool{false, true} {
		w := newWorld(t, nil, configMap("settings", map[string]string{"K": "v"}))
		remove := w.server.Inject(apitest.Fault{Match: apitest.Match{Resource: "configmaps"}, Status: statuserr.InternalError("broken")})
		pod := podOf(corev1.Container{Env: []corev1.EnvVar{configMapRef("A", "settings", "K", optional)}})
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}, Optional: &optional}}}}
		p := w.pod(pod)
		_, err := p.Container(t.Context(), "app", Addresses{})
		_, ofVolume := p.Volume(t.Context(), "v")
		for _, err := range []error{err, ofVolume} {
			if err == nil || errors.Is(err, ErrMissing) || !CanWait(err) {
				t.Errorf("optional %v: %v", optional, err)
			}
		}
		remove()
		if _, err := p.Container(t.Context(), "app", Addresses{}); err != nil {
			t.Errorf("optional %v: after the failure: %v", optional, err)
		}
	}
}

func TestNewInvalid(t *testing.T) {
	_, err := New(Config{ServiceAge: -1, CallTimeout: -1})
	const want = "podenv: invalid config: "
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Fatalf("got %v", err)
	}
	for _, name := range []string{"ConfigMaps", "Secrets", "ServiceAge", "CallTimeout"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%v doesn't name %s", err, name)
		}
	}
}

// wrapsNothing is an error whose cause is not known.
type wrapsNothing struct{}

func (wrapsNothing) Error() string { return "x" }
func (wrapsNothing) Unwrap() error { return nil }

func TestCanWait(t *testing.T) {
	never := &SourceError{Err: errors.New("x")}
	wait := &SourceError{Wait: true, Err: ErrMissing}
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{nil, false}, {never, false}, {wait, true}, {errors.New("API"), true},
		{errors.Join(wait, wait), true}, {fmt.Errorf("x: %w", never), false}, {fmt.Errorf("x: %w", wait), true}, {wrapsNothing{}, true}, {errors.Join(wait, never), false}, {errors.Join(errors.Join(never)), false},
	} {
		if got := CanWait(tc.err); got != tc.want {
			t.Errorf("CanWait(%v) = %v", tc.err, got)
		}
	}
}

// TestErrorsNameTheirSubject says how a SourceError reads, and which container it holds up.
func TestErrorsNameTheirSubject(t *testing.T) {
	for _, tc := range []struct {
		err    SourceError
		text   string
		reason string // of the container app
	}{
		{SourceError{Container: "app", Field: "env A", Err: ErrMissing}, "podenv: container app: env A: missing", ReasonConfigError},
		{SourceError{Container: "other", Field: "env A", Kind: "ConfigMap", Namespace: ns, Name: "c", Err: ErrMissing}, "podenv: container other: env A: ConfigMap shop/c: missing", ""},
		{SourceError{Field: "volume v", Key: "k", Kind: "Secret", Name: "s", Err: ErrMissing}, `podenv: volume v: key "k" of Secret s: missing`, ""},
	} {
		if got := tc.err.Error(); got != tc.text {
			t.Errorf("got  %s\nwant %s", got, tc.text)
		}
		if got := tc.err.WaitingReason("app"); got != tc.reason {
			t.Errorf("%s: container app waits with %q, want %q", tc.text, got, tc.reason)
		}
	}
	if reason := (&SourceError{}).WaitingReason(""); reason != "" {
		t.Errorf("an error about a volume holds up a container: %s", reason)
	}
}

// TestAClientThatPanicsEndsOneRequest lets the client of the program panic in the goroutine that
// all callers share.
func TestAClientThatPanicsEndsOneRequest(t *testing.T) {
	log := testlog.New(t)
	broken := true
	w := newWorld(t, func(c *Config) {
		c.ConfigMaps = panicking{ConfigMapsGetter: c.ConfigMaps, broken: &broken}
	}, configMap("settings", map[string]string{"K": "v"}))
	p := w.pod(podOf(corev1.Container{Env: []corev1.EnvVar{configMapRef("A", "settings", "K", false)}}))
	if _, err := p.Container(log.Context(), "app", Addresses{}); err == nil || !strings.Contains(err.Error(), "out of range") || !CanWait(err) {
		t.Errorf("got %v", err)
	}
	broken = false
	if env, err := p.Container(log.Context(), "app", Addresses{}); err != nil || len(env.Vars) != 1 {
		t.Errorf("the next call: %v, %v", env, err)
	}
}

// panicking is a client that panics while broken is set.
type panicking struct {
	corev1client.ConfigMapsGetter
	broken *bool
}

func (p panicking) ConfigMaps(namespace string) corev1client.ConfigMapInterface {
	if *p.broken {
		panic("out of range")
	}
	return p.ConfigMapsGetter.ConfigMaps(namespace)
}

// TestManyFilesAreReadInLinearTime: each read copied the pod, and a user may name thousands of files.
func TestManyFilesAreReadInLinearTime(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector, which runs with -short, changes what a call costs")
	}
	lineartest.Check(t, 1000, func(n int) func() {
		w := newWorld(t, func(c *Config) {
			c.ReadFile = func(context.Context, *corev1.Pod, string, string) ([]byte, error) { return []byte("K='v'"), nil }
		})
		var c corev1.Container
		for i := range n {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprint("V", i), ValueFrom: &corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{VolumeName: "v", Path: fmt.Sprint(i), Key: "K"}}})
		}
		p := w.pod(podOf(c))
		return func() {
			if _, err := p.Container(t.Context(), "app", Addresses{}); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestManyContainersAreFoundInLinearTime: each container of a pod is prepared, and a user may make thousands.
func TestManyContainersAreFoundInLinearTime(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector, which runs with -short, changes what a call costs")
	}
	w := newWorld(t, func(cfg *Config) { cfg.Services = nil })
	lineartest.Check(t, 2000, func(n int) func() {
		pod := podOf(corev1.Container{})
		pod.Spec.Containers = nil
		for i := range n {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprintf("container-%05d", i)})
		}
		return func() {
			p := w.resolver.Pod(pod)
			for i := range pod.Spec.Containers {
				if _, err := p.Container(t.Context(), pod.Spec.Containers[i].Name, Addresses{}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := p.Container(t.Context(), "another", Addresses{}); err == nil {
				t.Error("a container that the pod does not have")
			}
		}
	})
}

// TestAnObjectIsReadOnceInACall: a pod of a few KB names an object thousands of times that is not there, or
// lacks its keys, or of which the API server says nothing.
func TestAnObjectIsReadOnceInACall(t *testing.T) {
	const refs = 20
	for name, c := range map[string]struct {
		object   string
		optional bool
		fault    *apitest.Fault
		took     time.Duration
	}{
		"an optional object that is not there": {object: "absent", optional: true},
		"an object that is not there":          {object: "absent"},
		"optional keys that are not there":     {object: "there", optional: true},
		"keys that are not there":              {object: "there"},
		"no answer":                            {object: "there", fault: &apitest.Fault{Match: apitest.Match{Resource: "configmaps,secrets"}, Hang: true}, took: DefaultCallTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, func(cfg *Config) { cfg.Services = nil }, configMap("there", nil), secret("there", nil))
				if c.fault != nil {
					w.server.Inject(*c.fault)
				}
				var env []corev1.EnvVar
				var sources []corev1.VolumeProjection
				object, items := corev1.LocalObjectReference{Name: c.object}, []corev1.KeyToPath{{Key: "K", Path: "k"}}
				for i := range refs {
					env = append(env, configMapRef(fmt.Sprint("C", i), c.object, "K", c.optional), secretRef(fmt.Sprint("S", i), c.object, "K", c.optional))
					sources = append(sources,
						corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: object, Items: items, Optional: &c.optional}},
						corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: object, Items: items, Optional: &c.optional}})
				}
				pod := podOf(corev1.Container{Env: env})
				pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}}}
				p := w.pod(pod)
				for what, call := range map[string]func() error{
					"Container": func() error { _, err := p.Container(t.Context(), "app", Addresses{}); return err },
					"Volume":    func() error { _, err := p.Volume(t.Context(), "v"); return err },
				} {
					before, began := w.count("configmaps")+w.count("secrets"), time.Now()
					if err := call(); (err == nil) != c.optional || err != nil && strings.Count(err.Error(), "\n") != 2*refs-1 {
						t.Errorf("%s: %v", what, err)
					}
					if n := w.count("configmaps") + w.count("secrets") - before; n > 2 {
						t.Errorf("%s: %d requests about two objects", what, n)
					}
					if took := time.Since(began); took > 2*c.took {
						t.Errorf("%s: took %v", what, took)
					}
				}
			})
		})
	}
}
