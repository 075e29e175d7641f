// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter

import (
	"maps"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What the provider writes counts, and not what it was given and returns.
func TestWhatAProviderHasWritten(t *testing.T) {
	type values = map[string]string
	for name, c := range map[string]struct {
		given   []values
		stored  values
		adopted bool
		taken   []values
		want    values
	}{
		"nothing":                          {},
		"what it was given":                {given: []values{{"a": "1"}}, taken: []values{{"a": "1"}}},
		"what it was given before":         {given: []values{{"a": "1"}, {"a": "2"}}, taken: []values{{"a": "1"}, {"a": "2"}}},
		"a key of its own":                 {given: []values{{"a": "1"}}, taken: []values{{"a": "1", "b": "1"}}, want: values{"b": "1"}},
		"a value of its own":               {given: []values{{"a": "1"}}, taken: []values{{"a": "2"}}, want: values{"a": "2"}},
		"its last value":                   {taken: []values{{"a": "1"}, {"a": "2"}, {}}, want: values{"a": "2"}},
		"another value in an adopted pod":  {given: []values{{"a": "1"}}, adopted: true, taken: []values{{"a": "0", "b": "0"}}, want: values{"b": "0"}},
		"what is stored":                   {stored: values{"a": "1"}, want: values{"a": "1"}},
		"what is newer than what is there": {stored: values{"a": "1", "b": "1"}, taken: []values{{"a": "2"}}, want: values{"a": "2", "b": "1"}},
	} {
		for what, later := range map[string]bool{"": false, " stored last": true} { // an adopted pod is known last
			var l ledger
			for _, given := range c.given {
				l.hand(given)
			}
			if !later {
				l.add(c.stored)
			}
			for _, taken := range c.taken {
				l.take(taken, c.adopted)
			}
			if later {
				l.add(c.stored)
			}
			if !maps.Equal(l.values, c.want) {
				t.Errorf("%s%s: %v, want %v", name, what, l.values, c.want)
			}
		}
	}
}

func TestStoredLabels(t *testing.T) {
	annotations := map[string]string{"a": "1"}
	if got := stored(annotations, nil); !maps.Equal(got, annotations) {
		t.Errorf("without labels %v", got)
	}
	got := stored(annotations, map[string]string{"job": "7"})
	if want := map[string]string{"a": "1", LabelsAnnotation: `{"job":"7"}`}; !maps.Equal(got, want) || len(annotations) != 1 {
		t.Errorf("%v, want %v", got, want)
	}
	plain := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: annotations, Labels: map[string]string{"mine": "1"}}}
	if withLabels(plain) != plain {
		t.Error("a pod without stored labels is copied")
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Annotations: map[string]string{LabelsAnnotation: `{"job":"7","mine":"0"}`}, Labels: map[string]string{"mine": "1"},
	}}
	if got := withLabels(pod).Labels; !maps.Equal(got, map[string]string{"job": "7", "mine": "1"}) || len(pod.Labels) != 1 {
		t.Errorf("%v; the pod has %v", got, pod.Labels)
	}
	for _, spoiled := range []string{"spoiled", `{"job":7}`, `["job"]`} {
		pod.Annotations[LabelsAnnotation] = spoiled
		if got := storedLabels(pod); got != nil {
			t.Errorf("%s became %v", spoiled, got)
		}
	}
}

// CreatePod fails after it has submitted a job, a user patches the pod, and CreatePod is repeated: the
// job, which shows late, has the older annotation, and the user's stays.
func TestARepeatedCreatePodKeepsWhatWasHanded(t *testing.T) {
	h := remember()
	old := webPod("1", "")
	old.Annotations = map[string]string{"mine": "1"}
	h.create(old)
	h.failed(refWeb)
	patched := old.DeepCopy()
	patched.Annotations["mine"] = "2"
	h.create(patched)
	h.shown(refWeb, old, false)
	if got := h.state(refWeb).Annotations; len(got) != 0 {
		t.Errorf("%v are taken for the provider's", got)
	}
}

// Whoever may patch a pod changes values and keys again and again. The adapter keeps the versions
// that a provider may still have: the one of CreatePod, the last that UpdatePod has accepted, and
// the newest.
func TestALedgerKeepsFewVersions(t *testing.T) {
	version := func(i int) map[string]string {
		return map[string]string{"patched": strconv.Itoa(i), "key-" + strconv.Itoa(i): "1", "kept": "1"}
	}
	var l ledger
	l.hand(version(0))
	l.accept()
	for i := range 1000 {
		l.hand(version(i))
		l.hand(version(i))
		if i == 500 {
			l.accept()
		}
	}
	n := 0
	for _, v := range l.given {
		n += len(v.values)
	}
	if n > 3*ledgerVersions {
		t.Errorf("%d values are remembered", n)
	}
	for _, i := range []int{0, 500, 997, 998, 999} {
		l.take(version(i), false)
	}
	if len(l.values) != 0 {
		t.Errorf("%v is taken for what the provider has written", l.values)
	}
	l.take(map[string]string{"patched": "its own", "kept": "1"}, true)
	l.take(map[string]string{"job": "7"}, true)
	if !maps.Equal(l.values, map[string]string{"job": "7"}) {
		t.Errorf("the provider has written %v, want a key that it was not given", l.values)
	}
}
