// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
)

// addresses takes over the observed hostIP(s) and podIP(s), each pair together.
func (m *merger) addresses() {
	if ips := m.addressList("podIP", m.observed.PodIP, podIPStrings(m.observed.PodIPs)); len(ips) > 0 {
		m.next.PodIP, m.next.PodIPs = ips[0], make([]corev1.PodIP, len(ips))
		for i := range ips {
			m.next.PodIPs[i].IP = ips[i]
		}
	}
	if ips := m.addressList("hostIP", m.observed.HostIP, hostIPStrings(m.observed.HostIPs)); len(ips) > 0 {
		m.next.HostIP, m.next.HostIPs = ips[0], make([]corev1.HostIP, len(ips))
		for i := range ips {
			m.next.HostIPs[i].IP = ips[i]
		}
	}
}

func podIPStrings(list []corev1.PodIP) []string {
	out := make([]string, len(list))
	for i := range list {
		out[i] = list[i].IP
	}
	return out
}

func hostIPStrings(list []corev1.HostIP) []string {
	out := make([]string, len(list))
	for i := range list {
		out[i] = list[i].IP
	}
	return out
}

// addressList returns the observed addresses as the API wants them: in canonical
// spelling, at most one of each family, the primary one first.
func (m *merger) addressList(name, one string, many []string) []string {
	var out []string
	add := func(path *field.Path, s string) {
		ip, ok := canonicalIP(s)
		switch {
		case !ok:
			m.problem(field.Invalid(path, text(s, 100), "must be an IP address"))
		case len(out) > 0 && out[0] == ip || len(out) > 1 && out[1] == ip:
		case len(out) == 2 || len(out) == 1 && netutils.IsIPv6String(out[0]) == netutils.IsIPv6String(ip):
			m.problem(field.Invalid(path, ip, "at most one address of each IP family can be stored"))
		default:
			out = append(out, ip)
		}
	}
	if one != "" {
		add(statusPath.Child(name), one)
	}
	for i, s := range many {
		add(statusPath.Child(name+"s").Index(i), s)
	}
	return out
}

// canonicalIP returns s in the spelling of RFC 5952, which every API server
// takes. It also reads IPv4 octets with leading zeros, as API servers used to.
func canonicalIP(s string) (string, bool) {
	addr, err := netip.ParseAddr(s)
	if err != nil {
		var ok bool
		if addr, ok = netip.AddrFromSlice(netutils.ParseIPSloppy(s)); !ok {
			return "", false
		}
	}
	if addr = addr.Unmap(); addr.Zone() != "" {
		return "", false
	}
	return addr.String(), true
}
