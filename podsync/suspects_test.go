// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	core "github.com/kubewright/kubewright/podsync/internal/pod"
)

// The node by which the credentials may ask for a pod is that of the pod, or the one that its
// instance was started for. The backend of one node has instances of that node only.
func TestWhoseNodeASuspectIsOf(t *testing.T) {
	for _, tc := range []struct {
		started         string
		exclusive, seen bool
		want            string
	}{
		{"", false, false, ""}, {"", true, false, "n"}, {"m", false, false, "m"}, {"m", true, false, "m"}, {"", false, true, "n"}, {"m", false, true, "n"},
	} {
		c := atRest(t)
		c.suspects.exclusive = tc.exclusive
		orphan := c.orphan(podOf("a", "u"), tc.started)
		if tc.seen {
			c.apply(orphan, core.Seen{Version: core.Cached(podOf("a", "u"))})
		}
		if got := c.suspects.nodeOf(orphan); got != tc.want {
			t.Errorf("%+v: %q", tc, got)
		}
	}
}

// The API is asked about the next suspect when it is due, and about those that the next List shows
// after it.
func TestWhenSuspectsAreLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := atRest(t, gated)
		expect := func(what string, wait time.Duration) {
			t.Helper()
			if questions, idle := c.suspects.due(); len(questions) > 0 || !idle {
				t.Fatalf("%s: %d are due, idle: %v", what, len(questions), idle)
			}
			if got := c.suspects.askAll(c.run.callCtx); got != wait {
				t.Errorf("%s: the next one is due in %v, want %v", what, got, wait)
			}
		}
		expect("nothing is known", suspectIdle)
		c.runs(podOf("a", "u"))
		expect("a pod runs", suspectIdle)
		orphan := c.orphan(podOf("b", "v"), "n")
		c.says(orphan, &core.Report{})
		expect("an orphan was found", suspectIdle)
		suspicion, _ := orphan.Suspect()
		time.Sleep(suspicion.Due - c.pods.now() - 1)
		expect("it is due soon", suspectIdle)
		time.Sleep(1)
		if questions, idle := c.suspects.due(); len(questions) != 0 || !idle {
			t.Error("the API is asked behind a gate")
		}
		c.gates.get("n").state = gateOpen
		if questions, idle := c.suspects.due(); len(questions) != 1 || idle || questions[0].t != orphan || questions[0].node != "n" || questions[0].missing {
			t.Errorf("%+v", questions)
		}
		c.apply(orphan, core.SuspectAnswered{Answer: core.AnswerGone})
		c.apply(orphan, core.SuspectHeld{})
		expect("too many are gone", time.Minute)
		time.Sleep(time.Minute - 1)
		expect("it is asked about soon", core.MissingDelay)
		c.suspects.hold.on = true
		if questions, idle := c.suspects.due(); len(questions) != 0 || idle {
			t.Error("nothing says that pods are no longer held back")
		}
	})
}

// An instance without a UID has become one without a pod, because the gate has closed. That the API has another
// pod of its name does not say that it is gone: it may be that pod's by now.
func TestTheAPIIsNotAskedAboutAnInstanceWithoutUID(t *testing.T) {
	c := atRest(t)
	for _, uid := range []types.UID{"u", ""} {
		pod := c.pods.add(RefOf(podOf("a", uid)), core.NewLeftover(&c.pods.rules, c.pods.now(), 1, "n"))
		c.apply(pod, core.GateClosed{})
		if _, suspect := pod.Suspect(); !suspect {
			t.Fatal("no suspect")
		}
	}
	if questions, _ := c.suspects.due(); len(questions) != 1 || questions[0].t.ref.UID != "u" {
		t.Errorf("%d questions", len(questions))
	}
}

// What the answers to a GET say of a pod, also to a suspect.
func TestWhatAGetSays(t *testing.T) {
	forbidden := apierrors.NewForbidden(podResource, "a", errFailed)
	proxy := apierrors.NewNotFound(schema.GroupResource{}, "")
	managed := podOf("a", "u")
	managed.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
	listed := func(version string, items ...corev1.Pod) *corev1.PodList {
		return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: version}, Items: items}
	}
	for name, tc := range map[string]struct {
		pod     *corev1.Pod
		err     error
		list    *corev1.PodList
		listErr error
		want    error
		answer  core.Answer
	}{
		"it is there":              {managed, nil, nil, nil, nil, core.AnswerThere},
		"another one is":           {podOf("a", "v"), nil, nil, nil, nil, core.AnswerGone},
		"an empty answer":          {&corev1.Pod{}, nil, nil, nil, errAnswer, core.AnswerNone},
		"it is gone":               {nil, apierrors.NewNotFound(podResource, "a"), nil, nil, nil, core.AnswerGone},
		"a 404 of a proxy":         {nil, proxy, nil, nil, proxy, core.AnswerNone},
		"no answer":                {nil, errFailed, nil, nil, errFailed, core.AnswerNone},
		"hidden, and listed":       {nil, forbidden, listed("7", *managed), nil, nil, core.AnswerThere},
		"hidden, another listed":   {nil, forbidden, listed("7", *podOf("a", "v")), nil, nil, core.AnswerGone},
		"hidden, and not listed":   {nil, forbidden, listed("7"), nil, nil, core.AnswerGone},
		"hidden, an empty answer":  {nil, forbidden, listed(""), nil, errAnswer, core.AnswerNone},
		"hidden, and no answer":    {nil, forbidden, nil, errFailed, errFailed, core.AnswerNone},
		"hidden, the node unknown": {nil, forbidden, nil, nil, errUnconfirmed, core.AnswerForbidden},
	} {
		selectors := 0
		client := &api{
			get: func() (*corev1.Pod, error) { return tc.pod.DeepCopy(), tc.err },
			list: func(opts metav1.ListOptions) (*corev1.PodList, error) {
				if opts.FieldSelector == "metadata.name=a,spec.nodeName=n" {
					selectors++
				}
				return tc.list, tc.listErr
			},
		}
		node := "n"
		if tc.want == errUnconfirmed {
			node = ""
		}
		pod, err := getPod(t.Context(), client, RefOf(managed), node)
		if there := tc.answer == core.AnswerThere; (pod != nil) != there || there && (pod.UID != "u" || pod.ManagedFields != nil) || !errors.Is(err, tc.want) {
			t.Errorf("%s: %+v, %v", name, pod, err)
		}
		if want := tc.list != nil || tc.listErr != nil; (selectors == 1) != want {
			t.Errorf("%s: it was listed %d times", name, selectors)
		}
		c := atRest(t, func(cfg *Config) { cfg.Client = client })
		q := question{t: c.runs(podOf("a", "u")), node: node}
		c.suspects.ask(t.Context(), &q)
		if q.answer != tc.answer || (q.err != nil) != (tc.answer == core.AnswerNone) || c.requests != 1 {
			t.Errorf("%s: the answer is %v, %v after %d requests", name, q.answer, q.err, c.requests)
		}
	}
}

// An instance that the informer has is a pod that Owns has refused. The informer can't say that of a
// pod that it has missed, nor of another one of its name.
func TestWhichSuspectsTheInformerDecides(t *testing.T) {
	for _, tc := range []struct {
		uid            types.UID // of the pod that the informer has
		missing, asked bool
	}{{"u", false, false}, {"u", true, true}, {"v", false, true}, {"", false, true}} {
		c := atRest(t, func(cfg *Config) {
			cfg.Client = &api{get: func() (*corev1.Pod, error) { return podOf("a", "u"), nil }}
		})
		if tc.uid != "" {
			if err := c.intake.informer.GetIndexer().Add(podOf("a", tc.uid)); err != nil {
				t.Fatal(err)
			}
		}
		q := question{t: c.runs(podOf("a", "u")), node: "n", missing: tc.missing}
		if c.suspects.ask(t.Context(), &q); c.requests > 0 != tc.asked || q.answer != core.AnswerThere {
			t.Errorf("%+v: the API was asked %d times, the answer is %v", tc, c.requests, q.answer)
		}
	}
}

// What the API says of suspects that have changed in the meantime counts for nothing.
func TestWhichAnswersAboutSuspectsCount(t *testing.T) {
	for name, tc := range map[string]struct {
		missing     bool
		answer      core.Answer
		before      func(*still, *entry)
		dirty, ends bool
		dropped     []string
		told        int
	}{
		"a missing pod is there":       {true, core.AnswerThere, nil, true, false, nil, 0},
		"a missing pod is gone":        {true, core.AnswerGone, nil, true, true, nil, 0},
		"nothing is known":             {true, core.AnswerNone, nil, false, false, nil, 0},
		"the pod of an orphan exists":  {false, core.AnswerThere, nil, false, false, []string{DroppedOrphan}, 0},
		"the pod of an orphan is gone": {false, core.AnswerGone, nil, true, true, nil, 0},
		"it may exist":                 {false, core.AnswerForbidden, nil, false, false, []string{DroppedUnconfirmed}, 1},
		"it may exist, again":          {false, core.AnswerForbidden, func(_ *still, t *entry) { t.reported = true }, false, false, nil, 0},
		"a missing pod is back": {true, core.AnswerGone, func(c *still, t *entry) {
			c.intake.onUpdate(podOf("a", "u"))
			c.clean()
		}, false, false, nil, 0},
		"it is forgotten": {true, core.AnswerGone, func(c *still, t *entry) { c.pods.remove(t) }, false, false, nil, 0},
		"the gate closes": {true, core.AnswerGone, func(c *still, t *entry) { c.gates.get("n").state = gateClosed }, false, false, nil, 0},
	} {
		c := atRest(t, gated)
		c.gates.get("n").state = gateOpen
		for i := range 9 {
			c.runs(podOf(fmt.Sprint(i), types.UID(fmt.Sprint(i)))) // so that one is not all that there is
		}
		var suspect *entry
		if tc.missing {
			suspect = c.runs(podOf("a", "u"))
			c.missed(podOf("a", "u"))
		} else {
			suspect = c.orphan(podOf("a", "u"), "n")
			c.says(suspect, &core.Report{})
		}
		c.clean()
		if tc.before != nil {
			tc.before(c, suspect)
		}
		c.suspects.apply(c.run.callCtx, []question{{t: suspect, answer: tc.answer, missing: tc.missing}})
		c.flush()
		if _, ends := suspect.Ending(); suspect.dirty != tc.dirty || ends != tc.ends || !slices.Equal(c.dropped, tc.dropped) || len(c.told) != tc.told {
			t.Errorf("%s: it is dirty: %v, ends: %v, dropped %q, reported %q", name, suspect.dirty, ends, c.dropped, c.told)
		}
	}
}

// Questions that the API does not answer are reported once, until all of a pass are answered.
func TestWhichQuestionsAreReported(t *testing.T) {
	c := atRest(t)
	answered, failed := question{}, question{err: errFailed}
	for i, step := range []struct {
		questions []question
		told      int
	}{
		{nil, 0},
		{[]question{answered}, 0},
		{[]question{answered, failed, failed}, 1},
		{[]question{failed}, 1},
		{nil, 1},
		{[]question{failed, answered}, 1},
		{[]question{answered}, 1},
		{[]question{failed}, 2},
	} {
		if c.suspects.tell(c.run.callCtx, step.questions); len(c.told) != step.told {
			t.Errorf("pass %d: %d errors are reported, want %d", i, len(c.told), step.told)
		}
	}
}

// A question that Run has canceled has no answer, and is no error.
func TestNoAnswerAfterRunCounts(t *testing.T) {
	for _, over := range []bool{false, true} {
		c := atRest(t, func(cfg *Config) {
			cfg.Client = &api{get: func() (*corev1.Pod, error) { return nil, errFailed }}
		})
		pod := c.runs(podOf("a", "u"))
		c.missed(podOf("a", "u"))
		c.pods.epoch = c.pods.epoch.Add(-core.MissingDelay) // it is due
		ctx, cancel := context.WithCancel(c.run.callCtx)
		defer cancel()
		if over {
			cancel()
		}
		c.suspects.askAll(ctx)
		c.flush()
		if suspicion, _ := pod.Suspect(); suspicion.Unsure == over || (len(c.told) == 0) != over {
			t.Errorf("Run is over: %v, and the question was not answered: %v, reported %q", over, suspicion.Unsure, c.told)
		}
	}
}

// Pods that are held back are reported when the API has said so, and their end when it is certain.
func TestWhenHeldBackPodsAreReported(t *testing.T) {
	c := atRest(t)
	var pods []*entry
	for i := range 10 {
		pods = append(pods, c.runs(podOf(fmt.Sprint(i), types.UID(fmt.Sprint(i)))))
	}
	answer := func(answer core.Answer) {
		for _, pod := range pods[:8] {
			c.missed(podOf(pod.ref.Name, pod.ref.UID))
			c.apply(pod, core.SuspectAnswered{Answer: answer})
		}
	}
	decide := func(what string, asked bool, masses, told int) {
		t.Helper()
		c.suspects.decide(c.run.callCtx, c.pods.moment(), asked)
		c.flush()
		if len(c.masses) != masses || len(c.told) != told {
			t.Errorf("%s: reported %+v, and %d errors", what, c.masses, len(c.told))
		}
	}
	decide("nothing is missing", true, 0, 0)
	answer(core.AnswerGone)
	decide("many are gone, and nobody asks", false, 0, 0)
	decide("many are gone", true, 1, 1)
	decide("many are gone still", true, 2, 1)
	decide("nobody asks", false, 2, 1)
	if mass := c.masses[0]; len(mass.Refs) != 8 || mass.Held != 10 || mass.Lost {
		t.Errorf("%+v", mass)
	}
	answer(core.AnswerThere)
	answer(core.AnswerNone)
	decide("many are not known", true, 2, 1)
	answer(core.AnswerThere)
	decide("all are back", false, 3, 1)
	decide("all are back still", true, 3, 1)
	if len(c.masses[2].Refs) != 0 {
		t.Errorf("the end of the hold has %d pods", len(c.masses[2].Refs))
	}
	for _, pod := range pods {
		if _, ends := pod.Ending(); ends {
			t.Errorf("%s was stopped", pod.ref.Name)
		}
	}
}

// The message of a pod that waits for the name of an orphan.
func TestWhyAPodWaitsForAnOrphan(t *testing.T) {
	for name, tc := range map[string]struct {
		reported bool
		is       core.Suspicion
		want     string
	}{
		"the API was not asked":          {false, core.Suspicion{}, ""},
		"it has not answered":            {false, core.Suspicion{Unsure: true}, "has not confirmed yet"},
		"too many are gone":              {false, core.Suspicion{GoneSince: 1}, "too many pods are gone"},
		"the credentials can't see it":   {true, core.Suspicion{}, "can't see whether its pod exists"},
		"they can't, and it has failed":  {true, core.Suspicion{Unsure: true}, "can't see whether its pod exists"},
		"they can't, and it may be gone": {true, core.Suspicion{GoneSince: 1}, "can't see whether its pod exists"},
	} {
		c := atRest(t)
		orphan := c.orphan(podOf("a", "u"), "n")
		c.says(orphan, &core.Report{})
		waiting, at := c.due(podOf("a", "v"))
		orphan.reported = tc.reported
		c.suspects.announce(c.run.callCtx, at, orphan, tc.is)
		err := waiting.LastError()
		if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
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
