// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/podsync/podstatus"
)

// A status that another client has written may be newer than the last report: some providers
// write to the API themselves. So it is contested until a report that began later contradicts
// it, and no status that is not final is written until then. A report that equals it says only
// that the provider has read the API.

// foreign applies a version that is not the answer to a write. It reports whether the version
// is new.
func (t *State) foreign(now Instant, seq uint64, v *Version) bool {
	before := t.api.pod
	if !t.setPod(now, v) {
		return false
	}
	if n := &t.write.news; before != nil && t.Known() && t.Held() && t.contests(&before.Open().Status, &t.Pod().Status) {
		n.contestedAt, n.asked = seq, false
	}
	return true
}

// contests reports whether two versions of a status differ in what the reports decide.
func (t *State) contests(before, after *corev1.PodStatus) bool {
	return !podstatus.Equal(t.decided(before), t.decided(after))
}

// decided returns the part of a status that the reports decide.
func (t *State) decided(status *corev1.PodStatus) *corev1.PodStatus {
	out := &corev1.PodStatus{
		Phase: status.Phase, Reason: status.Reason, Message: status.Message, StartTime: status.StartTime,
		HostIP: status.HostIP, HostIPs: status.HostIPs, PodIP: status.PodIP, PodIPs: status.PodIPs,
		InitContainerStatuses: status.InitContainerStatuses, ContainerStatuses: status.ContainerStatuses,
		EphemeralContainerStatuses: status.EphemeralContainerStatuses,
	}
	for _, c := range status.Conditions {
		switch c.Type {
		case corev1.PodReady, corev1.ContainersReady, corev1.PodInitialized, corev1.PodReadyToStartContainers:
		default:
			if !slices.Contains(t.provider.conditions, c.Type) {
				continue
			}
		}
		out.Conditions = append(out.Conditions, c)
	}
	return out
}

// confirmed records that the last report still holds at seq. It reports whether the status of
// another client is no longer contested.
func (t *State) confirmed(seq uint64) bool {
	n := &t.write.news
	if n.contestedAt == 0 || seq <= n.contestedAt || !t.provider.reports.any {
		return false // or the provider has no opinion
	}
	n.contestedAt = 0
	return true
}

// echoes reports whether a report is the status that another client has written.
func (t *State) echoes(report *corev1.PodStatus) bool {
	return t.write.news.contestedAt != 0 && podstatus.Equal(report, &t.Pod().Status)
}

// takeEcho records a report that echoes.
func (t *State) takeEcho(now Instant, st *Report) {
	n := &t.write.news
	upToDate := n.statusSeq == n.storedSeq
	st.Status.Conditions = nil // which of them are the provider's own it does not say
	t.take(now, st)
	n.contestedAt = 0
	if upToDate {
		n.storedSeq, n.overwritten, n.reportedAt = n.statusSeq, false, 0
	}
}

// asksAgain reports whether a List must show whether the provider contradicts another client.
// It is asked for once.
func (t *State) asksAgain(now Instant) bool {
	n := &t.write.news
	if n.contestedAt == 0 || n.asked || t.write.inflight != nil || now < t.write.retryAt || t.Stopped() || t.Gone() {
		return false
	}
	n.asked = true
	return true
}
