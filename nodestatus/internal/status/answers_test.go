// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"hash/maphash"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// story runs lines of a script, without what must follow from them.
func story(t *testing.T, lines ...string) *script {
	w := &script{T: t, rules: Rules{Interval: 10 * time.Second, Report: 5 * time.Minute, Grace: 40 * time.Second, Seed: maphash.MakeSeed()}}
	for _, line := range lines {
		w.run(strings.Fields(line))
	}
	return w
}

// An event that came before an answer may show a change that is newer than the answer.
func TestANewerEventThanTheAnswerToAWriteIsLookedAt(t *testing.T) {
	for name, lines := range map[string][]string{
		"a change":    {"rules setter", "at 1s", "round a", "sent", "created", "round b", "sent"},
		"an adoption": {"rules setter", "at 1s", "install old", "round b", "sent", "found", "sent"},
	} {
		w := story(t, lines...)
		answer := w.serve(apply(t, w.server, w.body), false).DeepCopy()
		w.run([]string{"edit", "set0=theirs"})
		w.run([]string{"event"})
		w.apply(Answered{Node: answer, Draw: 0.5})
		if got := w.run([]string{"round", "b"}); !strings.Contains(got, "Patch(Drift)") {
			t.Errorf("%s: after the answer: %s, want that the change is undone", name, got)
		}
	}
}

// An event about an object that had the name before ours is no reason for a round.
func TestAnEventAboutAnEarlierObjectIsIgnored(t *testing.T) {
	w := story(t, "rules setter", "at 1s", "round a", "sent", "created", "edit theirs=x", "event")
	earlier := w.server.DeepCopy()
	earlier.UID, earlier.ResourceVersion = "earlier", "1"
	for _, deleted := range []bool{false, true} {
		if news, err := w.state.Apply(w.now, Shown{Node: earlier, Deleted: deleted}); news.Wake || err != nil {
			t.Errorf("deleted %v: %+v, %v", deleted, news, err)
		}
	}
}

// A boot ID is news if there were two, and they differ.
func TestAReboot(t *testing.T) {
	for _, tc := range []struct {
		before, after string
		want          [2]string
	}{
		{"1", "2", [2]string{"1", "2"}}, {"1", "1", [2]string{}}, {"", "2", [2]string{}}, {"1", "", [2]string{}},
	} {
		w := story(t, "rules", "at 1s", "install old")
		w.server.Status.NodeInfo.BootID = tc.before
		node := template()
		node.Status.NodeInfo.BootID = tc.after
		w.apply(RoundBegan{})
		w.apply(RoundEnded{Name: node1, Node: node})
		for _, line := range []string{"sent", "found", "sent"} {
			w.run([]string{line})
		}
		answer := w.serve(apply(t, w.server, w.body), false).DeepCopy()
		if news, err := w.state.Apply(w.now, Answered{Node: answer}); news.Reboot != tc.want || err != nil {
			t.Errorf("%q, %q: %q, %v, want %q", tc.before, tc.after, news.Reboot, err, tc.want)
		}
	}
}

// A write after the last conflict that is allowed goes to any version of the Node.
func TestTheLastWriteAfterConflictsHasNoVersion(t *testing.T) {
	s := New(&Rules{Seed: maphash.MakeSeed()})
	s.take(&corev1.Node{ObjectMeta: metav1.ObjectMeta{UID: "a", ResourceVersion: "7"}})
	s.sight = owed
	for conflicts, version := range []string{"7", "7", ""} {
		s.want = &want{conflicts: conflicts}
		if got := s.version(); got != version {
			t.Errorf("after %d conflicts: %q, want %q", conflicts, got, version)
		}
	}
}

// With events, or after a read, a write is for the version that is known.
func TestAWriteIsForTheVersionThatEventsHaveShown(t *testing.T) {
	w := story(t, "rules setter", "at 1s", "round a", "sent", "created", "round b")
	if got := w.state.version(); got != "" {
		t.Errorf("without events: %q", got)
	}
	w.run([]string{"edit", "theirs=x"})
	w.run([]string{"event"})
	w.run([]string{"round", "b"})
	if got := w.state.version(); got != w.server.ResourceVersion {
		t.Errorf("after an event: %q, want %q", got, w.server.ResourceVersion)
	}
}

// The next write after one that failed is for the version before it, so that it
// conflicts if that one was stored.
func TestAWriteAfterAFailureIsForTheVersionBeforeIt(t *testing.T) {
	for _, verdict := range []string{"away", "refused", "hungUp"} {
		w := story(t, "rules setter", "at 1s", "round a", "sent", "created", "round b", "sent")
		before := w.server.ResourceVersion
		for _, line := range []string{"stored", "failed " + verdict, "at 1m", "round a"} {
			w.run(strings.Fields(line))
		}
		if got := w.state.version(); got != before {
			t.Errorf("%s: %q, want %q", verdict, got, before)
		}
	}
}

func TestTimesOfAQuietNode(t *testing.T) {
	s := New(&Rules{Seed: maphash.MakeSeed()})
	s.phase, s.lastRound = Registered, time.Second
	if err := s.Live(71*time.Second, 70*time.Second); err != nil {
		t.Errorf("after just the patience: %v", err)
	}
	if s.Live(71*time.Second+1, 70*time.Second) == nil {
		t.Error("a node is alive after more than the patience")
	}
	s.sight, s.nextDrift = foreign, 20*time.Second
	if got := s.wait(5 * time.Second); got != 15*time.Second {
		t.Errorf("the wait is %v, want until the next write against another client", got)
	}
	for _, at := range []time.Duration{20 * time.Second, time.Minute} {
		if got := s.wait(at); got != 0 {
			t.Errorf("at %v the wait is %v", at, got)
		}
	}
	for at, want := range map[time.Duration]bool{0: true, startPatience: true, startPatience + time.Second: false} {
		s.firstRound = time.Second
		if news, _ := s.Apply(at, RoundBegan{}); news.Starting != want {
			t.Errorf("starting at %v: %v", at, !want)
		}
	}
}

// A Node that differs only in what is another client's is not compared again.
func TestAChangeOfOthersSettles(t *testing.T) {
	w := story(t, "rules setter", "at 1s", "round a", "sent", "created", "edit theirs=x", "event", "round a")
	if w.state.sight != settled {
		t.Errorf("the sight is %d", w.state.sight)
	}
}

// A setter that has succeeded without a value has succeeded.
func TestASetterThatSetsNothingCompletesTheStatus(t *testing.T) {
	w := story(t, "rules setter", "at 1s", "round failed")
	if w.state.complete() {
		t.Error("complete before a success")
	}
	w.apply(RoundBegan{})
	w.apply(Reached{Index: 0})
	w.apply(Returned{Index: 0, Before: template(), After: template()})
	if !w.state.complete() {
		t.Error("not complete after a success")
	}
}

// A setter may succeed for the first time between a decision and its request, or between
// a request and its answer. Neither has its values, so both are incomplete.
func TestASuccessDuringARequestDoesNotCompleteIt(t *testing.T) {
	succeed := func(w *script) {
		w.apply(RoundBegan{})
		w.apply(Reached{Index: 0})
		w.apply(Returned{Index: 0, Before: template(), After: w.set(0, template(), "a")})
	}
	w := story(t, "rules setter", "at 1s", "round failed", "sent")
	succeed(w)
	if got := w.run([]string{"failed", "gone"}); got != "Missing Nothing" {
		t.Errorf("a Node that is missing: %s, want that its creation waits for the values", got)
	}
	restarted := []string{"rules setter", "install example.com/old", "at 1s", "round failed", "sent", "found", "at 42s", "round failed"}
	w = story(t, restarted...)
	succeed(w)
	w.run([]string{"sent"})
	w.run([]string{"written"})
	if got := w.run([]string{"server"}); !strings.Contains(got, "example.com/old=x") {
		t.Errorf("before the request: %s, want that nothing is removed", got)
	}
	w = story(t, append(restarted, "sent")...)
	succeed(w)
	for _, line := range []string{"written", "round a", "sent", "written"} {
		w.run(strings.Fields(line))
	}
	if got := w.run([]string{"server"}); strings.Contains(got, "example.com/old=x") {
		t.Errorf("after the round with the values: %s, want that the label is removed", got)
	}
}

// An outage ends once.
func TestAnOutageEndsOnce(t *testing.T) {
	w := story(t, "rules setter", "at 1s", "round a", "sent", "created", "round b", "sent", "failed away", "at 30s", "round b", "sent")
	answer := w.serve(apply(t, w.server, w.body), false).DeepCopy()
	if news, err := w.state.Apply(w.now, Answered{Node: answer}); news.Recovered != 29*time.Second || err != nil {
		t.Errorf("after the outage: %+v, %v", news, err)
	}
	w.run([]string{"round", "c"})
	w.run([]string{"sent"})
	if got := w.run([]string{"written"}); strings.Contains(got, "+recovered") {
		t.Errorf("after the next write: %s", got)
	}
}

func TestFailuresOverTaintsAreReportedUnlessItIsAConflict(t *testing.T) {
	for verdict, counts := range map[string]bool{"away": true, "refused": true, "other": false, "gone": false, "hungUp": false} {
		w := story(t, "rules setter taint", "at 1s", "round a", "sent", "created", "edit taints", "event", "round a", "sent")
		if got := w.run([]string{"failed", verdict}); strings.Contains(got, "+counts") != counts {
			t.Errorf("%s: %s", verdict, got)
		}
	}
}

// Only resources that are counted must be integers.
func TestFractionsOfResources(t *testing.T) {
	for name, allowed := range map[corev1.ResourceName]bool{
		"cpu": true, "kubernetes.io/batch": true, "example.kubernetes.io/x": true, "pods": false, "example.com/gpu": false,
	} {
		if problem := quantityProblem(name, resource.MustParse("500m")); (problem == "") != allowed {
			t.Errorf("%s: %q", name, problem)
		}
	}
}

// A patch has a resourceVersion if it is for one version of the Node.
func TestAPatchHasTheVersionItIsFor(t *testing.T) {
	for version, want := range map[string]bool{"": false, "7": true} {
		data := encodePatch("u", version, nil, nil)
		if strings.Contains(string(data), `"resourceVersion":"7"`) != want || strings.Contains(string(data), "resourceVersion") != want {
			t.Errorf("%q: %s", version, data)
		}
	}
}

// Only a read that was asked for wants a round.
func TestWants(t *testing.T) {
	w := story(t, "rules setter", "asked", "at 1s", "round a")
	if w.state.Outlook(w.now).Wants {
		t.Error("a Node that is not known is to be read")
	}
	w.run([]string{"sent"})
	w.run([]string{"created"})
	if w.state.Outlook(w.now).Wants {
		t.Error("a quiet node wants a round")
	}
	if w.run([]string{"asked"}); !w.state.Outlook(w.now).Wants {
		t.Error("a read was asked for, and no round is wanted")
	}
}

// A round is clean, or has a late check, by all of its failures.
func TestARoundIsJudgedByAllOfItsFailures(t *testing.T) {
	s := New(&Rules{Setters: 1, Checks: 2, Interval: 10 * time.Second, Seed: maphash.MakeSeed()})
	end := func(now time.Duration, failures ...Failure) {
		_, _ = s.Apply(now, RoundBegan{})
		_, _ = s.Apply(now, RoundEnded{Name: node1, Node: template(), Failures: failures})
	}
	setter, late, failed := Failure{Late: true}, Failure{Check: true, Late: true}, Failure{Check: true}
	end(time.Second, setter, failed)
	if s.want.clean || s.lateRounds != 0 {
		t.Errorf("a setter and a check that failed: %+v, %d", s.want, s.lateRounds)
	}
	end(2*time.Second, late, failed)
	if !s.want.clean || s.lateRounds != 1 {
		t.Errorf("a late check and one that failed: %+v, %d", s.want, s.lateRounds)
	}
	// Rounds in quick succession count as one.
	for _, tc := range []struct {
		at   time.Duration
		want uint16
	}{{7*time.Second - 1, 1}, {7 * time.Second, 2}, {8 * time.Second, 2}, {12 * time.Second, 3}} {
		if end(tc.at, late); s.lateRounds != tc.want {
			t.Errorf("at %v: %d late rounds, want %d", tc.at, s.lateRounds, tc.want)
		}
	}
	if end(13*time.Second, failed); s.lateRounds != 0 {
		t.Error("a round without a late check ends the run of them")
	}
}

// A write settles a round only if nothing stands against it.
func TestARoundIsSettledWhenTheServerHasItsStatus(t *testing.T) {
	for line, want := range map[string]string{"server": "2 of 2", "gate closed": "1 of 2", "event": "1 of 2"} {
		w := story(t, "rules setter", "at 1s", "round a", "sent", "created", "edit set0=theirs")
		if line == "event" {
			w.state.nextDrift = time.Hour
		}
		w.run(strings.Fields(line))
		w.run([]string{"round", "a"})
		if got := w.run([]string{"agreed"}); got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
	start := []string{"rules setter", "at 1s", "round a", "sent", "created"}
	for want, lines := range map[string][]string{
		"1 of 3": {"round b", "sent", "failed away", "round b"}, // not written
		"1 of 2": {"round failed"},                              // the same values, but a setter has failed
		"3 of 3": {"round b", "sent", "round b", "written"},     // the second round has the same status
	} {
		w := story(t, append(start, lines...)...)
		if got := w.run([]string{"agreed"}); got != want {
			t.Errorf("%v: %s, want %s", lines, got, want)
		}
	}
}

// A part that is no longer ours is not removed when another client sets it.
func TestAPartThatWasGivenUpIsAnothersLater(t *testing.T) {
	w := story(t, "rules", "at 1s")
	round := func(label string) string {
		node := template()
		if label != "" {
			node.Labels["mine"] = label
		}
		w.apply(RoundBegan{})
		return w.apply(RoundEnded{Name: node1, Node: node})
	}
	round("a")
	w.run([]string{"sent"})
	w.run([]string{"created"})
	round("")
	w.run([]string{"sent"})
	w.run([]string{"written"})
	if _, there := w.server.Labels["mine"]; there {
		t.Fatal("the label is not removed")
	}
	w.run([]string{"edit", "mine=theirs"})
	w.run([]string{"event"})
	if got := round(""); got != "Registered Nothing" {
		t.Errorf("another client's label: %s", got)
	}
}

// A condition that the answer lacks, because a webhook has removed it, is no news.
func TestAnAnswerThatLacksAConditionIsNoNews(t *testing.T) {
	w := story(t, "rules setter", "at 1s", "round a", "sent")
	answer := w.serve(w.created, true).DeepCopy()
	answer.Status.Conditions = answer.Status.Conditions[1:]
	news, err := w.state.Apply(w.now, Answered{Node: answer})
	if err != nil || len(news.Conditions) != len(answer.Status.Conditions) {
		t.Errorf("%+v, %v", news.Conditions, err)
	}
}

// A Node that was found in a phase that knows of none is refused.
func TestAFoundNodeThatIsNotExpectedIsRefused(t *testing.T) {
	w := story(t, "rules setter", "install old", "at 1s", "round failed", "sent")
	w.state.phase = Missing
	if news, err := w.state.Apply(w.now, Answered{Node: w.server.DeepCopy()}); err == nil || news.Registered != nil {
		t.Errorf("%+v, %v", news, err)
	}
}

// A Node that the program has deleted is no longer registered.
func TestUnregistered(t *testing.T) {
	w := story(t, "rules setter", "at 1s", "round a", "sent")
	if got := w.apply(Unregistered{}); got != "Unsure Nothing" {
		t.Errorf("before it was registered: %s", got)
	}
	w.run([]string{"created"})
	w.run([]string{"round", "b"})
	if got := w.apply(Unregistered{}); got != "Deleted Nothing" || w.state.UID() != "" {
		t.Errorf("after it was registered: %s, UID %s", got, w.state.UID())
	}
}

// The UID is that of the registered Node.
func TestUID(t *testing.T) {
	w := story(t, "rules setter", "at 1s", "round a", "sent")
	if uid := w.state.UID(); uid != "" {
		t.Errorf("of no Node: %s", uid)
	}
	w.run([]string{"created"})
	if uid := w.state.UID(); uid != "u1" {
		t.Errorf("of the Node: %s", uid)
	}
}

// A function is under way until it has returned, whether a round waits or not.
func TestBusy(t *testing.T) {
	for lines, want := range map[string]bool{"": false, "reached": true, "reached gaveUp": true, "reached gaveUp began": true, "reached gaveUp returned": false, "reached returned": false} {
		s := New(&Rules{Setters: 1, Checks: 1, Seed: maphash.MakeSeed()})
		for _, ev := range strings.Fields(lines) {
			_, _ = s.Apply(time.Second, map[string]Event{
				"reached": Reached{Index: 1}, "gaveUp": GaveUp{Index: 1}, "began": RoundBegan{}, "returned": Returned{Index: 1},
			}[ev])
		}
		if s.busy() != want {
			t.Errorf("%q: busy %v", lines, !want)
		}
	}
}

// A read shows what the next write is compared with.
func TestAReadIsTheView(t *testing.T) {
	w := story(t, "rules setter", "at 1s", "round a", "sent", "created", "edit theirs=x", "asked", "round a", "sent", "found")
	if got := w.state.Node().Labels["theirs"]; got != "x" {
		t.Errorf("the label is %q", got)
	}
}

// An event does not make a read superfluous that was asked for.
func TestAnEventDoesNotReplaceARead(t *testing.T) {
	w := story(t, "rules setter", "at 1s", "round a", "sent", "created", "asked", "edit theirs=x", "event")
	if got := w.run([]string{"round", "a"}); !strings.Contains(got, "Read(Resync)") {
		t.Error(got)
	}
}

// A setter that fails when nobody waits for it has no result.
func TestASetterThatFailsAloneIsCalledAgain(t *testing.T) {
	s := New(&Rules{Setters: 1, Seed: maphash.MakeSeed()})
	for _, ev := range []Event{RoundBegan{}, Reached{}, GaveUp{}} {
		_, _ = s.Apply(time.Second, ev)
	}
	news, err := s.Apply(time.Second, Returned{Err: ErrPending})
	if plan, _ := s.plan(0); news.Wake || err != nil || plan != Call {
		t.Errorf("%+v, %v, plan %v", news, err, plan)
	}
}

// The values of a late setter are its own, whatever the setters before it have set.
func TestALateSetterWithTheSameValuesWakesNoRound(t *testing.T) {
	w := story(t, "rules setter", "at 1s", "round a")
	other := template()
	other.Labels["earlier"] = "x"
	for value, want := range map[string]bool{"a": false, "b": true} {
		for _, ev := range []Event{RoundBegan{}, Reached{}, GaveUp{}} {
			_, _ = w.state.Apply(time.Second, ev)
		}
		if news, err := w.state.Apply(time.Second, Returned{Before: other, After: w.set(0, other, value)}); news.Wake != want || err != nil {
			t.Errorf("%s: wakes %v, %v", value, news.Wake, err)
		}
		w.run([]string{"round", "a"})
		w.run([]string{"round", "a"})
	}
}

// Only a change of the gate is news.
func TestAChangeOfTheGateIsNews(t *testing.T) {
	s := New(&Rules{Seed: maphash.MakeSeed()})
	for i, tc := range []struct{ closed, news bool }{{false, false}, {true, true}, {true, false}, {false, true}} {
		if news, err := s.Apply(time.Second, GateAnswered{Closed: tc.closed}); news.Gate != tc.news || err != nil {
			t.Errorf("%d: %v, %v", i, news.Gate, err)
		}
	}
}

func TestFigures(t *testing.T) {
	w := story(t, "rules setter check", "at 1s", "round a late", "at 2s", "sent", "created", "gate closed", "gate open", "asked", "at 5s", "round a ok", "sent", "failed away", "gate closed")
	f := w.state.Figures()
	if f.Err == nil || f.Failures != 1 || f.LastRound != 5*time.Second || f.LastWrite != 2*time.Second || !f.Closed || f.LateRounds != 1 {
		t.Errorf("%+v", f)
	}
}
