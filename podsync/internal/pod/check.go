// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"strings"
	"time"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

// Check returns the invariants of the pod that do not hold, as sentences, or nil. Tests call it
// after each event; Run of the controller does not.
func (t *State) Check() error {
	var broken []string
	is := func(ok bool, what string) {
		if !ok {
			broken = append(broken, what)
		}
	}
	is(t.illegal == "", "no illegal step: "+t.illegal)
	t.checkProvider(is)
	t.checkLanes(is)
	if e := t.end; e != nil {
		is(e.grace >= MinGrace && (e.passed == 0 || e.passed >= MinGrace), "grace and passed are at least MinGrace")
		is(e.accepted == 0 || e.stops > 0, "a Stop that was accepted was called")
	}
	if t.api.pod == nil {
		is(t.provider.mirror == nil && !t.api.deleting, "an instance without an object mirrors none")
	} else {
		t.checkObject(is)
	}
	if len(broken) == 0 {
		return nil
	}
	return errors.New(strings.Join(broken, "; "))
}

// A Trace is what Since compares a later state with.
type Trace struct {
	known         bool
	born          uint64
	instance      instance
	end           *termination
	grace, passed time.Duration
}

// Since returns the invariants about changes that do not hold, as sentences, and the Trace for
// the next comparison. before is that of the last one, or zero. Tests call it as they call Check.
func (t *State) Since(before Trace) (now Trace, err error) {
	now = Trace{known: true, born: t.provider.born, instance: t.provider.instance, end: t.end}
	if t.end != nil {
		now.grace, now.passed = t.end.grace, t.end.passed
	}
	if !before.known {
		return now, nil
	}
	if before.instance >= stopped && !t.stopped() {
		runsAgain := t.provider.instance == held && t.end != nil && t.end.accepted == 0
		revived := before.instance == forgotten && t.provider.instance == none && t.end != before.end
		closed := !t.Known() || t.Orphan() || now.born != before.born // the gate was closed, maybe not for long
		if !runsAgain && !revived && !closed {
			err = errors.New("an instance never leaves stopped or forgotten, except that a List shows that the provider runs it again, or that it was never started")
		}
	}
	if t.end != nil && t.end == before.end && (now.grace > before.grace || before.passed > 0 && now.passed > before.passed) {
		err = errors.Join(err, errors.New("grace and passed never grow"))
	}
	return now, err
}

func (t *State) checkProvider(is func(bool, string)) {
	p := &t.provider
	is(!t.stopped() || t.end != nil, "an instance that has stopped implies a termination")
	is(!t.mayBeLost() || t.end == nil, "doubted or missed implies no termination")
	is(t.mayBeLost() == (p.lostSince != 0), "doubted or missed is what lostSince means")
	is(p.status == nil || p.mirror == nil, "at most one of status and mirror is set")
	is(p.kept == nil || !t.Known(), "kept waits for a List")
	is(len(p.unsaved) == 0 || p.annotations != nil, "the keys in unsaved are those of annotations")
	for _, key := range p.unsaved {
		_, ok := p.annotations[key]
		is(ok, "the keys in unsaved are those of annotations")
	}
	is(!t.Orphan() || t.api.pod == nil, "orphan implies a nil pod")
	is(!t.api.recorded || t.api.pod != nil && !t.api.cached, "recorded implies a pod that the informer does not have")
}

func (t *State) checkLanes(is func(bool, string)) {
	n, w := &t.write.news, &t.write
	is(max(n.storedSeq, n.rejectedSeq, n.quietSeq) <= n.statusSeq, "storedSeq, rejectedSeq and quietSeq are at most statusSeq")
	is(n.contestedAt == 0 || n.overwritten, "contestedAt implies overwritten")
	is(w.end != endReleased || w.releasedAt > 0, "endReleased implies releasedAt")
	is(!t.released() || t.end != nil, "only a pod that has ended is released")
	is(t.call.failures == 0 || t.call.err != nil, "failures implies an error")
	if c := t.call.inflight; c != nil && c.fate != stale {
		is(t.Known() || c.Op == Inspect || c.Op == Save, "a pod of which nothing is known has no call that counts, except Inspect and Save")
		is(c.Op != Stop || t.end != nil, "Stop implies a termination")
	}
	if c := w.inflight; c != nil && c.fate != stale {
		is(t.Known(), "a pod of which nothing is known has no request under way that counts")
		is(c.Op != Delete || c.Over, "a DELETE is sent only of a stopped instance")
		is(c.Op != Patch || !c.Over || t.end != nil, "a final status is written only of a stopped instance")
	}
}

func (t *State) checkObject(is func(bool, string)) {
	v := t.api.pod
	if v.pod == nil && v.compact == nil {
		is(false, "pod or compact is set")
		return
	}
	pod := v.Private()
	is(v.ResourceVersion() == pod.ResourceVersion && v.UID() == pod.UID, "compact and pod are equal")
	is(t.api.node == pod.Spec.NodeName && t.api.deleting == (pod.DeletionTimestamp != nil), "node and deleting are those of pod")
	is(t.provider.generation <= pod.Generation, "generation is at most api.pod.Generation")
	is(!t.final() || t.end != nil || podstatus.IsTerminal(pod.Status.Phase), "a final status implies a termination")
	is(!t.deleted() || t.end != nil, "a pod that is being deleted has a termination")
}
