// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/internal/backoff"
	core "github.com/kubewright/kubewright/podsync/internal/pod"
)

// Each rule comes from its own field of the Config, or from its own capability.
func TestTheRulesAreThoseOfTheConfig(t *testing.T) {
	cfg := &Config{
		Relist: 1, PendingAfter: 2, Checkpoint: &memory{}, Gate: func(context.Context, string) error { return nil },
		Policy: Policy{Lost: LostFail, OrphanDelay: 3, MassHold: 4, CompleteList: true, UpdateMetadata: true, TrustPhase: true},
	}
	want := core.Rules{
		Relist: 1, PendingAfter: 2, Retry: backoff.Policy{Base: retryMin, Cap: retryMax},
		Lost: core.LostFail, OrphanDelay: 3, MassHold: 4, CompleteList: true, UpdateMetadata: true, TrustPhase: true,
		Updates: true, Releases: true, Admits: true, Inspects: true, Annotates: true, Checkpoints: true, Gated: true,
	}
	p := struct {
		Updater
		Watcher
		Inspector
		Releaser
		Admitter
		Annotator
	}{}
	if got := rulesOf(cfg, capabilities{updater: p, inspector: p, releaser: p, admitter: p, annotator: p}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	want = core.Rules{Retry: want.Retry}
	if got := rulesOf(&Config{}, capabilities{}); !reflect.DeepEqual(got, want) {
		t.Errorf("without anything: got %+v, want %+v", got, want)
	}
}

// List must have hung or failed for a while.
func TestWhenTheProviderCountsAsSick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := atRest(t)
		sick := func(want string) {
			t.Helper()
			if err := c.CheckProvider(t.Context(), ""); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		}
		sick("not known yet")
		c.lister.ready.Mark()
		sick("")
		c.lister.health.since = c.pods.now()
		time.Sleep(providerPatience)
		sick("")
		time.Sleep(1)
		sick("has not answered List for 20s")
		c.lister.health.err = errFailed
		sick(errFailed.Error())
		c.lister.health = listHealth{}
		sick("")
		c.loop.progress.Stop()
		sick("Run has returned")
	})
}

// An eviction with its defaults, and with others.
func TestWhatAnEvictionDoes(t *testing.T) {
	for name, tc := range map[string]struct {
		eviction Eviction
		grace    time.Duration
		event    string
	}{
		"the defaults":     {Eviction{}, 7 * time.Second, ReasonEvicted},
		"a grace period":   {Eviction{Grace: 2 * time.Second}, 2 * time.Second, ReasonEvicted},
		"no grace period":  {Eviction{Grace: -1}, 7 * time.Second, ReasonEvicted},
		"a short one":      {Eviction{Grace: 1}, time.Second, ReasonEvicted},
		"a reason":         {Eviction{Reason: "R", Message: "m"}, 7 * time.Second, "R m"},
		"a limit that was": {Eviction{Reason: "R", OwnLimit: true}, 7 * time.Second, "R"},
	} {
		c := atRest(t)
		obj := podOf("a", "u")
		obj.Spec.TerminationGracePeriodSeconds = new(int64(7))
		pod := c.runs(obj)
		c.clean()
		for range 2 {
			if err := c.Evict(Ref{Namespace: "ns", Name: "a"}, tc.eviction); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if !pod.dirty || !woken(c.pods.kick) {
			t.Errorf("%s: the loop does not know", name)
		}
		if s := pod.Next(c.pods.now(), core.Calls, true); s.Op != core.Stop || s.Grace != tc.grace {
			t.Errorf("%s: %+v", name, s)
		}
		if events := c.flush(); len(events) != 1 || !strings.Contains(events[0], tc.event) {
			t.Errorf("%s: events %q", name, events)
		}
	}
	c := atRest(t, gated)
	c.runs(podOf("a", "u"))
	if err := c.Evict(Ref{UID: "v"}, Eviction{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("an unknown pod: %v", err)
	}
	if err := c.Evict(Ref{UID: "u"}, Eviction{}); !errors.Is(err, ErrGateClosed) {
		t.Errorf("behind a gate: %v", err)
	}
}

// Every iterator ends when its caller wants no more, and yields what it says.
func TestIteratorsEnd(t *testing.T) {
	c := atRest(t)
	for i, name := range []string{"b", "c", "a"} {
		pod := podOf(name, types.UID(name))
		pod.CreationTimestamp = metav1.Unix(int64(100-i), 0)
		c.runs(pod)
	}
	c.orphan(podOf("o", "o"), "")
	c.due(podOf("waiting", "waiting"))
	all, pods := 0, 0
	for ref, info := range c.All() {
		if all++; info.Ref != ref || (info.Pod == nil) != (ref.UID == "o") {
			t.Errorf("%+v", info)
		}
	}
	for pod := range c.Pods {
		if pods++; pod.Name == "o" {
			t.Error("an orphan is a pod")
		}
	}
	var active []string
	for pod := range c.loop.caller.active {
		active = append(active, pod.Name)
	}
	if all != 5 || pods != 4 || !slices.Equal(active, []string{"a", "c", "b"}) {
		t.Errorf("%d pods, %d without the orphan, active %q", all, pods, active)
	}
	for range c.All() {
		break
	}
	for range c.Pods {
		break
	}
	for range c.loop.caller.active {
		break
	}
}

// What Get says of a pod, by its UID or its name.
func TestWhatInfoSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := atRest(t)
		pod, _ := c.due(podOf("a", "u"))
		call := func() {
			c.apply(pod, core.Called{Seq: c.pods.tick(), Action: core.Action{Op: core.Start}})
		}
		call()
		c.apply(pod, core.Returned{Seq: c.pods.tick(), Result: core.Failed, Err: errFailed, Report: &core.Report{}})
		time.Sleep(time.Minute)
		call()
		since := time.Now()
		time.Sleep(time.Minute)
		for _, ref := range []Ref{RefOf(podOf("a", "u")), {Namespace: "ns", Name: "a"}} {
			info, ok := c.Get(ref)
			if !ok || info.Ref.UID != "u" || info.Stage != StageStarting || info.Pod.UID != "u" || info.Pod == pod.Pod() || info.Call != OpStart || !info.CallSince.Equal(since) || info.Failures != 1 || info.LastError != errFailed {
				t.Errorf("%v: %+v", ref, info)
			}
		}
		c.due(podOf("a", "v"))
		for _, ref := range []Ref{{UID: "w"}, {Namespace: "ns", Name: "b"}, {Namespace: "ns", Name: "a"}} {
			if info, ok := c.Get(ref); ok {
				t.Errorf("%v: %+v", ref, info)
			}
		}
	})
}
