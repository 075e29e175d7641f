// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/cache"
)

func TestACompactPodIsThePodThatWasEncoded(t *testing.T) {
	pod := testPod(ran)
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

// A pod at rest is kept in its encoded form only; one that has a call or request
// under way is not decoded again and again.
func TestAPodAtRestIsKeptEncoded(t *testing.T) {
	s := running().says(runs())
	pod := s.pod().DeepCopy()
	pod.ResourceVersion = "40"
	obj, _ := Compact(pod)
	s.setPod(s.r, tick, versionOf(obj))
	s.writeStarted(tick, OpPatch)
	s.podState.close()
	if s.api.pod.pod == nil {
		t.Error("closed during a request")
	}
	first := s.pod()
	if s.pod() != first {
		t.Error("decoded twice")
	}
	s.statusStored(s.r, tick, s.write.inflight, nil, true)
	s.podState.close()
	if s.api.pod.pod != nil || s.provider.mirror != s.api.pod || s.provider.status != nil {
		t.Errorf("at rest a decoded pod is kept: %+v, mirror %p of %p", s.api.pod, s.provider.mirror, s.api.pod)
	}
	if s.report() == nil || s.deleted() {
		t.Error("it can't be opened again")
	}
}
