// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

func TestAPodThatIsNotListedBlocksItsName(t *testing.T) {
	s := newScene(testPod())
	if !s.Blocks() {
		t.Error("the provider may hold it, and another pod of its name may start")
	}
	if s.classify(moment(tick)); s.Blocks() {
		t.Error("the provider does not hold it, and no other pod of its name may start")
	}
}

func TestAPodIsNotReleasedBeforeItsFinalStatusIsStored(t *testing.T) {
	s := runningPod(deletedWithin(30)).says(exited(0, true))
	if got := s.decideCall(tick, true); got.Op != "" {
		t.Errorf("%q before the final status", got.Op)
	}
	s.becomeFinal()
	if got := s.decideCall(tick, true); got.Op != "" {
		t.Errorf("%q before the deletion is sent", got.Op)
	}
	s.becomeReleased(tick)
	if got := s.decideCall(tick, true); got.Op != Release {
		t.Errorf("%q with the final status, want Release", got.Op)
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
		s.provider.sight, s.provider.instance = listed, running
		wall := epoch.Add(tick + step)
		s.Pod().Status.StartTime = &metav1.Time{Time: wall.Add(-10 * time.Second)}
		s.Pod().Spec.ActiveDeadlineSeconds = new(int64(100))
		for _, tc := range []struct {
			later   time.Duration
			expired bool
			wake    time.Duration
		}{{0, false, 30 * time.Second}, {85 * time.Second, false, 5 * time.Second}, {90 * time.Second, true, 0}} {
			expired, wake := s.advance(Moment{Since: tick, Wall: wall.Add(tc.later)})
			if expired != tc.expired || !expired && wake != tick+tc.wake {
				t.Errorf("%s, %v after it: expired %v, wake after %v", name, tc.later, expired, wake-tick)
			}
		}
	}
}

func TestAPodThatEndsAnywayIsNotLostAtFirstSight(t *testing.T) {
	s := newScene(testPod(ran, deletedWithin(30)))
	if s.classify(moment(tick)) {
		t.Error("lost")
	}
	if s.advance(moment(tick)); s.end.reason != StopDeleted || !s.stopped() {
		t.Errorf("it ends as %s, stopped: %v", s.end.reason, s.stopped())
	}
}

// One List that leaves a pod out, or two that follow each other at once, say
// nothing.
func TestAPodIsLostByTwoListsApart(t *testing.T) {
	for gap, want := range map[time.Duration]bool{time.Second: false, 5 * time.Second: true} {
		s := runningPod()
		s.r.Inspects = false
		if s.absent(moment(tick), 100, false) {
			t.Error("lost by one List")
		}
		if got := s.absent(moment(tick+gap), 101, false); got != want {
			t.Errorf("lost by two Lists %v apart: %v", gap, got)
		}
	}
}

func TestRepairsOfLongAgoDoNotSlowTheNextOne(t *testing.T) {
	s := runningPod()
	for range 10 {
		s.repaired(tick)
	}
	if s.write.retryAt == 0 {
		t.Fatal("ten repairs at once are not slowed down")
	}
	s.write.retryAt = 0
	if s.repaired(tick + 3*s.r.Retry.Cap); s.write.retryAt != 0 || s.write.rivals.repairs != 1 {
		t.Errorf("repairs %d, next at %v", s.write.rivals.repairs, s.write.retryAt)
	}
}

// A write that may have been stored is read again, unless the informer has shown
// a newer version already.
func TestAWriteThatMayBeStoredIsNotReadIfTheCacheIsNewer(t *testing.T) {
	s := runningPod().says(runs())
	s.writeStarted(tick, Patch, wallAt(tick))
	s.now()
	s.writeFailed(tick, WriteFailed{MayBeStored: true})
	if s.write.read != readNothing {
		t.Error("it is read")
	}
}

func TestALostPodWithoutRestartPolicyStartsAgain(t *testing.T) {
	s := runningPod(func(p *corev1.Pod) { p.Spec.RestartPolicy = "" })
	if s.markLost(moment(tick)); s.end != nil {
		t.Errorf("it ends as %s", s.end.reason)
	}
}
