// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

var rewrite = flag.Bool("update", false, "write what the scripts of testdata decide into them")

// TestScripts runs the stories of testdata. Each line is an event, and after the arrow what
// follows: the stage of the pod, the call of the provider and the request to the API that are
// due, and the news. testdata/README has the events.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			w := newScript(t)
			var out []string
			for i, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
				event, want, _ := strings.Cut(line, " -> ")
				if event = strings.TrimSpace(event); event == "" || event[0] == '#' {
					out = append(out, line)
					continue
				}
				got := w.run(strings.Fields(event))
				out = append(out, fmt.Sprintf("%-32s -> %s", event, got))
				if got != strings.TrimSpace(want) && !*rewrite {
					t.Errorf("%s:%d: %s: %s, want %s", file, i+1, event, got, want)
				}
			}
			if *rewrite {
				if err := os.WriteFile(file, []byte(strings.Join(out, "\n")+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// A script is a pod, and the object that the API server has.
type script struct {
	*testing.T
	rules  Rules
	state  State
	begun  bool
	trace  Trace
	now    Instant
	seq    uint64
	server *corev1.Pod
	fp     uint64

	listing uint64 // when the last List of the event listing began
}

func newScript(t *testing.T) *script {
	w := &script{T: t, rules: *testRules(), now: tick}
	w.rules.CompleteList, w.rules.MassHold, w.rules.OrphanDelay = false, 10*time.Minute, 30*time.Second
	w.rules.Retry.Jitter = 1e-9
	w.server = testPod()
	return w
}

// begin makes the state of the pod.
func (w *script) begin(state State) {
	if !w.begun {
		w.state, w.begun = state, true
	}
}

// seqOf returns when a report, or the List that has it, began.
func (w *script) seqOf(old bool) uint64 {
	if old {
		return w.listing
	}
	return w.tick()
}

func (w *script) tick() uint64 {
	w.seq++
	return w.seq
}

// apply applies an event, and says what follows.
func (w *script) apply(event Event) string {
	w.Helper()
	if !w.begun {
		w.begin(New(&w.rules, w.now, w.tick(), Saved{}))
	}
	from := w.state.Stage()
	news, err := w.state.Apply(moment(w.now), event)
	w.check()
	after, _ := w.state.Apply(moment(w.now), Passed{})
	w.check()
	if to := w.state.Stage(); to != from && (to < from && from != Orphaned || to == Orphaned) && !mayGoBack(from, to, event) {
		w.Errorf("a pod goes back from %s to %s by %T", stages[from], stages[to], event)
	}
	call, write := w.state.Next(w.now, Calls, true), w.state.Next(w.now, Writes, true)
	parts := []string{stages[w.state.Stage()], describe(call), describe(write)}
	if write.Urgent {
		parts[2] += "!"
	}
	for what, said := range map[string]bool{
		"+lost": news.Lost, "+relist": news.Relist, "+stale": news.Stale, "+abort": news.Abort, "+back": news.Back, "+expired": after.Expired,
		"+unapplied": after.Unapplied, "+forgettable": w.state.Forgettable(), "+illegal": err != nil, "+" + news.Dropped: news.Dropped != "",
		"+mayBeLost": w.state.mayBeLost(), "+superfluous": news.Superfluous, "+firstStop": news.FirstStop, "+fresh": news.Fresh, "+changed": news.Changed,
		"+rejected": news.Rejected, "+fought:" + news.Fought: news.Fought != "", "+canceled": news.Canceled, "+unpinned": news.Call != nil && !news.Call.Pinned && (news.Call.Op == Patch || news.Call.Op == Delete),
	} {
		if said {
			parts = append(parts, what)
		}
	}
	if after.Wake != Never {
		parts = append(parts, fmt.Sprint("+passed:", after.Wake))
	}
	slices.Sort(parts[3:])
	return strings.Join(parts, " ")
}

// check checks the invariants.
func (w *script) check() {
	w.Helper()
	if err := w.state.Check(); err != nil {
		w.Error(err)
	}
	now, err := w.state.Since(w.trace)
	if w.trace = now; err != nil {
		w.Error(err)
	}
}

// mayGoBack reports whether an event may make a pod go back to a stage. The cases are those of the
// comment of podsync.Stage.
func mayGoBack(from, to Stage, event Event) bool {
	switch event.(type) {
	case GateClosed:
		return to == Unsynced || to == Orphaned
	case Reported:
		return from >= Stopped && to == Terminating || from == Final && to == Orphaned // it runs again
	case ListEnded, LossBelieved, Returned:
		return from == Running && to == Starting // it was lost
	case Vanished, NotFound:
		return from == Released && to == Final // it had stayed as completed
	case Seen, Read, SuspectAnswered:
		begun := to == Waiting || to == Terminating // of what was not started, and may end at once
		return from >= Final && to == Stopped || from == Released && to == Final || from == Final && begun
	}
	return false
}

var stages = [...]string{"Unsynced", "Waiting", "Starting", "Running", "Terminating", "Stopped", "Final", "Released", "Orphaned"}

func describe(a Action) string {
	switch {
	case a.Cancel:
		return "cancel"
	case a.Op == Stop:
		return fmt.Sprintf("stop(%v)", a.Grace)
	case a.Op != "":
		return string(a.Op)
	case a.Wake != Never:
		return fmt.Sprint("at:", a.Wake.Round(100*time.Millisecond))
	}
	return "-"
}

// has makes pod what the API server has.
func (w *script) has(pod *corev1.Pod) {
	version, _ := strconv.Atoi(w.server.ResourceVersion)
	pod.ResourceVersion = strconv.Itoa(version + 1)
	w.server = pod
}

// show describes what the API server has.
func (w *script) show() string {
	status := &w.server.Status
	parts := []string{string(status.Phase)}
	if status.Reason != "" {
		parts = append(parts, status.Reason)
	}
	if status.Message != "" {
		parts = append(parts, fmt.Sprintf("%q", status.Message))
	}
	for _, c := range slices.Concat(status.InitContainerStatuses, status.ContainerStatuses) {
		switch {
		case c.State.Running != nil:
			parts = append(parts, c.Name+":running")
		case c.State.Terminated != nil:
			parts = append(parts, fmt.Sprintf("%s:exit=%d", c.Name, c.State.Terminated.ExitCode))
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			parts = append(parts, c.Name+":"+c.State.Waiting.Reason)
		default:
			parts = append(parts, c.Name+":waiting")
		}
	}
	for _, c := range status.Conditions {
		switch c.Type {
		case corev1.PodReady:
			parts = append(parts, "ready:"+string(c.Status))
		case corev1.PodResizePending, "Own":
			parts = append(parts, fmt.Sprint(c.Type, ":", c.Status))
		}
	}
	parts = append(parts, fmt.Sprint("generation:", status.ObservedGeneration))
	for _, key := range slices.Sorted(maps.Keys(w.server.Annotations)) {
		parts = append(parts, key+"="+w.server.Annotations[key])
	}
	return strings.Join(parts, " ")
}

// edit changes the object as other clients do.
func (w *script) edit(words []string) string {
	pod := w.server.DeepCopy()
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		n, _ := strconv.ParseInt(value, 10, 64)
		switch key {
		case "phase":
			pod.Status.Phase = corev1.PodPhase(value)
		case "ran":
			ran(pod)
		case "exited":
			pod.Status.ContainerStatuses = exited(int32(n), false).Status.ContainerStatuses
			pod.Status.Phase = corev1.PodRunning
		case "deleted":
			pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &metav1.Time{Time: wallAt(w.now)}, &n
		case "by": // the field manager
			pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: FieldManager, Subresource: "status"}, {Manager: value, Subresource: "status"}, {Manager: "other"}}
		case "finalizer":
			pod.Finalizers = []string{"f"}
		case "restart":
			pod.Spec.RestartPolicy = corev1.RestartPolicy(value)
		case "init":
			pod.Spec.InitContainers = []corev1.Container{{Name: "i"}}
		case "cpu":
			pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(value)}
		case "grace":
			pod.Spec.TerminationGracePeriodSeconds = &n
		case "deadline":
			pod.Spec.ActiveDeadlineSeconds = &n
		case "controller":
			pod.OwnerReferences = []metav1.OwnerReference{{Controller: new(true)}}
		case "generation":
			pod.Generation = n
		case "observed": // in a backup
			pod.Status.ObservedGeneration = n
		case "undeleted": // in a backup
			pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = nil, nil
		case "version": // a backup is restored
			pod.ResourceVersion = value
			w.server = pod
			return "ok"
		default:
			if pod.Annotations == nil {
				pod.Annotations = map[string]string{}
			}
			pod.Annotations[key] = value
		}
	}
	w.has(pod)
	return "ok"
}

// report returns the report that words describe.
func (w *script) report(words []string) *Report {
	st := &Report{}
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		n, _ := strconv.Atoi(value)
		switch key {
		case "runs":
			st.Status = runs().Status
		case "unready":
			st.Status = unready().Status
		case "own": // a condition of the provider's own
			st.Status.Conditions = []corev1.PodCondition{{Type: "Own", Status: corev1.ConditionStatus(value)}}
		case "init": // of the init container
			st.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "i", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: int32(n)}}}}
		case "phase":
			st.Status.Phase = corev1.PodPhase(value)
		case "details":
			st.Status = detailed().Status
		case "waits":
			st.Status = unready().Status
			st.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: value}}
		case "exit":
			st.Status = exited(int32(n), false).Status
		case "as": // the container has another name
			st.Status.ContainerStatuses[0].Name = value
		case "echo": // what the API server has
			st.Status = *w.server.Status.DeepCopy()
		case "stopped":
			st.Stopped = true
		case "delete":
			st.Delete = true
		case "generation":
			st.Generation = int64(n)
		case "list", "old", "saved", "ok":
		default:
			st.Annotations = map[string]string{key: value}
		}
	}
	return st
}

// returned is the end of a call.
func (w *script) returned(words []string) string {
	w.fp++
	ev := Returned{Seq: w.tick(), FP: w.fp, Report: &Report{}, Err: errFailed, Result: Failed, Saved: slices.Contains(words, "saved")}
	word, value, _ := strings.Cut(words[0], "=")
	switch word {
	case "error":
		if value != "" {
			ev.Err = errors.New(value)
		}
	case "reject":
		ev.Result, ev.Rejection = Refused, Rejection{Reason: value, Message: "no"}
	case "unknown":
		ev.Result = NoSuchPod
	case "later":
		ev.After, _ = time.ParseDuration(value)
	default:
		ev.Result, ev.Err, ev.Report = Succeeded, nil, w.report(words)
	}
	return w.apply(ev)
}

// stored lets the API server store what is in flight. It returns the answer.
func (w *script) stored() *corev1.Pod {
	call := w.state.InFlight(Writes)
	next, _ := podstatus.Next(call.Base, call.Update)
	if call.Minimal {
		next = podstatus.Minimal(call.Pod, &next)
	}
	pod := w.server.DeepCopy()
	pod.Status = next
	for key, value := range call.Annotations {
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations[key] = value
	}
	w.has(pod)
	return pod.DeepCopy()
}

// answer is the end of a request.
func (w *script) answer(words []string) string {
	word, value, _ := strings.Cut(words[0], "=")
	switch word {
	case "ok":
		switch w.state.InFlight(Writes).Op {
		case Delete:
			return w.apply(DeleteSent{})
		case Get:
			return w.apply(Read{Seq: w.tick(), Pod: w.server.DeepCopy()})
		}
		return w.apply(Stored{Pod: w.stored(), Same: true})
	case "changed": // a webhook has changed the status
		pod := w.stored()
		pod.Status.Message = "changed"
		w.server = pod
		return w.apply(Stored{Pod: pod.DeepCopy()})
	case "undone": // another client undoes the end, and the informer is faster than the answer
		pod := w.stored()
		w.edit([]string{"phase=Running"})
		w.apply(Seen{Seq: w.tick(), Version: Cached(w.server.DeepCopy())})
		return w.apply(Stored{Pod: pod, Same: true})
	case "late": // the informer is faster than the answer
		pod := w.stored()
		w.apply(Seen{Seq: w.tick(), Version: Cached(w.server.DeepCopy())})
		return w.apply(Stored{Pod: pod, Same: true})
	case "equal":
		return w.apply(Stored{})
	case "lost": // the answer is lost
		if w.state.InFlight(Writes).Op == Patch {
			w.stored()
		}
		return w.apply(WriteFailed{MayBeStored: true, Unanswered: true})
	case "unanswered":
		return w.apply(WriteFailed{Unanswered: true})
	case "forbidden":
		return w.apply(WriteFailed{})
	case "after":
		d, _ := time.ParseDuration(value)
		return w.apply(WriteFailed{After: d})
	case "gone":
		if w.state.InFlight(Writes).Op == Get {
			return w.apply(Read{})
		}
		return w.apply(NotFound{})
	case "conflict":
		return w.apply(Conflicted{})
	case "invalid":
		return w.apply(StatusRefused{})
	case "invalidAnnotations":
		return w.apply(AnnotationsRefused{})
	}
	w.Fatalf("no answer %s", word)
	return ""
}

// due returns the call or request that is due.
func (w *script) due(lane Lane) Action {
	w.Helper()
	action := w.state.Next(w.now, lane, true)
	if action.Op == "" {
		w.Fatal("nothing is due")
	}
	return action
}

func (w *script) setRules(words []string) string {
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "metadata":
			w.rules.UpdateMetadata = true
		case "trusts":
			w.rules.TrustPhase = true
		case "simple":
			w.rules.Updates, w.rules.Releases = false, false
		case "admits":
			w.rules.Admits = true
		case "inspects":
			w.rules.Inspects = true
		case "annotates":
			w.rules.Annotates = true
		case "checkpoints":
			w.rules.Checkpoints = true
		case "gated":
			w.rules.Gated = true
		case "complete":
			w.rules.CompleteList = true
		case "lost":
			w.rules.Lost = map[string]LostPolicy{"fail": LostFail, "restart": LostRestart}[value]
		default:
			w.Fatalf("no rule %s", word)
		}
	}
	return "ok"
}

func (w *script) run(words []string) string {
	w.Helper()
	rest := words[1:]
	has := func(word string) bool { return slices.Contains(rest, word) }
	switch words[0] {
	case "rules":
		return w.setRules(rest)
	case "saved": // the checkpoint of the process before
		saved := Saved{Exists: true, Generation: 1}
		if has("lost") {
			saved.Lost, saved.LostSince = true, w.now-9*time.Minute
		}
		for _, reason := range []StopReason{StopEvicted, StopCompleted} {
			if has(string(reason)) {
				saved.End = &End{Reason: reason, Grace: 20 * time.Second}
			}
		}
		w.begin(New(&w.rules, w.now, w.tick(), saved))
		return "ok"
	case "instance": // without a pod
		w.begin(NewOrphan(&w.rules, w.now, w.tick(), Saved{Exists: has("saved")}, ""))
		return "ok"
	case "wait":
		d, err := time.ParseDuration(rest[0])
		if err != nil {
			w.Fatal(err)
		}
		w.now += d
		return w.apply(Passed{})
	case "edit":
		return w.edit(rest)
	case "server":
		return w.show()
	case "seen":
		if has("joined") {
			_, _ = w.state.Apply(moment(w.now), Seen{Seq: w.tick(), Version: Cached(w.server.DeepCopy())})
			return w.apply(Joined{})
		}
		return w.apply(Seen{Seq: w.tick(), Version: Cached(w.server.DeepCopy())})
	case "vanished":
		return w.apply(Vanished{Doubtful: has("doubtful") || has("restored"), Restored: has("restored")})
	case "recorded":
		return w.apply(Recorded{Pod: w.server.DeepCopy()})
	case "joined":
		return w.apply(Joined{})
	case "listing": // a List begins
		w.listing = w.tick()
		return "ok"
	case "report":
		w.fp++
		return w.apply(Reported{Seq: w.seqOf(has("old")), FP: w.fp, FromList: has("list"), Report: w.report(rest)})
	case "repeated": // the last report, by a List
		return w.apply(&Repeated{Seq: w.seqOf(has("old")), FromList: true})
	case "list": // leaves out the pod, unless it is shown
		return w.apply(ListEnded{Seq: w.seqOf(has("old")), Shown: has("shown"), First: has("first"), Open: true})
	case "believe":
		if _, suspect := w.state.Suspect(); suspect {
			return w.apply(SuspectBelieved{})
		}
		return w.apply(LossBelieved{})
	case "believable":
		since, _ := w.state.MayBeLost()
		if s, suspect := w.state.Suspect(); suspect {
			since = s.GoneSince
		}
		return fmt.Sprint(w.rules.Believed(w.now, since, 10, 0, 10))
	case "inspect":
		return w.apply(LossQuestioned{})
	case "call":
		return w.apply(Called{Seq: w.tick(), Action: w.due(Calls)})
	case "returned":
		return w.returned(rest)
	case "canceled":
		return w.apply(Canceled{})
	case "send":
		return w.apply(Sent{Action: w.due(Writes)})
	case "answer":
		return w.answer(rest)
	case "notMade":
		lane := Calls
		if has("request") {
			lane = Writes
		}
		return w.apply(NotMade{Lane: lane})
	case "gate":
		if has("closed") {
			return w.apply(GateClosed{})
		}
		return w.apply(GateOpened{Seq: w.tick()})
	case "evict":
		return w.apply(Evicted{Failure: &podstatus.Failure{Reason: "Evicted"}, Grace: 20 * time.Second})
	case "asked":
		return w.apply(SuspectAnswered{Answer: map[string]Answer{"forbidden": AnswerForbidden, "gone": AnswerGone, "there": AnswerThere}[rest[0]]})
	case "held":
		return w.apply(SuspectHeld{})
	case "taken":
		return w.apply(&NameTaken{Message: rest[0]})
	case "due":
		s, suspect := w.state.Suspect()
		if !suspect {
			return "no suspect"
		}
		return (s.Due - w.now).String()
	}
	w.Fatalf("no event %s", words[0])
	return ""
}
