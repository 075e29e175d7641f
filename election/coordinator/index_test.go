// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator

import (
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election/internal/spec"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// TestControllerOldEvents: the watch delivers the object that the answer to a write, or a
// read, has overtaken. It is not taken for news.
func TestControllerOldEvents(t *testing.T) {
	c := benchController(t, 1, 2)
	key := types.NamespacedName{Namespace: "default", Name: "lease-0"}
	e := c.index[key]

	lease := benchLease(0, 100)
	lease.Spec.HolderIdentity = ptr.To("lease-0.1")
	e.observe(time.Now(), lease, c.rules)
	c.leaseSeen(benchLease(0, 99))
	if e.lease.ResourceVersion != "100" || e.holder() != "lease-0.1" {
		t.Errorf("an old event made the lease %+v", e.lease)
	}
	gone := benchLease(0, 98)
	gone.UID = "an earlier life"
	c.leaseGone(gone)
	if e.lease == nil {
		t.Error("the end of an earlier lease of that name was taken for that of this one")
	}

	record := benchCandidate(0, 1)
	record.ResourceVersion, record.Spec.BinaryVersion = "100", "1.38.0"
	e.admit(time.Now(), record, false)
	old := benchCandidate(0, 1)
	old.ResourceVersion, old.Spec.RenewTime = "99", ptr.To(metav1.NewMicroTime(time.Now().Add(time.Hour)))
	heard := e.candidates[old.Name].heard
	c.candidateSeen(nil, old, false)
	if got := e.candidates[old.Name]; got.version != "100" || got.peer.BinaryVersion != "1.38.0" || !got.heard.Equal(heard) {
		t.Errorf("an old event made the candidate %+v", got)
	}

	// A candidate that was re-created for another Lease, of which the watch has
	// missed the end.
	other := benchCandidate(0, 1)
	other.UID, other.ResourceVersion, other.Spec.LeaseName = "anew", "200", "elsewhere"
	c.candidateSeen(record, other, false)
	if e.candidates[other.Name] != nil || c.index[leaseKey(other)].candidates[other.Name] == nil {
		t.Error("it stands for its former Lease")
	}
}

// TestControllerRestoredBackup: the API server was restored from a backup, and
// its resourceVersions are lower than before. The result of a read counts.
func TestControllerRestoredBackup(t *testing.T) {
	c := benchController(t, 1, 2)
	e := c.index[types.NamespacedName{Namespace: "default", Name: "lease-0"}]
	e.observe(time.Now(), benchLease(0, 1000), c.rules)
	r := e.request(time.Now(), decision{do: look})
	r.gotLease, r.read = benchLease(0, 10), true
	r.gotLease.Spec.HolderIdentity = ptr.To("restored")
	c.takeIn(time.Now(), e, r)
	if e.holder() != "restored" {
		t.Errorf("the lease is %+v", e.lease)
	}
	// But not when the watch was faster than the answer.
	r = e.request(time.Now(), decision{do: look})
	e.observe(time.Now(), benchLease(0, 2000), c.rules)
	r.gotLease, r.read = benchLease(0, 11), true
	c.takeIn(time.Now(), e, r)
	if e.lease.ResourceVersion != "2000" {
		t.Errorf("the lease is %+v", e.lease)
	}
}

// A restored backup shows an earlier renewal of a candidate that may be dead. A clock
// that was set back shows an earlier time too, but in a newer version.
func TestOnlyANewerVersionIsASignOfLife(t *testing.T) {
	for name, tc := range map[string]struct {
		version string
		renewed time.Duration
		want    bool
	}{
		"renewed":                         {"101", time.Second, true},
		"renewed by a clock set back":     {"101", -time.Hour, true},
		"not renewed":                     {"101", 0, false},
		"restored, to an earlier renewal": {"99", -time.Second, false},
		"restored, with a later time":     {"99", time.Second, false},
	} {
		obj := benchCandidate(0, 1)
		obj.ResourceVersion = "100"
		start := time.Unix(1e9, 0)
		e := &entry{situation: situation{candidates: map[string]*candidate{}}}
		e.admit(start, obj, true)
		obj = obj.DeepCopy()
		obj.ResourceVersion, obj.Spec.RenewTime.Time = tc.version, obj.Spec.RenewTime.Add(tc.renewed)
		c := e.admit(start.Add(time.Minute), obj, false)
		if got := c.heard.After(start); got != tc.want || c.seen.After(start) != tc.want {
			t.Errorf("%s: heard at %v and seen at %v, want a sign of life: %v", name, c.heard, c.seen, tc.want)
		}
		if c.version != tc.version || c.renewTime != spec.Micros(obj.Spec.RenewTime) {
			t.Errorf("%s: version %s renewed at %d", name, c.version, c.renewTime)
		}
	}
}

// TestControllerRestoredServer: the API server is restored from a backup. Processes that
// start after that are elected soon, and a dead one is not, although the backup shows it
// alive. The watches continued from versions that the restored server reached after
// hours.
func TestControllerRestoredServer(t *testing.T) {
	for name, tc := range map[string]struct {
		names  []string // of the candidates that start after the restore
		outage bool     // the server is down before it
	}{
		"restarted candidates":                  {names: []string{"a", "b"}},
		"other candidates":                      {names: []string{"c", "d"}},
		"restarted candidates, after an outage": {names: []string{"a", "b"}, outage: true},
		"other candidates, after an outage":     {names: []string{"c", "d"}, outage: true},
	} {
		t.Run(name, ctlBubble(func(r *ctlRig) {
			r.start()
			a, b := r.stub("a", "1.19.0", "1.19.0").start(), r.stub("b", "1.19.0", "1.19.0").start()
			r.advance(20 * time.Second)
			restore := r.server.Backup()
			a.touch()
			b.touch()
			r.advance(time.Minute)
			r.want("holder", r.holder(), "a")
			up := func() {}
			if tc.outage {
				up = r.server.Inject(apitest.Fault{Err: apitest.ErrConnRefused})
				r.server.DropWatches(apitest.Match{})
			}
			a.stop()
			b.stop()
			r.advance(time.Minute)
			restore()
			up()
			restored := time.Now()
			r.told()
			for _, name := range tc.names {
				r.stub(name, "1.19.0", "1.19.0").start()
			}
			r.advance(2 * time.Minute)
			lease := r.lease()
			if !slices.Contains(tc.names, r.holder()) || !lease.Spec.RenewTime.After(restored) || time.Since(lease.Spec.RenewTime.Time) > 3*time.Second {
				r.Errorf("%s holds the Lease, renewed at %v", r.holder(), lease.Spec.RenewTime)
			}
			told := r.told()
			for _, dead := range []string{"a", "b"} {
				if !slices.Contains(tc.names, dead) && slices.Contains(told, "elected "+dead) {
					r.Errorf("a dead candidate was elected: %q", told)
				}
			}
		}))
	}
}

// TestControllerWritesAreConditional: a holder that renews while our watch is
// late is not written over, nor asked to give way because of its past.
func TestControllerWritesAreConditional(t *testing.T) {
	ctlBubble(func(r *ctlRig) {
		r.server.Put(r.leads("x", 0))
		r.start()
		r.stub("a", "1.19.0", "1.19.0").start()
		r.server.StallWatches(apitest.Match{User: ctlUser, Resource: "leases"})
		for range 4 {
			r.advance(12 * time.Second) // after the look at ten, before the election at fifteen
			apitest.Edit(r.server, ctlNamespace, ctlLease, func(l *coordinationv1.Lease) { l.Spec.RenewTime = ptr.To(metav1.NowMicro()) })
			r.advance(3*time.Second + 100*time.Millisecond)
			r.want("holder", r.holder(), "x")
		}
		if n := len(r.server.Requests(apitest.Match{User: ctlUser, Verb: "patch", Resource: "leases", Func: func(q apitest.Request) bool { return q.Code == 409 }})); n == 0 {
			r.Error("there was no conflict: the test tests nothing")
		}
	})(t)
}

// TestControllerBacksOffUnderEvents: whatever happens to the Lease meanwhile,
// a rejected request is not sent again before its time.
func TestControllerBacksOffUnderEvents(t *testing.T) {
	ctlBubble(func(r *ctlRig) {
		r.server.Inject(apitest.Fault{Match: apitest.Match{User: ctlUser, Verb: "create"}, Status: statuserr.InternalError("x")})
		r.start()
		a := r.stub("a", "1.19.0", "1.19.0").start()
		for range 600 {
			a.touch()
			r.advance(100 * time.Millisecond)
		}
		// 0.25, 0.5, 1, 2 … 30 s, each from its upper half.
		if n := len(r.server.Requests(apitest.Match{User: ctlUser, Verb: "create"})); n > 10 {
			r.Errorf("%d requests in a minute", n)
		}
	})(t)
}

// The object was read again after the conflict, and a Lease without a leader should not
// wait.
func TestTheFirstConflictIsRepeatedAtOnceAndTheNextOnesBackOff(t *testing.T) {
	conflict := statuserr.New(http.StatusConflict, metav1.StatusReasonConflict, "changed")
	e := &entry{situation: situation{candidates: map[string]*candidate{}}}
	now := time.Now()
	if wait := e.outcome(now, &request{do: assign}, conflict); wait != 0 {
		t.Errorf("waits %v after the first conflict", wait)
	}
	if wait := e.outcome(now, &request{do: assign}, conflict); wait < 100*time.Millisecond {
		t.Errorf("waits %v after the second conflict", wait)
	}
	e = &entry{situation: situation{candidates: map[string]*candidate{}}}
	if wait := e.outcome(now, &request{do: assign}, statuserr.InternalError("x")); wait < 100*time.Millisecond {
		t.Errorf("waits %v after an error of the server", wait)
	}
}

// The API server stores another value than it was sent, for example because of a
// webhook.
func TestAWriteWithoutEffectIsAnError(t *testing.T) {
	lease := func(holder, preferred string) *coordinationv1.Lease {
		return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, PreferredHolder: &preferred}}
	}
	pingedAt := func(micros int64) *coordinationv1beta1.LeaseCandidate {
		t := metav1.NewMicroTime(time.UnixMicro(micros))
		return &coordinationv1beta1.LeaseCandidate{Spec: coordinationv1beta1.LeaseCandidateSpec{PingTime: &t}}
	}
	for name, tc := range map[string]struct {
		r    request
		want error
	}{
		"assigned":                {request{do: assign, name: "a", gotLease: lease("a", "")}, nil},
		"assigned to another":     {request{do: assign, name: "a", gotLease: lease("b", "")}, errAltered},
		"assigned to none":        {request{do: assign, name: "a", gotLease: lease("", "")}, errAltered},
		"offered":                 {request{do: offer, name: "a", gotLease: lease("b", "a")}, nil},
		"offered, and dropped":    {request{do: offer, name: "a", gotLease: lease("b", "")}, ErrOffersDropped},
		"retracted":               {request{do: retract, gotLease: lease("b", "")}, nil},
		"retracted in vain":       {request{do: retract, gotLease: lease("b", "a")}, errAltered},
		"pinged":                  {request{do: ping, pingTime: 7, gotCandidate: pingedAt(7)}, nil},
		"pinged at another time":  {request{do: ping, pingTime: 7, gotCandidate: pingedAt(6)}, errAltered},
		"ping removed":            {request{do: unping, gotCandidate: &coordinationv1beta1.LeaseCandidate{}}, nil},
		"ping removed, but there": {request{do: unping, gotCandidate: pingedAt(7)}, errAltered},
	} {
		before, now := time.Unix(1, 0), time.Unix(2, 0)
		c := &Controller{droppedAt: before}
		if err := c.effect(now, &tc.r); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
		dropped := before // only an offer shows whether offers are dropped
		if tc.r.do == offer {
			dropped = map[bool]time.Time{true: now}[tc.want != nil]
		}
		if !c.droppedAt.Equal(dropped) {
			t.Errorf("%s: offers count as dropped at %v, want %v", name, c.droppedAt, dropped)
		}
	}
}

// A candidate that ended has deleted its LeaseCandidate. Another one must be chosen at
// once.
func TestAPingedCandidateThatIsGoneCostsNoWait(t *testing.T) {
	c := benchController(t, 1, 2)
	e := c.index[types.NamespacedName{Namespace: "default", Name: "lease-0"}]
	r := e.request(time.Now(), decision{do: ping, who: e.candidates["lease-0.1"]})
	r.gone, r.read = true, true
	c.takeIn(time.Now(), e, r)
	if wait := e.outcome(time.Now(), r, apierrors.NewNotFound(coordinationv1beta1.Resource("leasecandidates"), r.name)); wait != 0 {
		t.Errorf("waits %v", wait)
	}
	if e.candidates["lease-0.1"] != nil {
		t.Error("the candidate still counts")
	}
}
