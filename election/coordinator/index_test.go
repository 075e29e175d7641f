// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator

import (
	"errors"
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election/coordinator/internal/contest"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// A candidate that was re-created for another Lease, of which the watch has missed the
// end, does not stand for its former Lease.
func TestACandidateThatChangesItsLease(t *testing.T) {
	c := benchController(t, 1, 2)
	record, other := benchCandidate(0, 1), benchCandidate(0, 1)
	other.UID, other.ResourceVersion, other.Spec.LeaseName = "another", "200", "elsewhere"
	c.candidateSeen(record, other, false)
	if c.index[leaseKey(record)].Has(other.Name) || !c.index[leaseKey(other)].Has(other.Name) {
		t.Error("it stands for its former Lease")
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

// After a restore the records of living candidates have lower versions than before for a
// long time. They were taken for old events, and the records were deleted half an hour later.
func TestControllerKeepsRestoredCandidates(t *testing.T) {
	ctlBubble(func(r *ctlRig) {
		r.start()
		a, b := r.stub("a", "1.19.0", "1.19.0").start(), r.stub("b", "1.19.0", "1.19.0").start()
		r.advance(20 * time.Second)
		restore := r.server.Backup()
		a.touch()
		b.touch()
		r.advance(time.Minute)
		restore()
		r.told()
		for range 12 {
			r.advance(5 * time.Minute)
			for _, name := range []string{"a", "b"} {
				if r.candidate(name) == nil {
					r.Fatalf("the record of %s is gone: %q", name, r.told())
				}
				apitest.Edit(r.server, ctlNamespace, name, func(c *coordinationv1beta1.LeaseCandidate) { c.Spec.RenewTime = ptr.To(metav1.NowMicro()) })
			}
		}
		if told := r.told(); slices.ContainsFunc(told, func(s string) bool { return s[0] == 'c' }) {
			r.Errorf("%q", told)
		}
	})(t)
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
		"assigned":                {request{Decision: contest.Decision{Do: contest.Assign, Name: "a"}, gotLease: lease("a", "")}, nil},
		"assigned to another":     {request{Decision: contest.Decision{Do: contest.Assign, Name: "a"}, gotLease: lease("b", "")}, errAltered},
		"assigned to none":        {request{Decision: contest.Decision{Do: contest.Assign, Name: "a"}, gotLease: lease("", "")}, errAltered},
		"offered":                 {request{Decision: contest.Decision{Do: contest.Offer, Name: "a"}, gotLease: lease("b", "a")}, nil},
		"offered, and dropped":    {request{Decision: contest.Decision{Do: contest.Offer, Name: "a"}, gotLease: lease("b", "")}, ErrOffersDropped},
		"retracted":               {request{Decision: contest.Decision{Do: contest.Retract}, gotLease: lease("b", "")}, nil},
		"retracted in vain":       {request{Decision: contest.Decision{Do: contest.Retract}, gotLease: lease("b", "a")}, errAltered},
		"pinged":                  {request{Decision: contest.Decision{Do: contest.Ping, PingTime: 7}, gotCandidate: pingedAt(7)}, nil},
		"pinged at another time":  {request{Decision: contest.Decision{Do: contest.Ping, PingTime: 7}, gotCandidate: pingedAt(6)}, errAltered},
		"ping removed":            {request{Decision: contest.Decision{Do: contest.Unping}, gotCandidate: &coordinationv1beta1.LeaseCandidate{}}, nil},
		"ping removed, but there": {request{Decision: contest.Decision{Do: contest.Unping}, gotCandidate: pingedAt(7)}, errAltered},
	} {
		before, now := time.Unix(1, 0), time.Unix(2, 0)
		c := &Controller{droppedAt: before}
		if err := c.effect(now, &tc.r); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
		dropped := before // only an offer shows whether offers are dropped
		if tc.r.Do == contest.Offer {
			dropped = map[bool]time.Time{true: now}[tc.want != nil]
		}
		if !c.droppedAt.Equal(dropped) {
			t.Errorf("%s: offers count as dropped at %v, want %v", name, c.droppedAt, dropped)
		}
	}
}
