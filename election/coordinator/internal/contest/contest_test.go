// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package contest

import (
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// apply applies an event, and no invariant may break.
func apply(t *testing.T, c *Contest, now time.Time, e Event) Effects {
	t.Helper()
	effects := c.Apply(now, e)
	if err := c.Check(); err != nil {
		t.Fatalf("after %T: %v", e, err)
	}
	return effects
}

// leaseAt returns a version of a Lease.
func leaseAt(version int, holder string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "lease", UID: "l", ResourceVersion: fmt.Sprint(version)},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: ptr.To[int32](15), LeaseTransitions: ptr.To[int32](1),
			RenewTime: ptr.To(metav1.NewMicroTime(time.UnixMicro(int64(version)))),
		},
	}
}

// candidateAt returns a version of a candidate.
func candidateAt(version int, name string, renewed int64) Candidate {
	return Candidate{
		Name: name, UID: types.UID(name), Version: fmt.Sprint(version), Strategy: "OldestEmulationVersion", RenewTime: renewed,
		Peer: spec.Peer{Identity: name, BinaryVersion: "1.37.0"},
	}
}

// The watch delivers the object that the answer to a write, or a read, has overtaken. It
// is not taken for news.
func TestOldEvents(t *testing.T) {
	c := New(decideRules())
	apply(t, c, decideNow, CandidateSeen{Candidate: candidateAt(100, "a", 1)})
	apply(t, c, decideNow, LeaseSeen{Lease: leaseAt(100, "a")})
	if apply(t, c, decideNow, LeaseSeen{Lease: leaseAt(99, "b")}).Decide || c.Holder() != "a" {
		t.Errorf("an old event made the lease %+v", c.lease)
	}
	if apply(t, c, decideNow, LeaseGone{UID: "an earlier life"}).Decide || c.lease == nil {
		t.Error("the end of an earlier lease of that name was taken for that of this one")
	}
	if !apply(t, c, decideNow, LeaseGone{UID: "l"}).Decide || c.lease != nil {
		t.Error("a lease that is gone is held")
	}
	if apply(t, c, decideNow, LeaseGone{UID: "l"}).Decide {
		t.Error("the lease is gone a second time")
	}
	old := candidateAt(99, "a", 7)
	old.Peer.BinaryVersion = "1.38.0"
	if apply(t, c, decideNow.Add(time.Hour), CandidateSeen{Candidate: old}).Decide || c.candidates["a"].RenewTime != 1 {
		t.Errorf("an old event made the candidate %+v", c.candidates["a"])
	}
	if apply(t, c, decideNow, CandidateGone{Name: "a", UID: "an earlier life"}).Decide || c.Empty() {
		t.Error("the end of an earlier candidate of that name was taken for that of this one")
	}
	if !apply(t, c, decideNow, CandidateGone{Name: "a", UID: "a"}).Decide || !c.Empty() {
		t.Error("a candidate that is gone counts")
	}
	if apply(t, c, decideNow, CandidateGone{Name: "a", UID: "a"}).Decide {
		t.Error("it is gone a second time")
	}
}

// The API server was restored from a backup, and its resourceVersions are lower than
// before. The result of a read counts, unless the watch was faster than the answer.
func TestRestoredBackup(t *testing.T) {
	c := New(decideRules())
	apply(t, c, decideNow, LeaseSeen{Lease: leaseAt(1000, "x")})
	look := Decision{Do: Look, Lease: c.lease}
	apply(t, c, decideNow, Answered{To: look, Lease: leaseAt(10, "restored"), Read: true})
	if c.Holder() != "restored" {
		t.Errorf("the lease is %+v", c.lease)
	}
	look = Decision{Do: Look, Lease: c.lease}
	apply(t, c, decideNow, LeaseSeen{Lease: leaseAt(2000, "x")})
	apply(t, c, decideNow, Answered{To: look, Lease: leaseAt(11, "restored"), Read: true})
	if c.Holder() != "x" {
		t.Errorf("the lease is %+v", c.lease)
	}
	apply(t, c, decideNow, Answered{To: look, Gone: true, Read: true})
	if c.Holder() != "x" {
		t.Error("a read that began before the watch delivered the lease ends it")
	}
	apply(t, c, decideNow, Answered{To: Decision{Do: Look, Lease: c.lease}, Gone: true, Read: true})
	if c.lease != nil {
		t.Error("a read does not find the lease, and it is known")
	}
	again := candidateAt(1000, "a", 7)
	apply(t, c, decideNow, CandidateSeen{Candidate: again})
	again.UID, again.Version, again.RenewTime = "another", "10", 8
	if apply(t, c, decideNow, CandidateSeen{Candidate: again}); c.candidates["a"].RenewTime != 8 {
		t.Error("another candidate of the name has a lower version and is not seen")
	}
}

// A Lease that was deleted is there again, with the same UID: the API server was restored.
// The answers to all writes to it were taken for late ones, so each write met a conflict.
func TestARestoredLeaseIsNotBuried(t *testing.T) {
	c := New(decideRules())
	apply(t, c, decideNow, CandidateSeen{Candidate: candidateAt(100, "a", 1)})
	apply(t, c, decideNow, LeaseSeen{Lease: leaseAt(1000, "x")})
	apply(t, c, decideNow, LeaseGone{UID: "l"})
	apply(t, c, decideNow, LeaseSeen{Lease: leaseAt(10, "")})
	assign := Decision{Do: Assign, Name: "a", Lease: c.lease}
	if apply(t, c, decideNow, Answered{To: assign, Lease: leaseAt(11, "a")}); c.Holder() != "a" || c.assignee == nil {
		t.Errorf("the lease is %+v, its assignee %+v", c.lease, c.assignee)
	}
}

// A restored backup shows another renewal of a candidate that may be dead, or alive: it is
// neither heard nor collected. A clock that was set back shows an earlier time too, but in a
// newer version.
func TestOnlyANewerVersionIsASignOfLife(t *testing.T) {
	for name, tc := range map[string]struct {
		version int
		renewed int64
		want    bool
		seen    bool
	}{
		"renewed":                         {101, 1001, true, true},
		"renewed by a clock set back":     {101, 900, true, true},
		"not renewed":                     {101, 1000, false, false},
		"restored, not renewed":           {99, 1000, false, false},
		"restored, to an earlier renewal": {99, 999, false, true},
		"restored, with a later time":     {99, 1001, false, true},
	} {
		c := New(decideRules())
		apply(t, c, decideNow, CandidateSeen{Candidate: candidateAt(100, "a", 1000), Fresh: true})
		read := Answered{To: Decision{Do: Ping, Name: "a", UID: "a", Version: "100"}, Candidate: ptr.To(candidateAt(tc.version, "a", tc.renewed)), Read: true}
		apply(t, c, decideNow.Add(time.Minute), read)
		a := c.candidates["a"]
		if got := a.heard.After(decideNow); got != tc.want || a.seen.After(decideNow) != tc.seen {
			t.Errorf("%s: heard at %v and seen at %v, want a sign of life: %v, and seen: %v", name, a.heard, a.seen, tc.want, tc.seen)
		}
		if a.Version != fmt.Sprint(tc.version) || a.RenewTime != tc.renewed {
			t.Errorf("%s: version %s renewed at %d", name, a.Version, a.RenewTime)
		}
	}
}

// After a conflict the object was read again, and a Lease without a leader should not
// wait. The next conflicts back off, as other failures do, and longer if an operator must
// act. A success ends that.
func TestFailuresBackOff(t *testing.T) {
	assign := Decision{Do: Assign, Name: "a"}
	for name, tc := range map[string]struct {
		result Result
		after  time.Duration
		want   []time.Duration // with the last half of each wait at its middle
	}{
		"conflict":     {Conflict, 0, []time.Duration{0, 187500 * time.Microsecond, 375 * time.Millisecond}},
		"failed":       {Failed, 0, []time.Duration{187500 * time.Microsecond, 375 * time.Millisecond, 750 * time.Millisecond}},
		"asked":        {Failed, time.Minute, []time.Duration{time.Minute, time.Minute}},
		"refused":      {Refused, 0, []time.Duration{187500 * time.Microsecond, 375 * time.Millisecond}},
		"unauthorized": {Unauthorized, 0, []time.Duration{187500 * time.Microsecond}},
	} {
		c := vacant(nominee("a", 1)).Contest
		for i, want := range tc.want {
			apply(t, c, decideNow, Concluded{To: assign, Result: tc.result, RetryAfter: tc.after})
			if got := c.retryAt.Sub(decideNow); got != want || c.Failures() != i+1 || !c.Failing() {
				t.Errorf("%s: waits %v after failure %d, want %v", name, got, i+1, want)
			}
		}
		for range 20 {
			apply(t, c, decideNow, Concluded{To: assign, Result: tc.result})
		}
		longest := map[bool]time.Duration{true: RefusedRetry, false: FailedRetry}[tc.result == Refused || tc.result == Unauthorized]
		if got := c.retryAt.Sub(decideNow); got != longest*3/4 {
			t.Errorf("%s: waits %v at last, want %v", name, got, longest*3/4)
		}
		apply(t, c, decideNow, Concluded{To: Decision{Do: Look}})
		if !c.Failing() {
			t.Errorf("%s: the success of another action ends it", name)
		}
		apply(t, c, decideNow, Concluded{To: assign})
		if c.Failing() {
			t.Errorf("%s: its success does not end it", name)
		}
	}
}

// A request that failed is not sent again before its time, whatever happens to the Lease.
func TestNothingIsSentBeforeTheTimeOfTheRetry(t *testing.T) {
	c := vacant(nominee("a", 1).heardAgo(time.Second)).Contest
	d := c.Next(decideNow)
	apply(t, c, decideNow, Sent{d})
	apply(t, c, decideNow, Concluded{To: d, Result: Failed})
	if got := c.Next(decideNow); got.Do != Wait || got.WakeAt != c.retryAt {
		t.Errorf("%v until %v, want to wait until %v", got, got.WakeAt, c.retryAt)
	}
	if got := c.Next(c.retryAt); got.Do != Assign {
		t.Errorf("%v then", got)
	}
}

// A held and renewed Lease ends the failures, which were those of an election.
func TestAHeldLeaseEndsFailures(t *testing.T) {
	c := held("x", time.Second, nominee("a", 1)).Contest
	apply(t, c, decideNow, Concluded{To: Decision{Do: Assign, Name: "a"}, Result: Failed})
	apply(t, c, decideNow, Idle{})
	if c.Failing() {
		t.Error("an election that is over fails")
	}
	c = held("x", 10*time.Second, nominee("a", 1)).Contest
	apply(t, c, decideNow, Concluded{To: Decision{Do: Look}, Result: Failed})
	apply(t, c, decideNow, Idle{})
	if !c.Failing() {
		t.Error("the holder is silent, and nothing fails")
	}
}

// A candidate about which requests are refused is passed over for a while, and the others
// are not.
func TestARefusalIsAboutItsCandidate(t *testing.T) {
	c := vacant(nominee("a", 1), nominee("b", 2)).Contest
	d := c.Next(decideNow)
	apply(t, c, decideNow, Concluded{To: d, Result: Refused})
	if next := c.Next(decideNow); d.Name != "a" || next.Do != Ping || next.Name != "b" || !c.Failing() || c.Failures() != 0 {
		t.Errorf("%v, and then %v; failing %v", d, next, c.Failing())
	}
	apply(t, c, decideNow, Concluded{To: d})
	if c.Failing() || !c.candidates["a"].retryAt.After(decideNow) {
		t.Errorf("failing %v", c.Failing())
	}
}

// A candidate that ended has deleted its LeaseCandidate. Another one must be chosen at
// once.
func TestAPingedCandidateThatIsGoneCostsNoWait(t *testing.T) {
	c := vacant(nominee("a", 1), nominee("b", 2)).Contest
	d := c.Next(decideNow)
	apply(t, c, decideNow, Sent{d})
	apply(t, c, decideNow, Answered{To: d, Gone: true, Read: true})
	apply(t, c, decideNow, Concluded{To: d, Result: Conflict})
	if next := c.Next(decideNow); next.Do != Ping || next.Name != "b" {
		t.Errorf("%v after that, want a ping of b", next)
	}
}

// More than twelve requests at once, or one a second, mean that another client undoes
// them. The first ping of each candidate in a round is not counted.
func TestThePaceOfRequests(t *testing.T) {
	c := vacant(nominee("a", 1).heardAgo(time.Second)).Contest
	now, sent := decideNow, 0
	for ; sent < 100; sent++ {
		d := c.Next(now)
		if d.Do == Wait {
			if d.WakeAt != now.Add(time.Second) {
				t.Errorf("waits until %v", d.WakeAt)
			}
			break
		}
		apply(t, c, now, Sent{d})
	}
	if sent != 12 {
		t.Errorf("%d requests at once", sent)
	}
	if d := c.Next(now.Add(time.Second)); d.Do != Assign {
		t.Errorf("%v a second later", d)
	}
	for i := range 50 {
		c.candidates[fmt.Sprint(i)] = nominee(fmt.Sprint(i), 2)
	}
	c.candidates["a"].pingedAgo(5 * time.Second).heard = time.Time{}
	for i := range 50 {
		d := c.Next(now)
		if d.Do != Ping {
			t.Fatalf("%v instead of ping %d", d, i)
		}
		apply(t, c, now, Sent{d})
		c.candidates[d.Name].pingedAgo(0)
	}
}

// A late ping is reported once, and the next one too, also if another client has removed
// the first.
func TestEachLatePingIsReportedOnce(t *testing.T) {
	c := New(decideRules())
	pinged := func(version int, ping int64) {
		obj := candidateAt(version, "a", 1000)
		obj.PingTime = ping
		apply(t, c, decideNow, CandidateSeen{Candidate: obj})
	}
	late := func() int { return len(apply(t, c, decideNow.Add(5*time.Second), Tick{}).Silent) }
	pinged(1, 1001)
	if n := len(apply(t, c, decideNow.Add(5*time.Second-1), Tick{}).Silent); n != 0 {
		t.Error("reported before its time")
	}
	if first, again := late(), late(); first != 1 || again != 0 {
		t.Errorf("reported %d times, and then %d", first, again)
	}
	pinged(2, 0)
	pinged(3, 1001)
	if n := late(); n != 1 {
		t.Errorf("the next one is reported %d times", n)
	}
}

// A candidate that can't be considered is reported once, and again after it was valid.
func TestAnInvalidCandidateIsReportedOnce(t *testing.T) {
	c := New(decideRules())
	var reported []bool
	for i, invalid := range []error{nil, errInvalid, errInvalid, nil, errInvalid} {
		obj := candidateAt(i+1, "a", 1)
		obj.Invalid = invalid
		reported = append(reported, apply(t, c, decideNow, CandidateSeen{Candidate: obj}).Invalid != nil)
	}
	if got := fmt.Sprint(reported); got != "[false true false false true]" {
		t.Errorf("reported: %s", got)
	}
}

// A candidate was deleted and created again before the watch showed either. The one to
// which the Lease was assigned is gone.
func TestANewCandidateOfTheNameIsNotTheAssignee(t *testing.T) {
	c := New(decideRules())
	apply(t, c, decideNow, CandidateSeen{Candidate: candidateAt(1, "a", 1)})
	d := Decision{Do: Assign, Name: "a", UID: "a"}
	apply(t, c, decideNow, Answered{To: d, Lease: leaseAt(2, "a")})
	if c.assignee == nil {
		t.Fatal("there is no assignee")
	}
	apply(t, c, decideNow, Answered{To: d, Lease: leaseAt(3, "another")})
	if c.assignee != nil {
		t.Error("another component gave the lease to another candidate, and there is an assignee")
	}
	apply(t, c, decideNow, Answered{To: d, Lease: leaseAt(4, "a"), Read: true})
	if c.assignee != nil {
		t.Error("another client assigned the lease, and there is an assignee")
	}
	apply(t, c, decideNow, Answered{To: d, Lease: leaseAt(5, "a")})
	again := candidateAt(3, "a", 1)
	again.UID = "another"
	apply(t, c, decideNow, CandidateSeen{Candidate: again, Fresh: true})
	if c.assignee != nil {
		t.Error("the candidate that is gone is the assignee")
	}
}

// A renewal in time needs no decision, and other changes of the Lease do.
func TestWhichChangesOfTheLeaseNeedADecision(t *testing.T) {
	renewed := func(l *coordinationv1.Lease) { l.Spec.RenewTime = ptr.To(metav1.NewMicroTime(time.UnixMicro(999))) }
	for name, tc := range map[string]struct {
		holder string
		after  time.Duration
		change func(*coordinationv1.Lease)
		want   bool
	}{
		"renewed in time":               {"x", time.Second, renewed, false},
		"renewed after it was silent":   {"x", 10 * time.Second, renewed, true},
		"without holder, renewed":       {"", time.Second, renewed, false},
		"without holder, renewed later": {"", time.Minute, renewed, false},
		"an annotation":                 {"x", time.Second, func(l *coordinationv1.Lease) { l.Annotations = map[string]string{"a": "b"} }, false},
		"an annotation later":           {"x", 10 * time.Second, func(l *coordinationv1.Lease) { l.Annotations = map[string]string{"a": "b"} }, false},
		"another holder":                {"x", time.Second, func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = ptr.To("y") }, true},
		"another preferred holder":      {"x", time.Second, func(l *coordinationv1.Lease) { l.Spec.PreferredHolder = ptr.To("y") }, true},
		"another duration":              {"x", time.Second, func(l *coordinationv1.Lease) { renewed(l); l.Spec.LeaseDurationSeconds = ptr.To[int32](30) }, true},
		"another duration by an edit":   {"x", time.Second, func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = ptr.To[int32](30) }, false},
	} {
		c := New(decideRules())
		apply(t, c, decideNow, CandidateSeen{Candidate: candidateAt(1, "a", 1)})
		apply(t, c, decideNow, LeaseSeen{Lease: leaseAt(10, tc.holder)})
		next := leaseAt(10, tc.holder)
		next.ResourceVersion = "11"
		tc.change(next)
		if got := apply(t, c, decideNow.Add(tc.after), LeaseSeen{Lease: next}).Decide; got != tc.want {
			t.Errorf("%s: a decision is needed: %v", name, got)
		}
	}
}

// A decision says for how long the holder was silent, for the report.
func TestADecisionHasTheSilenceOfTheHolder(t *testing.T) {
	for holder, want := range map[string]time.Duration{"x": 20 * time.Second, "": 0} {
		if d := held(holder, 20*time.Second, nominee("a", 1).heardAgo(time.Second)).looked().Next(decideNow); d.Do != Assign || d.Silence != want || d.Lease == nil {
			t.Errorf("%v of a Lease of %q after a silence of %v, want %v", d, holder, d.Silence, want)
		}
	}
}

// A Lease that was first observed just now may be silent since long ago.
func TestTheSilenceOfAHolderBeginsWithARenewalThatWasObserved(t *testing.T) {
	lease := held("x", 0).lease
	c := vacant(nominee("a", 1).heardAgo(time.Second)).Contest
	silence := func(after time.Duration) time.Duration { return c.Next(decideNow.Add(after)).Silence }
	apply(t, c, decideNow, LeaseSeen{Lease: lease})
	if got := silence(time.Minute); got != 0 {
		t.Errorf("a silence of %v, and no renewal was observed", got)
	}
	lease = lease.DeepCopy()
	lease.ResourceVersion, lease.Spec.RenewTime = "8", ptr.To(metav1.NewMicroTime(decideNow))
	apply(t, c, decideNow.Add(time.Minute), LeaseSeen{Lease: lease})
	if got := silence(2 * time.Minute); got != time.Minute {
		t.Errorf("a silence of %v, a minute after a renewal", got)
	}
}

// The API server dropped an offer, so none is tried for a while.
func TestOffersThatAreDropped(t *testing.T) {
	c := held("b", time.Second, nominee("a", 1).heardAgo(time.Second), nominee("b", 2)).Contest
	apply(t, c, decideNow, Tick{OffersFrom: decideNow.Add(3 * time.Second)})
	if d := c.Next(decideNow); d.Do != Wait || d.WakeAt != decideNow.Add(3*time.Second) {
		t.Errorf("%v until %v", d, d.WakeAt)
	}
	apply(t, c, decideNow, Tick{})
	if d := c.Next(decideNow); d.Do != Offer {
		t.Errorf("%v after that", d)
	}
}

// The second ping of a candidate in one round takes from the pace: another client undoes
// the first.
func TestOnlyTheFirstPingOfARoundIsFree(t *testing.T) {
	c := vacant(nominee("a", 1)).Contest
	apply(t, c, decideNow, Sent{Decision{Do: Unping, Name: "a", first: true}}) // is no ping
	for i := range 14 {
		d := c.Next(decideNow)
		if paced := d.Do == Wait; paced != (i == 13) {
			t.Fatalf("%v after %d pings", d, i)
		}
		if d.Do != Wait {
			apply(t, c, decideNow, Sent{d})
		}
	}
	if d := c.Next(decideNow.Add(10 * time.Second)); d.Do != Ping || !d.first {
		t.Errorf("%v in the next round", d)
	}
}

// An assignee has twice as long as the first one if the one before did not claim the Lease,
// and the last resort has more time for each. A claim ends that.
func TestTheTimeOfAnAssignment(t *testing.T) {
	for name, tc := range map[string]struct {
		unclaimed, doubts int
		want              time.Duration
	}{
		"the first":                  {0, 0, 15 * time.Second},
		"the second":                 {1, 0, 30 * time.Second},
		"the third, others wait":     {2, 0, 30 * time.Second},
		"doubted in another vacancy": {0, 1, 15 * time.Second},
		"the last resort":            {1, 1, 30 * time.Second},
		"the last resort, once more": {2, 2, time.Minute},
		"the last resort, for long":  {9, 1, 4 * time.Minute},
	} {
		a := nominee("a", 1)
		a.doubts = tc.doubts
		c := vacant(a).Contest
		c.unclaimed = tc.unclaimed
		apply(t, c, decideNow, Answered{To: Decision{Do: Assign, Name: "a"}, Lease: leaseAt(1, "a")})
		if got := c.expiresAt().Sub(decideNow); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
		claim := c.lease.DeepCopy()
		claim.ResourceVersion, claim.Spec.RenewTime = "2", ptr.To(metav1.NewMicroTime(time.UnixMicro(999)))
		apply(t, c, decideNow.Add(time.Second), LeaseSeen{Lease: claim})
		if got := c.expiresAt().Sub(decideNow); got != 16*time.Second || c.unclaimed != 0 {
			t.Errorf("%s: %v after the claim, and %d candidates did not", name, got, c.unclaimed)
		}
	}
}
