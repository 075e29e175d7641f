// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubewright/kubewright/election/internal/machine"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// Each test here checks one guard that no other test needs.

func TestATermEndsExactlyAtItsDeadline(t *testing.T) {
	inRig(t, func(r *rig) {
		c := newClock()
		var causes chan error
		begin := func() *term {
			ended := make(chan error, 1)
			causes = ended
			tm := &term{clock: c, drain: time.Second, deadline: c.now().Mono + 10}
			tm.start(func() error { return nil }, func(err error) { ended <- err }, func(error) {})
			r.Cleanup(tm.finish)
			return tm
		}
		tm := begin()
		r.sleep(9)
		if now := c.now().Mono; len(causes) != 0 || !tm.extend(now, machine.Instant{}, now+11) {
			t.Error("expired before its deadline")
		}
		r.sleep(10)
		if len(causes) != 0 {
			t.Error("expired before the deadline to which it was extended")
		}
		r.sleep(1)
		cause := <-causes
		if now := c.now().Mono; !errors.Is(cause, ErrExpired) || tm.extend(now-1, machine.Instant{}, now+10) {
			t.Errorf("ended with %v, or extended after it expired", cause)
		}
		tm = begin()
		if tm.extend(tm.deadline, machine.Instant{}, tm.deadline+10) {
			t.Error("extended at its deadline")
		}
	})
}

// RenewDeadline leaves time for a second renewal, or the Timing is invalid.
func TestARenewalAndACallMustFitIntoRenewDeadline(t *testing.T) {
	timing := Timing{LeaseDuration: 15 * time.Second, RenewDeadline: 11 * time.Second, RenewInterval: 8 * time.Second}
	if err := timing.Validate(); err == nil || !strings.Contains(err.Error(), "RenewInterval") {
		t.Errorf("8.8 s + 2.2 s in 11 s: %v", err)
	}
	timing.RenewInterval -= 10 * time.Nanosecond
	if err := timing.Validate(); err != nil {
		t.Error(err)
	}
	cfg := validConfig()
	cfg.Timing = Timing{LeaseDuration: 4 * time.Second, RenewDeadline: 3 * time.Second, RenewInterval: time.Second, Drain: 500 * time.Millisecond}
	cfg.CallTimeout = 1900 * time.Millisecond
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "CallTimeout") {
		t.Errorf("1.1 s + 1.9 s in 3 s: %v", err)
	}
	cfg.CallTimeout--
	if _, err := New(cfg); err != nil {
		t.Error(err)
	}
}

func TestAStreamContinuesWhereTheLastOneEnded(t *testing.T) {
	var reported []error
	for name, tc := range map[string]struct {
		before   int
		lived    time.Duration
		err      error
		resume   string
		broken   int
		pause    time.Duration // at least
		lost     string
		reported bool
	}{
		"after minutes":             {broken: 0, before: 3, lived: longStream + time.Second, resume: "7"},
		"soon":                      {broken: 1, lived: time.Second, resume: "7", pause: 125 * time.Millisecond},
		"soon again":                {broken: 4, before: 3, lived: time.Second, resume: "7", pause: time.Second},
		"with an error, late":       {broken: 1, lived: longStream + time.Second, err: errBroken, resume: "7", pause: 125 * time.Millisecond, reported: true},
		"because the place is lost": {before: 3, err: statuserr.Gone(), lost: "gone"},
		"because it is refused":     {before: 3, err: statuserr.Forbidden("leases", "lease", ""), lost: "refused", reported: true},
	} {
		reported = nil
		l := &lane[*coordinationv1.Lease]{
			ctx: t.Context(), broken: tc.before, resume: "1", pause: time.Hour,
			handler: func(_ context.Context, err error, _ string) { reported = append(reported, err) },
		}
		lost := ""
		l.apply = func(e machine.Event) {
			lost = "refused"
			if e.(machine.WatchLost).Gone {
				lost = "gone"
			}
		}
		l.polls = func() bool { return lost == "refused" }
		l.sighted(&sight[*coordinationv1.Lease]{ended: true, version: "7", opened: time.Now().Add(-tc.lived), err: tc.err})
		if l.resume != tc.resume || l.broken != tc.broken || l.pause < tc.pause || (l.pause == 0) != (tc.pause == 0) || lost != tc.lost || (len(reported) > 0) != tc.reported {
			t.Errorf("%s: from %q after %v, %d broken, lost %q, reported %v", name, l.resume, l.pause, l.broken, lost, reported)
		}
	}
	var facts []string
	l := &lane[*coordinationv1.Lease]{ctx: t.Context(), broken: 3, apply: func(e machine.Event) { facts = append(facts, fmt.Sprintf("%T", e)) }}
	l.sighted(&sight[*coordinationv1.Lease]{began: true})
	if l.sighted(&sight[*coordinationv1.Lease]{}); l.broken != 0 || !slices.Equal(facts, []string{"machine.WatchBegan", "machine.WatchWorks"}) {
		t.Errorf("a bookmark is %v, broken %d", facts, l.broken)
	}
}

// TestASharedWatchBeginsAfreshOnce: another stream number asks for that, and not each time that
// the candidate joins again. It would cost all candidates of the process a watch.
func TestASharedWatchBeginsAfreshOnce(t *testing.T) {
	l := &lane[*coordinationv1.Lease]{ctx: t.Context(), stream: 1, running: new(sync.WaitGroup)}
	var joins []string
	l.join = func(_ context.Context, _, from string, afresh bool) (<-chan *sight[*coordinationv1.Lease], func() <-chan struct{}) {
		joins = append(joins, fmt.Sprint(from, " ", afresh))
		return make(chan *sight[*coordinationv1.Lease]), func() <-chan struct{} { return nil }
	}
	for _, stream := range []int{1, 1, 2, 2} {
		l.stopWatch()
		l.take(machine.Step{Watch: machine.Watched, Stream: stream, Version: "7"})
		l.take(machine.Step{Watch: machine.Watched, Stream: stream, Version: "8"}) // goes on
	}
	if want := []string{"7 false", "7 false", "7 true", "7 false"}; !slices.Equal(joins, want) {
		t.Errorf("joined from %v, want %v", joins, want)
	}
}

var errBroken = apierrors.NewInternalError(errors.New("broken"))

// watchRecorder is a client whose watches fail.
type watchRecorder struct {
	client[*coordinationv1.Lease]
	watches chan<- metav1.ListOptions
}

func (c watchRecorder) Watch(_ context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	c.watches <- opts
	return nil, errBroken
}

func TestTheNextStreamStartsAfterItsPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for resume, want := range map[string]string{"7": "7", "": "5"} {
			watches := make(chan metav1.ListOptions, 1)
			l := &lane[*coordinationv1.Lease]{
				client: watchRecorder{watches: watches}, resume: resume, pause: time.Minute,
				clock: newClock(), callTimeout: time.Second, requests: t.Context(), running: new(sync.WaitGroup),
			}
			started := time.Now()
			l.take(machine.Step{Watch: machine.Watched, Version: "5"})
			// Bookmarks show that a watch without changes works.
			if opts := <-watches; opts.ResourceVersion != want || time.Since(started) != time.Minute || !opts.AllowWatchBookmarks {
				t.Errorf("watches with %+v after %v, want from %q with bookmarks", opts, time.Since(started), want)
			}
			l.stopWatch()
			l.running.Wait()
		}
	})
}
