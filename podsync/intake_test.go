// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	core "github.com/kubewright/kubewright/podsync/internal/pod"
)

// A pod that a LIST has left out by mistake waits for the API. When the informer shows it again, in
// the version that is known, what was reported in between must be written.
func TestAPodThatIsShownAgainIsReconciled(t *testing.T) {
	c := atRest(t)
	obj := podOf("a", "u")
	c.intake.onUpdate(obj)
	held := State{Ref: RefOf(obj)}
	c.lister.apply(c.pods.moment(), c.pods.tick(), &held, 1)
	pod := c.pods.pods["u"]
	c.intake.onDelete(cache.DeletedFinalStateUnknown{Key: "ns/a", Obj: obj})
	if suspicion, _ := pod.Suspect(); !suspicion.Missing {
		t.Fatal("it is not missing")
	}
	c.pods.clean()
	woken(c.pods.kick)
	c.intake.onUpdate(obj)
	if suspicion, _ := pod.Suspect(); suspicion.Missing || !pod.dirty || !woken(c.pods.kick) {
		t.Errorf("it is missing: %v, and dirty: %v", suspicion.Missing, pod.dirty)
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

// Which objects of an informer are pods of the Controller.
func TestWhichPodsAreTaken(t *testing.T) {
	var says notebook
	asked := 0
	owns := func() bool { return true }
	c := atRest(t, says.uses, func(cfg *Config) {
		cfg.Owns = func(*corev1.Pod) bool {
			asked++
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
		obj           any
		owns          func() bool
		asked, known  int
		dropped, told int
		undecided     int
	}{
		{"no pod", yes, 0, 0, 0, 0, 0},
		{podOf("x", ""), yes, 0, 0, 1, 1, 0},
		{mirror, yes, 0, 0, 1, 1, 0},
		{podOf("no", "no"), no, 1, 0, 1, 1, 0},
		{podOf("panics", "panics"), panics, 2, 0, 2, 2, 1},
		{podOf("a", "a"), yes, 3, 1, 2, 2, 1},
		{changed, no, 3, 1, 2, 2, 1},
	} {
		owns = step.owns
		c.intake.onUpdate(step.obj)
		c.flush()
		if asked != step.asked || len(c.pods.pods) != step.known || len(says.dropped) != step.dropped || len(says.told) != step.told || len(c.intake.undecided) != step.undecided {
			t.Errorf("step %d: Owns was called %d times, %d pods are known, %d undecided, dropped %q, reported %q", i, asked, len(c.pods.pods), len(c.intake.undecided), says.dropped, says.told)
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

// An informer shows that a pod is gone by an event, by a list without it, and by another pod of its
// name. Only the first is certain. It says nothing of an instance whose pod it never had.
func TestWhatAnInformerSaysOfAPodThatIsGone(t *testing.T) {
	a, other, older := podOf("a", "u"), podOf("a", "v"), podOf("a", "v")
	last := podOf("a", "u")
	last.ResourceVersion = "7"
	a.ResourceVersion, other.ResourceVersion, older.ResourceVersion = "5", "6", "4"
	deleted := func(obj any) func(*Controller) { return func(c *Controller) { c.intake.handlers().OnDelete(obj) } }
	replaced := func(by *corev1.Pod) func(*Controller) {
		return func(c *Controller) { c.intake.onReplaced(core.Cached(a), core.Cached(by)) }
	}
	afterRestore := func(f func(*Controller)) func(*Controller) {
		return func(c *Controller) {
			c.intake.restored = true
			f(c)
		}
	}
	for name, tc := range map[string]struct {
		says                    func(*Controller)
		ends, missing, restored bool
	}{
		"an event":                        {deleted(last), true, false, false},
		"an event about another pod":      {deleted(other), false, false, false},
		"a list":                          {deleted(cache.DeletedFinalStateUnknown{Key: "ns/a", Obj: a}), false, true, false},
		"a list, the pod is not known":    {deleted(cache.DeletedFinalStateUnknown{Key: "ns/a"}), false, true, false},
		"a list about another pod":        {deleted(cache.DeletedFinalStateUnknown{Key: "ns/b"}), false, false, false},
		"a list after a restore":          {afterRestore(deleted(cache.DeletedFinalStateUnknown{Obj: a})), false, true, true},
		"an event after a restore":        {afterRestore(deleted(a)), true, false, false},
		"another pod":                     {replaced(other), true, false, false},
		"another pod, after a restore":    {afterRestore(replaced(other)), false, true, true},
		"another pod of an older version": {replaced(older), false, true, true},
	} {
		c := atRest(t)
		pod := c.runs(a)
		orphan := c.pods.add(RefOf(podOf("a", "w")), core.NewOrphan(&c.pods.rules, 1, 1, core.Saved{}, ""))
		c.pods.clean()
		tc.says(c)
		_, ends := pod.Ending()
		suspicion, _ := pod.Suspect()
		if ends != tc.ends || suspicion.Missing != tc.missing || pod.dirty != (ends || suspicion.Missing) || pod.Cached() == pod.dirty || orphan.dirty {
			t.Errorf("%s: it ends: %v, is missing: %v, and dirty: %v", name, ends, suspicion.Missing, pod.dirty)
		}
		if version := pod.Version(); name == "an event" && version.ResourceVersion() != "7" {
			t.Error("the last version is not taken")
		}
		// A pod that was missing since a restore is not gone because there is another one.
		next := podOf("a", "x")
		c.intake.onUpdate(next)
		if _, ends := pod.Ending(); ends != !tc.restored {
			t.Errorf("%s: another pod ends it: %v", name, ends)
		}
	}
}

// The number of reports that wait is limited. One that waits already is replaced by the next one.
func TestHowManyReportsWait(t *testing.T) {
	var says notebook
	c := atRest(t, says.uses)
	for i := range maxEarly - 1 {
		c.reports.early[types.UID(fmt.Sprint("other", i))] = early{}
	}
	orphan := func(uid types.UID) *entry {
		pod := c.pods.add(RefOf(podOf(string(uid), uid)), core.NewOrphan(&c.pods.rules, 1, 1, core.Saved{}, ""))
		ended := &core.Report{Stopped: true, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}}}
		c.pods.apply(pod, c.pods.moment(), core.Reported{Seq: c.pods.tick(), Report: ended, FP: 1})
		return pod
	}
	reports := func(name, message string) {
		c.Report(State{Ref: RefOf(podOf(name, types.UID(name))), Status: corev1.PodStatus{Message: message}})
		c.flush()
	}
	reports("a", "first")
	reports("a", "second")
	if n, got := len(c.reports.early), c.reports.early["a"].event.Report.Status.Message; n != maxEarly || got != "second" || len(says.dropped) != 0 {
		t.Errorf("%d reports wait, and the last one says %q", n, got)
	}
	reports("b", "too many")
	c.reports.keep(orphan("o"))
	if n := len(c.reports.early); n != maxEarly || !slices.Equal(says.dropped, []string{DroppedUnknown}) {
		t.Errorf("%d reports wait, dropped %q", n, says.dropped)
	}
	delete(c.reports.early, "a")
	if c.reports.keep(orphan("p")); len(c.reports.early) != maxEarly {
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
		orphan := c.pods.add(st.Ref, core.NewOrphan(&c.pods.rules, 1, 1, core.Saved{}, ""))
		if repeated {
			c.Report(st)
		}
		st.NodeName = "m"
		c.Report(st)
		if _, started := orphan.NodeName(); started != "" {
			t.Errorf("repeated: %v, a report says that it was started for %q", repeated, started)
		}
		c.lister.apply(c.pods.moment(), c.pods.tick(), &st, c.reports.prints.of(&st))
		if _, started := orphan.NodeName(); started != "m" {
			t.Errorf("repeated: %v, a List says that it was started for %q", repeated, started)
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
		if pod.Known() {
			t.Error("it is adopted before it is reported")
		}
		if c.Report(State{Ref: RefOf(obj)}); pod.Known() != synced {
			t.Errorf("a List was applied: %v, and it is adopted: %v", synced, pod.Known())
		}
	}
}
