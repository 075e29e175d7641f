// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// past is an API server with one pod. It remembers all revisions except those
// that it has compacted.
type past struct {
	states    map[int]*corev1.Pod // by the first revision of the state; nil if the pod was deleted
	now       int
	compacted int
	watches   []*watch.FakeWatcher
	lists     int
}

func (p *past) at(revision int) *corev1.Pod {
	for ; revision > 0; revision-- {
		if pod, ok := p.states[revision]; ok {
			return pod
		}
	}
	return nil
}

// expired is the first event of a watch of a compacted revision.
func expired() metav1.Status {
	return apierrors.NewResourceExpired("too old resource version").Status()
}

func (p *past) listWatch() *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
			p.lists++
			revision := p.now
			if o.ResourceVersionMatch == metav1.ResourceVersionMatchExact {
				revision, _ = strconv.Atoi(o.ResourceVersion)
			}
			if revision <= p.compacted {
				return nil, apierrors.NewGenericServerResponse(http.StatusGone, "list", corev1.Resource("pods"), "", "compacted", 0, false)
			}
			list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(revision)}}
			if pod := p.at(revision); pod != nil {
				list.Items = []corev1.Pod{*pod}
			}
			return list, nil
		},
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
			w := watch.NewFakeWithChanSize(10, false)
			p.watches = append(p.watches, w)
			return w, nil
		},
	}
}

// aPod returns a pod in a phase, at a revision.
func aPod(uid types.UID, phase corev1.PodPhase, revision int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", UID: uid, ResourceVersion: strconv.Itoa(revision)},
		Spec:       corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{Phase: phase},
	}
}

// record follows a past until it has changed, and returns the recorder.
func record(t *testing.T, p *past, change func()) (r *recorder) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r = newRecorder("", p.listWatch())
		done := make(chan struct{})
		go func() {
			defer close(done)
			follow(ctx, r.lw, r)
		}()
		synctest.Wait()
		change()
		time.Sleep(time.Minute)
		synctest.Wait()
		cancel()
		p.watches[len(p.watches)-1].Stop()
		<-done
	})
	return r
}

func TestRecorderSeesWhatIsWatched(t *testing.T) {
	p := &past{now: 5, states: map[int]*corev1.Pod{3: aPod("u", corev1.PodPending, 3)}}
	r := record(t, p, func() {
		p.watches[0].Modify(aPod("u", corev1.PodRunning, 6))
		p.watches[0].Modify(aPod("u", corev1.PodRunning, 7))
		p.watches[0].Delete(aPod("u", corev1.PodFailed, 8))
	})
	l := r.history.Pods["u"]
	if l == nil || len(l.States) != 3 || l.last().Phase != corev1.PodFailed || l.Gone.IsZero() || l.Blind {
		t.Errorf("recorded %+v", l)
	}
	if r.events != 3 || r.relists != 1 || len(r.pods()) != 0 {
		t.Errorf("%d events, %d lists, pods %v", r.events, r.relists, r.pods())
	}
}

func TestRecorderLooksUpWhatItHasMissed(t *testing.T) {
	p := &past{now: 5, states: map[int]*corev1.Pod{3: aPod("u", corev1.PodRunning, 3)}}
	r := record(t, p, func() {
		p.states[20], p.states[31] = aPod("u", corev1.PodSucceeded, 20), nil
		p.states[33] = aPod("v", corev1.PodPending, 33)
		p.now = 900
		s := expired()
		p.watches[0].Error(&s)
	})
	l := r.history.Pods["u"]
	if l == nil || l.last().Phase != corev1.PodSucceeded || l.Gone.IsZero() || l.Blind || r.lookedUp != 1 {
		t.Errorf("recorded %+v, %d looked up", l, r.lookedUp)
	}
	if v := r.history.Pods["v"]; v == nil || !v.Gone.IsZero() || len(r.pods()) != 1 {
		t.Errorf("the pod that was created in between: %+v; pods %v", v, r.pods())
	}
	if p.lists > 2+10 {
		t.Errorf("%d lists, want two and those of a binary search", p.lists)
	}
}

func TestRecorderSaysWhatItCanNotKnow(t *testing.T) {
	p := &past{now: 5, states: map[int]*corev1.Pod{3: aPod("u", corev1.PodRunning, 3)}}
	r := record(t, p, func() {
		p.states[31], p.now, p.compacted = nil, 900, 890
		s := expired()
		p.watches[0].Error(&s)
	})
	if l := r.history.Pods["u"]; l == nil || !l.Blind || l.Gone.IsZero() || r.lookedUp != 0 {
		t.Errorf("recorded %+v, %d looked up", l, r.lookedUp)
	}
	if rules := broken(&r.history); len(rules) > 0 {
		t.Errorf("an unknown state violates %q", rules)
	}
}

func TestSettingsAre(t *testing.T) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{roundLabel: "r1"}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: configCondition, Status: corev1.ConditionTrue, Reason: "Good"}}},
	}
	if text := settingsAre(node, corev1.ConditionTrue, "Good", "r1"); text != "" {
		t.Error(text)
	}
	for _, text := range []string{
		settingsAre(nil, corev1.ConditionTrue, "Good", "r1"),
		settingsAre(node, corev1.ConditionFalse, "Good", "r1"),
		settingsAre(node, corev1.ConditionTrue, "Trial", "r1"),
		settingsAre(node, corev1.ConditionTrue, "Good", "r2"),
	} {
		if text == "" {
			t.Error("other settings count as the expected ones")
		}
	}
}
