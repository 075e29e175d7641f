// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/report"
)

// An observer tells hooks and events what has happened. Methods that queue what they tell must
// be called with the lock of the table, and the loop tells it without the lock.
type observer struct {
	pods       *table
	hooks      Hooks
	warnings   events.EventRecorder // nil: none
	containers events.EventRecorder // nil: none
}

// containHooks returns hooks whose panics are reported and go no further. None is nil.
func (o *observer) containHooks(h Hooks) Hooks {
	return Hooks{
		ProviderCall: containHook(o, "Hooks.ProviderCall", h.ProviderCall),
		APICall:      containHook(o, "Hooks.APICall", h.APICall),
		StatusStored: containHook(o, "Hooks.StatusStored", h.StatusStored),
		StageChanged: containHook(o, "Hooks.StageChanged", h.StageChanged),
		Dropped:      containHook(o, "Hooks.Dropped", h.Dropped),
		MassOrphans:  containHook(o, "Hooks.MassOrphans", h.MassOrphans),
	}
}

func containHook[T any](o *observer, name string, hook func(T)) func(T) {
	if hook == nil {
		return func(T) {}
	}
	return func(v T) {
		err := contain(name, func() error {
			hook(v)
			return nil
		})
		if err != nil {
			report.Tell(o.pods.run.callCtx, o.pods.handler, err, "A hook panicked", panicValues(err, "argument", v)...)
		}
	}
}

// called calls Hooks.ProviderCall, without the lock.
func (o *observer) called(op Op, ref Ref, latency time.Duration, err error) {
	o.hooks.ProviderCall(ProviderCall{Op: op, Ref: ref, Latency: latency, Err: err})
}

// requested calls Hooks.APICall, without the lock.
func (o *observer) requested(op Op, ref Ref, latency time.Duration, err error) {
	o.hooks.APICall(APICall{Op: op, Ref: ref, Latency: latency, Err: err})
}

// dropped queues Hooks.Dropped.
func (o *observer) dropped(ref Ref, reason string, err error) {
	o.pods.later(func() { o.hooks.Dropped(Dropped{Ref: ref, Reason: reason, Err: err}) })
}

// changed queues Hooks.StageChanged.
func (o *observer) changed(change StageChanged) {
	o.pods.later(func() { o.hooks.StageChanged(change) })
}

// stored queues Hooks.StatusStored.
func (o *observer) stored(ref Ref, lag time.Duration) {
	o.pods.later(func() { o.hooks.StatusStored(StatusStored{Ref: ref, Lag: lag}) })
}

// A hold says whether too many pods are held back, and what an operator reads when that begins and ends.
type hold struct {
	on           bool
	begins, ends string
}

// heldBack reports the pods that are held back, if any: as an error, err, when the hold begins.
func (o *observer) heldBack(ctx context.Context, h *hold, mass MassOrphans, err error) {
	n, on, logger := len(mass.Refs), h.on, klog.FromContext(ctx)
	o.pods.later(func() {
		switch {
		case n == 0:
			logger.Info(h.ends, "held", mass.Held)
		case !on:
			report.Tell(ctx, o.pods.handler, err, h.begins, "pods", n, "held", mass.Held)
		default:
			logger.V(4).Info("Still too many pods are held back", "pods", n, "held", mass.Held)
		}
	})
	h.on = n > 0
	o.pods.later(func() { o.hooks.MassOrphans(mass) })
}

// warn queues a Warning about t, once for each distinct message in a row.
func (o *observer) warn(t *entry, reason, action, message string) {
	reason, message = report.Reason(reason), report.Note(message)
	if o.warnings == nil || t.warned == reason+message {
		return
	}
	t.warned = reason + message
	o.record(o.warnings, objectOf(t.ref), corev1.EventTypeWarning, reason, action, message)
}

func objectOf(ref Ref) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID}
}

// record queues an event. A panic of the recorder is reported.
func (o *observer) record(to events.EventRecorder, regarding *corev1.ObjectReference, kind, reason, action, note string) {
	o.pods.later(func() {
		report.Call(o.pods.run.callCtx, o.pods.handler, "EventRecorder.Eventf", func() { to.Eventf(regarding, nil, kind, reason, action, "%s", note) })
	})
}

// The reasons of the events of Config.ContainerEvents. They are the kubelet's.
const (
	reasonStarted = "Started"
	reasonKilling = "Killing"
)

// before returns the status that starts needs, nil if nothing is recorded.
func (o *observer) before(t *entry) *corev1.PodStatus {
	if o.containers == nil {
		return nil
	}
	return t.LastStatus()
}

// starts records the containers that have started since a status of the pod. A kubelet records
// Pulled and Created as well. Here they would come from the same change of the status, so they would
// be two requests that say nothing more.
func (o *observer) starts(t *entry, before *corev1.PodStatus) {
	if before == nil {
		return
	}
	after := t.LastReport()
	if after == nil || before == after {
		return
	}
	record := func(fieldPath string, before, after []corev1.ContainerStatus) {
		known := make(map[string]*corev1.ContainerStatus, len(before))
		for i := len(before) - 1; i >= 0; i-- { // the first one of a name counts
			known[before[i].Name] = &before[i]
		}
		for i := range after {
			cs := &after[i]
			if !startedSince(known[cs.Name], cs) {
				continue
			}
			o.container(t, fieldPath, cs.Name, reasonStarted, actionStart, "Started container "+cs.Name+", image \""+cs.Image+"\"")
		}
	}
	record("spec.initContainers", before.InitContainerStatuses, after.InitContainerStatuses)
	record("spec.containers", before.ContainerStatuses, after.ContainerStatuses)
	record("spec.ephemeralContainers", before.EphemeralContainerStatuses, after.EphemeralContainerStatuses)
}

// startedSince reports whether the container has begun a run that is not in old; nil if nothing is
// known of it.
func startedSince(old, cs *corev1.ContainerStatus) bool {
	switch {
	case cs.State.Running == nil && cs.State.Terminated == nil:
		return false
	case old == nil:
		return true
	}
	return cs.RestartCount > old.RestartCount || cs.State.Running != nil && old.State.Running == nil ||
		old.State.Waiting != nil && old.LastTerminationState.Terminated == nil
}

// kills records that the containers that run are being stopped.
func (o *observer) kills(t *entry) {
	status := o.before(t)
	if status == nil {
		return
	}
	kill := func(fieldPath string, list []corev1.ContainerStatus) {
		for i := range list {
			if list[i].State.Running != nil {
				o.container(t, fieldPath, list[i].Name, reasonKilling, actionStop, "Stopping container "+list[i].Name)
			}
		}
	}
	kill("spec.containers", status.ContainerStatuses)
	kill("spec.initContainers", status.InitContainerStatuses)
	kill("spec.ephemeralContainers", status.EphemeralContainerStatuses)
}

func (o *observer) container(t *entry, fieldPath, name, reason, action, note string) {
	regarding := objectOf(t.ref)
	regarding.FieldPath = fieldPath + "{" + name + "}"
	o.record(o.containers, regarding, corev1.EventTypeNormal, reason, action, report.Note(note))
}
