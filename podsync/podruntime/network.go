// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// onePerFamily returns the first address of each IP family, in their order, as the API and the kubelet
// have it: a network plugin may give a sandbox several. What is no address is left out.
func onePerFamily(ips []string) (list []string) {
	var has [2]bool
	for _, ip := range ips {
		address, err := netip.ParseAddr(ip)
		if err != nil || address.Zone() != "" {
			continue
		}
		family := 0
		if address.Unmap().Is6() {
			family = 1
		}
		if !has[family] {
			list = append(list, ip)
		}
		has[family] = true
	}
	return list
}

// ClusterDNS is the input for the resolv.conf of pods.
type ClusterDNS struct {
	// Servers are the addresses of the cluster's DNS service.
	Servers []string
	// Domain is the domain of the cluster, such as cluster.local.
	Domain string
	// Host is the configuration of the node, for pods with dnsPolicy Default.
	Host DNS
}

// DNS is the content of a resolv.conf.
type DNS struct {
	// Servers are the addresses of name servers, Searches are the search domains, and
	// Options are the options in the syntax of the file.
	Servers, Searches, Options []string
}

// The limits of a resolv.conf (API validation of dnsConfig has the same).
const (
	maxNameservers = 3
	maxSearches    = 32
)

// dnsOf returns the content of the resolv.conf of a pod, by dnsPolicy and dnsConfig.
func dnsOf(pod *corev1.Pod, cluster ClusterDNS) DNS {
	var d DNS
	policy := pod.Spec.DNSPolicy
	if policy == "" {
		policy = corev1.DNSClusterFirst
	}
	if policy == corev1.DNSClusterFirst && pod.Spec.HostNetwork {
		policy = corev1.DNSDefault
	}
	switch {
	case policy == corev1.DNSNone:
	case policy != corev1.DNSDefault && len(cluster.Servers) > 0:
		d.Servers = slices.Clone(cluster.Servers)
		if cluster.Domain != "" {
			d.Searches = []string{pod.Namespace + ".svc." + cluster.Domain, "svc." + cluster.Domain, cluster.Domain}
		}
		d.Searches = append(d.Searches, cluster.Host.Searches...)
		d.Options = []string{"ndots:5"}
	default:
		d.Servers = slices.Clone(cluster.Host.Servers)
		d.Searches = slices.Clone(cluster.Host.Searches)
		d.Options = slices.Clone(cluster.Host.Options)
	}
	if c := pod.Spec.DNSConfig; c != nil {
		d.Servers = append(d.Servers, c.Nameservers...)
		d.Searches = append(d.Searches, c.Searches...)
		for _, o := range c.Options {
			if o.Value == nil || *o.Value == "" {
				d.Options = append(d.Options, o.Name)
			} else {
				d.Options = append(d.Options, o.Name+":"+*o.Value)
			}
		}
		d.Options = lastOfEach(d.Options)
	}
	d.Servers = limit(unique(d.Servers), maxNameservers)
	d.Searches = limit(unique(d.Searches), maxSearches)
	return d
}

// lastOfEach returns the options of a resolv.conf without those that a later one of the same name
// replaces.
func lastOfEach(options []string) (list []string) {
	seen := map[string]bool{}
	for _, o := range slices.Backward(options) {
		name, _, _ := strings.Cut(o, ":")
		if !seen[name] {
			list = append(list, o)
		}
		seen[name] = true
	}
	slices.Reverse(list)
	return list
}

func limit(list []string, n int) []string { return list[:min(n, len(list))] }

// unique returns list without repetitions, in order.
func unique(list []string) (out []string) {
	for _, s := range list {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// hostnameOf returns the host name of a pod and, if the pod is in a subdomain, its
// fully qualified name.
func hostnameOf(pod *corev1.Pod, domain string) (name, fqdn string) {
	if h := pod.Spec.HostnameOverride; h != nil && *h != "" {
		return *h, ""
	}
	name = pod.Spec.Hostname
	if name == "" {
		name = pod.Name
	}
	const limit = 63 // of a host name in Linux
	if len(name) > limit {
		name = strings.TrimRight(name[:limit], "-.")
	}
	if pod.Spec.Subdomain != "" && domain != "" {
		fqdn = fmt.Sprintf("%s.%s.%s.svc.%s", name, pod.Spec.Subdomain, pod.Namespace, domain)
		if set := pod.Spec.SetHostnameAsFQDN; set != nil && *set {
			return fqdn, fqdn
		}
	}
	return name, fqdn
}

// The first lines of a managed hosts file. Kubernetes' conformance tests look for
// them.
const (
	hostsHeader     = "# Kubernetes-managed hosts file.\n"
	hostsHeaderHost = "# Kubernetes-managed hosts file (host network).\n"
)

// hostsFile returns the content of /etc/hosts of a pod. host is that of the node,
// for a pod in its network.
func hostsFile(pod *corev1.Pod, ips []string, name, fqdn string, host []byte) []byte {
	var b strings.Builder
	if pod.Spec.HostNetwork {
		b.WriteString(hostsHeaderHost)
		b.Write(host)
	} else {
		b.WriteString(hostsHeader)
		b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
		for _, ip := range ips {
			if fqdn != "" && fqdn != name {
				fmt.Fprintf(&b, "%s\t%s\t%s\n", ip, fqdn, name)
			} else {
				fmt.Fprintf(&b, "%s\t%s\n", ip, name)
			}
		}
	}
	if len(pod.Spec.HostAliases) > 0 {
		b.WriteString("\n# Entries added by HostAliases.\n")
		for _, a := range pod.Spec.HostAliases {
			fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
		}
	}
	return []byte(b.String())
}
