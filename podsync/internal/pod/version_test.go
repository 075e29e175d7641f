// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import "testing"

// A pod at rest is kept in its encoded form only; one that has a call or request
// under way is not decoded again and again.
func TestAPodAtRestIsKeptEncoded(t *testing.T) {
	s := runningPod().says(runs())
	pod := s.Pod().DeepCopy()
	pod.ResourceVersion = "40"
	compact, _ := Encode(pod)
	s.setPod(tick, CachedCompact(&compact))
	s.writeStarted(tick, Patch, wallAt(tick))
	s.Rest()
	if s.api.pod.pod == nil {
		t.Error("closed during a request")
	}
	first := s.Pod()
	if s.Pod() != first {
		t.Error("decoded twice")
	}
	s.statusStored(tick, s.write.inflight, nil, true)
	s.Rest()
	if s.api.pod.pod != nil || s.provider.mirror != s.api.pod || s.provider.status != nil {
		t.Errorf("at rest a decoded pod is kept: %+v, mirror %p of %p", s.api.pod, s.provider.mirror, s.api.pod)
	}
	if s.report() == nil || s.deleted() {
		t.Error("it can't be opened again")
	}
}
