// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/statuserr"
)

var (
	owner1 = metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: nodeName, UID: "uid-1"}
	owner2 = metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: nodeName, UID: "uid-2"}

	errNoNode   = apierrors.NewNotFound(coordinationv1.Resource("nodes"), nodeName)
	errNotFound = apierrors.NewNotFound(coordinationv1.Resource("leases"), nodeName)
	errNoSpace  = apierrors.NewNotFound(coordinationv1.Resource("namespaces"), "kube-node-lease")
	errConflict = apierrors.NewConflict(coordinationv1.Resource("leases"), nodeName, errors.New("changed"))
	errExists   = apierrors.NewAlreadyExists(coordinationv1.Resource("leases"), nodeName)
	errInvalid  = statuserr.New(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "invalid")
	errElse     = errors.New("something else")
)

// at is the time of the tests: 100 s after the controller was made.
func at() instant { return instant{since: 100 * time.Second, wall: 5_000_000_000} }

func testRules(policy ForeignPolicy) *rules {
	return &rules{duration: 40 * time.Second, interval: 10 * time.Second, onForeign: policy}
}

func testTurn() *turn {
	return &turn{nodeName: nodeName, holder: nodeName, process: process{"host", "2"}, mayFail: true, owner: owner1, sent: at()}
}

// heldState is a lease renewed 10 s ago.
func heldState() *state {
	return &state{
		phase: PhaseHeld, uid: "lease-1", version: "7", owner: owner1,
		renewTime: 4_990_000_000, renewed: 90 * time.Second, renewedWall: 4_990_000_000, held: true,
	}
}

func newState() *state { return &state{renewed: never} }

// stored is the lease of heldState as the API server has it.
func stored(mutate ...func(*coordinationv1.Lease)) *coordinationv1.Lease {
	l := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "lease-1", ResourceVersion: "8", OwnerReferences: []metav1.OwnerReference{owner1}},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       ptr.To(nodeName),
			LeaseDurationSeconds: ptr.To[int32](40),
			RenewTime:            ptr.To(metav1.NewMicroTime(time.UnixMicro(4_990_000_000))),
		},
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
	return func(l *coordinationv1.Lease) { l.Spec.RenewTime = ptr.To(metav1.NewMicroTime(time.UnixMicro(micros))) }
}

func TestBegin(t *testing.T) {
	fresh := heldState()
	fresh.renewed = at().since - 2*time.Second
	freshOther := *fresh
	freshOther.owner = owner2
	failing := *fresh
	failing.trouble = &trouble{failures: 1}
	unread := heldState()
	unread.version = ""
	paused := heldState()
	paused.phase = PhasePaused
	for name, test := range map[string]struct {
		state    *state
		gateErr  error
		ownerErr error
		want     step
		phase    Phase
	}{
		"new":                          {newState(), nil, nil, get, PhasePending},
		"new, owner fails":             {newState(), nil, errElse, get, PhasePending},
		"new, no node":                 {newState(), nil, errNoNode, done, PhaseNoOwner},
		"new, gate closed":             {newState(), errElse, nil, done, PhasePaused},
		"held":                         {heldState(), nil, nil, update, PhaseHeld},
		"held, owner fails":            {heldState(), nil, errElse, update, PhaseHeld},
		"held, no node":                {heldState(), nil, errNoNode, done, PhaseNoOwner},
		"held, gate closed":            {heldState(), errElse, nil, done, PhasePaused},
		"held, to be read":             {unread, nil, nil, get, PhaseHeld},
		"paused":                       {paused, nil, nil, update, PhasePending},
		"renewed just now":             {fresh, nil, nil, done, PhaseHeld},
		"renewed just now, new owner":  {&freshOther, nil, nil, update, PhaseHeld},
		"renewed just now, then error": {&failing, nil, nil, update, PhaseHeld},
	} {
		t.Run(name, func(t *testing.T) {
			turn := testTurn()
			turn.gateErr, turn.ownerErr = test.gateErr, test.ownerErr
			s := *test.state
			if got := s.begin(testRules(0), turn, at()); got != test.want || s.phase != test.phase {
				t.Errorf("step %v in phase %v, want %v in %v", got, s.phase, test.want, test.phase)
			}
			if s.phase == PhaseNoOwner && s.uid != "" {
				t.Error("the lease of a Node that is gone is not forgotten")
			}
		})
	}
}

// TestAfter is the table of answers of the specification.
func TestAfter(t *testing.T) {
	mine := func() *state { return heldState() }
	sentBefore := func() *state {
		s := heldState()
		s.mayBeStored(&turn{renewTime: 4_999_000_000, sent: instant{since: 99 * time.Second, wall: 4_999_000_000}})
		return s
	}
	for name, test := range map[string]struct {
		state *state
		turn  func(*turn)
		did   step
		lease *coordinationv1.Lease
		err   error
		want  step
		check func(t *testing.T, s *state, turn *turn)
	}{
		"PUT 200":       {mine(), nil, update, stored(), nil, done, wantHeld},
		"POST 201":      {newState(), nil, create, stored(), nil, done, wantHeld},
		"PUT 409":       {mine(), nil, update, nil, errConflict, get, nil},
		"PUT 409 again": {mine(), func(t *turn) { t.conflicts = maxConflicts }, update, nil, errConflict, done, wantWait(5*time.Second/35, 200*time.Millisecond)},
		"POST exists":   {newState(), nil, create, nil, errExists, get, nil},
		"PUT 404":       {mine(), nil, update, nil, errNotFound, ask, wantVanished},
		"GET 404, held": {mine(), nil, get, nil, errNotFound, ask, wantVanished},
		"GET 404":       {newState(), nil, get, nil, errNotFound, create, nil},
		"GET 404, owner fails": {newState(), func(t *turn) { t.ownerErr = errElse }, get, nil, errNotFound, done, func(t *testing.T, s *state, turn *turn) {
			if !errors.Is(turn.err, errElse) {
				t.Errorf("error is %v", turn.err)
			}
		}},
		"POST 404": {newState(), nil, create, nil, errNoSpace, done, func(t *testing.T, s *state, turn *turn) {
			if !errors.Is(turn.err, ErrNoNamespace) {
				t.Errorf("error is %v", turn.err)
			}
		}},
		"PUT 422":                {mine(), nil, update, nil, errInvalid, get, nil},
		"PUT 422 after GET":      {mine(), func(t *turn) { t.read = true }, update, nil, errInvalid, done, wantWait(5*time.Second, 7*time.Second)},
		"POST 422":               {newState(), nil, create, nil, errInvalid, done, wantWait(5*time.Second, 7*time.Second)},
		"PUT 401":                {mine(), nil, update, nil, statuserr.Unauthorized(), done, wantWait(5*time.Second, 7*time.Second)},
		"PUT 403":                {mine(), nil, update, nil, statuserr.Forbidden("leases", nodeName, "no"), done, wantWait(5*time.Second, 7*time.Second)},
		"PUT 429":                {mine(), nil, update, nil, statuserr.TooManyRequests(0), done, wantWait(0, 200*time.Millisecond)},
		"PUT 429 Retry-After":    {mine(), nil, update, nil, statuserr.TooManyRequests(12), done, wantWait(12*time.Second, 12*time.Second)},
		"PUT Retry-After a year": {mine(), nil, update, nil, statuserr.Unavailable(1 << 24), done, wantWait(40*time.Second, 40*time.Second)},
		"PUT 500":                {mine(), nil, update, nil, statuserr.InternalError(""), done, wantUnsure},
		"PUT timeout":            {mine(), nil, update, nil, context.DeadlineExceeded, done, wantUnsure},
		"PUT reset":              {mine(), nil, update, nil, apitest.ErrConnReset, done, wantUnsure},
		"POST timeout":           {newState(), nil, create, nil, context.DeadlineExceeded, done, nil},
		"GET timeout": {mine(), nil, get, nil, context.DeadlineExceeded, done, func(t *testing.T, s *state, _ *turn) {
			if s.trouble.firstUnsure != 0 {
				t.Error("a read was taken for a write that may have been stored")
			}
		}},
		"GET mine, at the start":       {newState(), nil, get, stored(), nil, update, wantThefts(0)},
		"GET mine, labelled":           {mine(), nil, get, stored(), nil, update, wantThefts(0)},
		"GET mine, renewed by another": {mine(), nil, get, stored(renewedAt(4_995_000_000)), nil, update, wantThefts(1)},
		"GET mine, another object":     {mine(), nil, get, stored(func(l *coordinationv1.Lease) { l.UID = "lease-2" }), nil, update, wantThefts(1)},
		"GET mine, just stored": {sentBefore(), nil, get, stored(renewedAt(4_999_000_000)), nil, done, func(t *testing.T, s *state, turn *turn) {
			wantThefts(0)(t, s, turn)
			if s.trouble != nil && s.trouble.firstUnsure != 0 {
				t.Error("the write is found, and still looked for")
			}
		}},
		"GET mine, stored, owner wrong":  {sentBefore(), func(t *turn) { t.owner = owner2 }, get, stored(renewedAt(4_999_000_000)), nil, update, wantThefts(0)},
		"GET mine, stored long ago":      {sentBefore(), func(t *turn) { t.holder = nodeName }, get, stored(renewedAt(4_990_000_000)), nil, update, wantThefts(0)},
		"GET nobody's":                   {newState(), nil, get, stored(heldBy("")), nil, update, nil},
		"GET nobody's, nil":              {newState(), nil, get, stored(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = nil }), nil, update, nil},
		"GET foreign":                    {newState(), nil, get, stored(heldBy("other")), nil, done, wantForeign(10 * time.Second)},
		"GET foreign, was mine":          {mine(), nil, get, stored(heldBy("other")), nil, done, wantThefts(1)},
		"GET foreign without renewal":    {newState(), nil, get, stored(heldBy("other"), func(l *coordinationv1.Lease) { l.Spec.RenewTime = nil }), nil, done, wantForeign(10 * time.Second)},
		"GET foreign without a duration": {newState(), nil, get, stored(heldBy("other"), func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = nil }), nil, done, wantForeign(10 * time.Second)},
		"GET foreign, expiring soon":     {watching(64 * time.Second), nil, get, stored(heldBy("other")), nil, done, wantForeign(4 * time.Second)},
		"GET foreign, expired":           {watching(60 * time.Second), nil, get, stored(heldBy("other")), nil, update, wantTaken},
		"GET foreign, renewed":           {watching(60 * time.Second), nil, get, stored(heldBy("other"), renewedAt(4_999_999_999)), nil, done, wantForeign(10 * time.Second)},
		"GET foreign, another one":       {watching(60 * time.Second), nil, get, stored(heldBy("third")), nil, done, wantForeign(10 * time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			turn := testTurn()
			turn.renewTime = 5_000_000_000
			if test.turn != nil {
				test.turn(turn)
			}
			s := *test.state
			if got := s.after(testRules(ForeignWaitExpired), turn, test.did, test.lease, test.err, at()); got != test.want {
				t.Errorf("step %v, want %v", got, test.want)
			}
			if failed := test.err != nil && test.want == done; failed != (turn.err != nil) {
				t.Errorf("error of the turn is %v", turn.err)
			}
			if test.check != nil {
				test.check(t, &s, turn)
			}
		})
	}
}

// watching is a state that has seen another's renewal at the given time.
func watching(since time.Duration) *state {
	s := newState()
	tr := s.inTrouble()
	tr.foreign.party, tr.foreign.renewTime, tr.foreign.since = party{holder: "other"}, 4_990_000_000, since
	return s
}

func wantHeld(t *testing.T, s *state, turn *turn) {
	t.Helper()
	if s.phase != PhaseHeld || s.renewed != at().since || !turn.written || s.trouble != nil || s.version != "8" || s.renewTime != turn.renewTime {
		t.Errorf("state is %+v after turn %+v", s, turn)
	}
}

func wantWait(from, to time.Duration) func(*testing.T, *state, *turn) {
	return func(t *testing.T, s *state, turn *turn) {
		t.Helper()
		if w := turn.next.Wait; w < from || w > to {
			t.Errorf("wait %v, want %v to %v", w, from, to)
		}
		if s.trouble.failures != 1 {
			t.Errorf("%d failures", s.trouble.failures)
		}
	}
}

func wantVanished(t *testing.T, s *state, turn *turn) {
	t.Helper()
	if !turn.vanished || s.uid != "" || s.renewTime != 4_990_000_000 {
		t.Errorf("state is %+v, turn %+v", s, turn)
	}
}

func wantUnsure(t *testing.T, s *state, turn *turn) {
	t.Helper()
	if s.uid != "lease-1" || s.version != "7" {
		t.Error("the lease was forgotten: the write may have landed or not")
	}
	if !s.unsure(turn.renewTime) || s.unsure(turn.renewTime+1) {
		t.Errorf("trouble is %+v", s.trouble)
	}
	if next := s.nextRenewTime(instant{}); next <= turn.renewTime {
		t.Errorf("the next renewTime %d is not later than the one that may be stored", next)
	}
}

func wantThefts(n int) func(*testing.T, *state, *turn) {
	return func(t *testing.T, s *state, turn *turn) {
		t.Helper()
		got := 0
		if s.trouble != nil {
			for _, at := range s.trouble.foreignWrites {
				if at > never {
					got++
				}
			}
		}
		if got != n {
			t.Errorf("%d thefts, want %d", got, n)
		}
	}
}

func wantForeign(wait time.Duration) func(*testing.T, *state, *turn) {
	return func(t *testing.T, s *state, turn *turn) {
		t.Helper()
		if s.phase != PhaseForeign || turn.next.Wait != wait || s.uid != "" {
			t.Errorf("phase %v, wait %v, state %+v; want to wait %v", s.phase, turn.next.Wait, s, wait)
		}
	}
}

func wantTaken(t *testing.T, s *state, turn *turn) {
	t.Helper()
	lease := s.object(testRules(0), turn, at())
	if *lease.Spec.LeaseTransitions != 1 || lease.Spec.AcquireTime == nil || *lease.Spec.HolderIdentity != nodeName || lease.ResourceVersion != "8" {
		t.Errorf("writes %+v", lease)
	}
}

func TestPolicyOnForeign(t *testing.T) {
	for policy, want := range map[ForeignPolicy]step{ForeignWaitExpired: done, ForeignTakeOver: update, ForeignFail: done} {
		turn, s := testTurn(), newState()
		if got := s.found(testRules(policy), turn, stored(heldBy("other")), at()); got != want {
			t.Errorf("%v: step %v, want %v", policy, got, want)
		}
		if failed := turn.fatal != nil; failed != (policy == ForeignFail) {
			t.Errorf("%v: fatal %v", policy, turn.fatal)
		}
	}
	// A node that is one of many does not end them all, and is not taken over.
	turn, s := testTurn(), watching(0)
	turn.mayFail = false
	if got := s.found(testRules(ForeignFail), turn, stored(heldBy("other")), at()); got != done || turn.fatal != nil {
		t.Errorf("step %v, fatal %v", got, turn.fatal)
	}
}

// A takeover that fails leaves the lease to its holder.
func TestTakeOverFails(t *testing.T) {
	turn, s := testTurn(), watching(0)
	s.found(testRules(ForeignWaitExpired), turn, stored(heldBy("other")), at())
	s.after(testRules(ForeignWaitExpired), turn, update, nil, statuserr.InternalError(""), at())
	if s.uid != "" {
		t.Errorf("the lease of another is taken for ours: %+v", s)
	}
}

func TestAsked(t *testing.T) {
	for name, test := range map[string]struct {
		again    bool
		owner    metav1.OwnerReference
		ownerErr error
		want     step
	}{
		"same owner":        {false, owner1, nil, done}, // held back for createHold
		"same owner, again": {true, owner1, nil, done},
		"new owner":         {false, owner2, nil, create},
		"new owner, again":  {true, owner2, nil, create},
		"node gone":         {false, owner1, errNoNode, done},
		"owner fails":       {false, owner1, errElse, done},
		"owner fails again": {true, owner1, errElse, done},
	} {
		t.Run(name, func(t *testing.T) {
			s, turn := heldState(), testTurn()
			if test.again {
				tr := s.inTrouble()
				tr.vanished, tr.vanishedOwner = at().since-20*time.Second, owner1.UID
			}
			if got := s.after(testRules(0), turn, update, nil, errNotFound, at()); got != ask {
				t.Fatalf("step %v, want to ask Owner", got)
			}
			turn.owner, turn.ownerErr = test.owner, test.ownerErr
			if got := s.asked(testRules(0), turn, at()); got != test.want {
				t.Errorf("step %v, want %v", got, test.want)
			}
		})
	}
}

// The object written: upstream's TestNewNodeLease and more.
func TestObject(t *testing.T) {
	controller := true
	other := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "c", UID: "c-1"}
	spec := func(micros int64) coordinationv1.LeaseSpec {
		return coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To(nodeName), LeaseDurationSeconds: ptr.To[int32](40),
			RenewTime: ptr.To(metav1.NewMicroTime(time.UnixMicro(micros))),
		}
	}
	meta := func(uid types.UID, version string, owners ...metav1.OwnerReference) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Name: nodeName, Namespace: "kube-node-lease", UID: uid, ResourceVersion: version, OwnerReferences: owners,
			Annotations: map[string]string{processAnnotation: "host/2"},
		}
	}
	for name, test := range map[string]struct {
		found *coordinationv1.Lease
		turn  func(*turn)
		want  *coordinationv1.Lease
	}{
		"new": {nil, nil, &coordinationv1.Lease{ObjectMeta: meta("", "", owner1), Spec: spec(5_000_000_000)}},
		"new without owner": {nil, func(t *turn) { t.owner = metav1.OwnerReference{} },
			&coordinationv1.Lease{ObjectMeta: meta("", ""), Spec: spec(5_000_000_000)}},
		"found without owner": {stored(func(l *coordinationv1.Lease) { l.OwnerReferences = nil }), nil,
			&coordinationv1.Lease{ObjectMeta: meta("lease-1", "8", owner1), Spec: spec(5_000_000_000)}},
		"owner fails": {stored(), func(t *turn) { t.owner, t.ownerErr = metav1.OwnerReference{}, errElse },
			&coordinationv1.Lease{ObjectMeta: meta("lease-1", "8", owner1), Spec: spec(5_000_000_000)}},
		"another owner": {stored(func(l *coordinationv1.Lease) { l.OwnerReferences = append(l.OwnerReferences, other) }),
			func(t *turn) { t.owner = owner2; t.owner.Controller = &controller },
			&coordinationv1.Lease{ObjectMeta: meta("lease-1", "8", other, metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: nodeName, UID: "uid-2", Controller: &controller}), Spec: spec(5_000_000_000)}},
		"an owner that is no Node": {stored(func(l *coordinationv1.Lease) {
			l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "x/v1", Kind: "Host", Name: "h", UID: "h-1"}, other}
		}), func(t *turn) {
			t.owner = metav1.OwnerReference{APIVersion: "x/v1", Kind: "Host", Name: "h", UID: "h-2"}
		},
			&coordinationv1.Lease{ObjectMeta: meta("lease-1", "8", other, metav1.OwnerReference{APIVersion: "x/v1", Kind: "Host", Name: "h", UID: "h-2"}), Spec: spec(5_000_000_000)}},
		"duration and managedFields": {stored(func(l *coordinationv1.Lease) {
			l.Spec.LeaseDurationSeconds = ptr.To[int32](7)
			l.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
		}), nil, &coordinationv1.Lease{ObjectMeta: meta("lease-1", "8", owner1), Spec: spec(5_000_000_000)}},
		"renewed in the future": {stored(renewedAt(9_000_000_000)), nil,
			&coordinationv1.Lease{ObjectMeta: meta("lease-1", "8", owner1), Spec: spec(9_000_000_001)}},
	} {
		t.Run(name, func(t *testing.T) {
			s, turn := newState(), testTurn()
			if test.turn != nil {
				test.turn(turn)
			}
			if test.found != nil {
				s.adopt(turn, test.found)
			}
			if diff := cmp.Diff(test.want, s.object(testRules(0), turn, at())); diff != "" {
				t.Errorf("wrong object (-want +got):\n%s", diff)
			}
		})
	}
}

// kube-controller-manager remembers the highest RenewTime, whatever becomes of
// the lease: another client with a slower clock writes it, or it is re-created.
func TestRenewTimeNeverGoesBackWithTheLease(t *testing.T) {
	s := heldState()
	s.renewTime = 9_000_000_000
	s.adopt(testTurn(), stored(renewedAt(4_000_000_000)))
	if got := s.nextRenewTime(at()); got != 9_000_000_001 {
		t.Errorf("after a slower clock: next is %d", got)
	}
	s.forget()
	if got := s.nextRenewTime(at()); got != 9_000_000_001 {
		t.Errorf("after the lease is gone: next is %d", got)
	}
}

// A clock that is behind is said once, and again after it was right.
func TestClockBehindIsSaidOnce(t *testing.T) {
	s := heldState()
	said := func(wall int64) time.Duration {
		turn := testTurn()
		turn.renewTime = s.nextRenewTime(instant{wall: wall})
		s.accepted(testRules(0), turn, update, stored(renewedAt(turn.renewTime)), instant{since: at().since, wall: wall})
		return turn.behind
	}
	for i, test := range []struct {
		wall int64
		want time.Duration
	}{
		{5_000_000_000, 0},
		{4_999_500_000, 0}, // half a second is nothing
		{4_990_000_000, 10*time.Second + 2*time.Microsecond},
		{4_980_000_000, 0},
		{5_010_000_000, 0},
		{5_000_000_000, 10*time.Second + time.Microsecond},
	} {
		if got := said(test.wall); got != test.want {
			t.Errorf("write %d: said %v, want %v", i, got, test.want)
		}
	}
}

// A lease that was read is not changed by writes, and is not kept in memory.
func TestObjectSharesNothing(t *testing.T) {
	found := stored(func(l *coordinationv1.Lease) {
		l.Labels = map[string]string{"a": "b"}
		l.Spec.LeaseTransitions = ptr.To[int32](3)
	})
	before := found.DeepCopy()
	s, turn := newState(), testTurn()
	s.adopt(turn, found)
	turn.takeFrom = party{holder: "other"}
	lease := s.object(testRules(0), turn, at())
	lease.Labels["a"] = "c"
	if *lease.Spec.LeaseTransitions != 4 {
		t.Errorf("%d transitions", *lease.Spec.LeaseTransitions)
	}
	if diff := cmp.Diff(before, found); diff != "" {
		t.Errorf("the lease that was found has changed (-before +after):\n%s", diff)
	}
	if got := s.object(testRules(0), testTurn(), at()).Labels["a"]; got != "b" {
		t.Errorf("the label is %q in the next write", got)
	}
}

// A pause does not make a write that may be stored another's.
func TestUnsureOutlivesAPause(t *testing.T) {
	s, paused := heldState(), testTurn()
	s.mayBeStored(&turn{renewTime: 4_999_000_000, sent: instant{since: 99 * time.Second, wall: 4_999_000_000}})
	paused.gateErr = errElse
	s.begin(testRules(0), paused, at())
	s.found(testRules(0), testTurn(), stored(renewedAt(4_999_000_000)), at())
	wantThefts(0)(t, s, paused)
}

func TestTroubleEnds(t *testing.T) {
	s := heldState()
	s.failed(testRules(0), testTurn(), apierr.Server, errElse, 0)
	s.countForeignWrite(testRules(0), testTurn(), party{holder: "other"}, at())
	if s.clearFailures(at().since+39*time.Second, 40*time.Second); s.trouble == nil {
		t.Error("a theft of 39 s ago is forgotten")
	}
	if s.clearFailures(at().since+41*time.Second, 40*time.Second); s.trouble != nil {
		t.Errorf("trouble stays: %+v", s.trouble)
	}
}

// A turn reads and writes again at most twice: the number is part of the load on an API
// server has to bear from two clients that write one lease.
func TestATurnMeetsAtMostThreeConflicts(t *testing.T) {
	s, turn := heldState(), testTurn()
	writes := 1
	for s.after(testRules(0), turn, update, nil, errConflict, at()) == get {
		if got := s.after(testRules(0), turn, get, stored(), nil, at()); got != update {
			t.Fatalf("step %v after the read, want update", got)
		}
		writes++
	}
	if writes != 3 {
		t.Errorf("%d writes in a turn that meets only conflicts, want 3", writes)
	}
}

// kube-controller-manager compares with the highest RenewTime that it has seen, so a
// lease that another process holds can only raise ours.
func TestAForeignLeaseNeverLowersTheRenewTime(t *testing.T) {
	for _, renewTime := range []int64{4_000_000_000, 4_999_000_000} {
		s := heldState()
		before := s.renewTime
		theirs := stored(func(l *coordinationv1.Lease) {
			l.Spec.HolderIdentity = ptr.To("other")
			l.Spec.RenewTime = ptr.To(metav1.NewMicroTime(time.UnixMicro(renewTime)))
		})
		if got := s.after(testRules(ForeignWaitExpired), testTurn(), get, theirs, nil, at()); got != done || s.phase != PhaseForeign {
			t.Fatalf("step %v, phase %v", got, s.phase)
		}
		if want := max(before, renewTime); s.renewTime != want {
			t.Errorf("RenewTime is %d after a foreign one of %d, want %d", s.renewTime, renewTime, want)
		}
	}
}
