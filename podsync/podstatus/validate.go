// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
)

// Validate returns the errors for which an API server of Kubernetes 1.37 refuses
// status, with 422 Invalid, as the new status of pod, pod.Status being the stored one. It
// returns nil for every status that [Next] returns. Phase, reason, message and
// the names of containers are not validated by API servers and not here.
func Validate(pod *corev1.Pod, status *corev1.PodStatus) field.ErrorList {
	v := validator{pod: pod, stored: &pod.Status}
	if status.ObservedGeneration < 0 {
		v.add(field.Invalid(statusPath.Child("observedGeneration"), status.ObservedGeneration, "must not be negative"))
	}
	// An empty class is filled in from the stored object.
	if status.QOSClass != "" && status.QOSClass != v.stored.QOSClass {
		v.add(field.Invalid(statusPath.Child("qosClass"), status.QOSClass, "must not change"))
	}
	v.nomination(status.NominatedNodeName)
	path := statusPath.Child("conditions")
	for i := range status.Conditions {
		v.errs = append(v.errs, checkCondition(path.Index(i), &status.Conditions[i])...)
	}
	v.addresses(status)

	spec := &pod.Spec
	v.containers(initial, statusPath.Child("initContainerStatuses"), spec.InitContainers, v.stored.InitContainerStatuses, status.InitContainerStatuses)
	v.containers(regular, statusPath.Child("containerStatuses"), spec.Containers, v.stored.ContainerStatuses, status.ContainerStatuses)
	v.containers(ephemeral, statusPath.Child("ephemeralContainerStatuses"), debugContainers(spec), v.stored.EphemeralContainerStatuses, status.EphemeralContainerStatuses)
	return v.errs
}

type validator struct {
	pod    *corev1.Pod
	stored *corev1.PodStatus
	errs   field.ErrorList
}

func (v *validator) add(err *field.Error) { v.errs = append(v.errs, err) }

// nomination checks the scheduler's field, which a pod that is bound doesn't get.
func (v *validator) nomination(name string) {
	if name == "" || name == v.stored.NominatedNodeName {
		return
	}
	path := statusPath.Child("nominatedNodeName")
	if msgs := validation.IsDNS1123Subdomain(name); len(msgs) > 0 {
		v.add(field.Invalid(path, name, strings.Join(msgs, "; ")))
	} else if v.pod.Spec.NodeName != "" {
		v.add(field.Forbidden(path, "the pod is bound to a node"))
	}
}

// addresses checks podIP(s) and hostIP(s). Of the pod the single field and the list
// are both set or both not; the host may have the single one alone.
func (v *validator) addresses(status *corev1.PodStatus) {
	ips := podIPStrings(status.PodIPs)
	v.families(statusPath.Child("podIPs"), ips, podIPStrings(v.stored.PodIPs))
	first := ""
	if len(ips) > 0 {
		first = ips[0]
	}
	if status.PodIP != first {
		v.add(field.Invalid(statusPath.Child("podIP"), status.PodIP, "must be the first of podIPs"))
	}

	ips = hostIPStrings(status.HostIPs)
	v.families(statusPath.Child("hostIPs"), ips, hostIPStrings(v.stored.HostIPs))
	if len(ips) > 0 && status.HostIP != ips[0] {
		v.add(field.Invalid(statusPath.Child("hostIP"), status.HostIP, "must be the first of hostIPs"))
	}
}

// families checks spelling and number of addresses; a stored one may stay as it is.
func (v *validator) families(path *field.Path, ips, stored []string) {
	for i, ip := range ips {
		if slices.Contains(stored, ip) {
			continue
		}
		if addr, err := netip.ParseAddr(ip); err != nil || addr.Zone() != "" || addr.Is4In6() {
			v.add(field.Invalid(path.Index(i), ip, "must be an IP address"))
		}
	}
	if len(ips) > 2 || len(ips) == 2 && netutils.IsIPv6String(ips[0]) == netutils.IsIPv6String(ips[1]) {
		v.add(field.Invalid(path, ips, "at most one address of each IP family can be stored"))
	}
}

func (v *validator) containers(k kind, path *field.Path, specs []corev1.Container, stored, list []corev1.ContainerStatus) {
	known, before := containersIn(specs), statusesIn(stored)
	for i := range list {
		cs, path := &list[i], path.Index(i)
		c := known.find(cs.Name)
		if old := before.find(cs.Name); old != nil && old.State.Terminated != nil && cs.State.Terminated == nil {
			if !v.mayRestart(k, c, old.State.Terminated) {
				v.add(field.Forbidden(path.Child("state"), fmt.Sprintf("container %s ended and isn't restarted", cs.Name)))
			}
		}
		v.errs = append(v.errs, checkUser(path.Child("user"), &v.pod.Spec, cs.User)...)
		for j := range cs.VolumeMounts {
			v.errs = append(v.errs, checkMount(path.Child("volumeMounts").Index(j), &cs.VolumeMounts[j])...)
		}
		for j := range cs.AllocatedResourcesStatus {
			v.errs = append(v.errs, checkAllocated(path.Child("allocatedResourcesStatus").Index(j), k, c, v.stored, &cs.AllocatedResourcesStatus[j])...)
		}
	}
}

// mayRestart is mayLeaveTerminated also for a container that the spec doesn't have:
// it restarts by no policy.
func (v *validator) mayRestart(k kind, c *corev1.Container, end *corev1.ContainerStateTerminated) bool {
	if c == nil {
		return k != ephemeral && mayRestartPod(&v.pod.Spec)
	}
	return mayLeaveTerminated(&v.pod.Spec, k, c, end)
}
