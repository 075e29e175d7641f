// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// ref returns the reference to a payload of one letter.
func ref(text string) *Ref {
	if text == "" {
		return nil
	}
	return &Ref{Digest: DigestOf([]byte(text)), Name: text}
}

// state makes a record: assigned, last known good, previous.
func state(assigned, lkg, previous string) record {
	r := emptyRecord()
	r.Assigned, r.LKG, r.Previous = ref(assigned), ref(lkg), ref(previous)
	return r
}

func (r record) withTrial(t trialRecord) record {
	t.Digest = r.Assigned.Digest
	r.Trial = &t
	return r
}

func (r record) withRejected(build string, texts ...string) record {
	for _, text := range texts {
		r = reject(r, rejection{Digest: ref(text).Digest, Build: build, Reason: ReasonUnhealthy, Message: text})
	}
	return r
}

// show renders what matters of a record, for tables.
func (r record) show() string {
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
	yes := func(r record, ok bool) record {
		if !ok {
			t.Helper()
			t.Error("no change")
		}
		return r
	}
	no := func(r record, ok bool) record {
		if ok {
			t.Helper()
			t.Error("a change")
		}
		return r
	}
	running := func(text string) Digest { return DigestOf([]byte(text)) }
	for _, test := range []struct {
		name string
		got  record
		want string
	}{
		{"stage on an empty record", stage(emptyRecord(), *ref("A"), "1"), "A-- trial 0/0"},
		{"stage beside a good one", stage(state("A", "A", "Z"), *ref("B"), "1"), "BAZ trial 0/0"},
		{"stage during a trial: the target stays", stage(state("B", "A", "").withTrial(trialRecord{Failed: 2}), *ref("C"), "1"), "CA- trial 0/0"},
		{"back to the good one: no trial", stage(state("B", "A", "").withTrial(trialRecord{Open: true}), *ref("A"), "1"), "AA-"},
		{"unassign forgets what was good", unassign(state("B", "A", "Z").withTrial(trialRecord{})), "---"},

		{"promote", yes(promote(state("B", "A", "Z").withTrial(trialRecord{Open: true}), running("B"))), "BBA"},
		{"the first promotion", yes(promote(state("A", "", "").withTrial(trialRecord{}), running("A"))), "AA-"},
		{"promote what is not assigned any more", no(promote(state("C", "A", "").withTrial(trialRecord{}), running("B"))), "CA- trial 0/0"},
		{"promote what is good", no(promote(state("A", "A", ""), running("A"))), "AA-"},
		{"promote the default", no(promote(emptyRecord(), Digest{})), "---"},
		{"a promotion ends its rejections", yes(promote(state("B", "A", "").withRejected("old", "B", "C").withTrial(trialRecord{}), running("B"))), "BBA !C"},

		{"reject what is assigned", state("B", "A", "").withTrial(trialRecord{Build: "1", Failed: 1}).withRejected("1", "B"), "BA- !B"},
		{"the starts of another build stay", state("B", "A", "").withTrial(trialRecord{Build: "2", Failed: 1, Rebooted: 1}).withRejected("1", "B"), "BA- trial 1/1 !B"},
		{"reject at the door: the trial goes on", state("B", "A", "").withTrial(trialRecord{Failed: 1}).withRejected("1", "C"), "BA- trial 1/0 !C"},
		{"reject twice", state("B", "A", "").withRejected("1", "C", "D", "C"), "BA- !D !C"},
		{"the oldest goes", state("A", "A", "").withRejected("1", "1", "2", "3", "4", "5"), "AA- !2 !3 !4 !5"},
		{"but never that of the assigned", state("B", "A", "").withRejected("1", "B", "2", "3", "4", "5", "6"), "BA- !B !4 !5 !6"},

		{"forget", yes(forget(state("B", "A", "").withRejected("1", "B", "C"), running("B"))), "BA- !C"},
		{"forget what is not rejected", no(forget(state("B", "A", "").withRejected("1", "C"), running("B"))), "BA- !C"},

		{"open a start", openAttempt(state("B", "A", "").withTrial(trialRecord{Build: "1", Failed: 1}), "1", "x"), "BA- trial 1/0 open"},
		{"open the first by another build", openAttempt(state("B", "A", "").withTrial(trialRecord{Build: "1", Failed: 2}), "2", "x"), "BA- trial 0/0 open"},
		{"open one without a trial", openAttempt(state("B", "A", ""), "1", "x"), "BA- trial 0/0 open"},
		{"a clean stop", yes(endAttempt(state("B", "A", "").withTrial(trialRecord{Failed: 1, Open: true}), true, "")), "BA- trial 1/0"},
		{"a failed stop", yes(endAttempt(state("B", "A", "").withTrial(trialRecord{Failed: 1, Open: true}), false, "why")), "BA- trial 2/0"},
		{"no start to end", no(endAttempt(state("B", "A", "").withTrial(trialRecord{Failed: 1}), true, "")), "BA- trial 1/0"},
		{"after a crash", afterBoot(state("B", "A", "").withTrial(trialRecord{Open: true, BootID: "x"}), "x"), "BA- trial 1/0"},
		{"after a power cut", afterBoot(state("B", "A", "").withTrial(trialRecord{Open: true, BootID: "x"}), "y"), "BA- trial 1/1"},
		{"after a clean stop", afterBoot(state("B", "A", "").withTrial(trialRecord{BootID: "x"}), "y"), "BA- trial 0/0"},
		{"after a boot without a trial", afterBoot(state("A", "A", ""), "y"), "AA-"},
	} {
		if got := test.got.show(); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
		if err := test.got.check(); err != nil {
			t.Errorf("%s: not a valid record: %v", test.name, err)
		}
	}
}

// TestTransitionsShareNothing: a transition must not write into the record it
// was given, which is the stored one until the commit has returned.
func TestTransitionsShareNothing(t *testing.T) {
	r := state("B", "A", "Z").withRejected("1", "B", "C").withTrial(trialRecord{Build: "1", Open: true})
	before := r.show()
	stage(r, *ref("D"), "1")
	unassign(r)
	promote(r, r.Assigned.Digest)
	reject(r, rejection{Digest: r.Assigned.Digest, Build: "1", Message: "x"})
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
		r     record
		build string
		want  string // of the message, or "" for none
	}{
		{"nothing assigned", emptyRecord(), "1", ""},
		{"good", state("A", "A", ""), "1", ""},
		{"below the limit", state("B", "A", "").withTrial(trialRecord{Build: "1", Failed: 2}), "1", ""},
		{"at it", state("B", "A", "").withTrial(trialRecord{Build: "1", Failed: 3}), "1", "3 starts without success"},
		{"by another build", state("B", "A", "").withTrial(trialRecord{Build: "1", Failed: 3}), "2", ""},
		{"reboots are named", state("B", "A", "").withTrial(trialRecord{Build: "1", Failed: 3, Rebooted: 2}), "1", "3 starts without success, 2 of them ended with a reboot of the machine"},
		{"so is what was said", state("B", "A", "").withTrial(trialRecord{Build: "1", Failed: 3, Note: "no port"}), "1", "3 starts without success; the last one said: no port"},
	} {
		x, found := crashLoop(test.r, test.build, 3)
		if found != (test.want != "") || x.Message != test.want {
			t.Errorf("%s: %v, %q", test.name, found, x.Message)
		}
		if found && (x.Reason != ReasonCrashLoop || x.Build != test.build || x.Digest != test.r.Assigned.Digest) {
			t.Errorf("%s: %+v", test.name, x)
		}
	}
}

func TestCandidates(t *testing.T) {
	for _, test := range []struct {
		name string
		r    record
		want string
	}{
		{"nothing", emptyRecord(), "Default"},
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
			s := strings.TrimSpace(string(c.role) + " " + c.ref.Name)
			if c.unproven {
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
		r         record
		running   string
		skipped   Reason
		delivered string
		want      action
	}{
		{"the first", emptyRecord(), "", "", "A", doStage},
		{"nothing, and nothing assigned", emptyRecord(), "", "", "", doNothing},
		{"nothing", state("A", "A", ""), "A", "", "", doUnassign},
		{"what runs", state("A", "A", ""), "A", "", "A", doNothing},
		{"what runs on trial", onTrial, "B", "", "B", doNothing},
		{"a new one", state("A", "A", ""), "A", "", "B", doStage},
		{"a newer one", onTrial, "B", "", "C", doStage},
		{"back to the good one", onTrial, "B", "", "A", doStage},
		{"rejected", state("A", "A", "").withRejected("1", "C"), "A", "", "C", doReportRejection},
		{"rejected by another build", state("A", "A", "").withRejected("0", "C"), "A", "", "C", doStage},
		{"rolled back", onTrial.withRejected("1", "B"), "A", "", "B", doReportRejection},
		{"the good one after a roll-back", onTrial.withRejected("1", "B"), "A", "", "A", doStage},
		{"the good one, once rejected", onTrial.withRejected("1", "A"), "B", "", "A", doStage},
		{"damaged", state("A", "A", "Z"), "Z", ReasonCheckpointCorrupt, "A", doRepair},
		{"damaged, on trial", onTrial, "A", ReasonCheckpointCorrupt, "B", doRepair},
		{"damaged, and a new one", onTrial, "A", ReasonCheckpointCorrupt, "C", doStage},
		{"not recorded", onTrial, "A", ReasonStoreFull, "B", doAwaitStore},
		{"does not decode any more", state("A", "A", "Z"), "Z", ReasonDecodeFailed, "A", doNothing},
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
	trial := Trial{Soak: 10 * time.Minute, Grace: time.Minute, Every: 10 * time.Second, Health: healthy}
	ill := errors.New("ill")
	type check struct {
		at   time.Duration
		err  error
		want result
		next time.Duration
	}
	start := time.Now()
	for name, checks := range map[string][]check{
		"healthy": {
			{0, nil, undecided, 10 * time.Second},
			{9*time.Minute + 55*time.Second, nil, undecided, 5 * time.Second},
			{10 * time.Minute, nil, passed, 10 * time.Second},
		},
		"a break starts it anew": {
			{0, nil, undecided, 10 * time.Second},
			{5 * time.Minute, ill, undecided, 10 * time.Second},
			{5*time.Minute + 10*time.Second, nil, undecided, 10 * time.Second},
			{15 * time.Minute, nil, undecided, 10 * time.Second},
			{15*time.Minute + 10*time.Second, nil, passed, 10 * time.Second},
		},
		"ill from the start": {
			{0, ill, undecided, 10 * time.Second},
			{55 * time.Second, ill, undecided, 5 * time.Second},
			{time.Minute, ill, failed, 10 * time.Second},
		},
		"ill later": {
			{0, nil, undecided, 10 * time.Second},
			{9 * time.Minute, ill, undecided, 10 * time.Second},
			{10 * time.Minute, ill, failed, 10 * time.Second},
		},
	} {
		var s soak
		for _, c := range checks {
			now := start.Add(c.at)
			var got result
			s, got = s.observe(now, c.err, trial)
			if next := s.next(now, trial); got != c.want || next != c.next {
				t.Errorf("%s at %v: verdict %v, next in %v, want %v in %v", name, c.at, got, next, c.want, c.next)
			}
		}
	}
	noHealth := Trial{Soak: time.Minute}
	s, v := soak{}.observe(start, nil, noHealth)
	if next := s.next(start, noHealth); v != undecided || next != time.Minute {
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
		{"0123456789", 8, "01234..."},
		{"日本語日本語", 10, "日本..."},
	} {
		if got := tidy(test.in, test.limit); got != test.want {
			t.Errorf("tidy(%q, %d) = %q, want %q", test.in, test.limit, got, test.want)
		}
	}
}

func TestDigestText(t *testing.T) {
	d := DigestOf([]byte("x"))
	var back Digest
	if err := back.UnmarshalText([]byte(d.String())); err != nil || back != d {
		t.Errorf("%v came back as %v, %v", d, back, err)
	}
	for _, bad := range []string{"", "..", "../../etc/passwd", d.String()[:63], d.String() + "0", strings.Repeat("g", 64)} {
		if err := back.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
	if back != d {
		t.Error("an error changed the digest")
	}
}

func TestHashGate(t *testing.T) {
	const nodes = 10000
	share := 0
	ask := func(node, text string) time.Duration {
		wait, err := HashGate(node, func() int { return share })(t.Context(), Payload{Data: []byte(text)})
		if err != nil || wait < 0 || wait != 0 && (wait < 30*time.Second || wait > 90*time.Second) {
			t.Fatal(wait, err)
		}
		return wait
	}
	var before []int
	for _, share = range []int{-1, 0, 10, 50, 100, 200} {
		var admitted []int
		for n := range nodes {
			if ask(fmt.Sprint("node-", n), "A") == 0 {
				admitted = append(admitted, n)
			}
		}
		want := nodes * min(max(share, 0), 100) / 100
		if diff := len(admitted) - want; diff < -nodes/50 || diff > nodes/50 {
			t.Errorf("%d percent let in %d of %d nodes", share, len(admitted), nodes)
		}
		for _, n := range before {
			if !slices.Contains(admitted, n) {
				t.Fatalf("%d percent no longer let in node %d", share, n)
			}
		}
		before = admitted
	}
	share = 50
	both := 0
	for n := range nodes {
		if ask(fmt.Sprint("node-", n), "A") == 0 && ask(fmt.Sprint("node-", n), "B") == 0 {
			both++
		}
	}
	if both < nodes/5 || both > nodes*3/10 {
		t.Errorf("%d of %d nodes are first for two contents, want about a quarter", both, nodes)
	}
}

// TestRejectionOfTheAssignedStays, although the configuration was rejected before
// it ran and there are too many others.
func TestRejectionOfTheAssignedStays(t *testing.T) {
	r := reject(state("B", "A", ""), rejection{Digest: ref("B").Digest, Build: "1", Reason: ReasonDecodeFailed, Message: "B"})
	if got := r.withRejected("1", "1", "2", "3", "4", "5").show(); got != "BA- !B !3 !4 !5" {
		t.Error(got)
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

// A slot whose text is no record has nothing that the store may rely on.
func TestATextThatIsNoRecordIsRefused(t *testing.T) {
	for _, text := range []string{"", "{", `{"schema":"one"}`} {
		if info, err := describe([]byte(text)); err == nil {
			t.Errorf("%q: %+v", text, info)
		}
	}
}
