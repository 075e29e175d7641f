// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// mebibyte is as long as the largest value of a ConfigMap or a Secret.
var mebibyte = strings.Repeat("x", 1<<20)

// TestReferencesThatMultiplyAreAnError: a pod of a few KB can ask for terabytes.
func TestReferencesThatMultiplyAreAnError(t *testing.T) {
	large := configMap("large", map[string]string{"V": mebibyte})
	from := []corev1.EnvFromSource{fromConfigMap("", "large", false)}
	env := []corev1.EnvVar{value("V0", strings.Repeat("x", 1<<10)), value("V1", strings.Repeat("$(V0)", 256)), value("V2", strings.Repeat("$(V1)", 256))}
	redefined := []corev1.EnvVar{value("V", "$(V)$(V)"), value("V", "$(V)$(V)"), value("V", "$(V)$(V)")}
	for what, c := range map[string]corev1.Container{
		"env":            {Env: env},
		"command":        {Env: env[:2], Command: []string{strings.Repeat("$(V1)", 256)}},
		"many args":      {Env: env[:2], Args: strings.Split(strings.Repeat("$(V1) ", 256), " ")},
		"a ConfigMap":    {EnvFrom: from, Args: []string{strings.Repeat("$(V)", 9)}},
		"one name":       {EnvFrom: from, Env: redefined},
		"late variables": {EnvFrom: from, Env: []corev1.EnvVar{fieldRef("IP", "status.podIP"), value("A", "$(IP)$(V)$(V)$(V)$(V)"), value("B", "$(IP)$(V)$(V)$(V)$(V)")}},
	} {
		w := newWorld(t, nil, large.DeepCopy())
		_, err := w.pod(podOf(c)).Container(t.Context(), "app", Addresses{})
		want := "podenv: container app: envFrom, env, command and args: references and sources add more than the 8388608 bytes that are allowed"
		if err == nil || CanWait(err) || err.Error() != want {
			t.Errorf("%s: %v (can wait: %v), want %q", what, err, CanWait(err), want)
		}
	}
	w := newWorld(t, nil, large.DeepCopy())
	c := corev1.Container{EnvFrom: from, Env: []corev1.EnvVar{value("EMPTY", "")}, Args: []string{strings.Repeat("$(V)", 6), strings.Repeat("$(EMPTY)", 1<<17)}}
	if env, err := w.pod(podOf(c)).Container(t.Context(), "app", Addresses{}); err != nil || len(env.Args[0]) != 6<<20 || env.Args[1] != "" {
		t.Errorf("7 MiB and many references to nothing: %v, want no error", err)
	}
}

// TestSourcesThatRepeatAreAnError: a pod of a few KB can ask for one object many times.
func TestSourcesThatRepeatAreAnError(t *testing.T) {
	keys := map[string]string{}
	for i := range 5000 {
		keys[fmt.Sprint("K", i)] = "\x00"
	}
	objects := []*corev1.ConfigMap{configMap("large", map[string]string{"V": mebibyte}), configMap("keys", keys)}
	var fromConfigMaps, fromSecrets, fromKeys []corev1.EnvFromSource
	var configMapRefs, secretRefs, fields, files []corev1.EnvVar
	for i := range 30 {
		name := fmt.Sprint("V", i)
		fromConfigMaps = append(fromConfigMaps, fromConfigMap(name, "large", false))
		fromSecrets = append(fromSecrets, fromSecret(name, "large", false))
		fromKeys = append(fromKeys, fromConfigMap(name, "keys", false))
		configMapRefs = append(configMapRefs, configMapRef(name, "large", "V", false))
		secretRefs = append(secretRefs, secretRef(name, "large", "V", false))
		fields = append(fields, fieldRef(name, "metadata.annotations"))
		files = append(files, fileRef(name, "V"))
	}
	for what, c := range map[string]corev1.Container{
		"ConfigMaps":        {EnvFrom: fromConfigMaps},
		"Secrets":           {EnvFrom: fromSecrets},
		"keys":              {EnvFrom: fromKeys},
		"keys of ConfigMap": {Env: configMapRefs},
		"keys of Secret":    {Env: secretRefs},
		"fields":            {Env: fields},
		"files":             {Env: files},
	} {
		w := newWorld(t, readsFile("V='"+mebibyte[:maxEnvFile-4]+"'"), objects[0].DeepCopy(), objects[1].DeepCopy(), secret("large", map[string]string{"V": mebibyte}))
		pod := podOf(c)
		pod.Annotations = map[string]string{"a": strings.Repeat("\x00", 200<<10)} // quoted it is four times as long
		p := w.pod(pod)
		_, err := p.Container(t.Context(), "app", Addresses{})
		if err == nil || CanWait(err) || !strings.Contains(err.Error(), "envFrom, env, command and args: references and sources add more than the 8388608 bytes that are allowed") {
			t.Errorf("%s: %.500v (can wait: %v), want an error that names the limit", what, err, CanWait(err))
		}
	}
}

// TestContainersShareTheLimitOfTheirPod: each container adds only a few bytes to a spec.
func TestContainersShareTheLimitOfTheirPod(t *testing.T) {
	w := newWorld(t, nil, configMap("large", map[string]string{"V": mebibyte}))
	for n, fails := range map[int]bool{4: false, 5: true} {
		pod := &corev1.Pod{}
		for i := range n {
			c := corev1.Container{Name: fmt.Sprint("c", i), Env: []corev1.EnvVar{configMapRef("V", "large", "V", false)}, Args: []string{strings.Repeat("$(V)", 6)}}
			if i%2 == 0 {
				pod.Spec.Containers = append(pod.Spec.Containers, c)
			} else {
				pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
			}
		}
		p := w.pod(pod)
		for i := range n {
			if _, err := p.Container(t.Context(), fmt.Sprint("c", i), Addresses{}); (err != nil) != fails || fails && !strings.Contains(err.Error(), "the 6710886 bytes") {
				t.Errorf("7 MiB for container %d of %d: %v, want an error: %v", i, n, err, fails)
			}
		}
	}
}

// TestAValueOfAFileHoldsNothingElseOfIt: a file of 1 MiB can have many small values.
func TestAValueOfAFileHoldsNothingElseOfIt(t *testing.T) {
	w := newWorld(t, readsFile("V='x'\n#"+mebibyte[:maxEnvFile-7]))
	var c corev1.Container
	for i := range 64 {
		c.Env = append(c.Env, fileRef(fmt.Sprint("V", i), "V"))
	}
	p := w.pod(podOf(c))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	env, err := p.Container(t.Context(), "app", Addresses{})
	runtime.GC()
	runtime.ReadMemStats(&after)
	if held := int64(after.HeapAlloc) - int64(before.HeapAlloc); err != nil || held > 32<<20 {
		t.Errorf("64 values of one byte hold %d bytes, %v", held, err)
	}
	if value, _ := env.Lookup("V63"); value != "x" {
		t.Errorf("the value is %q", value)
	}
}

// TestFilesThatRepeatAreAnError: each item of a volume has a copy of its key.
func TestFilesThatRepeatAreAnError(t *testing.T) {
	var items []corev1.KeyToPath
	var fields []corev1.DownwardAPIVolumeFile
	var sources []corev1.VolumeProjection
	for i := range 50 {
		path := fmt.Sprint("f", i)
		items = append(items, corev1.KeyToPath{Key: "V", Path: path})
		fields = append(fields, corev1.DownwardAPIVolumeFile{Path: path, FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations"}})
		sources = append(sources, corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "large"}, Items: items[i:]}})
	}
	w := newWorld(t, nil, configMap("large", map[string]string{"V": mebibyte}), secret("large", map[string]string{"V": mebibyte}))
	pod := podOf(corev1.Container{})
	pod.Annotations = map[string]string{"a": strings.Repeat("\x00", 200<<10)}
	large := corev1.LocalObjectReference{Name: "large"}
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "configmap", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: large, Items: items}}},
		{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "large", Items: items}}},
		{Name: "fields", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: fields}}},
		{Name: "projected", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}},
		{Name: "allowed", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: large, Items: items[:25]}}},
	}
	p := w.pod(pod)
	for _, v := range pod.Spec.Volumes {
		files, err := p.Volume(t.Context(), v.Name)
		if v.Name == "allowed" {
			if err != nil || len(files) != 25 {
				t.Errorf("%d files of 1 MiB, %v, want 25", len(files), err)
			}
			continue
		}
		want := "podenv: volume " + v.Name + ": its files have more than the 26843545 bytes that are allowed"
		if err == nil || CanWait(err) || err.Error() != want {
			t.Errorf("%s: %.500v (can wait: %v), want %q", v.Name, err, CanWait(err), want)
		}
	}
}

// TestVolumesShareTheLimitOfTheirPod: a volume adds a hundred bytes to a spec, and all of them may
// have one Secret. A file without content takes memory, too.
func TestVolumesShareTheLimitOfTheirPod(t *testing.T) {
	keys := map[string]string{}
	for i := range 8000 {
		keys[fmt.Sprint("k", i)] = ""
	}
	w := newWorld(t, nil, secret("large", map[string]string{"V": mebibyte}), secret("keys", keys))
	for _, c := range []struct {
		secret string
		n      int
		fails  bool
	}{{"large", 1, false}, {"large", 127, false}, {"large", 128, true}, {"keys", 4, false}, {"keys", 5, true}} {
		pod := podOf(corev1.Container{})
		pod.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		for i := range c.n {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprint("v", i), VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: c.secret}}})
		}
		_, err := w.pod(pod).Volume(t.Context(), "v0")
		if (err != nil) != c.fails || c.fails && (CanWait(err) || !strings.Contains(err.Error(), "bytes that are allowed")) {
			t.Errorf("%d volumes of the Secret %s: %v, want an error: %v", c.n, c.secret, err, c.fails)
		}
	}
}

func fileRef(name, key string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{VolumeName: "v", Path: "f", Key: key}}}
}

func readsFile(text string) func(*Config) {
	return func(c *Config) {
		c.ReadFile = func(context.Context, *corev1.Pod, string, string) ([]byte, error) { return []byte(text), nil }
	}
}
