// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

func TestAPodThatIsNotListedBlocksItsName(t *testing.T) {
	s := newScene(testPod())
	if !s.blocksName() {
		t.Error("the provider may hold it, and another pod of its name may start")
	}
	if s.classify(s.r, tick); s.blocksName() {
		t.Error("the provider does not hold it, and no other pod of its name may start")
	}
}

func TestAPodIsNotReleasedBeforeItsFinalStatusIsStored(t *testing.T) {
	s := running(deletedWithin(30)).says(exited(0, true))
	if got := s.decideCall(s.r, tick, true); got.op != "" {
		t.Errorf("%q before the final status", got.op)
	}
	s.becomeFinal()
	if got := s.decideCall(s.r, tick, true); got.op != "" {
		t.Errorf("%q before the deletion is sent", got.op)
	}
	s.becomeReleased(tick)
	if got := s.decideCall(s.r, tick, true); got.op != OpRelease {
		t.Errorf("%q with the final status, want Release", got.op)
	}
}

func TestAContainerWithoutAStatusKeepsThePodFromEnding(t *testing.T) {
	spec := &corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c"}, {Name: "d"}}}
	if podstatus.Ended(spec, &exited(0, false).Status) {
		t.Error("it has ended although nothing is known of one container")
	}
}

// The clock of the machine is set after the Controller was made, or went on while the machine was
// suspended.
func TestADeadlineIsOneOfTheWallClock(t *testing.T) {
	for name, step := range map[string]time.Duration{"set back": -2 * time.Hour, "set forward": 48 * time.Hour, "not set": 0} {
		s := newScene(testPod(ran))
		s.provider.listed, s.provider.instance = true, instanceRunning
		wall := s.r.epoch.Add(tick + step)
		s.pod().Status.StartTime = &metav1.Time{Time: wall.Add(-10 * time.Second)}
		s.pod().Spec.ActiveDeadlineSeconds = new(int64(100))
		for _, tc := range []struct {
			later   time.Duration
			expired bool
			wake    time.Duration
		}{{0, false, 30 * time.Second}, {85 * time.Second, false, 5 * time.Second}, {90 * time.Second, true, 0}} {
			expired, wake := s.advance(s.r, tick, wall.Add(tc.later))
			if expired != tc.expired || !expired && wake != tick+tc.wake {
				t.Errorf("%s, %v after it: expired %v, wake after %v", name, tc.later, expired, wake-tick)
			}
		}
	}
}

func TestAPodThatEndsAnywayIsNotLostAtFirstSight(t *testing.T) {
	s := newScene(testPod(ran, deletedWithin(30)))
	if s.classify(s.r, tick) {
		t.Error("lost")
	}
	if s.advance(s.r, tick, s.r.epoch.Add(tick)); s.end.reason != StopDeleted || !s.stopped() {
		t.Errorf("it ends as %s, stopped: %v", s.end.reason, s.stopped())
	}
}

// One List that leaves a pod out, or two that follow each other at once, say
// nothing.
func TestAPodIsLostByTwoListsApart(t *testing.T) {
	for gap, want := range map[time.Duration]bool{time.Second: false, 5 * time.Second: true} {
		s := running()
		s.r.inspects = false
		if s.absent(s.r, tick, 100, false) {
			t.Error("lost by one List")
		}
		if got := s.absent(s.r, tick+gap, 101, false); got != want {
			t.Errorf("lost by two Lists %v apart: %v", gap, got)
		}
	}
}

func TestRepairsOfLongAgoDoNotSlowTheNextOne(t *testing.T) {
	s := running()
	for range 10 {
		s.repaired(s.r, tick)
	}
	if s.write.retryAt == 0 {
		t.Fatal("ten repairs at once are not slowed down")
	}
	s.write.retryAt = 0
	if s.repaired(s.r, tick+3*s.r.retry.Cap); s.write.retryAt != 0 || s.write.repairs != 1 {
		t.Errorf("repairs %d, next at %v", s.write.repairs, s.write.retryAt)
	}
}

// A write that may have been stored is read again, unless the informer has shown
// a newer version already.
func TestAWriteThatMayBeStoredIsNotReadIfTheCacheIsNewer(t *testing.T) {
	s := running().says(runs())
	s.writeStarted(tick, OpPatch)
	s.now()
	s.writeFailed(s.r, tick, errFailed)
	if s.write.read != readNothing {
		t.Error("it is read")
	}
}

func TestALostPodWithoutRestartPolicyStartsAgain(t *testing.T) {
	s := running(func(p *corev1.Pod) { p.Spec.RestartPolicy = "" })
	if s.markLost(s.r, tick); s.end != nil {
		t.Errorf("it ends as %s", s.end.reason)
	}
}
