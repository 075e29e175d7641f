// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	core "github.com/kubewright/kubewright/podsync/internal/pod"
)

var errFailed = errors.New("it failed")

// silent is a client that is not called.
type silent struct{}

func (silent) Pods(string) corev1client.PodInterface { return nil }

// empty is a provider that is not called.
type empty struct{ Provider }

// The failure of a request that ended just after its pod was forgotten never
// ended: no later outage was reported.
func TestFailureOfAForgottenPod(t *testing.T) {
	ctx := klog.NewContext(t.Context(), klog.Logger{})
	told := 0
	handler := func(context.Context, error, string) { told++ }
	for name, of := range map[string]func(*loop, *entry) (*apierr.Group, *apierr.Member){
		"provider": func(l *loop, t *entry) (*apierr.Group, *apierr.Member) { return &l.caller.errors, &t.callErrs },
		"API":      func(l *loop, t *entry) (*apierr.Group, *apierr.Member) { return &l.writer.errors, &t.apiErrs },
	} {
		b := &table{pods: map[types.UID]*entry{}, names: map[types.NamespacedName]*entry{}}
		l := &loop{pods: b, caller: &caller{}, writer: &writer{}, observer: &observer{pods: b}}
		forgotten := b.add(Ref{UID: "u"}, core.State{})
		l.forget(ctx, forgotten)
		group, late := of(l, forgotten)
		group.Fail(ctx, handler, late, errFailed, "late")
		told = 0
		var next apierr.Member
		group.Fail(ctx, handler, &next, errFailed, "the next outage")
		if told != 1 {
			t.Errorf("%s: the next outage was told of %d times", name, told)
		}
	}
}

// While the gate is closed, no call and no request is planned, whatever the state of the pod says:
// each would ask the gate again.
func TestNothingIsPlannedWhileTheGateIsClosed(t *testing.T) {
	c, err := New(Config{Client: silent{}, Provider: empty{}, NodeName: "n", Gate: func(context.Context, string) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	at := c.pods.moment()
	pod := c.pods.add(Ref{UID: "u", Namespace: "ns", Name: "a"}, core.New(&c.pods.rules, at.Since, 1, core.Saved{}))
	c.pods.apply(pod, at, core.Seen{Version: core.Cached(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "u", ResourceVersion: "1"}, Spec: corev1.PodSpec{NodeName: "n"},
	})})
	c.pods.apply(pod, at, core.ListEnded{Seq: 2, First: true, Open: true})
	at.Since += time.Hour
	if pod.Next(at.Since, core.Calls, true).Op != core.Start || pod.Next(at.Since, core.Writes, true).Op != core.Patch {
		t.Fatal("nothing is due")
	}
	c.gates.nodes["n"] = &gatedNode{state: gateClosed}
	if wake := min(c.loop.caller.start(pod, at, false), c.loop.writer.start(pod, at, false)); wake != core.Never {
		t.Errorf("it is planned again after %v", wake-at.Since)
	}
	if pod.InFlight(core.Calls) != nil || pod.InFlight(core.Writes) != nil {
		t.Error("a call or a request is under way")
	}
}

// An instance without a UID has become one without a pod, because the gate has closed. That the API has another
// pod of its name does not say that it is gone: it may be that pod's by now.
func TestTheAPIIsNotAskedAboutAnInstanceWithoutUID(t *testing.T) {
	c, err := New(Config{Client: silent{}, Provider: empty{}, NodeName: "n"})
	if err != nil {
		t.Fatal(err)
	}
	at := c.pods.moment()
	for _, uid := range []types.UID{"u", ""} {
		pod := c.pods.add(Ref{UID: uid, Namespace: "ns", Name: "a"}, core.NewLeftover(&c.pods.rules, at.Since, 1, "n"))
		c.pods.apply(pod, at, core.GateClosed{})
		if _, suspect := pod.Suspect(); !suspect {
			t.Fatal("no suspect")
		}
	}
	if questions, _ := c.suspects.due(); len(questions) != 1 || questions[0].t.ref.UID != "u" {
		t.Errorf("%d questions", len(questions))
	}
}

// A namespace whose webhook works again says nothing of the others.
func TestWhoseBackoffEnds(t *testing.T) {
	c, err := New(Config{Client: silent{}, Provider: empty{}, NodeName: "n"})
	if err != nil {
		t.Fatal(err)
	}
	at := c.pods.moment()
	fails := func(namespace string) *entry {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "a", UID: types.UID(namespace), ResourceVersion: "1"}, Spec: corev1.PodSpec{NodeName: "n"}}
		t := c.pods.add(RefOf(pod), core.New(&c.pods.rules, at.Since, 1, core.Saved{}))
		c.pods.apply(t, at, core.Seen{Version: core.Cached(pod)})
		c.pods.apply(t, at, core.ListEnded{Seq: 2, First: true, Open: true})
		later := core.Moment{Since: at.Since + time.Minute, Wall: at.Wall.Add(time.Minute)}
		c.pods.apply(t, later, core.Sent{Action: t.Next(later.Since, core.Writes, true)})
		c.pods.apply(t, later, core.WriteFailed{After: time.Hour})
		return t
	}
	mine, other := fails("mine"), fails("other")
	at.Since += 2 * time.Minute
	due := func(t *entry) bool { return t.Next(at.Since, core.Writes, true).Op != "" }
	if due(mine) || due(other) {
		t.Fatal("they do not wait")
	}
	c.loop.writer.retry(at, "mine")
	if !due(mine) || due(other) {
		t.Errorf("of the namespace: %v, of another one: %v", due(mine), due(other))
	}
	at.Since += time.Minute
	c.loop.writer.retry(at, "")
	if !due(other) {
		t.Error("the server works again, and a pod waits")
	}
}

// A cache may not have the last version of a pod that a LIST left out. Its name says which pod
// is gone, unless the cache has not had that pod yet.
func TestATombstoneWithoutAPod(t *testing.T) {
	c, err := New(Config{Client: silent{}, Provider: empty{}, NodeName: "n"})
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "u", ResourceVersion: "1"}, Spec: corev1.PodSpec{NodeName: "n"}}
	c.intake.onUpdate(pod)
	at := c.pods.moment()
	orphan := c.pods.add(Ref{UID: "v", Namespace: "ns", Name: "a"}, core.NewOrphan(&c.pods.rules, at.Since, 1, core.Saved{}, "n"))
	before := orphan.Stage()
	c.pods.clean()
	c.intake.onDelete(cache.DeletedFinalStateUnknown{Key: "ns/a"})
	if c.pods.pods["u"].Cached() {
		t.Error("the pod counts as present")
	}
	if orphan.dirty || orphan.Stage() != before {
		t.Error("the tombstone counts for an instance that was never in the cache")
	}
}

// An invalid status of the provider is an event of its pod.
func TestAnInvalidStatusIsAnEvent(t *testing.T) {
	recorder := events.NewFakeRecorder(1)
	c, err := New(Config{Client: silent{}, Provider: empty{}, NodeName: "n", EventRecorder: recorder})
	if err != nil {
		t.Fatal(err)
	}
	c.run.callCtx, c.run.apiCtx = t.Context(), t.Context()
	c.loop.writer.reportProblems(&entry{ref: Ref{UID: "u"}}, field.ErrorList{field.Invalid(field.NewPath("status", "hostIP"), "x", "no address")})
	for _, effect := range c.pods.effects {
		effect()
	}
	select {
	case said := <-recorder.Events:
		if !strings.Contains(said, reasonInvalidStatus) || !strings.Contains(said, "no address") {
			t.Error(said)
		}
	default:
		t.Error("no event")
	}
}

// A client that undoes what is written for many pods is reported once, by its name.
func TestARivalIsReportedOnce(t *testing.T) {
	var told []string
	b := &table{
		run:     &runState{callCtx: t.Context(), apiCtx: t.Context()},
		handler: func(_ context.Context, err error, _ string) { told = append(told, err.Error()) },
	}
	i := &intake{pods: b, rivals: map[string]bool{}}
	for n := range 2 * maxRivals {
		i.tellRival(&entry{ref: Ref{UID: "u"}}, "kubectl")
		i.tellRival(&entry{ref: Ref{UID: "v"}}, fmt.Sprint("other", n))
	}
	for _, effect := range b.effects {
		effect()
	}
	if len(told) != maxRivals || !strings.Contains(told[0], `"kubectl"`) {
		t.Errorf("%d are told of, first %q", len(told), told[0])
	}
}

// A report of a pod that is not seen yet waits for it, also if the table has an earlier pod of its
// name. One without a UID is about a pod that the table has, or else waits.
func TestWhichReportsWaitForTheirPod(t *testing.T) {
	for name, tc := range map[string]struct {
		known []Ref
		ref   Ref
		want  types.UID // of the report that waits
	}{
		"nothing is known":                    {nil, Ref{UID: "u", Namespace: "ns", Name: "a"}, "u"},
		"an earlier pod of its name is known": {[]Ref{{UID: "v", Namespace: "ns", Name: "a"}}, Ref{UID: "u", Namespace: "ns", Name: "a"}, "u"},
		"it is known":                         {[]Ref{{UID: "u", Namespace: "ns", Name: "a"}}, Ref{UID: "u", Namespace: "ns", Name: "a"}, ""},
		"without a UID":                       {nil, Ref{Namespace: "ns", Name: "a"}, "ns/a"},
		"without a UID, and it is known":      {[]Ref{{UID: "v", Namespace: "ns", Name: "a"}}, Ref{Namespace: "ns", Name: "a"}, ""},
	} {
		c, err := New(Config{Client: silent{}, Provider: empty{}, NodeName: "n"})
		if err != nil {
			t.Fatal(err)
		}
		for _, ref := range tc.known {
			c.pods.add(ref, core.New(&c.pods.rules, 1, 1, core.Saved{}))
		}
		c.Report(State{Ref: tc.ref})
		if _, waits := c.reports.early[tc.want]; waits != (tc.want != "") || len(c.reports.early) > 1 {
			t.Errorf("%s: %+v", name, c.reports.early)
		}
	}
}

// A report that differs in anything but its pod has news. The pod is known, and the node counts in
// Lists only, each time.
func TestWhatIsNews(t *testing.T) {
	prints := newFingerprints()
	seen := map[uint64]string{}
	for name, st := range map[string]State{
		"":                      {},
		"Stopped":               {Stopped: true},
		"Generation":            {Generation: 1},
		"Generation, later":     {Generation: 1 << 40},
		"Status":                {Status: corev1.PodStatus{Message: "m"}},
		"Status, no conditions": {Status: corev1.PodStatus{Conditions: []corev1.PodCondition{}}},
		"Annotations":           {Annotations: map[string]string{"a": "b"}},
		"Annotations, others":   {Annotations: map[string]string{"a": "c"}},
		"Delete":                {Delete: true},
	} {
		fp := prints.of(&st)
		if other, known := seen[fp]; known {
			t.Errorf("%q is no news after %q", name, other)
		}
		seen[fp] = name
		st.Ref, st.NodeName = Ref{UID: "u"}, "n"
		if prints.of(&st) != fp {
			t.Errorf("%q is news again", name)
		}
	}
	for field := range reflect.TypeFor[State]().Fields() {
		if name := field.Name; name != "Ref" && name != "NodeName" && !slices.Contains(slices.Collect(maps.Values(seen)), name) {
			t.Errorf("it is not known whether %s is news", name)
		}
	}
}

// What the errors of a provider mean.
func TestResultsOfCalls(t *testing.T) {
	notFound := fmt.Errorf("of my own: %w", ErrNotFound)
	for name, tc := range map[string]struct {
		op    core.Op
		err   error
		want  core.Result
		after time.Duration
	}{
		"success":                {core.Start, nil, core.Succeeded, 0},
		"an error":               {core.Start, errFailed, core.Failed, 0},
		"Stop finds nothing":     {core.Stop, notFound, core.NoSuchPod, 0},
		"Release finds nothing":  {core.Release, notFound, core.NoSuchPod, 0},
		"Inspect finds nothing":  {core.Inspect, notFound, core.NoSuchPod, 0},
		"Start finds nothing":    {core.Start, notFound, core.Failed, 0},
		"a rejection":            {core.Start, fmt.Errorf("of my own: %w", Reject("R", "m")), core.Refused, 0},
		"a delay":                {core.Start, RetryAfter(errFailed, time.Hour), core.Failed, time.Hour},
		"the shortest delay":     {core.Start, RetryAfter(errFailed, 0), core.Failed, time.Second},
		"a delay below nothing":  {core.Start, RetryAfter(errFailed, -time.Hour), core.Failed, time.Second},
		"almost no delay":        {core.Start, RetryAfter(errFailed, 1), core.Failed, 1},
		"a panic is no answer":   {core.Stop, contain("Stop", func() error { panic(notFound) }), core.Failed, 0},
		"a panic is no decision": {core.Start, contain("Start", func() error { panic(Reject("R", "m")) }), core.Failed, 0},
		"a rejection with delay": {core.Start, RetryAfter(Reject("R", "m"), time.Hour), core.Refused, time.Hour},
	} {
		got := resultOf(tc.op, tc.err)
		if got.Result != tc.want || got.After != tc.after || !errors.Is(got.Err, tc.err) || got.Result == core.Refused && got.Rejection != (core.Rejection{Reason: "R", Message: "m"}) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// What the errors of the API server mean.
func TestFailuresOfRequests(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, tc := range map[string]struct {
		err  error
		want core.WriteFailed
	}{
		"no connection": {errFailed, core.WriteFailed{MayBeStored: true}},
		"a deadline":    {context.DeadlineExceeded, core.WriteFailed{MayBeStored: true, Unanswered: true}},
		"throttled":     {apierrors.NewTooManyRequests("later", 20), core.WriteFailed{After: 20 * time.Second}},
		"forbidden":     {apierrors.NewForbidden(pods, "a", errFailed), core.WriteFailed{}},
		"invalid":       {apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "a", nil), core.WriteFailed{}},
	} {
		if got := failureOf(tc.err); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

// The breaker must not trip because of one object.
func TestWhatTheBreakerCounts(t *testing.T) {
	w := &writer{}
	w.breaker.Trip = 2
	for _, err := range []error{apierrors.NewInternalError(errFailed), context.Canceled, apierrors.NewInternalError(errFailed)} {
		w.serverAnswered(0, err)
	}
	if ok, _ := w.breaker.Allows(0, 1); !ok {
		t.Error("tripped by the failures of a webhook")
	}
	for range 2 {
		if w.serverAnswered(0, context.DeadlineExceeded) || w.serverAnswered(0, context.Canceled) {
			t.Error("a request without an answer says that the server is back")
		}
	}
	if ok, _ := w.breaker.Allows(0, 1); ok {
		t.Error("not tripped by a server that does not answer")
	}
	if w.serverAnswered(0, apierrors.NewInternalError(errFailed)) || !w.serverAnswered(0, apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "a", errFailed)) {
		t.Error("it is back when the server answers, and not before")
	}
}

// A pod costs one allocation of 768 bytes, of which the runtime takes eight.
func TestAnEntryFitsIntoItsSizeClass(t *testing.T) {
	if size := unsafe.Sizeof(entry{}); size > 760 {
		t.Errorf("an entry has %d bytes, and the next size class costs 128 bytes a pod", size)
	}
}

// Records are written for as long as final statuses are. Everything else ends with Run.
func TestWhichCallsOutliveRun(t *testing.T) {
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	c := &caller{pods: &table{run: &runState{callCtx: stopped, apiCtx: t.Context()}}}
	for op := range coreOps {
		if outlives := c.contextOf(op).Err() == nil; outlives != (op == core.Save || op == core.Remove) {
			t.Errorf("%s outlives Run: %v", op, outlives)
		}
	}
}

// The errors that pods are held back say for how long.
func TestHowLongPodsAreHeld(t *testing.T) {
	for hold, want := range map[time.Duration]string{time.Minute: "1m0s", -1: "ever"} {
		if got := (&table{rules: core.Rules{MassHold: hold}}).holdTime(); got != want {
			t.Errorf("%v: %s", hold, got)
		}
	}
}

// Every call that the core may ask for is made, and if it fails an event says so.
func TestEveryCallIsMade(t *testing.T) {
	silent := map[core.Op]bool{core.Inspect: true} // the next List decides
	for op := range coreOps {
		if op == core.Patch || op == core.Delete || op == core.Get {
			continue
		}
		b := &table{run: &runState{callCtx: t.Context()}}
		recorder := events.NewFakeRecorder(1)
		c := &caller{pods: b, observer: &observer{pods: b, warnings: recorder}}
		_, _, err := c.call(t.Context(), Ref{}, &core.Call{Op: op, Pod: &corev1.Pod{}})
		if _, made := errors.AsType[*PanicError](err); !made {
			t.Errorf("%s: %v, although there is no provider", op, err)
		}
		c.warn(&entry{}, op, core.Returned{Err: err, Result: core.Failed}, core.News{})
		if said := len(b.effects) > 0; said == silent[op] {
			t.Errorf("%s: an event is recorded: %v", op, said)
		}
	}
}

// The pages for operators and for maintainers name every stage and every call.
func TestThePagesNameStagesAndCalls(t *testing.T) {
	section := func(file, from, to string) string {
		page, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(page), from)
		text, _, found := strings.Cut(rest, to)
		if !found {
			t.Fatalf("%s has nothing between %q and %q", file, from, to)
		}
		return text
	}
	diagram := section("DESIGN.md", "stateDiagram", "```")
	labels := section("../docs/operations.md", "The label `stage`", "\n\n")
	has := func(text, word string) bool { return regexp.MustCompile(`\b` + word + `\b`).MatchString(text) }
	for stage := range coreStages {
		if name := Stage(stage).String(); !has(diagram, name) || !has(labels, name) {
			t.Errorf("the diagram of DESIGN.md or docs/operations.md lacks the stage %s", name)
		}
	}
	if next := Stage(len(coreStages)).String(); !strings.HasPrefix(next, "Invalid") {
		t.Errorf("coreStages lacks the stage %s", next)
	}
	source, err := os.ReadFile("internal/pod/types.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range regexp.MustCompile(`Op = "(\w+)"`).FindAllStringSubmatch(string(source), -1) {
		if _, known := coreOps[core.Op(op[1])]; !known {
			t.Errorf("coreOps lacks %s", op[1])
		}
	}
	for op := range coreOps {
		if !has(labels, string(op)) {
			t.Errorf("docs/operations.md lacks the op %s", op)
		}
	}
}

// The core has words of its own, which are converted as they are.
var (
	coreOps = map[core.Op]Op{
		core.Admit: OpAdmit, core.Annotate: OpAnnotate, core.Start: OpStart, core.Update: OpUpdate, core.Stop: OpStop, core.Release: OpRelease,
		core.Inspect: OpInspect, core.Save: OpSave, core.Remove: OpRemove, core.Patch: OpPatch, core.Delete: OpDelete, core.Get: OpGet,
	}
	coreStages = map[core.Stage]Stage{
		core.Unsynced: StageUnsynced, core.Waiting: StageWaiting, core.Starting: StageStarting, core.Running: StageRunning, core.Terminating: StageTerminating,
		core.Stopped: StageStopped, core.Final: StageFinal, core.Released: StageReleased, core.Orphaned: StageOrphaned,
	}
)

func TestTheCoreHasTheSameWords(t *testing.T) {
	for got, want := range coreOps {
		if Op(got) != want {
			t.Errorf("the call %q is %q", got, want)
		}
	}
	for got, want := range coreStages {
		if Stage(got) != want {
			t.Errorf("the stage %d is %v", got, want)
		}
	}
	for got, want := range map[core.StopReason]StopReason{
		core.StopDeleted: StopDeleted, core.StopCompleted: StopCompleted, core.StopEvicted: StopEvicted, core.StopDeadline: StopDeadline,
		core.StopRejected: StopRejected, core.StopLost: StopLost, core.StopOrphaned: StopOrphaned,
	} {
		if StopReason(got) != want {
			t.Errorf("the reason %q is %q", got, want)
		}
	}
	for got, want := range map[core.LostPolicy]LostPolicy{
		core.LostByRestartPolicy: LostByRestartPolicy, core.LostFail: LostFail, core.LostRestart: LostRestart,
	} {
		if LostPolicy(got) != want {
			t.Errorf("the policy %d is %v", got, want)
		}
	}
	for got, want := range map[string]string{
		core.DroppedAfterStop: DroppedAfterStop, core.ReasonFailedStart: ReasonFailedStart, core.ReasonLost: ReasonLost, core.ReasonDeadlineExceeded: ReasonDeadlineExceeded,
	} {
		if got != want {
			t.Errorf("the word %q is %q", got, want)
		}
	}
}
