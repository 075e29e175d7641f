// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"hash/maphash"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A client may have written an amount with another text or unit.
func TestAnAmountInOtherWordsIsNoDifference(t *testing.T) {
	for text, same := range map[string]bool{"4000m": true, "0.004k": true, "4": true, "4001m": false, "3": false} {
		shown := said(nil)
		quantity := resource.MustParse(text)
		shown.Status.Capacity[corev1.ResourceCPU], shown.Status.Allocatable[corev1.ResourceCPU] = quantity, quantity
		if d := compare(said(nil), shown, nil); (len(d) == 0) != same {
			t.Errorf("%s: difference %+v", text, d)
		}
	}
}

// An annotation that is left out makes room for those after it.
func TestAnAnnotationThatIsLeftOutTakesNoRoom(t *testing.T) {
	node := said(func(n *corev1.Node) {
		n.Annotations = map[string]string{
			"a": strings.Repeat("x", apivalidation.TotalAnnotationSizeLimitB/2),
			"b": strings.Repeat("x", apivalidation.TotalAnnotationSizeLimitB),
			"c": strings.Repeat("x", apivalidation.TotalAnnotationSizeLimitB/2-2),
			"d": "x",
		}
	})
	problems := DropInvalid(node, false)
	if len(problems) != 2 || len(node.Annotations) != 2 || node.Annotations["a"] == "" || node.Annotations["c"] == "" {
		t.Errorf("%d annotations left, problems %q", len(node.Annotations), problems)
	}
}

// An answer is older than an event that came after the request was sent.
func TestAnEventDuringARequestOutlivesItsAnswer(t *testing.T) {
	node := func(version string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node1, UID: "a", ResourceVersion: version}}
	}
	for name, tc := range map[string]struct{ event, answer, want string }{
		"no event, a newer answer":       {"", "21", "21"},
		"no event, restored":             {"", "10", "10"},
		"an event newer than the answer": {"30", "21", "30"},
		"an event older than the answer": {"21", "30", "30"},
	} {
		s := New(&Rules{Seed: maphash.MakeSeed()})
		s.take(node("20"))
		held := s.view
		if tc.event != "" {
			s.see(node(tc.event))
		}
		if s.seeAnswer(node(tc.answer), held); s.view.resourceVersion != tc.want {
			t.Errorf("%s: the view is %s, want %s", name, s.view.resourceVersion, tc.want)
		}
	}
}

// Events that show older versions lag behind an answer. If they go on to do so for an
// interval, the API server was restored from a backup, and a read decides.
func TestEventsThatStayBehindNeedARead(t *testing.T) {
	node := func(uid, version string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node1, UID: types.UID(uid), ResourceVersion: version}}
	}
	const every = 4 * time.Second
	for name, tc := range map[string]struct {
		events []Shown // one every four seconds, and one round
		want   sight
	}{
		"older":                             {[]Shown{{Node: node("a", "10")}, {}, {}, {}}, doubted},
		"older ones":                        {[]Shown{{Node: node("a", "10")}, {Node: node("a", "11")}, {Node: node("a", "12")}, {Node: node("a", "13")}}, doubted},
		"older, but not for long enough":    {[]Shown{{Node: node("a", "10")}, {}, {}}, settled},
		"older, then the same":              {[]Shown{{Node: node("a", "10")}, {Node: node("a", "20")}, {}, {}}, settled},
		"older, then newer":                 {[]Shown{{Node: node("a", "10")}, {Node: node("a", "21")}, {}, {}}, foreign},
		"another object":                    {[]Shown{{Node: node("b", "10")}, {}, {}, {}}, doubted},
		"the deletion of the object before": {[]Shown{{Node: node("b", "10"), Deleted: true}, {}, {}, {}}, settled},
	} {
		s := New(&Rules{Seed: maphash.MakeSeed(), Interval: 10 * time.Second, Report: time.Hour})
		now := time.Hour
		if err := errors.Join(s.become(Unsure), s.register(node("a", "20"))); err != nil {
			t.Fatal(err)
		}
		for _, ev := range tc.events {
			if ev.Node != nil {
				_, _ = s.Apply(now, ev)
			}
			_, _ = s.Apply(now, RoundEnded{Name: node1, Node: &corev1.Node{}})
			now += every
		}
		if s.sight != tc.want {
			t.Errorf("%s: %v, want %v", name, s.sight, tc.want)
		}
	}
}

func TestNextReportAfter(t *testing.T) {
	const interval = 5 * time.Minute
	for _, tc := range []struct {
		cause Cause
		draw  float64
		want  time.Duration
	}{
		{Report, 0.9, time.Hour + interval},
		{Change, 0, time.Hour + interval/2},
		{Change, 0.5, time.Hour + interval},
		{"", 1, time.Hour + 3*interval/2},
	} {
		if got := nextReportAfter(time.Hour, interval, tc.cause, tc.draw); got != tc.want {
			t.Errorf("nextReportAfter(%q, %v) = %v, want %v", tc.cause, tc.draw, got, tc.want)
		}
	}
}

// The waits grow to a cap, for a server that refuses more than for one that is away.
func TestWaits(t *testing.T) {
	s := New(&Rules{Seed: maphash.MakeSeed()})
	between := func(what string, low, high time.Duration) {
		t.Helper()
		if got := s.notBefore - time.Hour; got < low || got > high {
			t.Errorf("%s: %v, want between %v and %v", what, got, low, high)
		}
	}
	fail := func(v Verdict, times int) {
		for range times {
			s.count(time.Hour, Failed{Verdict: v, Err: errors.New("e")})
		}
	}
	fail(Away, 1)
	between("first failure", 100*time.Millisecond, 200*time.Millisecond)
	fail(Away, 9)
	between("tenth failure", 3500*time.Millisecond, 7*time.Second)
	fail(Refused, 1)
	between("first refusal", 3500*time.Millisecond, 7*time.Second)
	fail(Refused, 9)
	between("tenth refusal", 15*time.Second, 30*time.Second)
	fail(Away, 1)
	between("away again", 3500*time.Millisecond, 7*time.Second)
	fail(Refused, 1)
	between("first refusal after that", 3500*time.Millisecond, 7*time.Second)
	s.count(time.Hour, Failed{RetryAfter: 20 * time.Second})
	between("the server's wish", 20*time.Second, 20*time.Second)
	s.count(time.Hour, Failed{RetryAfter: time.Hour})
	between("the server's whim", maxRetryAfter, maxRetryAfter)
}

// The phase changes in the ways of the diagram only, and a refused change leaves the
// state as it was.
func TestPhases(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node1, UID: "a", ResourceVersion: "1"}}
	allowed := map[Phase][]Phase{
		Absent:     {Missing, Unsure, Registered},
		Missing:    {Unsure},
		Unsure:     {Absent, Unsure, Registered},
		Registered: {Absent, Registered, Deleted},
		Deleted:    {Registered},
	}
	for from, targets := range allowed {
		for to := range allowed {
			become := func(s *State) error { return s.become(to) }
			if to == Registered {
				become = func(s *State) error { return s.register(node) }
			}
			s := New(&Rules{Seed: maphash.MakeSeed()})
			if s.phase = from; from == Registered {
				s.take(node)
			}
			err := become(&s)
			want := false
			for _, target := range targets {
				want = want || target == to
			}
			if (err == nil) != want || err != nil && (!errors.Is(err, errPhase) || s.phase != from) || err == nil && s.phase != to {
				t.Errorf("from %v to %v: %v, the phase is %v", from, to, err, s.phase)
			}
			if err := s.Check(); err != nil {
				t.Errorf("from %v to %v: %v", from, to, err)
			}
		}
	}
}

// Check finds each broken invariant.
func TestCheck(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node1, UID: "a", ResourceVersion: "1"}}
	fresh := func() *State {
		s := New(&Rules{Setters: 1, Checks: 1, Seed: maphash.MakeSeed()})
		return &s
	}
	registered := func() *State {
		s := fresh()
		_ = s.register(node)
		return s
	}
	for name, s := range map[string]*State{"fresh": fresh(), "registered": registered()} {
		if err := s.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, edit := range map[string]func(s *State){
		"registered without a view":     func(s *State) { s.phase = Registered },
		"a view of nothing":             func(s *State) { s.take(node) },
		"an accepted status of nothing": func(s *State) { s.accepted = 1 },
		"owned fields of nothing":       func(s *State) { o := decodeOwnership(s.owned); s.owned = encode(o) },
		"owed to nothing":               func(s *State) { s.sight = owed },
		"foreign and nothing":           func(s *State) { s.sight = foreign },
		"settled before it began":       func(s *State) { s.agreed = 1 },
		"reading without a read":        func(s *State) { s.sight = reading },
		"creating, and sure":            func(s *State) { s.sent = &sent{do: Create} },
		"too many conflicts":            func(s *State) { s.want = &want{conflicts: maxConflicts + 1} },
		"trouble without a failure":     func(s *State) { s.trouble = &trouble{} },
		"more refusals than failures":   func(s *State) { s.trouble = &trouble{failures: 1, refusals: 2} },
		"a call too few":                func(s *State) { s.calls = s.calls[:1] },
		"a check with values":           func(s *State) { s.calls[1].taken, s.calls[1].after = true, 1 },
		"a check that keeps values":     func(s *State) { s.calls[1].after = 1 },
		"values that were not kept":     func(s *State) { s.calls[0].taken = true },
		"an error that has not arrived": func(s *State) { s.calls[1].err = errPhase },
		"late without checks":           func(s *State) { s.rules = &Rules{Setters: 2}; s.lateRounds = 1 },
	} {
		s := fresh()
		if edit(s); s.Check() == nil {
			t.Errorf("%s: no error", name)
		}
	}
	s := registered()
	if s.view.uid = ""; s.Check() == nil {
		t.Error("a view without a UID: no error")
	}
}
