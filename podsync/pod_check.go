// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"errors"
	"strings"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

// check returns the invariants of the pod that do not hold, as sentences, or nil. Tests and the soak
// call it after each event; Run does not.
func (t *podState) check() error {
	var broken []string
	is := func(ok bool, what string) {
		if !ok {
			broken = append(broken, what)
		}
	}
	is(t.illegal == "", "no illegal step: "+t.illegal)
	is(!t.released() || t.stopped() || !t.provider.listed, "only a pod that has stopped is released")
	is(t.provider.lostSince == 0 || !t.stopped(), "a pod that has stopped is not held as lost")
	is(len(t.provider.unsaved) == 0 || t.provider.annotations != nil, "the keys in unsaved are those of annotations")
	is(t.provider.kept == nil || !t.provider.listed, "a kept report waits for a List")
	is(!t.stopped() || t.end != nil, "an instance that has stopped implies a termination")
	is(!t.orphan() || t.api.pod == nil, "presenceOrphan implies a nil pod")
	is(t.provider.status == nil || t.provider.mirror == nil, "at most one of status and mirror is set")
	is(t.write.storedSeq <= t.write.statusSeq, "storedSeq <= statusSeq")
	is(t.provider.listed || t.call.inflight == nil || t.call.inflight.fate == fateStale, "a pod that is not listed has no call under way")
	is(t.provider.listed || t.write.inflight == nil || t.write.inflight.fate == fateStale, "a pod that is not listed has no write under way")
	if d := t.write.inflight; d != nil && d.fate != fateStale && d.op == OpDelete {
		is(t.stopped(), "a DELETE is sent only of a stopped instance")
	}
	if t.end != nil {
		is(t.end.grace >= minGrace && (t.end.passed == 0 || t.end.passed >= minGrace), "grace and passed are at least minGrace")
	}
	if t.api.pod == nil {
		is(t.provider.mirror == nil && !t.api.deleting, "an instance without an object mirrors none")
		return broke(broken)
	}
	is(t.api.pod.pod != nil || t.api.pod.compact != nil, "pod or compact is set")
	pod := t.api.pod.private()
	is(t.api.pod.resourceVersion() == pod.ResourceVersion && t.api.pod.uid() == pod.UID, "compact and pod are equal")
	is(t.api.node == pod.Spec.NodeName && t.api.deleting == (pod.DeletionTimestamp != nil), "node and deleting are those of pod")
	is(t.provider.generation <= pod.Generation, "generation is at most api.pod.Generation")
	is(!t.final() || t.stopped() || podstatus.IsTerminal(pod.Status.Phase), "a final status is written only of a stopped instance")
	is(!t.deleted() || t.end != nil, "a pod that is being deleted has a termination")
	return broke(broken)
}

func broke(sentences []string) error {
	if len(sentences) == 0 {
		return nil
	}
	return errors.New(strings.Join(sentences, "; "))
}
