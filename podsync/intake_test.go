// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	core "github.com/kubewright/kubewright/podsync/internal/pod"
)

// Which objects of an informer are pods of the Controller. Owns may panic, and call the Controller.
func TestWhichPodsAreTaken(t *testing.T) {
	asked := 0
	var c *still
	owns := func() bool { return true }
	c = atRest(t, func(cfg *Config) {
		cfg.Owns = func(*corev1.Pod) bool {
			asked++
			for range c.All() {
				break
			}
			return owns()
		}
		cfg.Informer = cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, cache.Indexers{})
	})
	yes, no, panics := func() bool { return true }, func() bool { return false }, func() bool { panic("p") }
	mirror := podOf("mirror", "mirror")
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	changed := podOf("a", "a")
	changed.ResourceVersion = "2"
	for i, step := range []struct {
		obj       any
		owns      func() bool
		asked     int
		known     int
		refused   int
		undecided int
	}{
		{"no pod", yes, 0, 0, 0, 0},
		{podOf("x", ""), yes, 0, 0, 1, 0},
		{mirror, yes, 0, 0, 1, 0},
		{podOf("no", "no"), no, 1, 0, 1, 0},
		{podOf("panics", "panics"), panics, 2, 0, 2, 1},
		{podOf("a", "a"), yes, 3, 1, 2, 1},
		{changed, no, 3, 1, 2, 1},
	} {
		owns = step.owns
		c.intake.onUpdate(step.obj)
		c.flush()
		if asked != step.asked || len(c.pods.pods) != step.known || len(c.dropped) != step.refused || len(c.told) != step.refused || len(c.intake.undecided) != step.undecided {
			t.Errorf("step %d: Owns was called %d times, %d pods are known, %d undecided, dropped %q, reported %q", i, asked, len(c.pods.pods), len(c.intake.undecided), c.dropped, c.told)
		}
	}
	if got := c.pods.pods["a"].Version(); got.ResourceVersion() != "2" {
		t.Error("a change of a pod that is known was not taken")
	}
	c.intake.handlers().OnUpdate("no pod", changed)
	c.intake.handlers().OnUpdate(changed, "no pod")
	owns = yes
	if c.intake.askOwnsAgain(); asked != 3 || len(c.intake.undecided) != 0 {
		t.Error("Owns was asked about a pod that the informer no longer has, or is asked again and again")
	}
	c.intake.undecided["panics"] = nameOf(RefOf(podOf("panics", "panics")))
	if err := c.intake.informer.GetIndexer().Add(podOf("panics", "panics")); err != nil {
		t.Fatal(err)
	}
	if c.intake.askOwnsAgain(); asked != 4 || c.pods.pods["panics"] == nil {
		t.Error("Owns was not asked again")
	}
}

// An informer that others use goes on after Run, and so may the provider's reports.
func TestNothingIsRecordedAfterRun(t *testing.T) {
	c := atRest(t)
	a := podOf("a", "u")
	c.intake.onUpdate(a)
	c.clean()
	c.close()
	c.intake.onUpdate(podOf("b", "v"))
	c.intake.handlers().OnUpdate(a, podOf("a", "w"))
	c.intake.onDelete(a)
	c.Report(State{Ref: Ref{UID: "x", Namespace: "ns", Name: "c"}})
	c.Report(State{Ref: RefOf(a), Stopped: true})
	if len(c.pods.pods) != 1 || len(c.pods.dirty) != 0 || len(c.reports.early) != 0 || !c.pods.pods["u"].Cached() {
		t.Errorf("%d pods, %d are dirty, %d reports wait", len(c.pods.pods), len(c.pods.dirty), len(c.reports.early))
	}
}

// An event without news, such as the echo of a write, must not leave the pod decoded. A pod that
// waits for the loop is decoded once.
func TestAnEventWithoutNewsLeavesThePodEncoded(t *testing.T) {
	c := atRest(t)
	obj, err := Compact(podOf("a", "u"))
	if err != nil {
		t.Fatal(err)
	}
	decoded := func() bool {
		a, b := c.pods.pods["u"].Version(), c.pods.pods["u"].Version()
		return a.Open() == b.Open() // else each copy has decoded it for itself
	}
	c.intake.onUpdate(obj)
	if c.intake.onUpdate(obj); !decoded() {
		t.Error("the loop must decode it again")
	}
	c.clean()
	if c.intake.onUpdate(obj); decoded() {
		t.Error("it stays decoded")
	}
}

// A pod that a LIST has left out by mistake waits for the API. When the informer shows it again, in
// the version that is known, what was reported in between must be written.
func TestAPodThatIsShownAgainIsReconciled(t *testing.T) {
	c := atRest(t)
	pod := c.runs(podOf("a", "u"))
	c.missed(podOf("a", "u"))
	if suspicion, _ := pod.Suspect(); !suspicion.Missing {
		t.Fatal("it is not missing")
	}
	c.clean()
	woken(c.pods.kick)
	c.intake.onUpdate(podOf("a", "u"))
	if suspicion, _ := pod.Suspect(); suspicion.Missing || !pod.dirty || !woken(c.pods.kick) {
		t.Errorf("it is missing: %v, and dirty: %v", suspicion.Missing, pod.dirty)
	}
}

// An informer shows that a pod is gone by an event, by a list without it, and by another pod of its
// name. Only the first is certain. It says nothing of an instance whose pod it never had. The next pod
// of the name is no proof after a restore.
func TestWhatAnInformerSaysOfAPodThatIsGone(t *testing.T) {
	version := func(uid types.UID, version string) *corev1.Pod {
		pod := podOf("a", uid)
		pod.ResourceVersion = version
		return pod
	}
	a := version("u", "5")
	deleted := func(obj any) func(*still) { return func(c *still) { c.intake.handlers().OnDelete(obj) } }
	missing := func(key string, obj any) func(*still) {
		return deleted(cache.DeletedFinalStateUnknown{Key: key, Obj: obj})
	}
	replaced := func(next string) func(*still) {
		return func(c *still) { c.intake.onReplaced(core.Cached(a), core.Cached(version("v", next))) }
	}
	for name, tc := range map[string]struct {
		afterRestore            bool
		says                    func(*still)
		ends, missing, restored bool
	}{
		"an event":                        {false, deleted(version("u", "7")), true, false, false},
		"an event about another pod":      {false, deleted(version("v", "6")), false, false, false},
		"a list":                          {false, missing("ns/a", a), false, true, false},
		"a list, the pod is not known":    {false, missing("ns/a", nil), false, true, false},
		"a list about another pod":        {false, missing("ns/b", nil), false, false, false},
		"a list after a restore":          {true, missing("", a), false, true, true},
		"an event after a restore":        {true, deleted(a), true, false, false},
		"another pod":                     {false, replaced("6"), true, false, false},
		"another pod, after a restore":    {true, replaced("6"), false, true, true},
		"another pod of an older version": {false, replaced("4"), false, true, true},
	} {
		c := atRest(t)
		pod, orphan := c.runs(a), c.orphan(podOf("a", "w"), "")
		c.clean()
		c.intake.restored = tc.afterRestore
		tc.says(c)
		_, ends := pod.Ending()
		suspicion, _ := pod.Suspect()
		if ends != tc.ends || suspicion.Missing != tc.missing || pod.dirty != (ends || suspicion.Missing) || pod.Cached() == pod.dirty || orphan.dirty {
			t.Errorf("%s: it ends: %v, is missing: %v, and dirty: %v", name, ends, suspicion.Missing, pod.dirty)
		}
		if version := pod.Version(); name == "an event" && version.ResourceVersion() != "7" {
			t.Error("the last version is not taken")
		}
		c.intake.onUpdate(podOf("a", "x"))
		if _, ends := pod.Ending(); ends != !tc.restored {
			t.Errorf("%s: the next pod ends it: %v", name, ends)
		}
	}
}

// A client that undoes what is written for many pods is reported once, by its name.
func TestARivalIsReportedOnce(t *testing.T) {
	c := atRest(t)
	for n := range 2 * maxRivals {
		c.intake.tellRival(&entry{ref: Ref{UID: "u"}}, "kubectl")
		c.intake.tellRival(&entry{ref: Ref{UID: "v"}}, fmt.Sprint("other", n))
	}
	if c.flush(); len(c.told) != maxRivals || !strings.Contains(c.told[0], `"kubectl"`) {
		t.Errorf("%d are reported, first %q", len(c.told), c.told[0])
	}
}

// A report of a pod that is not seen yet waits for it, also if the table has an earlier pod of its
// name. One without a UID is about a pod that the table has, or else waits.
func TestWhichReportsWaitForTheirPod(t *testing.T) {
	for name, tc := range map[string]struct {
		known, reported types.UID
		want            types.UID // of the report that waits
	}{
		"nothing is known":                    {"", "u", "u"},
		"an earlier pod of its name is known": {"v", "u", "u"},
		"it is known":                         {"u", "u", ""},
		"without a UID":                       {"", "", "ns/a"},
		"without a UID, and it is known":      {"v", "", ""},
	} {
		c := atRest(t)
		if tc.known != "" {
			c.runs(podOf("a", tc.known))
		}
		c.Report(State{Ref: RefOf(podOf("a", tc.reported))})
		if _, waits := c.reports.early[tc.want]; waits != (tc.want != "") || len(c.reports.early) > 1 {
			t.Errorf("%s: %+v", name, c.reports.early)
		}
	}
}

// A report waits for its pod for five minutes.
func TestHowLongAReportWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := atRest(t)
		c.Report(State{Ref: RefOf(podOf("a", "u"))})
		time.Sleep(earlyFor)
		if c.reports.expire(c.pods.now()); len(c.reports.early) != 1 || len(c.pods.effects) != 0 {
			t.Error("it does not wait")
		}
		time.Sleep(1)
		if c.reports.expire(c.pods.now()); len(c.reports.early) != 0 || len(c.pods.effects) != 1 {
			t.Error("it waits on, or nobody knows that it was dropped")
		}
	})
}

// The number of reports that wait is limited. One that waits already is replaced by the next one.
func TestHowManyReportsWait(t *testing.T) {
	c := atRest(t)
	for i := range maxEarly - 1 {
		c.reports.early[types.UID(fmt.Sprint("other", i))] = early{}
	}
	ended := func(uid types.UID) *entry {
		pod := c.orphan(podOf(string(uid), uid), "")
		c.says(pod, &core.Report{Stopped: true, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}}})
		return pod
	}
	reports := func(name, message string) {
		c.Report(State{Ref: RefOf(podOf(name, types.UID(name))), Status: corev1.PodStatus{Message: message}})
		c.flush()
	}
	reports("a", "first")
	reports("a", "second")
	if n, got := len(c.reports.early), c.reports.early["a"].event.Report.Status.Message; n != maxEarly || got != "second" || len(c.dropped) != 0 {
		t.Errorf("%d reports wait, and the last one says %q", n, got)
	}
	reports("b", "too many")
	c.reports.keep(ended("o"))
	if n := len(c.reports.early); n != maxEarly || !slices.Equal(c.dropped, []string{DroppedUnknown}) {
		t.Errorf("%d reports wait, dropped %q", n, c.dropped)
	}
	delete(c.reports.early, "a")
	if c.reports.keep(ended("p")); len(c.reports.early) != maxEarly {
		t.Error("the exit codes of an orphan are forgotten")
	}
	delete(c.reports.early, "p")
	if c.reports.keep(c.runs(podOf("r", "r"))); len(c.reports.early) != maxEarly-1 {
		t.Error("the report of a pod that was seen is kept")
	}
}

// A List says for which node an instance was started. A report says so for none: its node does not
// count.
func TestWhoSaysWhoseNodeAnInstanceIsOf(t *testing.T) {
	for _, repeated := range []bool{false, true} {
		c := atRest(t)
		st := State{Ref: RefOf(podOf("a", "u"))}
		orphan := c.orphan(podOf("a", "u"), "")
		if repeated {
			c.Report(st)
		}
		st.NodeName = "m"
		c.Report(st)
		_, reported := orphan.NodeName()
		c.shows(st, c.pods.tick())
		if _, listed := orphan.NodeName(); reported != "" || listed != "m" {
			t.Errorf("repeated: %v, it was started for %q says a report, and for %q a List", repeated, reported, listed)
		}
	}
}

// A pod that ran before this process is adopted when the provider reports it, if a List was applied.
func TestWhenAReportedPodIsAdopted(t *testing.T) {
	for _, synced := range []bool{false, true} {
		c := atRest(t)
		c.pods.synced = synced
		obj := podOf("a", "u")
		obj.Status.Phase = corev1.PodRunning
		c.intake.onUpdate(obj)
		pod := c.pods.pods["u"]
		before := pod.Known()
		if c.Report(State{Ref: RefOf(obj)}); before || pod.Known() != synced {
			t.Errorf("a List was applied: %v; it is adopted: %v, and before it was reported: %v", synced, pod.Known(), before)
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
