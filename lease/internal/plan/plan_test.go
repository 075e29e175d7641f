// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// now is the time of these tests: 100 s after the controller was made.
func now() Instant { return Instant{Since: 100 * time.Second, Wall: 5_000_000_000} }

func testTurn() *turn { return &turn{nodeName: nodeName, holder: nodeName, owner: node("uid-1")} }

// renewed is a lease renewed 10 s ago.
func renewed() *Lease {
	return &Lease{
		phase: Held, known: current, uid: "lease-1", version: "7", owner: node("uid-1"),
		renewTime: 4_990_000_000, renewed: 90 * time.Second, renewedWall: 4_990_000_000, held: true,
		turn: testTurn(),
	}
}

func fresh() *Lease {
	l := New()
	l.turn = testTurn()
	return &l
}

// stored is the lease of renewed as the API server has it.
func stored(mutate ...func(*coordinationv1.Lease)) *coordinationv1.Lease {
	l := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "lease-1", ResourceVersion: "8", OwnerReferences: []metav1.OwnerReference{node("uid-1")}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To(nodeName), LeaseDurationSeconds: ptr.To[int32](40), RenewTime: microTime(4_990_000_000)},
	}
	for _, m := range mutate {
		m(l)
	}
	return l
}

func heldBy(holder string) func(*coordinationv1.Lease) {
	return func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = &holder }
}

func renewedAt(micros int64) func(*coordinationv1.Lease) {
	return func(l *coordinationv1.Lease) { l.Spec.RenewTime = microTime(micros) }
}

// by names the process that holds the lease.
func by(process string) func(*coordinationv1.Lease) {
	return func(l *coordinationv1.Lease) { l.Annotations = map[string]string{ProcessAnnotation: process} }
}

func TestWhoseLeaseItIs(t *testing.T) {
	for name, test := range map[string]struct {
		state *Lease
		lease *coordinationv1.Lease
		want  bool
	}{
		"of no process":                         {fresh(), stored(), false},
		"of no process, and we had it":          {renewed(), stored(), false},
		"ours":                                  {renewed(), stored(by("host/2")), false},
		"ours before a restart":                 {fresh(), stored(by("host/1")), false},
		"of a later start of ours":              {renewed(), stored(by("host/3")), true},
		"of another process":                    {fresh(), stored(by("other/2")), true},
		"of another process, and we had it":     {renewed(), stored(by("other/2")), true},
		"of an earlier start, before our time":  {renewed(), stored(by("host/1"), renewedAt(1)), false}, // a backup was restored
		"of another process, before our time":   {renewed(), stored(by("other/2"), renewedAt(1)), false},
		"an older one of another object":        {renewed(), stored(by("other/2"), renewedAt(1), func(l *coordinationv1.Lease) { l.UID = "another" }), true},
		"an older one of another holder":        {renewed(), stored(heldBy("other"), renewedAt(1)), true},
		"of another process that gave it up":    {fresh(), stored(by("other/2"), heldBy("")), false},
		"of another holder":                     {fresh(), stored(heldBy("other"), by("host/2")), true},
		"of a process without a start":          {fresh(), stored(by("other")), true},
		"of a process with slashes in its name": {fresh(), stored(by("a/host/2")), true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.state.isForeign(testRules(), &Answered{Lease: test.lease}); got != test.want {
				t.Errorf("isForeign = %v, want %v", got, test.want)
			}
		})
	}
}

// A process with the default name may meet another one of its host.
func TestWhoseLeaseItIsOnOneHost(t *testing.T) {
	shared := testRules()
	shared.Shared = true
	living := func(life string) func(*coordinationv1.Lease) {
		return func(l *coordinationv1.Lease) { l.Annotations[LifeAnnotation] = life }
	}
	for name, test := range map[string]struct {
		state *Lease
		lease *coordinationv1.Lease
		dead  bool
		want  bool
	}{
		"of no process":                           {fresh(), stored(), false, false},
		"ours":                                    {renewed(), stored(by("host/2")), false, false},
		"of an earlier start":                     {fresh(), stored(by("host/1")), false, true},
		"of an earlier start that lives":          {fresh(), stored(by("host/1"), living("1 boot")), false, true},
		"of an earlier start that died":           {fresh(), stored(by("host/1"), living("1 boot")), true, false},
		"of an earlier start that ended":          {fresh(), stored(by("host/1"), living("1 ended")), false, false},
		"of a start that left the words as found": {fresh(), stored(by("host/3"), living("1 ended")), false, true},
		"of a later start":                        {renewed(), stored(by("host/3"), living("3 boot")), false, true},
		"of a later start that ended":             {renewed(), stored(by("host/3"), living("3 ended")), false, false},
		"of another process that ended":           {fresh(), stored(by("other/1"), living("1 ended")), false, true},
		"of another process that died":            {fresh(), stored(by("other/1"), living("1 boot")), true, true},
		"of an earlier start, before our time":    {renewed(), stored(by("host/1"), renewedAt(1)), false, false},
		"of an earlier start that gave it up":     {fresh(), stored(by("host/1"), heldBy("")), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.state.isForeign(shared, &Answered{Lease: test.lease, Dead: test.dead}); got != test.want {
				t.Errorf("isForeign = %v, want %v", got, test.want)
			}
		})
	}
}

func TestObject(t *testing.T) {
	controller := true
	other := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "c", UID: "c-1"}
	host := func(uid types.UID) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: "x/v1", Kind: "Host", Name: "h", UID: uid}
	}
	node2 := node("uid-2")
	node2.Controller = &controller
	spec := func(micros int64) coordinationv1.LeaseSpec {
		return coordinationv1.LeaseSpec{HolderIdentity: ptr.To(nodeName), LeaseDurationSeconds: ptr.To[int32](40), RenewTime: microTime(micros)}
	}
	meta := func(uid types.UID, version string, owners ...metav1.OwnerReference) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Name: nodeName, Namespace: "kube-node-lease", UID: uid, ResourceVersion: version, OwnerReferences: owners,
			Annotations: map[string]string{ProcessAnnotation: "host/2"},
		}
	}
	for name, test := range map[string]struct {
		found *coordinationv1.Lease
		turn  func(*turn)
		want  *coordinationv1.Lease
	}{
		"new": {nil, nil, &coordinationv1.Lease{ObjectMeta: meta("", "", node("uid-1")), Spec: spec(5_000_000_000)}},
		"new without owner": {nil, func(t *turn) { t.owner = node("none") },
			&coordinationv1.Lease{ObjectMeta: meta("", ""), Spec: spec(5_000_000_000)}},
		"found without owner": {stored(func(l *coordinationv1.Lease) { l.OwnerReferences = nil }), nil,
			&coordinationv1.Lease{ObjectMeta: meta("lease-1", "8", node("uid-1")), Spec: spec(5_000_000_000)}},
		"owner fails": {stored(), func(t *turn) { t.owner, t.ownerErr = node("none"), errors.New("not now") },
			&coordinationv1.Lease{ObjectMeta: meta("lease-1", "8", node("uid-1")), Spec: spec(5_000_000_000)}},
		"another owner": {stored(func(l *coordinationv1.Lease) { l.OwnerReferences = append(l.OwnerReferences, other) }), func(t *turn) { t.owner = node2 },
			&coordinationv1.Lease{ObjectMeta: meta("lease-1", "8", other, node2), Spec: spec(5_000_000_000)}},
		"an owner that is no Node": {stored(func(l *coordinationv1.Lease) { l.OwnerReferences = []metav1.OwnerReference{host("h-1"), other} }), func(t *turn) { t.owner = host("h-2") },
			&coordinationv1.Lease{ObjectMeta: meta("lease-1", "8", other, host("h-2")), Spec: spec(5_000_000_000)}},
		"duration and managedFields": {stored(func(l *coordinationv1.Lease) {
			l.Spec.LeaseDurationSeconds = ptr.To[int32](7)
			l.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
		}), nil, &coordinationv1.Lease{ObjectMeta: meta("lease-1", "8", node("uid-1")), Spec: spec(5_000_000_000)}},
		"renewed in the future": {stored(renewedAt(9_000_000_000)), nil,
			&coordinationv1.Lease{ObjectMeta: meta("lease-1", "8", node("uid-1")), Spec: spec(9_000_000_001)}},
	} {
		t.Run(name, func(t *testing.T) {
			l := fresh()
			if test.turn != nil {
				test.turn(l.turn)
			}
			if test.found != nil {
				l.adopt(test.found)
			}
			if diff := cmp.Diff(test.want, l.object(testRules(), now())); diff != "" {
				t.Errorf("wrong object (-want +got):\n%s", diff)
			}
		})
	}
}

// kube-controller-manager remembers the highest RenewTime, whatever becomes of
// the lease: another client with a slower clock writes it, or it is re-created.
func TestRenewTimeNeverGoesBackWithTheLease(t *testing.T) {
	l := renewed()
	l.renewTime = 9_000_000_000
	l.adopt(stored(renewedAt(4_000_000_000)))
	if got := l.nextRenewTime(now()); got != 9_000_000_001 {
		t.Errorf("after a slower clock: next is %d", got)
	}
	l.forget(unknown)
	if got := l.nextRenewTime(now()); got != 9_000_000_001 {
		t.Errorf("after the lease is gone: next is %d", got)
	}
	// A lease that another process holds can only raise ours.
	for _, renewTime := range []int64{4_000_000_000, 4_999_000_000} {
		l := renewed()
		before := l.renewTime
		if l.found(testRules(), now(), &Answered{Lease: stored(heldBy("other"), renewedAt(renewTime))}); l.renewTime != max(before, renewTime) {
			t.Errorf("RenewTime is %d after a foreign one of %d", l.renewTime, renewTime)
		}
	}
}

// A lease that was read is not changed by writes, and is not kept in memory.
func TestObjectSharesNothing(t *testing.T) {
	found := stored(func(l *coordinationv1.Lease) {
		l.Labels = map[string]string{"a": "b"}
		l.Finalizers = []string{"f"}
		l.Spec.LeaseTransitions = ptr.To[int32](3)
	})
	before := found.DeepCopy()
	l := fresh()
	l.adopt(found)
	l.turn.takeFrom = Party{Holder: "other"}
	lease := l.object(testRules(), now())
	lease.Labels["a"], lease.Finalizers[0] = "c", "g"
	if *lease.Spec.LeaseTransitions != 4 || *lease.Spec.AcquireTime != *lease.Spec.RenewTime {
		t.Errorf("%+v", lease.Spec)
	}
	if diff := cmp.Diff(before, found); diff != "" {
		t.Errorf("the lease that was found has changed (-before +after):\n%s", diff)
	}
	l.turn.takeFrom = Party{}
	if got := l.object(testRules(), now()); got.Labels["a"] != "b" || got.Finalizers[0] != "f" || *got.Spec.LeaseTransitions != 3 {
		t.Errorf("the next write is %+v", got)
	}
}

// Each broken invariant is named, and a change of phase that must not be is refused.
func TestCheck(t *testing.T) {
	for name, spoil := range map[string]func(*Lease){
		"a UID if and only if":          func(l *Lease) { l.uid = "" },
		"a version if and only if":      func(l *Lease) { l.known = stale },
		"without a UID there are no":    func(l *Lease) { l.known, l.uid, l.version, l.held = unknown, "", "", false },
		"held has a UID":                func(l *Lease) { l.renewed, l.phase = Never, Pending },
		"in phase Held":                 func(l *Lease) { l.renewed, l.held = Never, false },
		"in phases Foreign and NoOwner": func(l *Lease) { l.phase, l.turn = NoOwner, nil },
		"after the end":                 func(l *Lease) { l.phase = Stopped },
		"an error if and only if":       func(l *Lease) { l.inTrouble().failures = 1 },
		"unsure writes are in order":    func(l *Lease) { l.inTrouble().firstUnsure = 1 },
		"in phase Foreign there is": func(l *Lease) {
			l.forget(unknown)
			l.phase = Foreign
		},
		"in the order of their times": func(l *Lease) { l.inTrouble().foreignWrites[0] = 1 },
		"a contended lease":           func(l *Lease) { l.inTrouble().contended = true },
	} {
		l := renewed()
		if err := l.Check(); err != nil {
			t.Fatal(err)
		}
		spoil(l)
		if err := l.Check(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	l := renewed()
	if err := l.Apply(testRules(), now(), Ended{}); err != nil || l.phase != Stopped {
		t.Fatal(err, l.phase)
	}
	err := l.Apply(testRules(), now(), Consent{NodeName: nodeName, NodeGone: true})
	if err == nil || l.phase != Stopped || l.Check() == nil {
		t.Errorf("after the end: %v, phase %v, %v", err, l.phase, l.Check())
	}
	for _, e := range []Event{Reported{}, CutOff{}, Answered{}} {
		if l := New(); l.Apply(testRules(), now(), e) == nil {
			t.Errorf("%T without a turn: no error", e)
		}
	}
}

// A lease without fields of other clients costs no memory for them.
func TestExtraIsWhatOtherClientsHaveSet(t *testing.T) {
	holder := "n1"
	plain := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u", Annotations: map[string]string{ProcessAnnotation: "p"}}}
	plain.Spec.HolderIdentity = &holder
	plain.OwnerReferences = []metav1.OwnerReference{{APIVersion: NodeAPIVersion, Kind: NodeKind, Name: "n1"}}
	if extra := extraOf(plain); extra != nil {
		t.Errorf("a plain lease has %+v", extra)
	}
	transitions := int32(1)
	for name, edit := range map[string]func(l *coordinationv1.Lease){
		"labels":      func(l *coordinationv1.Lease) { l.Labels = map[string]string{"a": "b"} },
		"annotations": func(l *coordinationv1.Lease) { l.Annotations["a"] = "b" },
		"finalizers":  func(l *coordinationv1.Lease) { l.Finalizers = []string{"a/b"} },
		"owners":      func(l *coordinationv1.Lease) { l.OwnerReferences[0].Kind = "Other" },
		"spec":        func(l *coordinationv1.Lease) { l.Spec.LeaseTransitions = &transitions },
	} {
		edited := plain.DeepCopy()
		if edit(edited); extraOf(edited) == nil {
			t.Errorf("%s of another client are lost", name)
		}
	}
}
