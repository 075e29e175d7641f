// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/report"
	"github.com/kubewright/kubewright/podsync/podstatus"
)

// An instant is a time since the controller was made: eight bytes instead of
// twenty-four, for records of which there may be a hundred thousand.
type instant = time.Duration

// never is later than every instant.
const never instant = 1<<63 - 1

// horizon is the longest time that is reckoned with, 73 years: the sum of an
// instant and two of them is no less than each, which the largest durations that
// are asked for would not give.
const horizon time.Duration = 1 << 61

// rules are what decisions depend on besides the pod.
type rules struct {
	policy       Policy
	relist       time.Duration
	pendingAfter time.Duration
	retry        backoff.Policy
	epoch        time.Time // the instant 0

	updates, releases, admits, inspects bool // capabilities of the provider
}

// at returns the instant of a time.
func (r *rules) at(t time.Time) instant { return t.Sub(r.epoch) }

// stopSlack is how long after the grace period the provider may take to say
// that a pod has stopped before it is told again.
const stopSlack = 2 * time.Second

// goneAfter is how long a pod that the API no longer has may stay in the
// informer before the API is asked once more, and how long a deleted pod may
// stay before it is deleted again.
const goneAfter = 30 * time.Second

// minGrace is the shortest grace period that is passed on. It is the kubelet's.
const minGrace = time.Second

// A track is everything that is known of one pod. Its methods change it by what
// has happened, and plan.go says what to do next: neither has goroutines,
// clients or clocks. It belongs to the holder of the Controller's mutex.
type track struct {
	ref  Ref
	pod  *corev1.Pod // the newest version seen; never changed; nil for an orphan
	next *track      // the next one of the same namespace and name

	// What the API says.
	since     instant // first seen, or lost and to be started again
	goneAt    instant // when a write was answered with "no such pod"; 0: it wasn't
	removed   bool    // the object is gone
	orphan    bool    // the object was never seen
	known     bool    // the provider has said whether it holds the pod
	forced    bool    // Policy.ReleaseAfter is over
	deleted   bool    // it has a deletionTimestamp
	finalized bool    // deleted with grace 0 and finalizers: nothing is left to do
	goingAt   instant // when it was seen deleted with grace 0 and without finalizers; 0: it was not

	// What the provider says.
	observed *corev1.PodStatus         // the last report; pod.Status once that has it
	mirrored bool                      // observed is a status that the API has or had, not a report
	lost     *corev1.PodStatus         // what a pod that starts again had come to, until that is stored
	own      []corev1.PodConditionType // the conditions of the last report
	print    uint64                    // its fingerprint
	seen     uint64                    // when it last showed that it holds the pod, in Controller.seq
	accepted int64                     // the generation it has accepted
	acked    *corev1.Pod               // what was accepted, where the API keeps no generation
	held     bool                      // it has, or may have, an instance
	admitted bool
	running  bool // Start has succeeded
	stopped  bool // nothing runs and nothing will
	look     bool // it should be inspected
	absences uint8
	absentAt instant // the first of absences

	// Why the pod ends; nil while it doesn't.
	end *ending

	// The runtime lane.
	call     *call
	failures int32
	retryAt  instant
	lastErr  error

	// The API lane.
	write         *call
	want, stored  uint64 // the newest report, and the newest that the API has
	stale         bool   // somebody else has written: it may have to be repaired
	reload        bool   // a write met a newer version, or may have made one: read it
	beaten        bool   // the former
	refused       uint64 // the want that the API called invalid
	reportedAt    instant
	writeAt       instant
	writeFailures int32
	repairs       uint8 // patches in a row that only others' writes asked for
	repairedAt    instant
	minimal       bool // the final status is invalid: write what can't be
	final         bool // the API has the final status
	released      bool // the API was told that the object may go
	releasedAt    instant

	// The driver's.
	stage             Stage // as last published
	dirty             bool
	queued            [queueCount]bool
	blocking          bool // as last told to the pods of its name
	inCache           bool // the informer has it
	listNo            uint32
	wakeAt            instant
	wakeIndex         int32 // place in the heap plus one; 0: not there
	callErrs, apiErrs report.Member
	warned            string  // the last event
	orphanAt          instant // when it is to be verified
	orphanWait        time.Duration
	orphanPasses      uint8
	born              uint64 // when it was first seen, in Controller.seq
}

// An ending says why and how a pod ends.
type ending struct {
	reason   StopReason
	failure  *podstatus.Failure // nil: the exit codes decide
	since    instant
	grace    time.Duration // the least that was asked for
	stops    int           // calls of Stop
	passed   time.Duration // the grace period of the last one
	accepted instant       // when Stop last succeeded; 0: it didn't
	killAt   instant       // when the grace period of the first success ends
	recheck  instant       // when to call Stop again
}

// A call is under way, of the provider or the API.
type call struct {
	op       Op
	since    instant
	seq      uint64        // when it began, in Controller.seq
	grace    time.Duration // of Stop
	want     uint64        // of a status
	over     bool          // of a status: it is the final one; of Stop: the pod had stopped
	pod      *corev1.Pod   // what it was given
	canceled bool
	cancel   func()
}
