// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

func TestACompactPodIsThePodThatWasEncoded(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "u", ResourceVersion: "10", Labels: map[string]string{"k": "v"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	obj, err := Compact(pod.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	compact := obj.(*CompactPod)
	if diff := cmp.Diff(pod, compact.Pod()); diff != "" {
		t.Errorf("-encoded +decoded:\n%s", diff)
	}
	if m := compact.GetObjectMeta(); m.GetUID() != pod.UID || m.GetResourceVersion() != pod.ResourceVersion || m.GetName() != pod.Name {
		t.Errorf("its metadata is %+v", m)
	}
	if key, err := cache.MetaNamespaceKeyFunc(compact); err != nil || key != pod.Namespace+"/"+pod.Name {
		t.Errorf("the informer's key is %q, %v", key, err)
	}
	if other, err := Compact("no pod"); err != nil || other != any("no pod") {
		t.Errorf("%v, %v", other, err)
	}
}
