// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package contest

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// decideNow is when all decisions of the tables are taken.
var decideNow = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// byName is a strategy.
type byName struct{}

func (byName) Name() string                       { return "example.com/by-name" }
func (byName) Compare(a, b spec.Peer) int         { return cmp.Compare(b.Identity, a.Identity) }
func (byName) Eligible(spec.Peer) bool            { return true }
func (byName) Preempts(spec.Peer, spec.Peer) bool { return true }

// oldest is the strategy of the API server.
type oldest struct{}

func (oldest) Name() string { return "OldestEmulationVersion" }
func (oldest) Compare(a, b spec.Peer) int {
	return cmp.Or(spec.CompareVersions(a.Emulated(), b.Emulated()), spec.CompareVersions(a.BinaryVersion, b.BinaryVersion))
}
func (oldest) Eligible(p spec.Peer) bool {
	_, ok := spec.ParseVersion(p.BinaryVersion)
	return ok
}
func (oldest) Preempts(spec.Peer, spec.Peer) bool { return true }

func decideRules() *Rules {
	return &Rules{
		LeaseDuration: 15 * time.Second, AckTimeout: 5 * time.Second, MinTenure: 30 * time.Second, CandidateTTL: 30 * time.Minute,
		Strategies: map[string]spec.Strategy{byName{}.Name(): byName{}, oldest{}.Name(): oldest{}}, Random: func() float64 { return 0.5 },
	}
}

// scene is a contest in the making.
type scene struct{ *Contest }

// vacant is a Lease that does not exist, with candidates.
func vacant(candidates ...*candidate) *scene {
	s := &scene{New(decideRules())}
	for _, c := range candidates {
		s.candidates[c.Name] = c
	}
	return s
}

// held is a Lease with a holder who has renewed it so long ago, in a term that
// began an hour ago.
func held(holder string, ago time.Duration, candidates ...*candidate) *scene {
	s := vacant(candidates...)
	s.lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{UID: "lease", ResourceVersion: "7"}}
	s.lease.Spec.HolderIdentity, s.lease.Spec.LeaseTransitions = &holder, ptr.To[int32](3)
	s.pulseAt, s.termAt, s.renewed = decideNow.Add(-ago), decideNow.Add(-time.Hour), true
	return s.lasts(ptr.To[int32](15))
}

// lasts sets the duration that the holder of the Lease has stated.
func (s *scene) lasts(seconds *int32) *scene {
	s.lease.Spec.LeaseDurationSeconds, s.duration = seconds, spec.Duration{}
	s.duration.See(nil, s.lease, s.rules.LeaseDuration)
	return s
}

func (s *scene) with(f func(*scene)) *scene { f(s); return s }

// looked says that the Lease was read just now.
func (s *scene) looked() *scene { s.lookedAt = decideNow; return s }

func (s *scene) prefers(name string) *scene { s.lease.Spec.PreferredHolder = &name; return s }

// nominee is a candidate of version 1.x.0 that was heard
// of three minutes ago, when it last renewed its record.
func nominee(name string, minor int) *candidate {
	version := fmt.Sprintf("1.%d.0", minor)
	return &candidate{
		Candidate: Candidate{
			Name: name, UID: types.UID(name), Version: "5", Strategy: "OldestEmulationVersion", RenewTime: 100,
			Peer: spec.Peer{Identity: name, BinaryVersion: version, EmulationVersion: version, Created: decideNow.Add(-time.Hour)},
		},
		seen:  decideNow.Add(-3 * time.Minute),
		heard: decideNow.Add(-3 * time.Minute),
	}
}

func (c *candidate) with(f func(*candidate)) *candidate { f(c); return c }

// heardAgo says when the candidate was heard.
func (c *candidate) heardAgo(ago time.Duration) *candidate {
	c.heard = decideNow.Add(-ago)
	c.seen = c.heard
	return c
}

// pingedAgo says since when the candidate has a ping to answer.
func (c *candidate) pingedAgo(ago time.Duration) *candidate {
	c.pinged, c.PingTime = decideNow.Add(-ago), c.RenewTime+1
	return c
}

func (c *candidate) asks(strategy string) *candidate { c.Strategy = strategy; return c }

func (d Decision) String() string {
	s := cmp.Or(string(d.Do), "wait")
	if d.Name != "" {
		s += " " + d.Name
	}
	if d.Strategy != "" && d.Strategy != "OldestEmulationVersion" {
		s += " by " + d.Strategy
	}
	if d.Do == Wait && !d.WakeAt.IsZero() {
		s += " " + d.WakeAt.Sub(decideNow).String()
	}
	return s
}

func TestDecide(t *testing.T) {
	const fresh, stale = time.Second, time.Minute
	for _, tc := range []struct {
		name string
		s    *scene
		want string
	}{
		// The lease is vacant.
		{"absent, the only candidate is fresh", vacant(nominee("a", 1).heardAgo(fresh)), "assign a"},
		{"absent, the only candidate is not fresh", vacant(nominee("a", 1)), "ping a"},
		{"absent, only the best is pinged", vacant(nominee("a", 1), nominee("b", 2), nominee("c", 3)), "ping a"},
		{"absent, the best is pinged although others are fresh", vacant(nominee("a", 1), nominee("b", 2).heardAgo(fresh)), "ping a"},
		{"absent, the best has a ping to answer", vacant(nominee("a", 1).pingedAgo(2*time.Second), nominee("b", 2).heardAgo(fresh)), "wait 3s"},
		{"absent, the best has not answered", vacant(nominee("a", 1).pingedAgo(5*time.Second), nominee("b", 2).heardAgo(fresh)), "assign b"},
		{"absent, a nanosecond before that", vacant(nominee("a", 1).pingedAgo(5*time.Second-1), nominee("b", 2).heardAgo(fresh)), "wait 1ns"},
		{"absent, one after the other has not answered", vacant(nominee("a", 1).pingedAgo(stale), nominee("b", 2).pingedAgo(5*time.Second), nominee("c", 3)), "ping c"},
		{"absent, the best has not answered, the rest is asked at once", vacant(nominee("a", 1).pingedAgo(5*time.Second), nominee("b", 2).pingedAgo(time.Second), nominee("d", 4), nominee("e", 5), nominee("c", 3), nominee("f", 6), nominee("g", 7)), "ping c"},
		{"absent, a nanosecond too late for that", vacant(nominee("a", 1).pingedAgo(10*time.Second), nominee("b", 2).pingedAgo(time.Second), nominee("c", 3)), "wait 4s"},
		{"absent, a nanosecond before", vacant(nominee("a", 1).pingedAgo(10*time.Second-1), nominee("b", 2).pingedAgo(time.Second), nominee("c", 3)), "ping c"},
		{"absent, one has not answered, the rest can't lead or is fresh", vacant(nominee("a", 1).pingedAgo(5*time.Second), nominee("b", 2).pingedAgo(time.Second), nominee("c", 3).with(ineligible), nominee("d", 4).with(terminating), nominee("e", 5).heardAgo(fresh), nominee("f", 6).with(refused)), "wait 4s"},
		{"absent, the best still has time, the rest is not asked", vacant(nominee("a", 1).pingedAgo(4*time.Second), nominee("b", 2)), "wait 1s"},
		{"absent, nobody has answered", vacant(nominee("a", 1).pingedAgo(stale)), "wait 27m0s"},
		{"absent, the answer is too old", vacant(nominee("a", 1).heardAgo(5 * time.Second)), "ping a"},
		{"absent, the answer is just young enough", vacant(nominee("a", 1).heardAgo(5*time.Second - 1)), "assign a"},
		{"no holder", held("", stale, nominee("a", 1).heardAgo(fresh)), "assign a"},
		{"no holder is not silent: no look", held("", stale, nominee("a", 1)), "ping a"},
		{"no holder for a second", held("", time.Second, nominee("a", 1).heardAgo(fresh)), "assign a"},
		{"expired, not looked", held("x", 15*time.Second, nominee("a", 1)), "look"},
		{"expired, looked", held("x", 15*time.Second, nominee("a", 1)).looked(), "ping a"},
		{"expired, fresh", held("x", 15*time.Second, nominee("a", 1).heardAgo(fresh)).looked(), "assign a"},
		{"expired, fresh, not looked", held("x", 15*time.Second, nominee("a", 1).heardAgo(fresh)), "look"},
		{"a nanosecond before", held("x", 15*time.Second-1, nominee("a", 1).heardAgo(fresh)).looked(), "wait 1ns"},
		{"silent, not looked", held("x", 10*time.Second, nominee("a", 1)), "look"},
		{"silent, looked", held("x", 10*time.Second, nominee("a", 1)).looked(), "ping a"},
		{"looked before it was silent", held("x", 11*time.Second, nominee("a", 1)).with(func(s *scene) { s.lookedAt = decideNow.Add(-2 * time.Second) }), "look"},
		{"silent, answered", held("x", 10*time.Second+1, nominee("a", 1).heardAgo(1)).looked(), "wait 4.999999999s"},
		{"expired, answered while it was silent", held("x", 15*time.Second+1, nominee("a", 1).heardAgo(5*time.Second)).looked(), "assign a"},
		{"expired, answered before it was silent", held("x", 15*time.Second, nominee("a", 1).heardAgo(6*time.Second)).looked(), "ping a"},
		{"no holder, the answer is too old", held("", stale, nominee("a", 1).heardAgo(7*time.Second)), "ping a"},
		{"expired for long, answered while it was silent", held("x", 20*time.Second, nominee("a", 1).heardAgo(10*time.Second)).looked(), "ping a"},
		{"silent, the best has not answered", held("x", 14*time.Second, nominee("a", 1).pingedAgo(5*time.Second), nominee("b", 1)).looked(), "ping b"},
		{"a short lease", held("x", 2*time.Second, nominee("a", 1)).lasts(ptr.To[int32](3)), "look"},
		{"a short lease, in time", held("x", 2*time.Second-1, nominee("a", 1)).lasts(ptr.To[int32](3)), "wait 1ns"},
		{"a lease without duration has ours", held("x", 15*time.Second, nominee("a", 1).heardAgo(fresh)).lasts(nil).looked(), "assign a"},
		{"a lease without duration, in time", held("x", 9*time.Second, nominee("a", 1)).lasts(nil), "wait 1s"},
		{"a lease without renewTime counts from when it was seen", held("x", time.Second, nominee("a", 1)).with(func(s *scene) { s.lease.Spec.RenewTime = nil }), "wait 9s"},
		{"expired, the holder is the best and was not heard since", held("a", 15*time.Second, nominee("a", 1), nominee("b", 2)).looked(), "ping b"},
		{"expired, the holder is the best and was heard since", held("a", 15*time.Second, nominee("a", 1).heardAgo(fresh), nominee("b", 2)).looked(), "assign a"},
		{"expired, the holder is there and did not take what it was given", held("a", 15*time.Second, nominee("a", 1).heardAgo(fresh), nominee("b", 2).heardAgo(fresh)).with(func(s *scene) { s.assignee = s.candidates["a"] }).looked(), "assign b"},
		{"expired, the holder is the only one", held("a", 15*time.Second, nominee("a", 1)).looked(), "ping a"},
		{"expired, the holder is the only one and answers", held("a", 15*time.Second, nominee("a", 1).heardAgo(fresh)).looked(), "assign a"},
		{"expired, the others don't answer", held("a", 15*time.Second, nominee("a", 1), nominee("b", 2).pingedAgo(stale)).looked(), "ping a"},
		{"one that did not take its term is the last resort", vacant(nominee("a", 1).heardAgo(fresh).with(doubted), nominee("b", 2).heardAgo(fresh)), "assign b"},
		{"but better than nobody", vacant(nominee("a", 1).heardAgo(fresh).with(doubted)), "assign a"},
		{"doubt ends", vacant(nominee("a", 1).heardAgo(fresh).with(func(c *candidate) { c.doubtedUntil = decideNow }), nominee("b", 2).heardAgo(fresh)), "assign a"},
		{"one that can't be pinged is passed over", vacant(nominee("a", 1).with(refused), nominee("b", 2)), "ping b"},
		{"for a while", vacant(nominee("a", 1).with(refused)), "wait 1m0s"},

		// The lease is held.
		{"by the best", held("a", fresh, nominee("a", 1), nominee("b", 2)), "wait 9s"},
		{"by one of equals", held("b", fresh, nominee("a", 1), nominee("b", 1), nominee("c", 1)), "wait 9s"},
		{"by a younger one of equals", held("b", fresh, nominee("a", 1), nominee("b", 1).with(func(c *candidate) { c.Peer.Created = decideNow })), "wait 9s"},
		{"by a worse one", held("b", fresh, nominee("a", 1), nominee("b", 2)), "ping a"},
		{"by a worse one, fresh", held("b", fresh, nominee("a", 1).heardAgo(fresh), nominee("b", 2)), "offer a"},
		{"by a worse one, pinged", held("b", fresh, nominee("a", 1).pingedAgo(fresh), nominee("b", 2)), "wait 4s"},
		{"by a worse one, not answered", held("b", fresh, nominee("a", 1).pingedAgo(stale), nominee("b", 2)), "wait 9s"},
		{"by a worse one, the next better one", held("c", fresh, nominee("a", 1).pingedAgo(stale), nominee("b", 2), nominee("c", 3)), "ping b"},
		{"by a worse one, who has begun", held("b", fresh, nominee("a", 1), nominee("b", 2)).with(func(s *scene) { s.termAt = decideNow.Add(-28 * time.Second) }), "wait 2s"},
		{"by a worse one, exactly for its minimum", held("b", fresh, nominee("a", 1), nominee("b", 2)).with(func(s *scene) { s.termAt = decideNow.Add(-30 * time.Second) }), "ping a"},
		{"by a worse one, but offers are dropped", held("b", fresh, nominee("a", 1), nominee("b", 2)).with(func(s *scene) { s.offersFrom = decideNow.Add(4 * time.Second) }), "wait 4s"},
		{"by a worse one, but the better one did not take its term", held("b", fresh, nominee("a", 1).with(doubted), nominee("b", 2)), "wait 9s"},
		{"by a worse one, but the better one can't be pinged", held("b", fresh, nominee("a", 1).with(refused), nominee("b", 2)), "wait 9s"},
		{"by one that is no candidate", held("legacy", fresh, nominee("a", 1).heardAgo(fresh)), "wait 9s"},
		{"by one that is no candidate, with a preferred holder", held("legacy", fresh, nominee("a", 1)).prefers("gone"), "wait 9s"},
		{"by one whose record has gone stale", held("a", fresh, nominee("a", 9).with(func(c *candidate) { c.RenewTime = 0 }), nominee("b", 1).heardAgo(fresh)), "wait 9s"},

		// A holder is preferred.
		{"the best is preferred", held("b", fresh, nominee("a", 1).heardAgo(stale), nominee("b", 2)).prefers("a"), "wait 9s"},
		{"the holder itself is preferred", held("a", fresh, nominee("a", 1)).prefers("a"), "retract"},
		{"the holder is the best", held("a", fresh, nominee("a", 1), nominee("b", 2)).prefers("b"), "retract"},
		{"an equal is preferred", held("a", fresh, nominee("a", 1), nominee("b", 1)).prefers("b"), "retract"},
		{"the preferred is gone", held("b", fresh, nominee("b", 2)).prefers("a"), "retract"},
		{"the preferred does not answer", held("b", fresh, nominee("a", 1).pingedAgo(stale), nominee("b", 2)).prefers("a"), "retract"},
		{"a better one than the preferred", held("c", fresh, nominee("a", 1), nominee("b", 2), nominee("c", 3)).prefers("b"), "ping a"},
		{"a better one than the preferred, fresh", held("c", fresh, nominee("a", 1).heardAgo(fresh), nominee("b", 2), nominee("c", 3)).prefers("b"), "offer a"},
		{"the holder has stopped for the preferred, who is fresh", held("b", 15*time.Second, nominee("a", 1).heardAgo(fresh), nominee("b", 2)).prefers("a").looked(), "assign a"},
		{"the holder has stopped for the preferred, who died", held("b", 15*time.Second, nominee("a", 1).pingedAgo(5*time.Second), nominee("b", 2)).prefers("a").looked(), "ping b"},

		// Strategies.
		{"of others: the voter is pinged first", vacant(nominee("a", 1).asks("foo.com/bar")), "ping a"},
		{"of others: the lease is created", vacant(nominee("a", 1).asks("foo.com/bar").heardAgo(fresh)), "announce by foo.com/bar"},
		{"of others: one voter has answered, the other has time", vacant(nominee("a", 1).asks("foo.com/bar").heardAgo(fresh), nominee("b", 1).asks("foo.com/bar").pingedAgo(time.Second)), "wait 4s"},
		{"of others: voters are pinged one after the other", vacant(voters()...), "ping a"},
		{"of others: those with another vote are not pinged", vacant(nominee("a", 1), nominee("b", 9).asks("foo.com/bar").heardAgo(fresh)), "announce by foo.com/bar"},
		{"of others: a voter that can't be pinged is passed over", vacant(nominee("a", 1).asks("foo.com/bar").with(refused), nominee("b", 1).asks("foo.com/bar")), "ping b"},
		{"of others: a voter that is being deleted is passed over", vacant(nominee("a", 1).asks("foo.com/bar").with(terminating), nominee("b", 1).asks("foo.com/bar")), "ping b"},
		{"of others: no vote of a voter that has not answered", vacant(nominee("a", 9).asks("foo.com/bar").pingedAgo(5*time.Second), nominee("b", 1).heardAgo(fresh)), "assign b"},
		{"of others: and the holder is silent", held("x", time.Minute, nominee("a", 9).asks("foo.com/bar"), nominee("b", 1)).looked(), "ping a"},
		{"of others: a silent holder is read before any voter is pinged", held("x", time.Minute, nominee("a", 9).asks("foo.com/bar"), nominee("b", 1)), "look"},
		{"of others: and no voter answers", held("x", time.Minute, nominee("a", 9).asks("foo.com/bar").pingedAgo(5*time.Second), nominee("b", 1)).looked(), "ping b"},
		{"of others: asked since the lease was vacated", held("", stale, nominee("a", 1).asks("foo.com/bar").heardAgo(2*time.Minute)).with(func(s *scene) { s.termAt = decideNow.Add(-time.Minute) }), "ping a"},
		{"of others: and left alone without holder", held("", stale, nominee("a", 1).asks("foo.com/bar")), "wait 27m0s"},
		{"of others: and expired", held("x", time.Hour, nominee("a", 1).asks("foo.com/bar")).looked(), "wait 27m0s"},
		{"of others: and with a stale preferred holder", held("x", fresh, nominee("a", 1).asks("foo.com/bar")).prefers("gone"), "wait 9s"},
		{"of the embedder", vacant(nominee("a", 1).asks("example.com/by-name").heardAgo(fresh), nominee("b", 2).asks("example.com/by-name").heardAgo(fresh)), "assign b by example.com/by-name"},
		{"that of the highest version holds", vacant(nominee("a", 1).heardAgo(fresh), nominee("b", 2).asks("example.com/by-name").heardAgo(fresh)), "assign b by example.com/by-name"},
		{"that of the highest version holds, if it is one of others", vacant(nominee("a", 1).heardAgo(fresh), nominee("b", 2).asks("foo.com/bar").heardAgo(fresh)), "announce by foo.com/bar"},
		{"different ones at the same version elect", vacant(nominee("a", 2).heardAgo(fresh), nominee("b", 2).asks("example.com/by-name").heardAgo(fresh)), "assign a"},
		{"different ones at the same version: one that we know", vacant(nominee("a", 2).asks("a.com/unknown"), nominee("b", 2).asks("example.com/by-name").heardAgo(fresh)), "assign b by example.com/by-name"},
		{"different ones at the same version preempt nobody", held("b", fresh, nominee("a", 1).heardAgo(fresh), nominee("b", 2), nominee("c", 2).asks("example.com/by-name").heardAgo(fresh)), "wait 9s"},
		{"different ones at the same version: offers are taken back", held("b", fresh, nominee("a", 1), nominee("b", 2), nominee("c", 2).asks("example.com/by-name")).prefers("a"), "retract"},
		{"one that is not eligible", vacant(nominee("a", 1).with(ineligible)), "wait 27m0s"},

		// Candidates.
		{"none", vacant(), "wait"},
		{"none, and a lease", held("x", time.Hour), "wait"},
		{"one that has never renewed", vacant(nominee("a", 1).with(func(c *candidate) { c.RenewTime = 0 })), "wait 27m0s"},
		{"one that can't be read", vacant(nominee("a", 1).with(func(c *candidate) { c.Invalid = errInvalid })), "wait 27m0s"},
		{"one that can't be read has no vote", vacant(nominee("a", 1).heardAgo(fresh), nominee("b", 9).asks("foo.com/bar").heardAgo(fresh).with(func(c *candidate) { c.Invalid = errInvalid })), "assign a"},
		{"one that is being deleted", vacant(nominee("a", 1).heardAgo(fresh).with(terminating)), "wait 30m0s"},
		{"one that has not renewed for the TTL", vacant(nominee("a", 1).heardAgo(30 * time.Minute)), "collect a"},
		{"one that has not renewed for the TTL has no vote", vacant(nominee("a", 1).heardAgo(fresh), nominee("b", 9).asks("foo.com/bar").heardAgo(30*time.Minute)), "assign a"},
		{"the election goes first", vacant(nominee("a", 1).heardAgo(time.Hour), nominee("b", 1)), "ping b"},
		{"one that has expired is not waited for", held("b", fresh, nominee("a", 1).heardAgo(30*time.Minute), nominee("b", 2)), "collect a"},
		{"the oldest goes first", held("x", fresh, nominee("a", 1).heardAgo(31*time.Minute), nominee("b", 2).heardAgo(40*time.Minute)), "collect b"},
		{"one that can't be deleted is left for a while", vacant(nominee("a", 1).heardAgo(time.Hour).with(refused)), "wait 1m0s"},
		{"one that answers the same ping again and again", held("a", fresh, nominee("a", 1).with(spinning)), "unping a"},
		{"several that do", held("a", fresh, nominee("c", 1).with(spinning), nominee("b", 1).with(spinning), nominee("a", 1).with(spinning), nominee("d", 1).with(spinning)), "unping a"},
		{"one that does holds up no election", vacant(nominee("a", 1).heardAgo(fresh), nominee("b", 2).with(spinning)), "assign a"},
		{"one that does and can't be patched", held("a", fresh, nominee("a", 1).with(spinning).with(refused)), "wait 9s"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := tc.s.Next(decideNow)
			if got.String() != tc.want {
				t.Errorf("decide = %v (%s), want %s", got, got.Why, tc.want)
			}
		})
	}
}

var errInvalid = errors.New("invalid")

func doubted(c *candidate) { c.doubtedUntil = decideNow.Add(time.Minute) }
func refused(c *candidate) { c.retryAt = decideNow.Add(time.Minute) }

func ineligible(c *candidate)  { c.Peer.BinaryVersion = "" }
func terminating(c *candidate) { c.Terminating = true }
func spinning(c *candidate)    { c.PingTime, c.answered = 200, 200 }

// voters are candidates that want a strategy that is carried out elsewhere.
func voters() (all []*candidate) {
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		all = append(all, nominee(name, 1).asks("foo.com/bar"))
	}
	return all
}

// TestDecideAlwaysWakes takes decisions in ten thousand situations made at
// random: with candidates there is an action or a time in the future
// at which something is different, and the decision does not depend on the
// order in which maps are read.
func TestDecideAlwaysWakes(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 3))
	ago := func() time.Duration {
		return []time.Duration{0, time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, time.Minute, 30 * time.Minute, time.Hour}[rng.IntN(8)]
	}
	strategies := []string{"OldestEmulationVersion", "OldestEmulationVersion", "example.com/by-name", "foo.com/bar", ""}
	cases := 10_000
	if testing.Short() {
		cases = 1_000
	}
	for range cases {
		var candidates []*candidate
		for i := range rng.IntN(5) {
			c := nominee(string(rune('a'+i)), rng.IntN(3)).heardAgo(ago()).asks(strategies[rng.IntN(len(strategies))])
			if rng.IntN(3) == 0 {
				c.pingedAgo(ago())
			}
			for _, f := range []func(*candidate){doubted, refused, func(c *candidate) { c.RenewTime = 0 }, func(c *candidate) { c.Terminating = true },
				func(c *candidate) { c.PingTime, c.answered = 300, 300 }} {
				if rng.IntN(8) == 0 {
					f(c)
				}
			}
			candidates = append(candidates, c)
		}
		s := held([]string{"", "a", "b", "x"}[rng.IntN(4)], ago(), candidates...).prefers([]string{"", "", "a", "b", "x"}[rng.IntN(5)])
		if rng.IntN(4) == 0 {
			s = vacant(candidates...)
		}
		if rng.IntN(2) == 0 {
			s.looked()
		}
		d := s.Next(decideNow)
		if again := s.Next(decideNow); again.String() != d.String() {
			t.Fatalf("%v and then %v in the same situation", d, again)
		}
		if len(candidates) > 0 && d.Do == Wait && !d.WakeAt.After(decideNow) {
			t.Fatalf("waits until %v with candidates %+v and lease %+v", d.WakeAt, candidates, s.lease)
		}
		if d.Do == Assign && s.Holder() != "" && decideNow.Before(s.pulseAt.Add(15*time.Second)) {
			t.Fatalf("assigns a lease that is held: %+v", s.lease)
		}
	}
}

// TestDecideReachesTheNextDeadline wakes a decision at exactly the time that it
// asks for: something else must come of it, or a later time.
func TestDecideReachesTheNextDeadline(t *testing.T) {
	for _, s := range []*scene{
		vacant(nominee("a", 1).pingedAgo(time.Second)),
		held("x", time.Second, nominee("a", 1)),
		held("b", time.Second, nominee("a", 1).pingedAgo(time.Second), nominee("b", 2)),
		held("b", time.Second, nominee("a", 1), nominee("b", 2)).with(func(s *scene) { s.termAt = decideNow }),
		held("x", 11*time.Second, nominee("a", 1).heardAgo(time.Second)).looked(),
	} {
		now := decideNow
		d := s.Next(now)
		for steps := 0; d.Do == Wait; steps++ {
			if steps == 5 || !d.WakeAt.After(now) {
				t.Fatalf("stuck at %v: %v", now.Sub(decideNow), d)
			}
			now = d.WakeAt
			d = s.Next(now)
		}
	}
}

// A candidate that did not claim a Lease is doubted only if the Lease fell silent. Another
// client that took the Lease earlier says nothing about it. A claim ends all doubts.
func TestDoubtsAboutAnAssignee(t *testing.T) {
	for name, tc := range map[string]struct {
		after  time.Duration
		holder string
		want   int
	}{
		"taken at once by another client": {time.Second, "other", 2},
		"silent, and given to another":    {time.Minute, "other", 3},
		"claimed":                         {time.Second, "a", 0},
	} {
		a := nominee("a", 30)
		a.doubts = 2
		e := held("a", 0, a).Contest
		e.assignee = a
		next := e.lease.DeepCopy()
		next.Spec.HolderIdentity, next.Spec.RenewTime = &tc.holder, ptr.To(metav1.NewMicroTime(decideNow))
		if tc.holder != "a" {
			next.Spec.LeaseTransitions = ptr.To[int32](4)
		}
		e.observe(decideNow.Add(tc.after), next)
		if a.doubts != tc.want || e.assignee != nil {
			t.Errorf("%s: %d doubts, want %d; assignee %v", name, a.doubts, tc.want, e.assignee)
		}
	}
}

func TestControllerShouldReelect(t *testing.T) {
	for _, tc := range []struct {
		name string
		s    *scene
		want Do
	}{
		{"candidate with newer binary version", held("a", time.Second, nominee("a", 19), nominee("b", 20).heardAgo(0)), Wait},
		{"no newer candidates", held("a", time.Second, nominee("a", 19), nominee("b", 19).heardAgo(0)), Wait},
		{"no candidates", held("a", time.Second), Wait},
		{"candidate with older emulation version", held("a", time.Second, nominee("a", 19), nominee("b", 18).heardAgo(0)), Offer},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if d := tc.s.Next(decideNow); d.Do != tc.want {
				t.Errorf("decide = %v, want %v", d, tc.want)
			}
		})
	}
}
