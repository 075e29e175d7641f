// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func digestOf(data []byte) Digest { return sha256.Sum256(data) }

// ref returns the reference to a payload of one letter.
func ref(text string) *Ref {
	if text == "" {
		return nil
	}
	return &Ref{Digest: digestOf([]byte(text)), Name: text}
}

// state makes a record: assigned, last known good, previous.
func state(assigned, lkg, previous string) Record {
	r := Empty()
	r.Assigned, r.LKG, r.Previous = ref(assigned), ref(lkg), ref(previous)
	return r
}

func (r Record) withTrial(t Trial) Record {
	t.Digest = r.Assigned.Digest
	r.Trial = &t
	return r
}

func (r Record) withRejected(build string, texts ...string) Record {
	for _, text := range texts {
		r = reject(r, Rejection{Digest: ref(text).Digest, Build: build, Reason: "Unhealthy", Message: text})
	}
	return r
}

// show renders what matters of a record, for tables.
func (r Record) show() string {
	name := func(ref *Ref) string {
		if ref == nil {
			return "-"
		}
		return ref.Name
	}
	s := name(r.Assigned) + name(r.LKG) + name(r.Previous)
	if t := r.Trial; t != nil {
		s += fmt.Sprintf(" trial %d/%d", t.Failed, t.Rebooted)
		if t.Open {
			s += " open"
		}
	}
	for _, x := range r.Rejected {
		s += " !" + x.Message
	}
	return s
}

func TestTransitions(t *testing.T) {
	yes := func(r Record, ok bool) Record {
		if !ok {
			t.Helper()
			t.Error("no change")
		}
		return r
	}
	no := func(r Record, ok bool) Record {
		if ok {
			t.Helper()
			t.Error("a change")
		}
		return r
	}
	running := func(text string) Digest { return digestOf([]byte(text)) }
	for _, test := range []struct {
		name string
		got  Record
		want string
	}{
		{"stage on an empty record", stage(Empty(), *ref("A"), "1"), "A-- trial 0/0"},
		{"stage beside a good one", stage(state("A", "A", "Z"), *ref("B"), "1"), "BAZ trial 0/0"},
		{"stage during a trial: the target stays", stage(state("B", "A", "").withTrial(Trial{Failed: 2}), *ref("C"), "1"), "CA- trial 0/0"},
		{"back to the good one: no trial", stage(state("B", "A", "").withTrial(Trial{Open: true}), *ref("A"), "1"), "AA-"},
		{"unassign forgets what was good", unassign(state("B", "A", "Z").withTrial(Trial{})), "---"},

		{"promote", yes(promote(state("B", "A", "Z").withTrial(Trial{Open: true}), running("B"))), "BBA"},
		{"the first promotion", yes(promote(state("A", "", "").withTrial(Trial{}), running("A"))), "AA-"},
		{"promote what is not assigned any more", no(promote(state("C", "A", "").withTrial(Trial{}), running("B"))), "CA- trial 0/0"},
		{"promote what is good", no(promote(state("A", "A", ""), running("A"))), "AA-"},
		{"promote the default", no(promote(Empty(), Digest{})), "---"},
		{"a promotion ends its rejections", yes(promote(state("B", "A", "").withRejected("old", "B", "C").withTrial(Trial{}), running("B"))), "BBA !C"},

		{"reject what is assigned", state("B", "A", "").withTrial(Trial{Build: "1", Failed: 1}).withRejected("1", "B"), "BA- !B"},
		{"the starts of another build stay", state("B", "A", "").withTrial(Trial{Build: "2", Failed: 1, Rebooted: 1}).withRejected("1", "B"), "BA- trial 1/1 !B"},
		{"reject at the door: the trial goes on", state("B", "A", "").withTrial(Trial{Failed: 1}).withRejected("1", "C"), "BA- trial 1/0 !C"},
		{"reject twice", state("B", "A", "").withRejected("1", "C", "D", "C"), "BA- !D !C"},
		{"the oldest goes", state("A", "A", "").withRejected("1", "1", "2", "3", "4", "5"), "AA- !2 !3 !4 !5"},
		{"but never that of the assigned", state("B", "A", "").withRejected("1", "B", "2", "3", "4", "5", "6"), "BA- !B !4 !5 !6"},
		{"even if it never ran", reject(state("B", "A", ""), Rejection{Digest: ref("B").Digest, Build: "1", Reason: DecodeFailed, Message: "B"}).withRejected("1", "1", "2", "3", "4", "5"), "BA- !B !3 !4 !5"},

		{"forget", yes(forget(state("B", "A", "").withRejected("1", "B", "C"), running("B"))), "BA- !C"},
		{"forget what is not rejected", no(forget(state("B", "A", "").withRejected("1", "C"), running("B"))), "BA- !C"},

		{"open a start", openAttempt(state("B", "A", "").withTrial(Trial{Build: "1", Failed: 1}), "1", "x"), "BA- trial 1/0 open"},
		{"open the first by another build", openAttempt(state("B", "A", "").withTrial(Trial{Build: "1", Failed: 2}), "2", "x"), "BA- trial 0/0 open"},
		{"open one without a trial", openAttempt(state("B", "A", ""), "1", "x"), "BA- trial 0/0 open"},
		{"a clean stop", yes(endAttempt(state("B", "A", "").withTrial(Trial{Failed: 1, Open: true}), true, "")), "BA- trial 1/0"},
		{"a failed stop", yes(endAttempt(state("B", "A", "").withTrial(Trial{Failed: 1, Open: true}), false, "why")), "BA- trial 2/0"},
		{"no start to end", no(endAttempt(state("B", "A", "").withTrial(Trial{Failed: 1}), true, "")), "BA- trial 1/0"},
		{"after a crash", afterBoot(state("B", "A", "").withTrial(Trial{Open: true, BootID: "x"}), "x"), "BA- trial 1/0"},
		{"after a power cut", afterBoot(state("B", "A", "").withTrial(Trial{Open: true, BootID: "x"}), "y"), "BA- trial 1/1"},
		{"after a clean stop", afterBoot(state("B", "A", "").withTrial(Trial{BootID: "x"}), "y"), "BA- trial 0/0"},
		{"after a boot without a trial", afterBoot(state("A", "A", ""), "y"), "AA-"},
	} {
		if got := test.got.show(); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
		if err := test.got.Check(); err != nil {
			t.Errorf("%s: not a valid record: %v", test.name, err)
		}
	}
}

// TestTransitionsShareNothing: a transition must not write into the Record it
// was given, which is the stored one until the commit has returned.
func TestTransitionsShareNothing(t *testing.T) {
	r := state("B", "A", "Z").withRejected("1", "B", "C").withTrial(Trial{Build: "1", Open: true})
	before := r.show()
	stage(r, *ref("D"), "1")
	unassign(r)
	promote(r, r.Assigned.Digest)
	reject(r, Rejection{Digest: r.Assigned.Digest, Build: "1", Message: "x"})
	forget(r, r.Assigned.Digest)
	openAttempt(r, "2", "y")
	endAttempt(r, false, "x")
	afterBoot(r, "y")
	if after := r.show(); after != before {
		t.Errorf("was %s, is %s", before, after)
	}
}

func TestCrashLoop(t *testing.T) {
	for _, test := range []struct {
		name  string
		r     Record
		build string
		want  string // of the message, or "" for none
	}{
		{"nothing assigned", Empty(), "1", ""},
		{"good", state("A", "A", ""), "1", ""},
		{"below the limit", state("B", "A", "").withTrial(Trial{Build: "1", Failed: 2}), "1", ""},
		{"at it", state("B", "A", "").withTrial(Trial{Build: "1", Failed: 3}), "1", "3 starts without success"},
		{"by another build", state("B", "A", "").withTrial(Trial{Build: "1", Failed: 3}), "2", ""},
		{"reboots are named", state("B", "A", "").withTrial(Trial{Build: "1", Failed: 3, Rebooted: 2}), "1", "3 starts without success, 2 of them ended with a reboot of the machine"},
		{"so is what was said", state("B", "A", "").withTrial(Trial{Build: "1", Failed: 3, Note: "no port"}), "1", "3 starts without success; the last one said: no port"},
	} {
		x, found := crashLoop(test.r, test.build, 3)
		if found != (test.want != "") || x.Message != test.want {
			t.Errorf("%s: %v, %q", test.name, found, x.Message)
		}
		if found && (x.Reason != CrashLoop || x.Build != test.build || x.Digest != test.r.Assigned.Digest) {
			t.Errorf("%s: %+v", test.name, x)
		}
	}
}

func TestCandidates(t *testing.T) {
	for _, test := range []struct {
		name string
		r    Record
		want string
	}{
		{"nothing", Empty(), "Default"},
		{"good", state("A", "A", ""), "Assigned A, Default"},
		{"good with a previous one", state("A", "A", "Z"), "Assigned A, Previous Z, Default"},
		{"the first, on trial", state("A", "", ""), "Assigned A trial, Default"},
		{"on trial", state("B", "A", "Z"), "Assigned B trial, LastKnownGood A, Previous Z, Default"},
		{"rejected", state("B", "A", "Z").withRejected("1", "B"), "LastKnownGood A, Previous Z, Default"},
		{"rejected by another build", state("B", "A", "").withRejected("0", "B"), "Assigned B trial, LastKnownGood A, Default"},
		{"the first, rejected", state("A", "", "").withRejected("1", "A"), "Default"},
		{"the previous one anew", state("Z", "A", "Z"), "Assigned Z trial, LastKnownGood A, Default"},
		{"the previous one anew, rejected", state("Z", "A", "Z").withRejected("1", "Z"), "LastKnownGood A, Default"},
		{"what is good can't be rejected", state("A", "A", "").withRejected("1", "A"), "Assigned A, Default"},
	} {
		var got []string
		for _, c := range candidates(test.r, "1") {
			s := strings.TrimSpace(string(c.Role) + " " + c.Ref.Name)
			if c.Unproven {
				s += " trial"
			}
			got = append(got, s)
		}
		if strings.Join(got, ", ") != test.want {
			t.Errorf("%s: %s, want %s", test.name, strings.Join(got, ", "), test.want)
		}
	}
}

func TestDecideDelivery(t *testing.T) {
	onTrial := state("B", "A", "Z")
	for _, test := range []struct {
		name      string
		r         Record
		running   string
		skipped   Reason
		delivered string
		want      Action
	}{
		{"the first", Empty(), "", "", "A", Stage},
		{"nothing, and nothing assigned", Empty(), "", "", "", Nothing},
		{"nothing", state("A", "A", ""), "A", "", "", Unassign},
		{"what runs", state("A", "A", ""), "A", "", "A", Nothing},
		{"what runs on trial", onTrial, "B", "", "B", Nothing},
		{"a new one", state("A", "A", ""), "A", "", "B", Stage},
		{"a newer one", onTrial, "B", "", "C", Stage},
		{"back to the good one", onTrial, "B", "", "A", Stage},
		{"rejected", state("A", "A", "").withRejected("1", "C"), "A", "", "C", ReportRejection},
		{"rejected by another build", state("A", "A", "").withRejected("0", "C"), "A", "", "C", Stage},
		{"rolled back", onTrial.withRejected("1", "B"), "A", "", "B", ReportRejection},
		{"the good one after a roll-back", onTrial.withRejected("1", "B"), "A", "", "A", Stage},
		{"the good one, once rejected", onTrial.withRejected("1", "A"), "B", "", "A", Stage},
		{"damaged", state("A", "A", "Z"), "Z", CheckpointCorrupt, "A", Repair},
		{"damaged, on trial", onTrial, "A", CheckpointCorrupt, "B", Repair},
		{"damaged, and a new one", onTrial, "A", CheckpointCorrupt, "C", Stage},
		{"not recorded", onTrial, "A", StoreFull, "B", AwaitStore},
		{"does not decode any more", state("A", "A", "Z"), "Z", DecodeFailed, "A", Nothing},
	} {
		var running, delivered Digest
		if test.running != "" {
			running = ref(test.running).Digest
		}
		if test.delivered != "" {
			delivered = ref(test.delivered).Digest
		}
		if got := decideDelivery(test.r, "1", running, test.skipped, delivered); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

func TestSoak(t *testing.T) {
	rules := &Rules{Soak: 10 * time.Minute, Grace: time.Minute, Every: 10 * time.Second, Health: true}
	ill := errors.New("ill")
	type check struct {
		at   time.Duration
		err  error
		want Verdict
		next time.Duration
	}
	start := time.Now()
	for name, checks := range map[string][]check{
		"healthy": {
			{0, nil, Undecided, 10 * time.Second},
			{9*time.Minute + 55*time.Second, nil, Undecided, 5 * time.Second},
			{10 * time.Minute, nil, Passed, 10 * time.Second},
		},
		"a break starts it anew": {
			{0, nil, Undecided, 10 * time.Second},
			{5 * time.Minute, ill, Undecided, 10 * time.Second},
			{5*time.Minute + 10*time.Second, nil, Undecided, 10 * time.Second},
			{15 * time.Minute, nil, Undecided, 10 * time.Second},
			{15*time.Minute + 10*time.Second, nil, Passed, 10 * time.Second},
		},
		"ill from the start": {
			{0, ill, Undecided, 10 * time.Second},
			{55 * time.Second, ill, Undecided, 5 * time.Second},
			{time.Minute, ill, Failed, 10 * time.Second},
		},
		"ill later": {
			{0, nil, Undecided, 10 * time.Second},
			{9 * time.Minute, ill, Undecided, 10 * time.Second},
			{10 * time.Minute, ill, Failed, 10 * time.Second},
		},
	} {
		var s soak
		for _, c := range checks {
			now := start.Add(c.at)
			s = s.observe(now, c.err == nil)
			got := s.verdict(now, rules)
			if next := s.next(now, rules); got != c.want || next != c.next {
				t.Errorf("%s at %v: verdict %v, next in %v, want %v in %v", name, c.at, got, next, c.want, c.next)
			}
		}
	}
	noHealth := &Rules{Soak: time.Minute}
	s := soak{}.observe(start, true)
	if next, v := s.next(start, noHealth), s.verdict(start, noHealth); v != Undecided || next != time.Minute {
		t.Errorf("without Health: %v, next in %v, want the whole soak", v, next)
	}
}

func TestTidy(t *testing.T) {
	for _, test := range []struct {
		in    string
		limit int
		want  string
	}{
		{"plain", 10, "plain"},
		{" two\nlines\t", 20, "two lines"},
		{"bell\a and \xff bytes\u2028", 40, "bell  and   bytes"},
		{"a\u2028b\u2029c\x7fd\ne\xfff", 20, "a b c d e f"},
		{"0123456789", 8, "01234..."},
		{"日本語日本語", 10, "日本..."},
	} {
		if got := Tidy(test.in, test.limit); got != test.want {
			t.Errorf("Tidy(%q, %d) = %q, want %q", test.in, test.limit, got, test.want)
		}
	}
}

// TestAnOverdueDecisionIsMadeAtTheNextCheck, for example one that could not be written.
func TestAnOverdueDecisionIsMadeAtTheNextCheck(t *testing.T) {
	begin := time.Unix(1_000_000, 0)
	for health, want := range map[bool]time.Duration{true: time.Second, false: 0} {
		rules := Rules{Soak: time.Minute, Grace: time.Minute, Every: time.Second, Health: health}
		for _, s := range []soak{{good: begin}, {bad: begin}} {
			if got := s.next(begin.Add(time.Hour), &rules); got != want {
				t.Errorf("%+v: the next check is in %v, want %v", s, got, want)
			}
		}
	}
}

// TestDeathsAreThoseOfOneBuild and one payload.
func TestDeathsAreThoseOfOneBuild(t *testing.T) {
	i := inspection{Digest: ref("A").Digest, Build: "1", Deaths: 2}
	if got := i.again(i.Digest, "1"); got.Deaths != 2 {
		t.Errorf("the same: %+v", got)
	}
	if got := i.again(i.Digest, "2"); got.Deaths != 0 || got.Build != "2" {
		t.Errorf("another build: %+v", got)
	}
	if got := i.again(ref("B").Digest, "1"); got.Deaths != 0 || got.Digest != ref("B").Digest {
		t.Errorf("another payload: %+v", got)
	}
}

// Repairs are counted of the assigned configuration.
func TestAnotherAssignmentHasNoRepairs(t *testing.T) {
	r := state("A", "", "")
	r.Repairs = 3
	if got := stage(r, *ref("B"), "1").Repairs; got != 0 {
		t.Errorf("after a new one: %d", got)
	}
	if got := unassign(r).Repairs; got != 0 {
		t.Errorf("after none: %d", got)
	}
}

// The first configuration that passes its trial replaces none.
func TestTheFirstProvenConfiguration(t *testing.T) {
	r := state("A", "", "P")
	if r.proven() || (Record{LKG: ref("A")}).proven() {
		t.Error("proven before the trial, or without an assignment")
	}
	if next, changed := promote(r, ref("A").Digest); !changed || next.Previous == nil || next.Previous.Digest != ref("P").Digest || !next.proven() {
		t.Errorf("%+v, %v", next, changed)
	}
}

func TestTransient(t *testing.T) {
	for reason, want := range map[Reason]bool{StoreFull: true, StoreReadOnly: true, StoreFailed: true, DecodeFailed: false, "": false} {
		if got := reason.Transient(); got != want {
			t.Errorf("%q: %v", reason, got)
		}
	}
}

func TestADigestHasAllItsDigits(t *testing.T) {
	text, _ := ref("A").Digest.MarshalText()
	for _, tc := range []struct {
		text []byte
		ok   bool
	}{{text, true}, {text[2:], false}, {append(text[:len(text):len(text)], '0', '0'), false}, {nil, false}} {
		d := digestOf([]byte("before"))
		if err := d.UnmarshalText(tc.text); (err == nil) != tc.ok || !tc.ok && d != digestOf([]byte("before")) {
			t.Errorf("%q: %v, %v", tc.text, d, err)
		}
	}
}

// Without an answer of the health check a start counts as one that lasted after the soak.
func TestAStartThatLasted(t *testing.T) {
	s := New(Rules{Soak: 10 * time.Minute, Health: true})
	s.runs, s.began, s.rec = true, time.Unix(0, 0), state("A", "", "").withTrial(Trial{Open: true})
	for after, want := range map[time.Duration]Verdict{10*time.Minute - 1: Undecided, 10 * time.Minute: Lasted} {
		if got := s.Verdict(s.began.Add(after)); got != want {
			t.Errorf("after %v: %v, want %v", after, got, want)
		}
	}
}

// Before a death there is none of the configuration without a digest.
func TestNothingHasDied(t *testing.T) {
	if s := New(Rules{}); s.Died(Digest{}) {
		t.Error("a process has died of nothing")
	}
}

// A rejection of another configuration does not take back that one must be replaced.
func TestARejectionLeavesTheReplacement(t *testing.T) {
	s := New(Rules{Attempts: 3})
	s.runs, s.diverged, s.rec = true, true, state("A", "B", "")
	if _, err := s.Apply(time.Unix(0, 0), Rejected{Ref: *ref("C"), Reason: DecodeFailed}); err != nil || !s.diverged {
		t.Errorf("%v, %v", s.diverged, err)
	}
}
