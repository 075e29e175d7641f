// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Check names the invariant that is broken.
func TestCheckNamesWhatIsBroken(t *testing.T) {
	for _, tc := range []struct {
		breaks func(*scene)
		want   string
	}{
		{func(s *scene) { s.illegal = "x" }, "no illegal step: x"},
		{func(s *scene) { s.provider.instance = stopped }, "an instance that has stopped implies a termination"},
		{func(s *scene) { s.provider.sight = missed }, "doubted or missed is what lostSince means"},
		{func(s *scene) { s.provider.lostSince = 1 }, "doubted or missed is what lostSince means"},
		{func(s *scene) {
			s.provider.sight, s.provider.lostSince, s.end = missed, 1, &termination{grace: time.Second}
		}, "doubted or missed implies no termination"},
		{func(s *scene) { s.provider.status, s.provider.mirror = &corev1.PodStatus{}, s.api.pod }, "at most one of status and mirror is set"},
		{func(s *scene) { s.provider.kept = &keptReport{} }, "kept waits for a List"},
		{func(s *scene) { s.provider.unsaved = []string{"k"} }, "the keys in unsaved are those of annotations"},
		{func(s *scene) { s.provider.unsaved, s.provider.annotations = []string{"k"}, map[string]string{"o": ""} }, "the keys in unsaved are those of annotations"},
		{func(s *scene) { s.api.presence = orphan }, "orphan implies a nil pod"},
		{func(s *scene) { s.write.news.storedSeq = 99 }, "are at most statusSeq"},
		{func(s *scene) { s.write.news.rejectedSeq = 99 }, "are at most statusSeq"},
		{func(s *scene) { s.write.news.quietSeq = 99 }, "are at most statusSeq"},
		{func(s *scene) { s.write.end = endReleased }, "endReleased implies releasedAt"},
		{func(s *scene) { s.write.end, s.write.releasedAt = endReleased, 1 }, "only a pod that has ended is released"},
		{func(s *scene) { s.call.failures = 1 }, "failures implies an error"},
		{func(s *scene) { s.call.inflight, s.provider.sight = &Call{Op: Update}, unlisted }, "has no call that counts"},
		{func(s *scene) { s.call.inflight = &Call{Op: Stop} }, "Stop implies a termination"},
		{func(s *scene) { s.write.inflight, s.provider.sight = &Call{Op: Patch}, unlisted }, "has no request under way that counts"},
		{func(s *scene) { s.write.inflight = &Call{Op: Delete} }, "a DELETE is sent only of a stopped instance"},
		{func(s *scene) { s.write.inflight = &Call{Op: Patch, Over: true} }, "a final status is written only of a stopped instance"},
		{func(s *scene) { s.end = &termination{} }, "grace and passed are at least MinGrace"},
		{func(s *scene) { s.end = &termination{grace: time.Second, passed: 1} }, "grace and passed are at least MinGrace"},
		{func(s *scene) { s.end = &termination{grace: time.Second, accepted: 1} }, "a Stop that was accepted was called"},
		{func(s *scene) { s.api.pod = nil }, "an instance without an object mirrors none"},
		{func(s *scene) {
			s.api.pod.pod = nil
			s.api.pod.compact = nil
			s.provider.mirror = nil
			s.api.pod = &Version{}
		}, "pod or compact is set"},
		{func(s *scene) { s.api.node = "other" }, "node and deleting are those of pod"},
		{func(s *scene) { s.api.deleting = true }, "node and deleting are those of pod"},
		{func(s *scene) { s.provider.generation = 99 }, "generation is at most api.pod.Generation"},
		{func(s *scene) { s.write.end = endFinal }, "a final status implies a termination"},
		{func(s *scene) { s.now(deletedWithin(1)).end = nil }, "a pod that is being deleted has a termination"},
	} {
		s := runningPod()
		c := s.writeStarted(tick, Patch, wallAt(tick))
		s.statusStored(tick, c, nil, true) // from here on it has a mirror
		s.checked()
		tc.breaks(s)
		if err := s.Check(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v, want %s", err, tc.want)
		}
	}
}

// Calls that do not count are no break.
func TestStaleCallsBreakNothing(t *testing.T) {
	s := runningPod()
	s.call.inflight, s.write.inflight, s.provider.sight = &Call{Op: Update, fate: stale}, &Call{Op: Patch, fate: stale}, unlisted
	s.checked()
	s = runningPod()
	for _, op := range []Op{Inspect, Save} {
		s.call.inflight, s.provider.sight = &Call{Op: op}, unlisted
		s.checked()
	}
}

func TestTraceNamesWhatIsBroken(t *testing.T) {
	s := runningPod().now(deletedWithin(30)).calls(Stop, 30*time.Second)
	before, err := s.Since(Trace{})
	if err != nil {
		t.Fatal(err)
	}
	s.end.grace++
	if _, err := s.Since(before); err == nil {
		t.Error("the grace period grows")
	}
	s.end.grace--
	s.end.passed++
	if _, err := s.Since(before); err == nil {
		t.Error("the grace period that is passed on grows")
	}
	s = runningPod().says(exited(0, true))
	if before, err = s.Since(Trace{}); err != nil {
		t.Fatal(err)
	}
	s.provider.instance, s.end.accepted = running, 1
	if _, err := s.Since(before); err == nil {
		t.Error("it has stopped and runs")
	}
}

func TestAnIllegalStepIsRefused(t *testing.T) {
	s := fresh()
	_, err := s.Apply(moment(tick), SuspectBelieved{})
	if err != nil || s.illegal != "" {
		t.Fatal(err)
	}
	s = fresh()
	s.step(stopped)
	if s.provider.instance != none || s.Check() == nil || !strings.Contains(s.Check().Error(), "instance 0 can't become 3") {
		t.Errorf("instance %d, %v", s.provider.instance, s.Check())
	}
	// Apply says it once.
	s = fresh()
	s.provider.instance = stopped
	s.end = &termination{reason: StopDeleted, grace: time.Second, stops: 1}
	s.call.inflight = &Call{Op: Start, Pod: s.Pod()}
	s.provider.instance = none
	_, err = s.Apply(moment(tick), Returned{Seq: 5, Report: runs(), FP: 1})
	if err == nil || s.provider.instance == running {
		t.Errorf("an instance that is none runs: %v", err)
	}
}

// An instance of an earlier pod, of a backend without UIDs, is stopped at once.
func TestALeftoverIsStopped(t *testing.T) {
	state := NewLeftover(testRules(), tick, 1, "n")
	s := &scene{State: &state}
	s.checked()
	if got := s.Next(tick, Calls, true); got.Op != Stop || got.Grace != time.Second {
		t.Errorf("%q with %v", got.Op, got.Grace)
	}
	if reason, ends := s.Ending(); reason != StopOrphaned || !ends || !s.Blocks() || s.Stage() != Terminating {
		t.Errorf("ends as %q: %v, blocks: %v, %v", reason, ends, s.Blocks(), s.Stage())
	}
	if _, started := s.NodeName(); started != "n" {
		t.Errorf("of node %q", started)
	}
}

// A List or report without UIDs may be about an earlier pod of the name.
func TestWhoseInstanceItMayBe(t *testing.T) {
	for name, tc := range map[string]struct {
		scene *scene
		seq   uint64
		want  bool
	}{
		"never started":                          {fresh(), 100, false},
		"had started before":                     {fresh(ran, func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways }), 100, true},
		"running":                                {runningPod(), 100, true},
		"stopped":                                {runningPod().says(exited(0, true)), 100, true},
		"starting, and the List is older":        {fresh().calls(Start, 0), 1, false},
		"starting, and the List is newer":        {fresh().calls(Start, 0), 100, true},
		"started, and the List is older":         {fresh().calls(Start, 0, later(0)), 1, false},
		"started, and the List is newer":         {fresh().calls(Start, 0, later(0)), 100, true},
		"started twice, and the List is between": {fresh().calls(Start, 0, later(0)).with(func(s *scene) { s.seq = 50 }).calls(Start, 0, later(0)), 20, true},
		"an instance without a pod":              {orphanPod(runs()), 100, true},
		"being inspected, never started":         {fresh().calls(Inspect, 0), 100, false},
		"being admitted, and ran before":         {fresh(ran, func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways }).calls(Admit, 0), 1, true},
		"the provider held it":                   {newScene(testPod()).says(runs()), 1, true},
		"its phase is final":                     {newScene(testPod(phase(corev1.PodFailed))), 1, true},
		"it has a record":                        {newScene(testPod()).with(func(s *scene) { s.provider.saved.Exists = true }), 1, true},
	} {
		if got := tc.scene.MayBe(tc.seq); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestWhatRepeats(t *testing.T) {
	s := runningPod()
	fp := s.provider.fp
	if !s.Repeats(fp, false) || s.Repeats(fp, true) || s.Repeats(fp+1, false) {
		t.Error("a running pod")
	}
	s.provider.instance = none
	if s.Repeats(fp, false) {
		t.Error("an instance that is not known is news")
	}
	s = runningPod().says(exited(0, true))
	if s.becomeForgotten(); !s.Repeats(s.provider.fp, true) {
		t.Error("a pod that has stopped")
	}
}

// What the provider says again proves that the pod is not lost.
func TestARepeatedReportIsAProof(t *testing.T) {
	s := runningPod()
	s.absent(moment(tick-10*time.Second), 90, false)
	s.r.CompleteList = false
	s.absent(moment(tick), 91, false)
	if !s.mayBeLost() {
		t.Fatal("two Lists leave it out")
	}
	s.provider.losses, s.provider.needsInspect = 3, true
	if _, err := s.Apply(moment(tick), &Repeated{Seq: 95}); err != nil || s.mayBeLost() || s.provider.absentAt != 0 || s.provider.needsInspect || s.provider.losses != 3 {
		t.Errorf("%+v", s.provider)
	}
	if _, err := s.Apply(moment(tick), &Repeated{Seq: 50, FromList: true, NodeName: "n"}); err != nil || s.provider.losses != 0 || s.provider.nodeName != "n" || s.provider.seenSeq != 95 {
		t.Errorf("%+v", s.provider)
	}
	s.checked()
}

// The API has another pod of the name.
func TestWhatIsSuperseded(t *testing.T) {
	for name, tc := range map[string]struct {
		scene *scene
		want  bool
	}{
		"the informer has it":            {runningPod(), true},
		"it is missing":                  {runningPod().with(func(s *scene) { s.api.cached = false; s.doubt(tick) }), true},
		"it is gone":                     {runningPod().with(func(s *scene) { s.api.cached = false; s.markDeleted(tick) }), false},
		"it may be of the server before": {runningPod().with(func(s *scene) { s.doubt(tick); s.api.restored = true }), false},
		"an orphan":                      {orphanPod(runs()), false},
	} {
		before := tc.scene.api.presence
		if _, err := tc.scene.Apply(moment(tick), Vanished{Superseded: true}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := tc.scene.api.presence != before; got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The cause of failures is over.
func TestRetriesEnd(t *testing.T) {
	s := fresh().calls(Start, 0, later(time.Hour))
	s.writeStarted(tick, Patch, wallAt(tick))
	s.writeFailed(tick, WriteFailed{After: time.Hour})
	at := moment(tick + time.Second)
	for lane, op := range map[Lane]Op{Calls: Start, Writes: Patch} {
		if got := s.Next(at.Since, lane, true); got.Op != "" {
			t.Fatalf("%q at once", got.Op)
		}
		if _, err := s.Apply(at, RetryNow{Lane: lane}); err != nil {
			t.Fatal(err)
		}
		if got := s.Next(at.Since, lane, true); got.Op != op {
			t.Errorf("%q, want %q", got.Op, op)
		}
	}
	// A delay that no failure caused stays.
	s = runningPod()
	s.call.retryAt, s.write.retryAt = tick+time.Hour, tick+time.Hour
	_, _ = s.Apply(at, RetryNow{Lane: Calls})
	_, _ = s.Apply(at, RetryNow{Lane: Writes})
	if s.call.retryAt == 0 || s.write.retryAt == 0 {
		t.Error("it ends")
	}
	s.write.failures = 1
	if _, _ = s.Apply(at, RetryNow{Lane: Calls}); s.write.retryAt == 0 {
		t.Error("a request fails, and it is repeated because calls may succeed now")
	}
}

func TestWhatWasNotMadeIsDueAgain(t *testing.T) {
	s := fresh().calls(Start, 0)
	s.writeStarted(tick, Patch, wallAt(tick))
	for lane, op := range map[Lane]Op{Calls: Start, Writes: Patch} {
		if s.InFlight(lane) == nil {
			t.Fatalf("no %q is in flight", op)
		}
		if _, err := s.Apply(moment(tick), NotMade{Lane: lane}); err != nil || s.InFlight(lane) != nil {
			t.Errorf("%q is in flight, %v", op, err)
		}
		if got := s.Next(tick+time.Second, lane, true); got.Op != op {
			t.Errorf("%q, want %q", got.Op, op)
		}
	}
}

// Another pod waits for the name of an orphan.
func TestAWantedNameMakesTheQuestionDue(t *testing.T) {
	s := orphanPod(runs())
	if suspicion, suspect := s.Suspect(); suspicion.Due != tick+s.r.OrphanDelay || !suspect {
		t.Fatalf("due %v", suspicion.Due)
	}
	s.suspect.at = tick + time.Hour
	if _, err := s.Apply(moment(tick), NameWanted{}); err != nil || s.suspect.at != tick {
		t.Errorf("due %v", s.suspect.at)
	}
	s.suspect.at = tick - time.Hour
	if _, _ = s.Apply(moment(tick), NameWanted{}); s.suspect.at != tick-time.Hour {
		t.Errorf("due %v", s.suspect.at)
	}
}

func conditioned(types ...corev1.PodConditionType) *Report {
	st := runs()
	for _, typ := range types {
		st.Status.Conditions = append(st.Status.Conditions, corev1.PodCondition{Type: typ, Status: corev1.ConditionTrue})
	}
	return st
}

// Conditions that a report no longer has are withdrawn until that is stored.
func TestConditionsAreWithdrawn(t *testing.T) {
	s := runningPod().says(conditioned("a", "b")).says(conditioned("b"))
	if got := s.update(wallAt(tick)).Withdrawn; !slices.Equal(got, []corev1.PodConditionType{"a"}) {
		t.Errorf("withdrawn %v", got)
	}
	s.says(conditioned("a"))
	if got := s.update(wallAt(tick)).Withdrawn; !slices.Equal(got, []corev1.PodConditionType{"b"}) {
		t.Errorf("withdrawn %v", got)
	}
	c := s.writeStarted(tick, Patch, wallAt(tick))
	resp := s.Pod().DeepCopy()
	resp.ResourceVersion = "40"
	resp.Status.Conditions = []corev1.PodCondition{{Type: "a"}, {Type: "another client's"}}
	s.statusStored(tick, c, resp, true)
	u := s.update(wallAt(tick))
	if len(u.Withdrawn) > 0 || len(u.Observed.Conditions) != 1 || u.Observed.Conditions[0].Type != "a" {
		t.Errorf("withdrawn %v, observed %v", u.Withdrawn, u.Observed.Conditions)
	}
}

// Which reports may wait for the next one.
func TestDetailsMayWait(t *testing.T) {
	with := func(edit func(*corev1.PodStatus)) *Report {
		st := conditioned("a")
		edit(&st.Status)
		return st
	}
	container := func(edit func(*corev1.ContainerStatus)) *Report {
		return with(func(p *corev1.PodStatus) { edit(&p.ContainerStatuses[0]) })
	}
	for name, tc := range map[string]struct {
		report *Report
		quiet  bool
	}{
		"an address":          {with(func(p *corev1.PodStatus) { p.PodIP = "10.0.0.1" }), true},
		"an ID":               {container(func(c *corev1.ContainerStatus) { c.ContainerID = "x" }), true},
		"started is repeated": {container(func(c *corev1.ContainerStatus) { c.Started = nil }), true},
		"the sandbox": {with(func(p *corev1.PodStatus) {
			p.Conditions = append(p.Conditions, corev1.PodCondition{Type: corev1.PodReadyToStartContainers})
		}), true},
		"readiness": {container(func(c *corev1.ContainerStatus) { c.Ready = false }), false},
		"started":   {container(func(c *corev1.ContainerStatus) { c.Started = new(true) }), false},
		"restarts":  {container(func(c *corev1.ContainerStatus) { c.RestartCount = 1 }), false},
		"waits": {container(func(c *corev1.ContainerStatus) {
			c.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}
		}), false},
		"ended":               {container(func(c *corev1.ContainerStatus) { c.State.Terminated = &corev1.ContainerStateTerminated{} }), false},
		"another container":   {with(func(p *corev1.PodStatus) { p.InitContainerStatuses = []corev1.ContainerStatus{{Name: "i"}} }), false},
		"a reason":            {with(func(p *corev1.PodStatus) { p.Reason = "R" }), false},
		"a message":           {with(func(p *corev1.PodStatus) { p.Message = "m" }), false},
		"a phase":             {with(func(p *corev1.PodStatus) { p.Phase = corev1.PodPending }), false},
		"a condition":         {with(func(p *corev1.PodStatus) { p.Conditions = append(p.Conditions, corev1.PodCondition{Type: "b"}) }), false},
		"a condition changes": {with(func(p *corev1.PodStatus) { p.Conditions[0].Status = corev1.ConditionFalse }), false},
		"why it changes":      {with(func(p *corev1.PodStatus) { p.Conditions[0].Reason = "R" }), false},
		"a condition is gone": {with(func(p *corev1.PodStatus) { p.Conditions = nil }), false},
	} {
		s := runningPod().says(conditioned("a"))
		if got := s.quiet(&tc.report.Status); got != tc.quiet {
			t.Errorf("%s: %v", name, got)
		}
	}
	s := runningPod().now(deletedWithin(30)).says(conditioned("a"))
	if st := exited(0, false); !s.quiet(&st.Status) {
		t.Error("the last containers of a pod that is stopped are news, and the final status follows")
	}
	if st := unready(); s.quiet(&st.Status) {
		t.Error("a container that runs on while the pod is stopped is no news")
	}
	waits := container(func(c *corev1.ContainerStatus) {
		c.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "A"}}
	})
	s = runningPod().says(waits)
	if s.quiet(&container(func(c *corev1.ContainerStatus) {
		c.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "B"}}
	}).Status) {
		t.Error("why a container waits is no news")
	}
}

// Labels and annotations are part of what Update is called for, if the program wants it.
func TestMetadataMayBeAnUpdate(t *testing.T) {
	labeled := func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }
	annotated := func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} }
	for _, edit := range []func(*corev1.Pod){labeled, annotated} {
		s := fresh()
		s.r.UpdateMetadata = true
		if s.calls(Start, 0, runs()); s.changed() {
			t.Error("changed at once")
		}
		if s.now(edit); !s.changed() {
			t.Error("it is no change")
		}
		if s.calls(Update, 0, runs()); s.changed() {
			t.Error("changed after Update")
		}
		s = fresh().calls(Start, 0, runs())
		if s.now(edit); s.changed() {
			t.Error("it is a change although the program does not want it")
		}
	}
}

// Run waits for the ends of pods to be stored, and for nothing else.
func TestWhatIsUnfinished(t *testing.T) {
	for name, tc := range map[string]struct {
		scene *scene
		want  bool
	}{
		"runs":                           {runningPod(), false},
		"has stopped":                    {runningPod().says(exited(0, true)), true},
		"has stopped, and is gone":       {runningPod().says(exited(0, true)).with(func(s *scene) { s.markDeleted(tick) }), false},
		"has stopped, and was not found": {runningPod().says(exited(0, true)).with(func(s *scene) { s.notFound(tick) }), false},
		"has completed":                  {ended(), false},
		"must be deleted":                {ended(deletedWithin(30)), true},
		"was deleted":                    {ended(deletedWithin(30)).with(func(s *scene) { s.deleteSent(tick) }), false},
		"an orphan that has stopped":     {orphanPod(exited(0, true)), false},
		"it has not stopped":             {runningPod().now(deletedWithin(30)), false},
		"no List yet":                    {runningPod().says(exited(0, true)).with(func(s *scene) { s.provider.sight = unlisted }), false},
		"the gate is closed":             {runningPod().says(exited(0, true)).with(func(s *scene) { s.reset(tick) }), false},
	} {
		if got := tc.scene.Unfinished(Writes); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The kept report of an instance that ended by itself, and that of one that was being stopped.
func TestTheEndOfAKeptReport(t *testing.T) {
	s := runningPod()
	s.r.Releases = false
	s.calls(Update, 0) // during which the gate closes
	s.reset(tick)
	s.callReturned(moment(tick), Returned{Seq: 60, Report: exited(0, true), FP: 7})
	s.classify(moment(tick))
	if reason, _ := s.Ending(); reason != StopCompleted || s.report().ContainerStatuses[0].State.Terminated == nil {
		t.Errorf("it ends as %q", reason)
	}
	s = runningPod()
	s.beginTermination(tick, StopDeadline, nil, 5*time.Second)
	s.says(exited(0, true))
	s.reset(tick)
	s.classify(moment(tick))
	if reason, _ := s.Ending(); reason != StopDeadline || s.end.grace != 5*time.Second {
		t.Errorf("it ends as %q", reason)
	}
	s = runningPod()
	s.r.Releases = true
	s.calls(Update, 0)
	s.reset(tick)
	if s.callReturned(moment(tick), Returned{Seq: 60, Report: exited(0, true), FP: 7}); s.provider.kept != nil {
		t.Error("the provider keeps it, and so do we")
	}
}

// The last version of a pod may say that it was deleted.
func TestTheLastVersionCounts(t *testing.T) {
	s := runningPod()
	last := s.Pod().DeepCopy()
	deletedWithin(5)(last)
	if _, err := s.Apply(moment(tick), Vanished{Last: Cached(last)}); err != nil || s.end.grace != 5*time.Second {
		t.Errorf("grace period %v, %v", s.end.grace, err)
	}
	s.checked()
}

// With TrustPhase the phase of a report ends the pod.
func TestATrustedPhaseEndsThePod(t *testing.T) {
	for trust, want := range map[bool]bool{true: true, false: false} {
		s := runningPod()
		s.r.TrustPhase = trust
		s.says(&Report{Status: corev1.PodStatus{Phase: corev1.PodSucceeded}})
		if _, ends := s.Ending(); ends != want {
			t.Errorf("trusted: %v, ends: %v", trust, ends)
		}
	}
}

// A pod whose containers have ended while no process ran ends when it is adopted.
func TestAnEndedPodIsAdopted(t *testing.T) {
	if reason, ends := adopted(exited(0, false), ran).Ending(); !ends || reason != StopCompleted {
		t.Errorf("ends: %v, as %q", ends, reason)
	}
	if _, ends := adopted(runs(), ran).Ending(); ends {
		t.Error("a pod that runs ends")
	}
}

// What the status of a running pod says is the provider's, and it has the accepted generation.
func TestTheStatusOfARunningPod(t *testing.T) {
	st := unready()
	st.Status.Reason, st.Status.Message = "R", "m"
	u := runningPod().says(st).now(func(p *corev1.Pod) { p.Generation = 2 }).update(wallAt(tick))
	if u.Observed.Reason != "R" || u.Observed.Message != "m" || u.Generation != 1 || u.Stopped {
		t.Errorf("%q: %q, generation %d, stopped: %v", u.Observed.Reason, u.Observed.Message, u.Generation, u.Stopped)
	}
}

// imagePull is an error that says why containers wait.
type imagePull struct{ error }

func (imagePull) WaitingReason(container string) string { return "Pulling" + container }

// A container that has run keeps what is stored of it while the pod starts again.
func TestContainersThatRanDoNotWaitForStart(t *testing.T) {
	s := fresh(ran, func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyAlways
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "d"})
	})
	s.callStarted(tick, 50, Action{Op: Start})
	s.callReturned(moment(tick), Returned{Seq: 51, Report: &Report{}, Err: imagePull{errFailed}, Result: Failed})
	list := s.update(wallAt(tick)).Observed.ContainerStatuses
	if len(list) != 2 || list[0].State != (corev1.ContainerState{}) || list[1].State.Waiting == nil || list[1].State.Waiting.Reason != "Pullingd" {
		t.Errorf("%+v", list)
	}
}

// How many suspects are more likely a mistake than the truth.
func TestTooMany(t *testing.T) {
	for _, tc := range []struct {
		gone, unsure, held int
		want               bool
	}{
		{1, 0, 1, false}, {2, 0, 2, true}, {2, 0, 3, false}, {1, 1, 2, true}, {0, 0, 0, false},
		{5, 0, 20, false}, {6, 0, 20, true}, {3, 3, 20, true}, {25, 0, 100, false}, {26, 0, 100, true},
	} {
		if got := TooMany(tc.gone+tc.unsure, tc.held); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
}

// A report about a pod of which nothing is known decides about it if a List has been applied.
func TestAReportDecidesAfterAList(t *testing.T) {
	for joined, want := range map[bool]bool{true: true, false: false} {
		s := newScene(testPod(ran))
		if _, err := s.Apply(moment(tick), Reported{Seq: 5, Report: runs(), FP: 1, Joined: joined}); err != nil || s.Known() != want {
			t.Errorf("joined: %v, known: %v, %v", joined, s.Known(), err)
		}
	}
}

// A resize that the provider has not accepted, or can't apply, is a condition of its own.
func TestAnUnappliedResizeIsPending(t *testing.T) {
	resized := func(p *corev1.Pod) {
		p.Generation = 2
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}
	}
	pending := func(s *scene) bool {
		return slices.ContainsFunc(s.update(wallAt(tick)).Observed.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodResizePending && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonInfeasible
		})
	}
	says := func(st *Report) *Report { st.Generation = 1; return st }
	for name, edit := range map[string]func(*corev1.Pod){"resized": resized, "another image": func(p *corev1.Pod) { p.Generation = 2 }} {
		s := fresh().calls(Start, 0, runs()).now(edit).calls(Update, 0, Rejection{"R", "m"})
		if got := pending(s); got != (name == "resized") {
			t.Errorf("%s, refused: %v", name, got)
		}
		s = fresh()
		s.r.Updates = false
		if s.calls(Start, 0, says(runs())).says(says(unready())); s.unapplied() {
			t.Error("the provider runs the newest generation")
		}
		s.now(edit)
		if got := pending(s); got != (name == "resized") || !s.unapplied() {
			t.Errorf("%s, without Update: %v, unapplied: %v", name, got, s.unapplied())
		}
	}
}

// After an answer of the Inspector the next List decides.
func TestAnInspectorIsAskedOnce(t *testing.T) {
	s := runningPod()
	s.r.Inspects = true
	s.absent(moment(tick), 90, false)
	if got := s.Next(tick, Calls, true); got.Op != Inspect {
		t.Fatalf("%q", got.Op)
	}
	if s.calls(Inspect, 0, errFailed); s.Next(tick+time.Hour, Calls, true).Op != "" {
		t.Error("it is asked again without a List")
	}
}

// Only a List proves that a pod which was lost is there again.
func TestStartDoesNotProveThatThePodIsThere(t *testing.T) {
	s := runningPod()
	s.r.Lost = LostRestart
	s.markLost(moment(tick))
	if s.calls(Start, 0, runs()); s.provider.losses != 1 {
		t.Errorf("%d losses after Start", s.provider.losses)
	}
	if s.observe(tick, 99, runs(), 99, true); s.provider.losses != 0 {
		t.Errorf("%d losses after a List", s.provider.losses)
	}
}

// The informer shows a missing pod again. An older version, which lags behind an answer, shows nothing.
func TestAMissingPodIsSeenAgain(t *testing.T) {
	version := func(s *scene, rv string) *Version {
		pod := s.Pod().DeepCopy()
		pod.ResourceVersion = rv
		return Cached(pod)
	}
	s := runningPod().with(func(s *scene) { s.api.cachedVersion = "10"; s.setPod(tick, Known(version(s, "30").pod)); s.doubt(tick) })
	if s.seen(tick, Seen{Version: version(s, "20")}); !s.missing() {
		t.Error("seen in a version from before")
	}
	s.suspect.goneSince = tick
	if s.seen(tick, Seen{Version: version(s, "40")}); s.gone() || s.suspect.goneSince != 0 {
		t.Error("still missing")
	}
}

func TestTheStatusOfAStartingPodIsOfTheNewestSpec(t *testing.T) {
	s := fresh(func(p *corev1.Pod) { p.Generation = 3 })
	if got := s.update(wallAt(tick)).Generation; got != 3 {
		t.Errorf("generation %d", got)
	}
}

func TestASuspectIsUnsureUntilTheAPIAnswers(t *testing.T) {
	s := orphanPod(runs())
	for _, tc := range []struct {
		answer Answer
		want   bool
	}{{AnswerNone, true}, {AnswerForbidden, false}, {AnswerNone, true}, {AnswerGone, false}, {AnswerNone, true}, {AnswerThere, false}} {
		s.suspectAnswered(tick, tc.answer)
		if suspicion, _ := s.Suspect(); suspicion.Unsure != tc.want {
			t.Errorf("answer %d: unsure %v", tc.answer, suspicion.Unsure)
		}
	}
}

// A List shows that a pod runs which was reported as stopped. The next one says no more.
func TestABrokenPromiseIsNewsOnce(t *testing.T) {
	s := runningPod().says(exited(0, true))
	if s.observe(tick, 99, runs(), 77, true); !s.Repeats(77, false) || s.provider.seenSeq != 99 {
		t.Errorf("fingerprint %d, seen at %d", s.provider.fp, s.provider.seenSeq)
	}
	s.checked()
}

// Names of the status that a provider of one-container pods may choose.
func TestTheOnlyContainerIsRenamed(t *testing.T) {
	two := func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "d"}) }
	initial := func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{Name: "i"}} }
	for name, tc := range map[string]struct {
		edit     func(*corev1.Pod)
		reported []string
		want     string
	}{
		"another name":             {func(*corev1.Pod) {}, []string{"x"}, "c"},
		"two in the spec":          {two, []string{"x"}, "x"},
		"two in the report":        {func(*corev1.Pod) {}, []string{"x", "y"}, "x"},
		"the init container's":     {initial, []string{"i"}, "i"},
		"not the init container's": {initial, []string{"x"}, "c"},
	} {
		s := newScene(testPod(tc.edit))
		var st corev1.PodStatus
		for _, name := range tc.reported {
			st.ContainerStatuses = append(st.ContainerStatuses, corev1.ContainerStatus{Name: name})
		}
		if s.nameContainer(&st); st.ContainerStatuses[0].Name != tc.want {
			t.Errorf("%s: %s", name, st.ContainerStatuses[0].Name)
		}
	}
}
