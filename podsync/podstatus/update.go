// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Update is a node's report of one pod.
type Update struct {
	// Observed is the status that the provider reports. Its zero fields mean "no
	// opinion": addresses, start time and each container without a status, or with
	// one without a state, keep the stored one. Reason and Message are always those of the report, so
	// that they go away with their cause.
	//
	// Resources and allocated resources that a container's status leaves out are
	// those of the spec, once the provider has accepted it.
	//
	// Conditions in it are written if their type is not one that is computed:
	// ContainersReady, Ready, Initialized, and PodScheduled, which is True for a
	// pod that is bound to a node. PodReadyToStartContainers replaces the computed one;
	// DisruptionTarget is written with a transition to a terminal phase and
	// only then. PodResizePending, PodResizeInProgress and
	// AllContainersRestarting are taken off the pod by a report whose Conditions
	// are not nil and lack them. LastProbeTime is not written: it would cost a
	// request for each report.
	//
	// Fields that belong to others are ignored: nominatedNodeName, qosClass,
	// resize and the status of resource claims.
	Observed corev1.PodStatus

	// Withdrawn are the types of conditions that an earlier report had and that
	// Observed has no longer. They are taken off the pod, unless they are
	// computed or another component's.
	Withdrawn []corev1.PodConditionType

	// Stopped says that nothing of the pod runs and that nothing will. The phase
	// becomes terminal with it, and never without.
	Stopped bool

	// Failure ends the pod as Failed whatever its containers' exit codes say:
	// evicted, too long active, rejected, lost. Nil leaves it to the exit codes.
	// It shows once Stopped is true.
	Failure *Failure

	// Unstarted says that nothing of the pod was started, as far as is known: it was
	// rejected, or it was deleted or evicted before. If Stopped is true and no status shows
	// otherwise, no container gets an exit code, because none has run. The containers of a
	// pod that is deleted, without a Failure, still wait. Any other pod gets no container
	// statuses, like one that a kubelet rejects.
	Unstarted bool

	// KeepPhase takes Observed.Phase, if it is set and possible, in place of
	// the phase that the containers add up to. "Possible" excludes a terminal
	// phase before Stopped, Succeeded without an exit code 0 of every container
	// that has to complete, and a way back.
	KeepPhase bool

	// Generation is the metadata.generation of the spec that the provider has
	// accepted. It is written as observedGeneration of the status and of the
	// conditions written here, and never lowers the stored one, except one that the pod does not have. Zero
	// leaves them.
	Generation int64

	// Now is the time of the update. It is cut to seconds, the resolution of the
	// API, and becomes the transition time of conditions that change and the
	// start time of a pod that has none.
	Now time.Time
}

// Failure is an end that the node decided, not the containers.
type Failure struct {
	// Reason and Message become status.reason and status.message, such as
	// "Evicted" and the resource that ran out.
	Reason, Message string
	// DisruptionReason adds the condition DisruptionTarget with this reason
	// (KEP-3329), for example corev1.PodReasonTerminationByKubelet, by which a
	// Job distinguishes an eviction from a failure of its own. Empty adds none.
	DisruptionReason string
}

// merger holds one call of Next.
type merger struct {
	pod      *corev1.Pod
	stored   *corev1.PodStatus
	observed *corev1.PodStatus // private copy
	u        Update
	next     corev1.PodStatus
	problems field.ErrorList
}

func (m *merger) problem(err *field.Error) { m.problems = append(m.problems, err) }

var statusPath = field.NewPath("status")

// kind is one of the three lists of containers of a pod.
type kind int

const (
	regular kind = iota
	initial
	ephemeral
)

// place is an element of a list in the status. Its path is made when there is a
// problem to report: most reports have none.
type place struct {
	list  string
	index int
}

func (p place) path(names ...string) *field.Path {
	path := statusPath.Child(p.list).Index(p.index)
	if len(names) > 0 {
		path = path.Child(names[0], names[1:]...)
	}
	return path
}

// timestamp makes a time of the report storable.
func (m *merger) timestamp(at place, t *metav1.Time, names ...string) {
	if t.IsZero() {
		*t = metav1.Time{}
		return
	}
	if !storable(*t) {
		m.problem(field.Invalid(at.path(names...), t.Unix(), "not a time that the API can store"))
		*t = metav1.Time{}
		return
	}
	*t = cut(*t)
}
