// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/podsync"
)

// A pod, and an instance of its name: without a UID, and as an instance that is nobody's.
var (
	refWeb   = podsync.Ref{Namespace: "default", Name: "web", UID: "1"}
	nameless = podsync.Ref{Namespace: "default", Name: "web"}
	stray    = podsync.Ref{Namespace: "default", Name: "web", UID: strayUID(nameOf(nameless))}
)

// webPod is the pod of refWeb, or one of its name, with a phase and a container.
func webPod(uid types.UID, phase corev1.PodPhase) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: uid},
		Spec:       corev1.PodSpec{NodeName: "vk", Containers: []corev1.Container{{Name: "main", Image: "none"}}},
		Status:     corev1.PodStatus{Phase: phase},
	}
	state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	switch phase {
	case "":
		return pod
	case corev1.PodPending:
		state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}
	case corev1.PodSucceeded, corev1.PodFailed:
		state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: state}}
	return pod
}

func withStatus(phase corev1.PodPhase) *corev1.PodStatus { return &webPod("", phase).Status }

func remember() *holdings { return newHoldings(func() *podsync.Controller { return nil }) }

// summary is what a test compares of a state.
func summary(st podsync.State) string {
	words := []string{string(st.Status.Phase)}
	for word, is := range map[string]bool{"stopped": st.Stopped, "delete": st.Delete, fmt.Sprint("generation ", st.Generation): st.Generation != 0, "on " + st.NodeName: st.NodeName != ""} {
		if is {
			words = append(words, word)
		}
	}
	slices.Sort(words[1:])
	return strings.Join(words, ", ")
}

// What the provider has said of a pod, and the state that follows.
func TestTheStateFollowsFromWhatTheProviderHasSaid(t *testing.T) {
	report := func(h *holdings, phase corev1.PodPhase) { h.notified(webPod("1", phase)) }
	show := func(h *holdings, phase corev1.PodPhase) { h.shown(refWeb, webPod("1", phase), true) }
	deleted := func(before, after corev1.PodPhase) func(h *holdings) {
		return func(h *holdings) {
			h.polled(refWeb, withStatus(corev1.PodRunning))
			h.deleted(refWeb, webPod("1", before), webPod("1", after))
		}
	}
	for name, c := range map[string]struct {
		do   func(h *holdings)
		want string
	}{
		"nothing":                       {func(*holdings) {}, ""},
		"a list":                        {func(h *holdings) { show(h, "Running") }, "Running, on vk"},
		"a list, after a poll":          {func(h *holdings) { h.polled(refWeb, withStatus("Running")); show(h, "Pending") }, "Running, on vk"},
		"a list with an end":            {func(h *holdings) { h.polled(refWeb, withStatus("Running")); show(h, "Succeeded") }, "Succeeded, on vk, stopped"},
		"a list with another end":       {func(h *holdings) { h.polled(refWeb, withStatus("Failed")); show(h, "Succeeded") }, "Failed, on vk, stopped"},
		"a report after a list":         {func(h *holdings) { show(h, "Succeeded"); report(h, "Failed") }, "Failed, on vk, stopped"},
		"a report after the end":        {func(h *holdings) { report(h, "Running"); h.stopped(refWeb); report(h, "Pending") }, "Running, on vk, stopped"},
		"the last report after the end": {func(h *holdings) { report(h, "Running"); h.stopped(refWeb); report(h, "Failed") }, "Failed, on vk, stopped"},
		"a phase that a container contradicts": {func(h *holdings) {
			status := withStatus("Running")
			status.Phase = "Failed"
			h.polled(refWeb, status)
		}, "Failed"},
		"it is there again": {func(h *holdings) {
			h.stopped(refWeb)
			_ = h.claim(refWeb, withStatus("Running"), false)
			h.polled(refWeb, withStatus("Running"))
		}, "Running"},
		"a status that came after it went": {func(h *holdings) { h.stopped(refWeb); h.polled(refWeb, withStatus("Running")) }, ", stopped"},
		"a deletionTimestamp, once": {func(h *holdings) {
			pod := webPod("1", "Running")
			pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
			h.shown(refWeb, pod, true)
			show(h, "Running")
		}, "Running, delete, on vk"},
		"the generation of the API's object": {func(h *holdings) {
			pod := webPod("1", "Running")
			pod.Generation = 4
			h.shown(refWeb, pod, true)
			show(h, "Running") // says nothing of it
			pod.UID, pod.Generation = "", 1
			h.shown(refWeb, pod, true) // that of another object
		}, "Running, generation 4, on vk"},
		"the node of the API": {func(h *holdings) {
			h.handOver(webPod("1", ""))
			pod := webPod("1", "Running")
			pod.Spec.NodeName = "host-7"
			h.shown(refWeb, pod, true)
		}, "Running, on vk"},
		"the node of the newest answer": {func(h *holdings) {
			show(h, "Running")
			pod := webPod("1", "Running")
			pod.Spec.NodeName = "host-7"
			h.shown(refWeb, pod, true)
			pod.Spec.NodeName = "" // says nothing of it
			h.shown(refWeb, pod, true)
		}, "Running, on host-7"},
		"a CreatePod that fails": {func(h *holdings) {
			h.create(webPod("1", ""))
			report(h, "Running")
			h.failed(refWeb)
		}, ", on vk"},
		"a second CreatePod":                     {func(h *holdings) { report(h, "Failed"); h.create(webPod("1", "")) }, ", on vk"},
		"DeletePod has written the end":          {deleted("Running", "Failed"), "Failed, stopped"},
		"DeletePod has written nothing":          {deleted("Running", "Running"), "Running"},
		"DeletePod got a pod that had ended":     {deleted("Failed", "Failed"), "Running"},
		"DeletePod has written a phase only":     {deleted("Running", "Pending"), "Running"},
		"the pod that it has returned has ended": {func(h *holdings) { show(h, "Failed") }, "Failed, on vk, stopped"},
	} {
		h := remember()
		c.do(h)
		if got := summary(h.state(refWeb)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A provider goes on changing what it has returned and reported, and what it was handed.
func TestNothingThatIsRememberedIsShared(t *testing.T) {
	shown, reported, handed, status := webPod("1", "Running"), webPod("1", "Running"), webPod("1", ""), withStatus("Running")
	reported.UID, shown.Name, handed.Name = "2", "shown", "handed"
	h := remember()
	h.shown(podsync.RefOf(shown), shown, true)
	h.notified(reported)
	h.handOver(handed)
	h.polled(podsync.RefOf(handed), status)
	for _, pod := range []*corev1.Pod{shown, reported, handed} {
		pod.Status.Phase, pod.Spec.Containers[0].Name = "Failed", "another"
	}
	status.Phase = "Failed"
	for ref, p := range h.pods {
		if got := h.state(ref); got.Status.Phase != "Running" {
			t.Errorf("%v became %s", ref, got.Status.Phase)
		}
		if p.pod.Spec.Containers[0].Name != "main" || p.pod.Status.Phase != "" {
			t.Errorf("%v became %+v", ref, p.pod)
		}
		h.pod(ref).Spec.Containers[0].Name = "another" // what DeletePod does with it
		if p.pod.Spec.Containers[0].Name != "main" {
			t.Errorf("%v was changed by DeletePod", ref)
		}
	}
	if len(h.pods) != 3 {
		t.Errorf("%d pods are remembered", len(h.pods))
	}
}

// A pod without a UID is the one that holds its name.
func TestWhoHoldsAName(t *testing.T) {
	other := refWeb
	other.UID = "2"
	for name, c := range map[string]struct {
		do   func(h *holdings)
		want types.UID
	}{
		"nobody":                    {func(*holdings) {}, stray.UID},
		"one that CreatePod got":    {func(h *holdings) { h.create(webPod("1", "")) }, "1"},
		"after CreatePod failed":    {func(h *holdings) { h.create(webPod("1", "")); h.failed(refWeb) }, stray.UID},
		"one that is shown":         {func(h *holdings) { h.shown(refWeb, webPod("1", ""), false) }, "1"},
		"one that is polled":        {func(h *holdings) { h.polled(refWeb, withStatus("Running")) }, "1"},
		"one that is reported":      {func(h *holdings) { h.notified(webPod("1", "Running")) }, "1"},
		"one that was only handed":  {func(h *holdings) { h.handOver(webPod("1", "")) }, stray.UID},
		"one that has stopped":      {func(h *holdings) { h.create(webPod("1", "")); h.stopped(refWeb) }, stray.UID},
		"one that is forgotten":     {func(h *holdings) { h.create(webPod("1", "")); h.forget(refWeb) }, stray.UID},
		"a later one":               {func(h *holdings) { h.create(webPod("1", "")); h.create(webPod("2", "")) }, "2"},
		"an earlier one is stopped": {func(h *holdings) { h.create(webPod("1", "")); h.create(webPod("2", "")); h.stopped(refWeb) }, "2"},
		"a report of one that has stopped": {func(h *holdings) {
			h.create(webPod("1", ""))
			h.stopped(refWeb)
			h.notified(webPod("1", "Failed"))
		}, stray.UID},
		"a late status of the one before": {func(h *holdings) {
			h.create(webPod("1", ""))
			h.stopped(refWeb)
			h.create(webPod("2", ""))
			h.polled(refWeb, withStatus("Running"))
		}, "2"},
		"an instance of nobody beside a pod":    {func(h *holdings) { h.create(webPod("1", "")); h.shown(other, webPod("2", ""), true) }, "1"},
		"an instance of nobody after the pod":   {func(h *holdings) { h.create(webPod("1", "")); h.stopped(refWeb); h.shown(other, webPod("2", ""), true) }, "2"},
		"the pod after an instance of nobody":   {func(h *holdings) { h.shown(other, webPod("2", ""), true); h.create(webPod("1", "")) }, "1"},
		"the second of two of which none has a": {func(h *holdings) { h.shown(refWeb, webPod("1", ""), true); h.shown(other, webPod("2", ""), true) }, "2"},
		"a stray":                               {func(h *holdings) { h.shown(stray, webPod("", ""), true) }, stray.UID},
		"a stray that is the instance of a pod": {func(h *holdings) { h.shown(stray, webPod("", ""), true); h.own(stray, refWeb) }, "1"},
	} {
		h := remember()
		c.do(h)
		if got, _ := h.identify(webPod("", ""), h.holders(), func(types.NamespacedName) bool { return false }); got.UID != c.want {
			t.Errorf("%s: UID %q, want %q", name, got.UID, c.want)
		}
		free := c.want == stray.UID
		if got, _ := h.identify(webPod("", ""), h.holders(), func(types.NamespacedName) bool { return true }); free != (got.UID == "") {
			t.Errorf("%s, and a pod of the API has the name: UID %q", name, got.UID)
		}
		if got, _ := h.identify(webPod("9", ""), nil, func(types.NamespacedName) bool { return false }); got.UID != "9" {
			t.Errorf("%s: a pod with a UID became %q", name, got.UID)
		}
	}
}

// What an instance without a UID is while Start of a pod of its name looks or waits, if nobody is
// known to hold the name.
func TestAnInstanceUnderTheNameOfAPodThatWaits(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(h *holdings)
		want types.UID
	}{
		"no Start":                       {func(h *holdings) { h.want(refWeb, nil) }, ""},
		"Start looks":                    {func(h *holdings) { h.looking(refWeb) }, stray.UID},
		"Start has found another pod's":  {func(h *holdings) { h.looked(refWeb, ErrOtherPod) }, stray.UID},
		"Start has found an earlier end": {func(h *holdings) { h.looked(refWeb, errEarlier) }, stray.UID},
		"Start has found nothing":        {func(h *holdings) { h.looking(refWeb); h.looked(refWeb, notHeld(refWeb)) }, ""},
		"Start looks once more":          {func(h *holdings) { h.looked(refWeb, notHeld(refWeb)); h.looking(refWeb) }, ""},
		"the pod has started":            {func(h *holdings) { h.want(refWeb, webPod("1", "Running")); h.looking(refWeb) }, ""},
	} {
		h := remember()
		c.do(h)
		got, known := h.identify(webPod("", "Running"), h.holders(), func(types.NamespacedName) bool { return true })
		if !known || got.UID != c.want || h.awaited(stray) != (c.want == stray.UID) {
			t.Errorf("%s: UID %q, known: %t, want %q", name, got.UID, known, c.want)
		}
	}
}

// Release deletes the end of an earlier pod only while a pod waits for its name, and CreatePod of that
// one waits for it.
func TestReleaseOfAStray(t *testing.T) {
	waits := func(h *holdings) { h.looked(refWeb, errEarlier); h.shown(stray, webPod("", "Succeeded"), true) }
	for name, c := range map[string]struct {
		do   func(h *holdings)
		want bool
	}{
		"no pod waits":        {func(h *holdings) { h.shown(stray, webPod("", "Succeeded"), true) }, false},
		"a pod waits":         {waits, true},
		"it is being created": {func(h *holdings) { waits(h); h.create(webPod("1", "")) }, false},
		"Stop saw it go":      {func(h *holdings) { waits(h); h.stopped(stray) }, false},
	} {
		h := remember()
		c.do(h)
		if got := h.beginRelease(stray); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
		if created := h.create(webPod("1", "")); created == c.want {
			t.Errorf("%s: CreatePod may be called: %t", name, created)
		}
		h.endRelease(stray)
		if !h.create(webPod("1", "")) {
			t.Errorf("%s: CreatePod may not be called afterwards", name)
		}
	}
}

// The node of a stray is that of the back end: podsync would leave the stray to it.
func TestAStrayHasNoNode(t *testing.T) {
	h := remember()
	if st := h.shown(stray, webPod("", "Running"), true); st.NodeName != "" {
		t.Errorf("node %q", st.NodeName)
	}
}

// The instance that had no UID is the pod that takes its name.
func TestAPodThatTakesItsNameReplacesTheNamelessInstance(t *testing.T) {
	h := remember()
	h.shown(nameless, webPod("", "Running"), true)
	h.shown(stray, webPod("", "Running"), true)
	h.create(webPod("1", ""))
	if keys := slices.Collect(maps.Keys(h.pods)); len(keys) != 1 || keys[0] != refWeb {
		t.Errorf("%v are remembered", keys)
	}
}

// Which pods are looked up, and which a list gets although GetPods lacks them.
func TestPodsThatAListLacks(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(h *holdings)
		want string
	}{
		"never heard of":                         {func(*holdings) {}, ""},
		"reported, and podsync has not asked":    {func(h *holdings) { h.notified(webPod("1", "Running")) }, "candidate"},
		"handed over, and podsync has not asked": {func(h *holdings) { h.handOver(webPod("1", "")) }, ""},
		"asked for":                              {func(h *holdings) { h.want(refWeb, nil) }, "candidate left-out"},
		"it runs":                                {func(h *holdings) { h.want(refWeb, nil); h.polled(refWeb, withStatus("Running")) }, "candidate left-out"},
		"it has ended":                           {func(h *holdings) { h.want(refWeb, nil); h.polled(refWeb, withStatus("Failed")) }, "candidate other"},
		"it is gone":                             {func(h *holdings) { h.want(refWeb, nil); h.polled(refWeb, withStatus("Running")); h.stopped(refWeb) }, "other"},
		"just created":                           {func(h *holdings) { h.create(webPod("1", "")); h.created(refWeb) }, "candidate left-out other"},
		"created, and shown": {func(h *holdings) {
			h.create(webPod("1", ""))
			h.created(refWeb)
			h.shown(refWeb, webPod("1", ""), true)
		}, "candidate left-out"},
		"created, and deleted": {func(h *holdings) {
			h.create(webPod("1", ""))
			h.created(refWeb)
			h.deleted(refWeb, webPod("1", ""), webPod("1", ""))
		}, "candidate left-out"},
		"GetPod has not found it": {func(h *holdings) { h.want(refWeb, nil); h.polled(refWeb, withStatus("Running")); h.vanished(refWeb) }, "candidate"},
		"and it is there again": {func(h *holdings) {
			h.want(refWeb, nil)
			h.vanished(refWeb)
			h.polled(refWeb, withStatus("Running"))
		}, "candidate left-out"},
		"and it is reported again": {func(h *holdings) {
			h.want(refWeb, nil)
			h.vanished(refWeb)
			h.notified(webPod("1", "Running"))
		}, "candidate left-out"},
	} {
		h := remember()
		c.do(h)
		var got []string
		for what, is := range map[string]bool{"candidate": len(h.candidates(nil)) > 0, "left-out": len(h.leftOut(nil)) > 0, "other": len(h.others(nil)) > 0} {
			if is {
				got = append(got, what)
			}
		}
		slices.Sort(got)
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %q", name, got, c.want)
		}
		listed := []podsync.Ref{refWeb}
		if got := append(h.candidates(listed), h.leftOut(listed)...); len(got) > 0 || len(h.others(map[podsync.Ref]bool{refWeb: true})) > 0 {
			t.Errorf("%s: a pod of the list is looked up: %v", name, got)
		}
	}
}

// Instances that are nobody's are forgotten with the list that lacks them, and reports after ten
// minutes.
func TestWhatAListForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := refWeb
		gone.Name, gone.UID = "gone", strayUID(types.NamespacedName{Namespace: "default", Name: "gone"})
		h := remember()
		h.shown(nameless, webPod("", "Running"), true)
		h.shown(stray, webPod("", "Running"), true)
		h.stopped(gone)
		h.want(gone, nil)
		h.notified(webPod("1", "Failed"))
		h.others(nil)
		count := func(refs ...podsync.Ref) (n int) {
			for _, ref := range refs {
				if h.pods[ref] != nil {
					n++
				}
			}
			return n
		}
		if count(nameless, stray) != 0 || count(gone, refWeb) != 2 {
			t.Errorf("%v are remembered", slices.Collect(maps.Keys(h.pods)))
		}
		time.Sleep(strayFor)
		if h.others(nil); count(refWeb) != 1 {
			t.Error("a report is forgotten after ten minutes, not later")
		}
		h.want(refWeb, nil)
		time.Sleep(time.Second)
		if h.others(nil); count(refWeb, gone) != 2 {
			t.Error("a pod is forgotten about which podsync has asked")
		}
		h.notified(webPod("2", "Failed"))
		time.Sleep(strayFor + time.Second)
		if h.others(nil); len(h.pods) != 2 || h.names[nameOf(refWeb)] == "2" {
			t.Errorf("%v are remembered, %v hold names", slices.Collect(maps.Keys(h.pods)), h.names)
		}
	})
}

// A pod that was created need not be shown for a minute.
func TestAPodMayTakeAMinuteToAppear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := remember()
		h.create(webPod("1", ""))
		fresh := func(want bool, when string) {
			t.Helper()
			if h.fresh(refWeb) != want || h.waiting() != want {
				t.Errorf("%s: fresh %v, waiting %v, want %v", when, h.fresh(refWeb), h.waiting(), want)
			}
		}
		fresh(false, "during CreatePod")
		h.created(refWeb)
		time.Sleep(appears - 1)
		fresh(true, "before a minute")
		h.notified(webPod("1", "Pending")) // GetPods may lag behind the reports
		fresh(true, "after a report")
		time.Sleep(time.Nanosecond)
		fresh(false, "after a minute")
		for what, f := range map[string]func(){
			"it was shown":   func() { h.shown(refWeb, webPod("1", ""), false) },
			"it was polled":  func() { h.polled(refWeb, withStatus("Running")) },
			"it was deleted": func() { h.deleted(refWeb, webPod("1", ""), webPod("1", "")) },
			"it is gone":     func() { h.stopped(refWeb) },
		} {
			h.create(webPod("1", ""))
			h.created(refWeb)
			f()
			fresh(false, what)
		}
	})
}

// A failure of GetPod that could also mean "not found" must last for a minute, if the pod may run.
func TestWhenAFailureOfGetPodIsDoubted(t *testing.T) {
	started := webPod("1", "Running")
	for name, c := range map[string]struct {
		do   func(h *holdings)
		want bool
	}{
		"nothing says that it ran":    {func(h *holdings) { h.want(refWeb, nil) }, false},
		"it did not start":            {func(h *holdings) { h.want(refWeb, webPod("1", "Pending")) }, false},
		"it had started":              {func(h *holdings) { h.want(refWeb, started) }, true},
		"it was shown by GetPod":      {func(h *holdings) { h.shown(refWeb, webPod("1", ""), false) }, true},
		"it was polled":               {func(h *holdings) { h.polled(refWeb, withStatus("Running")) }, true},
		"GetPods has shown it":        {func(h *holdings) { h.polled(refWeb, withStatus("Running")); h.shown(refWeb, webPod("1", ""), true) }, false},
		"DeletePod was called":        {func(h *holdings) { h.want(refWeb, started); h.deleted(refWeb, started, started) }, false},
		"it is gone":                  {func(h *holdings) { h.want(refWeb, started); h.stopped(refWeb) }, false},
		"this process has created it": {func(h *holdings) { h.create(started) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := remember()
				c.do(h)
				if got := h.doubts(refWeb, true); got != c.want {
					t.Fatalf("%v, want %v", got, c.want)
				}
				time.Sleep(appears - 1)
				if got := h.doubts(refWeb, true); got != c.want {
					t.Errorf("before a minute: %v, want %v", got, c.want)
				}
				time.Sleep(time.Nanosecond)
				if h.doubts(refWeb, true) {
					t.Error("after a minute it is doubted")
				}
				h.notified(webPod("1", "Running"))
				if c.want && !h.doubts(refWeb, true) {
					t.Error("a failure after a report does not count from its own beginning")
				}
			})
		})
	}
}

// If GetPods does not tell which pods there are, a failure of GetPod about a pod that had no instance
// is bounded, and one about a pod that had an instance is not.
func TestWhenAFailureIsDoubtedThatNoListSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := remember()
		refOther := podsync.RefOf(webPod("2", ""))
		h.want(refWeb, webPod("1", "Pending"))
		h.want(refOther, webPod("2", "Running"))
		for _, passed := range []time.Duration{0, appears - 1, 1, time.Hour} {
			time.Sleep(passed)
			if unborn, started := h.doubts(refWeb, false), h.doubts(refOther, false); unborn != (passed == 0 || passed == appears-1) || !started {
				t.Errorf("after another %v: %v, %v", passed, unborn, started)
			}
		}
	})
}

func TestWhatIsKnownOfAPod(t *testing.T) {
	started := webPod("1", "Running")
	for name, c := range map[string]struct {
		do   func(h *holdings)
		want string
	}{
		"nothing":                   {func(*holdings) {}, "silent unborn"},
		"the API's, not started":    {func(h *holdings) { h.want(refWeb, webPod("1", "Pending")) }, "handed knows silent unborn"},
		"the API's, started":        {func(h *holdings) { h.want(refWeb, started) }, "handed knows silent"},
		"the first word counts":     {func(h *holdings) { h.handOver(webPod("1", "")); h.want(refWeb, started) }, "handed knows silent unborn"},
		"being created":             {func(h *holdings) { h.create(webPod("1", "")) }, "handed knows silent unborn"},
		"created":                   {func(h *holdings) { h.create(webPod("1", "")); h.created(refWeb) }, "handed knows silent"},
		"gone":                      {func(h *holdings) { h.stopped(refWeb) }, "silent"},
		"shown without a status":    {func(h *holdings) { h.shown(refWeb, webPod("1", ""), true) }, "holds silent"},
		"shown":                     {func(h *holdings) { h.shown(refWeb, started, true) }, "holds"},
		"reported":                  {func(h *holdings) { h.notified(started) }, "holds"},
		"reported, and then gone":   {func(h *holdings) { h.notified(started); h.stopped(refWeb) }, ""},
		"a report without a name":   {func(h *holdings) { h.notified(&corev1.Pod{}); h.notified(nil) }, "silent unborn"},
		"polled, and then it fails": {func(h *holdings) { h.polled(refWeb, withStatus("Running")); h.failed(refWeb) }, "silent unborn"},
	} {
		h := remember()
		c.do(h)
		var got []string
		for word, is := range map[string]bool{
			"handed": h.handed(refWeb), "knows": h.knows(nameOf(refWeb), "1"), "holds": h.holds(refWeb), "unborn": h.unborn(refWeb), "silent": h.silent(refWeb),
		} {
			if is {
				got = append(got, word)
			}
		}
		slices.Sort(got)
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %q", name, got, c.want)
		}
		if h.knows(nameOf(refWeb), "2") || h.knows(types.NamespacedName{Namespace: "default", Name: "other"}, "1") {
			t.Errorf("%s: another UID, or one of another name, is known", name)
		}
	}
}

// The status of a pod is asked for once in a round, not while it is under way, and not after the
// end.
func TestWhichPodsAreAskedAbout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := remember()
		begun := time.Now()
		if !h.beginPoll(refWeb, begun) || h.beginPoll(refWeb, begun.Add(time.Hour)) {
			t.Error("a call is under way, and there is another one")
		}
		h.endPoll(refWeb)
		if h.beginPoll(refWeb, begun) {
			t.Error("two calls in one round")
		}
		time.Sleep(time.Nanosecond)
		if !h.beginPoll(refWeb, time.Now()) {
			t.Error("no call in the next round")
		}
		h.endPoll(refWeb)
		h.polled(refWeb, withStatus("Failed"))
		time.Sleep(time.Nanosecond)
		if h.beginPoll(refWeb, time.Now()) {
			t.Error("a call about a pod that has ended")
		}
	})
}

// What was reported before podsync listened is reported then, but nothing of a pod that is gone.
func TestReportsBeforeAndAfterTheWatch(t *testing.T) {
	h := remember()
	early, gone, shown := webPod("1", "Running"), webPod("2", "Running"), webPod("3", "Running")
	early.Name, gone.Name, shown.Name = "early", "gone", "shown"
	h.notified(early)
	h.notified(gone)
	h.stopped(podsync.RefOf(gone))
	h.shown(podsync.RefOf(shown), shown, true)
	var got []string
	h.watch(func(st podsync.State) { got = append(got, st.Name) })
	if !slices.Equal(got, []string{"early"}) {
		t.Errorf("%v are reported at first", got)
	}
	h.notified(shown)
	h.watch(nil)
	h.notified(early)
	if !slices.Equal(got, []string{"early", "shown"}) {
		t.Errorf("%v are reported", got)
	}
}

// DeletePod gets the pod as it was handed over, with what the provider has written, and its newest
// status. An instance that is nobody's has no UID.
func TestThePodForDeletePod(t *testing.T) {
	h := remember()
	api := webPod("1", "Pending")
	api.Annotations = map[string]string{"mine": "1"}
	h.handOver(api)
	written := api.DeepCopy()
	written.Annotations["job"] = "7"
	h.updated(refWeb)
	h.shown(refWeb, written, false)
	h.polled(refWeb, withStatus("Running"))
	if got := h.pod(refWeb); got.UID != "1" || got.Name != "web" || got.Namespace != "default" || got.Status.Phase != "Running" ||
		!maps.Equal(got.Annotations, map[string]string{"mine": "1", "job": "7"}) || len(got.Spec.Containers) != 1 {
		t.Errorf("%+v", got)
	}
	if got := h.pod(stray); got.UID != "" || got.Name != "web" || got.Namespace != "default" {
		t.Errorf("the stray is %+v", got)
	}
}

// The condition Ready of a provider makes the containers that run ready, unless the API has it.
func TestWhichContainersAreReady(t *testing.T) {
	then := metav1.Unix(1000, 0)
	ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}
	readyThen, scheduledThen, notReady := ready, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: then}, ready
	readyThen.LastTransitionTime, notReady.Status = metav1.Unix(2000, 0), corev1.ConditionFalse
	other := scheduledThen
	other.Type = corev1.PodInitialized
	for name, c := range map[string]struct {
		phase      corev1.PodPhase
		conditions []corev1.PodCondition
		stored     []corev1.PodCondition
		want       bool
	}{
		"the condition is True":                 {corev1.PodRunning, []corev1.PodCondition{ready}, nil, true},
		"– with a time":                         {corev1.PodRunning, []corev1.PodCondition{readyThen}, nil, true},
		"– and the API has another time":        {corev1.PodRunning, []corev1.PodCondition{readyThen}, []corev1.PodCondition{{Type: corev1.PodReady, LastTransitionTime: then}}, true},
		"– and neither has a time":              {corev1.PodRunning, []corev1.PodCondition{ready}, []corev1.PodCondition{ready}, true},
		"– and the API has this time":           {corev1.PodRunning, []corev1.PodCondition{readyThen}, []corev1.PodCondition{readyThen}, false},
		"– with another one of the API":         {corev1.PodRunning, []corev1.PodCondition{readyThen, scheduledThen}, []corev1.PodCondition{scheduledThen}, false},
		"– with the time of another one":        {corev1.PodRunning, []corev1.PodCondition{readyThen, other}, []corev1.PodCondition{scheduledThen}, true},
		"the condition is False":                {corev1.PodRunning, []corev1.PodCondition{notReady}, nil, false},
		"there is another condition":            {corev1.PodRunning, []corev1.PodCondition{scheduledThen}, nil, false},
		"the condition is True, and it waits":   {corev1.PodPending, []corev1.PodCondition{ready}, nil, false},
		"the condition is True, and it is over": {corev1.PodSucceeded, []corev1.PodCondition{ready}, nil, false},
	} {
		pod := webPod("1", "")
		pod.Status.Conditions = c.stored
		reported := webPod("1", c.phase)
		reported.Status.Conditions = c.conditions
		reported.Status.ContainerStatuses = append(reported.Status.ContainerStatuses, corev1.ContainerStatus{Name: "waits"})
		for how, report := range map[string]func(h *holdings){
			"shown":    func(h *holdings) { h.shown(refWeb, reported, true) },
			"polled":   func(h *holdings) { h.polled(refWeb, &reported.Status) },
			"notified": func(h *holdings) { h.notified(reported) },
		} {
			h := remember()
			h.create(pod)
			h.created(refWeb)
			report(h)
			got := h.state(refWeb).Status.ContainerStatuses
			if len(got) != 2 || got[0].Ready != c.want || got[1].Ready {
				t.Errorf("%s, %s: %+v, want the first one ready: %v", name, how, got, c.want)
			}
			if reported.Status.ContainerStatuses[0].Ready {
				t.Errorf("%s, %s: the provider's own status was changed", name, how)
			}
		}
	}
}

// The statuses of a pod that has succeeded are complete, and have the names of its containers.
func TestStatusesInAState(t *testing.T) {
	status := func(phase corev1.PodPhase) *corev1.PodStatus {
		return &corev1.PodStatus{Phase: phase, InitContainerStatuses: []corev1.ContainerStatus{{Name: "job-0"}}}
	}
	for phase, want := range map[corev1.PodPhase]int{corev1.PodSucceeded: 1, corev1.PodFailed: 0, corev1.PodRunning: 0} {
		h := remember()
		api := webPod("1", "")
		api.Spec.InitContainers = []corev1.Container{{Name: "first"}}
		h.handOver(api)
		got := h.polled(refWeb, status(phase)).Status
		if len(got.ContainerStatuses) != want || got.InitContainerStatuses[0].Name != "first" {
			t.Errorf("%s: %+v", phase, got)
		}
		h = remember()
		if got := h.polled(refWeb, status(phase)).Status; len(got.ContainerStatuses) != 0 || got.InitContainerStatuses[0].Name != "job-0" {
			t.Errorf("%s, and the containers are not known: %+v", phase, got)
		}
	}
}
