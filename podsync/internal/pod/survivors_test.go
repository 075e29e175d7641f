// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// After the grace period Stop is repeated each Relist, and not without a pause.
func TestStopIsRepeatedEachRelist(t *testing.T) {
	s := runningPod().now(deletedWithin(5)).calls(Stop, 5*time.Second, runs())
	now := tick + 5*time.Second + stopSlack
	if got := s.decideCall(now, true); got.Op != Stop {
		t.Fatalf("%q after the grace period, want Stop", got.Op)
	}
	for range 3 {
		s.callStarted(now, 100, Action{Op: Stop, Grace: time.Second})
		s.callReturned(moment(now), Returned{Seq: 100, Report: runs(), FP: 1})
		got := s.decideCall(now, true)
		if got.Op != "" || got.Wake != now+s.r.Relist {
			t.Fatalf("%q, wake after %v, want %v", got.Op, got.Wake-now, s.r.Relist)
		}
		now = got.Wake
	}
}

// The informer must have said that the object is gone, or it would show it as a new pod.
func TestAPodThatTheInformerHasIsNotForgotten(t *testing.T) {
	s := runningPod().says(exited(0, true))
	s.markDeleted(tick)
	s.becomeForgotten()
	if s.Forgettable() {
		t.Error("the informer has it, and it is forgotten")
	}
	if s.api.cached = false; !s.Forgettable() {
		t.Error("neither has it, and it is kept")
	}
}

// A question that failed is repeated with backoff.
func TestTheQuestionAfterA404BacksOff(t *testing.T) {
	s := runningPod().says(unready())
	s.writeStarted(tick, Patch, wallAt(tick))
	s.notFound(tick)
	at := tick + goneAfter
	if got := s.decideWrite(at); got.Op != Get {
		t.Fatalf("%q, want GET", got.Op)
	}
	for range 4 {
		s.writeStarted(at, Get, wallAt(at))
		s.writeFailed(at, WriteFailed{MayBeStored: true})
	}
	got := s.decideWrite(at)
	if got.Op != "" || got.Wake != s.write.retryAt || got.Wake <= at {
		t.Errorf("%q, wake after %v", got.Op, got.Wake-at)
	}
}

// A report that leaves out an init container keeps what the last one said of it, if the API does
// not have that yet.
func TestAnUnsentReportOfAnInitContainerIsKept(t *testing.T) {
	s := runningPod(func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{Name: "i"}} })
	first := runs()
	first.Status.InitContainerStatuses = []corev1.ContainerStatus{{
		Name: "i", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 7}},
	}}
	s.says(first).says(unready())
	list := s.report().InitContainerStatuses
	if len(list) != 1 || list[0].State.Terminated == nil || list[0].State.Terminated.ExitCode != 7 {
		t.Errorf("init containers %+v", list)
	}
}

// A lost race is no outage: the pause after many of them is short.
func TestThePauseAfterAConflictIsShort(t *testing.T) {
	s := runningPod().says(unready())
	for range 12 {
		s.writeStarted(tick, Patch, wallAt(tick))
		s.conflicted(tick)
	}
	if pause := s.write.retryAt - tick; pause <= 0 || pause > 4*s.r.Retry.Base {
		t.Errorf("a pause of %v", pause)
	}
}

// While the API does not answer about some suspects, the others are not stopped, even after
// MassHold, unless they are too many by themselves.
func TestSuspectsWithoutAnAnswerKeepTheOthersRunning(t *testing.T) {
	r := Rules{MassHold: time.Minute}
	now := tick + time.Minute
	for _, tc := range []struct {
		gone, unsure, held int
		want               bool
	}{{3, 10, 20, false}, {3, 0, 20, true}, {10, 3, 20, true}, {10, 0, 20, true}} {
		if got := r.Believed(now, tick, tc.gone, tc.unsure, tc.held); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
	if r.Believed(now-1, tick, 10, 0, 20) {
		t.Error("before MassHold")
	}
}

// forgottenPod has stopped at a provider that keeps nothing of it, before the API has its exit
// code, and then the gate closed.
func forgottenPod() *scene {
	s := runningPod(func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways }).now(deletedWithin(30))
	s.r.Releases = false
	s.calls(Stop, 30*time.Second, exited(3, true))
	s.reset(tick)
	return s.checked()
}

func TestTheReportOfAForgottenInstanceIsKept(t *testing.T) {
	s := forgottenPod()
	s.classify(moment(tick))
	if report := s.report(); report == nil || report.ContainerStatuses[0].State.Terminated == nil || report.ContainerStatuses[0].State.Terminated.ExitCode != 3 {
		t.Errorf("the exit code is lost: %+v", report)
	}
}

func TestAKeptReportGivesWayToAnInstance(t *testing.T) {
	s := forgottenPod().says(runs())
	s.classify(moment(tick))
	if report := s.report(); report == nil || report.ContainerStatuses[0].State.Running == nil || s.stopped() {
		t.Errorf("it runs, and the report is %+v", report)
	}
}

// The first conflicts may be those of a client that ends the pod.
func TestAChangeOfThePhaseIsPinnedAtFirst(t *testing.T) {
	s := runningPod().says(unready())
	for n := range pinnedTries {
		if !s.pinned() {
			t.Errorf("not pinned after %d conflicts", n)
		}
		s.writeStarted(tick, Patch, wallAt(tick))
		s.conflicted(tick)
	}
	if s.pinned() {
		t.Errorf("pinned after %d conflicts", pinnedTries)
	}
	if s.now(phase(corev1.PodFailed)); !s.pinned() {
		t.Error("the phase has changed, and the next change of it is not pinned")
	}
}

// What the provider holds, or what ends, needs no question to the Inspector.
func TestAnAdoptedPodIsNotInspected(t *testing.T) {
	s := newScene(testPod(ran)).says(runs())
	s.provider.needsInspect = true
	if s.classify(moment(tick)); s.provider.needsInspect {
		t.Error("a pod that is held is inspected")
	}
	s = newScene(testPod(ran))
	s.provider.needsInspect, s.end = true, &termination{reason: StopDeleted, grace: MinGrace}
	if s.classify(moment(tick)); s.provider.needsInspect {
		t.Error("a pod that ends is inspected")
	}
}

// A pod that was adopted has been admitted, also if it is lost and starts again.
func TestAnAdoptedPodIsNotAdmittedAgain(t *testing.T) {
	s := adopted(runs(), ran, func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways })
	s.r.Admits, s.r.Lost = true, LostRestart
	s.markLost(moment(tick))
	if got := s.decideCall(tick, true); got.Op != Start {
		t.Errorf("%q", got.Op)
	}
}

// A report may come before the pod. The pod that it ends is stopped when it is adopted.
func TestAnEarlyReportEndsThePod(t *testing.T) {
	rules := testRules()
	state := New(rules, tick, 0, Saved{})
	s := &scene{State: &state, r: rules, free: true}
	s.says(exited(0, false))
	s.setPod(tick, &Version{pod: testPod(ran)})
	s.classify(moment(tick))
	if reason, ends := s.Ending(); !ends || reason != StopCompleted {
		t.Errorf("ends: %v, as %q", ends, reason)
	}
}

func TestWhatIsNeverForgotten(t *testing.T) {
	gone := func() *scene {
		s := runningPod().says(exited(0, true))
		s.markDeleted(tick)
		s.becomeForgotten()
		s.api.cached = false
		return s.checked()
	}
	for name, tc := range map[string]struct {
		edit func(*scene)
		want bool
	}{
		"nothing is left":          {func(*scene) {}, true},
		"it has a record":          {func(s *scene) { s.provider.saved.Exists = true }, false},
		"the provider keeps it":    {func(s *scene) { s.provider.instance = stopped }, false},
		"the API must be asked":    {func(s *scene) { s.api.presence = missing }, false},
		"a call is under way":      {func(s *scene) { s.call.inflight = &Call{Op: Remove} }, false},
		"a request is under way":   {func(s *scene) { s.write.inflight = &Call{Op: Get} }, false},
		"no List has said so much": {func(s *scene) { s.provider.sight = unlisted }, false},
		"the informer has it":      {func(s *scene) { s.api.cached = true }, false},
		"its end is not certain":   {func(s *scene) { s.provider.instance = none }, false},
		"the API has it":           {func(s *scene) { s.api.presence = present }, false},
	} {
		s := gone()
		if tc.edit(s); s.Forgettable() != tc.want {
			t.Errorf("%s: %v", name, !tc.want)
		}
	}
}

// The end of MassHold is not slept through, and the API is not asked all the time before.
func TestAHeldSuspectIsAskedAboutWhenTheHoldEnds(t *testing.T) {
	for hold, want := range map[time.Duration]Instant{
		0:                      tick + heldRest,
		10 * time.Minute:       tick + heldRest,
		20 * time.Second:       tick + 20*time.Second - 5*time.Second,
		5*time.Second + 1:      tick + MissingDelay,
		6 * time.Second:        tick + MissingDelay,
		7 * time.Second:        tick + 2*time.Second,
		heldRest + time.Second: tick + heldRest - 4*time.Second,
	} {
		s := runningPod()
		s.doubt(tick - 10*time.Second)
		s.r.MassHold, s.suspect.goneSince = hold, tick-5*time.Second
		if s.holdSuspect(tick); s.suspect.at != want {
			t.Errorf("a hold of %v: asked after %v, want %v", hold, s.suspect.at-tick, want-tick)
		}
		s.holdSuspect(tick)
		if s.suspect.at != want {
			t.Errorf("a hold of %v: the second time after %v", hold, s.suspect.at-tick)
		}
	}
}

// Only a List from before the gate opened is ignored.
func TestWhichListsAreIgnored(t *testing.T) {
	for name, tc := range map[string]struct {
		gated, fromList, known bool
		seq                    uint64
		want                   bool
	}{
		"an old List":                {true, true, false, 4, true},
		"a List at that moment":      {true, true, false, 5, false},
		"a report":                   {true, false, false, 4, false},
		"there is no gate":           {false, true, false, 4, false},
		"the pod is known":           {true, true, true, 4, false},
		"a report, and no gate":      {false, false, false, 4, false},
		"a report, and it is known":  {true, false, true, 4, false},
		"a newer List, and no gate":  {false, true, false, 6, false},
		"a newer List, and it known": {true, true, true, 6, false},
	} {
		s := newScene(testPod())
		s.r.Gated, s.provider.born = tc.gated, 5
		if tc.known {
			s.provider.sight = listed
		}
		ev := Reported{Seq: tc.seq, FromList: tc.fromList, Report: runs(), FP: 1, NodeName: "n"}
		if _, err := s.Apply(moment(tick), ev); err != nil || s.Held() == tc.want || s.provider.nodeName != "n" {
			t.Errorf("%s: held: %v, node %q, %v", name, s.Held(), s.provider.nodeName, err)
		}
		ev.NodeName = ""
		if _, err := s.Apply(moment(tick), ev); err != nil || s.provider.nodeName != "n" {
			t.Errorf("%s: the node is lost, %v", name, err)
		}
	}
}

// The first lost race is repeated at once.
func TestTheFirstConflictCostsNoPause(t *testing.T) {
	s := runningPod().says(unready())
	s.writeStarted(tick, Patch, wallAt(tick))
	if s.conflicted(tick); s.write.retryAt != 0 || s.write.failures != 1 {
		t.Errorf("retry at %v after %d failures", s.write.retryAt, s.write.failures)
	}
}

// API servers before 1.34 keep no generation: that nothing was refused must not look like a
// refused generation 0.
func TestNothingIsRefusedWithoutGenerations(t *testing.T) {
	s := runningPod(func(p *corev1.Pod) { p.Generation = 0 })
	s.provider.saysGeneration = true
	if u := s.update(wallAt(tick)); len(u.Observed.Conditions) != 0 {
		t.Errorf("%+v", u.Observed.Conditions)
	}
	s = runningPod().now(func(p *corev1.Pod) { p.Generation = 2 })
	s.provider.refused = &refusal{generation: 1, answer: "too much"}
	if u := s.update(wallAt(tick)); len(u.Observed.Conditions) != 0 || u.Generation != 1 {
		t.Errorf("%+v, generation %d", u.Observed.Conditions, u.Generation)
	}
}

// A copy for the caller is the caller's.
func TestPrivate(t *testing.T) {
	pod := testPod()
	compact, err := Encode(pod)
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]*Version{"plain": Known(pod), "encoded": CachedCompact(&compact)} {
		v.Open()
		got := v.Private()
		got.Name = "changed"
		if v.Open().Name != "a" || v.Private().Name != "a" {
			t.Errorf("%s: the version has changed", name)
		}
	}
	both := &Version{pod: testPod(func(p *corev1.Pod) { p.Name = "b" }), compact: &compact}
	if got := both.Private(); got.Name != "a" || both.pod.Name != "b" {
		t.Errorf("%s: not decoded anew", got.Name)
	}
}

// Which generation the provider runs. Once Start has succeeded, an Updater says it by the
// results of Update only.
func TestWhichReportedGenerationCounts(t *testing.T) {
	newer := func(p *corev1.Pod) { p.Generation = 5 }
	says := func(generation int64) *Report { st := unready(); st.Generation = generation; return st }
	for name, tc := range map[string]struct {
		scene   *scene
		updates bool
		report  int64
		want    int64
	}{
		"an instance that is being adopted": {newScene(testPod(newer)), true, 3, 3},
		"a running pod":                     {runningPod().now(newer), false, 3, 3},
		"a running pod, with an Updater":    {runningPod().now(newer), true, 3, 1},
		"it is not said":                    {runningPod().now(newer), false, 0, 1},
		"one that the pod never had":        {runningPod().now(newer), false, 9, 0},
	} {
		tc.scene.r.Updates = tc.updates
		if got := tc.scene.says(says(tc.report)).provider.generation; got != tc.want {
			t.Errorf("%s: generation %d, want %d", name, got, tc.want)
		}
	}
}

// The API is asked about a pod that a LIST left out, unless nothing depends on the answer.
func TestWhichMissingPodsAreAskedAbout(t *testing.T) {
	for name, tc := range map[string]struct {
		scene *scene
		want  bool
	}{
		"it runs":                   {runningPod(), true},
		"it ends":                   {runningPod().now(deletedWithin(30)), false},
		"the provider has not said": {newScene(testPod()), true},
		"it never ran":              {fresh(), false},
		"its end is stored":         {ended(), false},
	} {
		if tc.scene.markMissing(tick); tc.scene.missing() != tc.want || !tc.scene.gone() {
			t.Errorf("%s: asked: %v", name, tc.scene.missing())
		}
		tc.scene.checked()
	}
}

// A List that can't show the pod says nothing if it leaves out the pod.
func TestWhichAbsencesCount(t *testing.T) {
	for name, tc := range map[string]struct {
		scene *scene
		want  bool
	}{
		"it runs":               {runningPod(), true},
		"it never ran":          {fresh(), false},
		"a call is in flight":   {runningPod().calls(Update, 0), false},
		"it was reported since": {runningPod().with(func(s *scene) { s.provider.seenSeq = 90 }), false},
	} {
		if tc.scene.absent(moment(tick), 90, false); tc.scene.provider.absentAt != 0 != tc.want {
			t.Errorf("%s: absent at %v", name, tc.scene.provider.absentAt)
		}
	}
}

// Fields that the provider did not report are derived again, and those that it did are kept.
func TestWhichStoredFieldsAreReported(t *testing.T) {
	type status = corev1.PodStatus
	base := func() *Report {
		st := unready()
		st.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "i"}}
		return st
	}
	some := corev1.ResourceList{"cpu": {}}
	for name, edit := range map[string]func(*status){
		"resources":           func(st *status) { st.ContainerStatuses[0].Resources = &corev1.ResourceRequirements{} },
		"resources of init":   func(st *status) { st.InitContainerStatuses[0].Resources = &corev1.ResourceRequirements{} },
		"allocated resources": func(st *status) { st.ContainerStatuses[0].AllocatedResources = some },
		"host IP":             func(st *status) { st.HostIP = "10.0.0.1" },
		"host IPs":            func(st *status) { st.HostIPs = []corev1.HostIP{{IP: "10.0.0.1"}} },
		"pod IP":              func(st *status) { st.PodIP = "10.0.0.1" },
		"pod IPs":             func(st *status) { st.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}} },
	} {
		for _, reported := range []bool{true, false} {
			s, st := runningPod(), base()
			if reported {
				edit(&st.Status)
			}
			c := s.says(st).writeStarted(tick, Patch, wallAt(tick))
			resp := s.Pod().DeepCopy()
			resp.ResourceVersion, resp.Status = "40", base().Status
			edit(&resp.Status)
			s.statusStored(tick, c, resp, true)
			if kept := !equality.Semantic.DeepEqual(s.update(wallAt(tick)).Observed, base().Status); kept != reported {
				t.Errorf("%s, reported: %v; kept: %v", name, reported, kept)
			}
		}
	}
}

// The version of a request needs no second copy if the informer's is the same.
func TestWhichVersionsShare(t *testing.T) {
	pod := testPod()
	compact, _ := Encode(pod)
	for name, tc := range map[string]struct {
		version, informer *Version
		want              bool
	}{
		"the same pod":       {Known(pod), Cached(pod), true},
		"a copy":             {Known(pod.DeepCopy()), Cached(pod), false},
		"encoded":            {CachedCompact(&compact), CachedCompact(&compact), true},
		"decoded elsewhere":  {Known(pod), CachedCompact(&compact), false},
		"an earlier version": {CachedCompact(&compact), Cached(testPod(deletedWithin(1))), false},
	} {
		if got := tc.version.Shares(tc.informer); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A node deletes a pod that nobody has deleted only if its provider asks for that, and only if a
// controller will make another one.
func TestOnlyTheProviderDeletesAPodOfAController(t *testing.T) {
	owned := func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "j", UID: "j", Controller: new(true)}}
	}
	deletes := func(stopped bool) *Report {
		st := exited(0, stopped)
		st.Delete = true
		return st
	}
	for name, tc := range map[string]struct {
		scene *scene
		want  bool
	}{
		"of a controller":                        {runningPod(owned).says(exited(0, true)), false},
		"of a controller, the provider asks":     {runningPod(owned).says(deletes(true)), true},
		"of a controller, asks before it stops":  {runningPod(owned).says(deletes(false)).says(exited(0, true)), false},
		"of no controller, the provider asks":    {runningPod().says(deletes(true)), false},
		"of a controller, deleted by its client": {runningPod(owned).now(deletedWithin(30)).says(exited(0, true)), true},
	} {
		if got := tc.scene.unreleased(); got != tc.want {
			t.Errorf("%s: to be deleted: %v", name, got)
		}
	}
}

// A gate that closes forgets why a pod was ending, except that it was evicted: everything else
// is known again from the API and the provider.
func TestOnlyAnEvictionOutlivesTheGate(t *testing.T) {
	for reason, want := range map[StopReason]bool{StopEvicted: true, StopDeadline: false, StopDeleted: false} {
		s := runningPod()
		s.beginTermination(tick, reason, nil, MinGrace)
		s.reset(tick)
		if _, ends := s.Ending(); ends != want {
			t.Errorf("%s: ends: %v", reason, ends)
		}
	}
}

// An orphan whose pod is seen at last waits for a List, as any pod.
func TestAnOrphanThatIsSeenIsUnlisted(t *testing.T) {
	s := orphanPod(runs())
	if s.seen(tick, Seen{Version: Cached(testPod())}); s.Known() {
		t.Error("it counts as listed")
	}
}

// What may be gone from the API gets no record.
func TestWhatIsSaved(t *testing.T) {
	s := runningPod()
	s.r.Checkpoints = true
	if !s.unsaved() {
		t.Error("a pod that runs has no record")
	}
	if s.doubt(tick); s.unsaved() {
		t.Error("a missing pod gets a record")
	}
}

// The usual reasons of a container that is only being made hold up no pod.
func TestHeldUp(t *testing.T) {
	for reason, want := range map[string]bool{"": false, "ContainerCreating": false, "PodInitializing": false, "ErrImagePull": true, "CrashLoopBackOff": true} {
		for name, list := range map[string]func(*corev1.PodStatus) *[]corev1.ContainerStatus{
			"init": func(st *corev1.PodStatus) *[]corev1.ContainerStatus { return &st.InitContainerStatuses },
			"main": func(st *corev1.PodStatus) *[]corev1.ContainerStatus { return &st.ContainerStatuses },
		} {
			st := &Report{}
			waits := isWaiting("c")
			waits.State.Waiting.Reason = reason
			*list(&st.Status) = []corev1.ContainerStatus{waits}
			if got := fresh().says(st).heldUp(); got != want {
				t.Errorf("%s container, %q: %v", name, reason, got)
			}
		}
	}
	if fresh().heldUp() || fresh().says(runs()).heldUp() {
		t.Error("held up by nothing")
	}
}

// What the driver asks.
func TestWhichPodsAreAdmitted(t *testing.T) {
	for name, tc := range map[string]struct {
		scene *scene
		want  bool
	}{
		"it runs":         {runningPod().with(func(s *scene) { s.provider.admitted = true }), true},
		"it waits":        {fresh(), false},
		"it has stopped":  {runningPod().with(func(s *scene) { s.provider.admitted = true }).says(exited(0, true)), false},
		"it was not seen": {orphanPod(runs()).with(func(s *scene) { s.provider.admitted = true }), false},
	} {
		if got := tc.scene.Admitted(); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestTheLastStatus(t *testing.T) {
	if s := newScene(testPod(ran)); s.LastReport() != nil || s.LastStatus() == nil || len(s.LastStatus().ContainerStatuses) != 1 {
		t.Errorf("the stored status counts before the first report: %+v", s.LastStatus())
	}
	if s := runningPod().says(exited(3, false)); s.LastStatus() != s.LastReport() || s.LastStatus() == nil {
		t.Error("a report counts")
	}
	state := NewOrphan(testRules(), tick, 1, Saved{}, "")
	if s := (&scene{State: &state}); s.LastStatus() != nil {
		t.Error("nothing is known of an orphan")
	}
	if s := orphanPod(runs()); s.LastStatus() == nil {
		t.Error("an orphan has a report")
	}
}

// The exit codes of an instance that the provider has forgotten before its pod was seen.
func TestWhatIsUnclaimed(t *testing.T) {
	forget := func(s *scene) {
		if _, err := s.Apply(moment(tick), ListEnded{Seq: 99, Open: true}); err != nil {
			t.Error(err)
		}
	}
	for name, tc := range map[string]struct {
		scene         *scene
		want, stopped bool
	}{
		"has stopped":               {orphanPod(exited(3, true)).with(forget), true, true},
		"has exited":                {orphanPod(exited(3, false)).with(forget), true, false},
		"ran":                       {orphanPod(runs()).with(forget), false, false},
		"has said nothing":          {orphanPod(&Report{}).with(forget), false, false},
		"exited, and is listed":     {orphanPod(exited(3, false)), false, false},
		"its pod is gone":           {orphanPod(exited(3, true)).with(func(s *scene) { s.stopSuspect(tick) }).with(forget), false, false},
		"its pod was seen":          {runningPod().says(exited(3, true)).with(forget), false, false},
		"it was the one of no name": {newScene(testPod()), false, false},
	} {
		got, _ := tc.scene.Unclaimed()
		if (got != nil) != tc.want || got != nil && (got.Stopped != tc.stopped || len(got.Status.ContainerStatuses) != 1) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestTheVersionOfAPod(t *testing.T) {
	if v := runningPod().Version(); v.ResourceVersion() != "10" || v.UID() != "u" {
		t.Errorf("%+v", v)
	}
	if v := orphanPod(runs()).Version(); v != (Version{}) {
		t.Errorf("an orphan has a version: %+v", v)
	}
}

// A pod at rest keeps only what can't be decoded again.
func TestWhatRests(t *testing.T) {
	compact := func(edit ...func(*corev1.Pod)) *Version {
		c, err := Encode(testPod(edit...))
		if err != nil {
			t.Fatal(err)
		}
		return CachedCompact(&c)
	}
	s := runningPod()
	s.api.pod, s.provider.status, s.provider.mirror = compact(), nil, compact(ran)
	opened := func() (n int) {
		for _, v := range []*Version{s.api.pod, s.provider.mirror} {
			if v != nil && v.pod != nil {
				n++
			}
		}
		return n
	}
	s.Pod()
	s.report()
	if opened() != 2 {
		t.Fatal(opened())
	}
	for _, lane := range []**Call{&s.call.inflight, &s.write.inflight} {
		*lane = &Call{}
		if s.Rest(); opened() != 2 {
			t.Errorf("%d are open during a call", opened())
		}
		*lane = nil
	}
	if s.Rest(); opened() != 0 {
		t.Errorf("%d are open at rest", opened())
	}
	s.provider.mirror = nil
	s.Rest()
	s.api.pod = nil
	s.Rest() // an orphan has no pod
}

func TestTheFieldsOfACompactPod(t *testing.T) {
	pod := testPod(func(p *corev1.Pod) {
		p.Namespace, p.Name, p.UID, p.ResourceVersion = "namespace", "of-a-pod", "uid", "version"
		p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
	})
	c, err := Encode(pod)
	if err != nil {
		t.Fatal(err)
	}
	want := metav1.ObjectMeta{Namespace: "namespace", Name: "of-a-pod", UID: "uid", ResourceVersion: "version"}
	if got := c.Meta(); !equality.Semantic.DeepEqual(*got, want) {
		t.Errorf("%+v", got)
	}
	if got := c.Pod(); len(got.ManagedFields) != 0 || got.Name != "of-a-pod" || len(pod.ManagedFields) != 1 {
		t.Errorf("managed fields are kept: %+v", got.ManagedFields)
	}
}

// Without a hold, or with one that never ends, nothing is believed because of its age.
func TestWhichHoldsEnd(t *testing.T) {
	for _, tc := range []struct {
		hold, age time.Duration
		want      bool
	}{
		{time.Minute, time.Minute, true}, {time.Minute, time.Minute - 1, false},
		{-1, time.Hour, false}, {0, time.Hour, false}, {1, 0, false}, {1, 1, true},
	} {
		r := Rules{MassHold: tc.hold}
		if got := r.Believed(tick+tc.age, tick, 10, 0, 10); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
}

// Whether the provider runs an older generation and can't update it.
func TestWhatIsUnapplied(t *testing.T) {
	pod := func(edit func(*scene)) bool {
		s := runningPod(func(p *corev1.Pod) { p.Generation = 2 })
		s.r.Updates, s.provider.saysGeneration, s.provider.generation = false, true, 1
		edit(s)
		return s.unapplied()
	}
	for name, tc := range map[string]struct {
		edit func(*scene)
		want bool
	}{
		"an older one":       {func(*scene) {}, true},
		"the newest":         {func(s *scene) { s.provider.generation = 2 }, false},
		"it can update":      {func(s *scene) { s.r.Updates = true }, false},
		"it does not say so": {func(s *scene) { s.provider.saysGeneration = false }, false},
		"it ends":            {func(s *scene) { s.now(deletedWithin(5)); s.provider.generation = 1 }, false},
		"it does not run":    {func(s *scene) { s.becomeHeld() }, false},
	} {
		if got := pod(tc.edit); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// What is kept of the accepted spec of an adopted pod.
func TestTheMetadataOfAnAdoptedPod(t *testing.T) {
	for name, tc := range map[string]struct {
		wanted     bool
		generation int64
		before     *corev1.Pod
		want       bool
	}{
		"wanted":                    {true, 1, nil, true},
		"not wanted":                {false, 1, nil, false},
		"no generations":            {true, 0, nil, false},
		"it is known what it runs":  {true, 1, testPod(), false},
		"known, and not wanted":     {false, 1, testPod(), false},
		"known, without generation": {true, 0, testPod(), false},
	} {
		s := newScene(testPod(ran, func(p *corev1.Pod) { p.Generation = tc.generation })).says(runs())
		s.r.UpdateMetadata, s.provider.acceptedPod = tc.wanted, tc.before
		s.classify(moment(tick))
		want := tc.before
		if tc.want {
			want = s.Pod()
		}
		if s.provider.acceptedPod != want {
			t.Errorf("%s: %p, want %p", name, s.provider.acceptedPod, want)
		}
	}
}
