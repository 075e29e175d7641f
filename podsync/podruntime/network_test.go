// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/podsync/podenv"
)

// TestAContainerHasFilesOfItsOwn asks for /etc/hosts and the termination message, which a container has
// unless a volume of the pod is at that path.
func TestAContainerHasFilesOfItsOwn(t *testing.T) {
	hosts, err := os.ReadFile("/etc/hosts")
	if err != nil {
		t.Skip("this machine has no /etc/hosts")
	}
	at := func(path string) func(*launch) {
		return func(l *launch) {
			l.spec.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
			l.container.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: path}}
		}
	}
	aliases := []corev1.HostAlias{{IP: "192.0.2.9", Hostnames: []string{"db"}}}
	for name, tc := range map[string]struct {
		change func(*launch)
		want   []string // paths in the container
		hosts  []string // in /etc/hosts
	}{
		"a pod in a sandbox":      {func(*launch) {}, []string{"/log", "/etc/hosts"}, []string{"10.0.0.1\tweb\n"}},
		"without a sandbox":       {func(l *launch) { l.sandbox = nil }, []string{"/log"}, nil},
		"the network of the node": {func(l *launch) { l.spec.Spec.HostNetwork = true }, []string{"/log"}, nil},
		"with aliases in the network of the node": {func(l *launch) { l.spec.Spec.HostNetwork, l.spec.Spec.HostAliases = true, aliases },
			[]string{"/log", "/etc/hosts"}, []string{string(hosts), "192.0.2.9\tdb\n"}},
		"a volume at /etc/hosts":           {at("/etc/hosts/"), []string{"/etc/hosts/", "/log"}, nil},
		"a volume at that of the message":  {at("/log"), []string{"/log", "/etc/hosts"}, []string{"web"}},
		"no path for termination messages": {func(l *launch) { l.container.TerminationMessagePath = "" }, []string{"/etc/hosts"}, []string{"web"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l := &launch{
				pod:       &pod{dir: dir, node: &node{}},
				container: &corev1.Container{Name: "c", TerminationMessagePath: "/log"}, spec: &corev1.Pod{},
				id: ContainerID{Name: "c"}, sandbox: &Sandbox{}, addresses: podenv.Addresses{PodIPs: []string{"10.0.0.1"}},
			}
			tc.change(l)
			mounts, err := l.prepare(&podenv.Environment{}, "web", "")
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, m := range mounts {
				got = append(got, m.ContainerPath)
				data, err := os.ReadFile(m.HostPath)
				if m.Volume == "" && err != nil {
					t.Error(err)
				}
				for _, line := range tc.hosts {
					if m.ContainerPath == "/etc/hosts" && !strings.Contains(string(data), line) {
						t.Errorf("/etc/hosts has %q, want %q in it", data, line)
					}
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("mounts (-want, +got):\n%s", diff)
			}
		})
	}
}

func TestResolvConfFollowsThePolicy(t *testing.T) {
	cluster := ClusterDNS{Servers: []string{"10.96.0.10"}, Domain: "cluster.local", Host: DNS{
		Servers: []string{"192.0.2.53"}, Searches: []string{"example.org"}, Options: []string{"edns0"},
	}}
	ofCluster := DNS{[]string{"10.96.0.10"}, []string{"ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "example.org"}, []string{"ndots:5"}}
	host := DNS{slices.Clone(cluster.Host.Servers), slices.Clone(cluster.Host.Searches), slices.Clone(cluster.Host.Options)}
	var many []string
	for i := range 33 {
		many = append(many, strconv.Itoa(i))
	}
	for name, tc := range map[string]struct {
		spec corev1.PodSpec
		want DNS
	}{
		"by default the cluster's":      {corev1.PodSpec{}, ofCluster},
		"ClusterFirst":                  {corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst}, ofCluster},
		"not with the host's network":   {corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst, HostNetwork: true}, cluster.Host},
		"unless it asks for that":       {corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirstWithHostNet, HostNetwork: true}, ofCluster},
		"Default is the node's":         {corev1.PodSpec{DNSPolicy: corev1.DNSDefault}, cluster.Host},
		"None is that of dnsConfig":     {corev1.PodSpec{DNSPolicy: corev1.DNSNone, DNSConfig: &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1"}, Searches: []string{"a"}, Options: []corev1.PodDNSConfigOption{{Name: "debug"}}}}, DNS{[]string{"1.1.1.1"}, []string{"a"}, []string{"debug"}}},
		"options are replaced by name":  {corev1.PodSpec{DNSConfig: &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: new("2")}}}}, DNS{ofCluster.Servers, ofCluster.Searches, []string{"ndots:2"}}},
		"three servers, each once":      {corev1.PodSpec{DNSPolicy: corev1.DNSNone, DNSConfig: &corev1.PodDNSConfig{Nameservers: []string{"1", "1", "2", "3", "4"}}}, DNS{Servers: []string{"1", "2", "3"}}},
		"options of the node, too":      {corev1.PodSpec{DNSPolicy: corev1.DNSDefault, DNSConfig: &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{{Name: "edns0", Value: new("")}, {Name: "rotate"}}}}, DNS{cluster.Host.Servers, cluster.Host.Searches, []string{"edns0", "rotate"}}},
		"servers of the node, too":      {corev1.PodSpec{DNSPolicy: corev1.DNSDefault, DNSConfig: &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1"}, Searches: []string{"a"}}}, DNS{[]string{"192.0.2.53", "1.1.1.1"}, []string{"example.org", "a"}, cluster.Host.Options}},
		"32 searches":                   {corev1.PodSpec{DNSPolicy: corev1.DNSNone, DNSConfig: &corev1.PodDNSConfig{Searches: many}}, DNS{Searches: many[:32]}},
		"dnsConfig adds to the cluster": {corev1.PodSpec{DNSConfig: &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1"}}}, DNS{[]string{"10.96.0.10", "1.1.1.1"}, ofCluster.Searches, ofCluster.Options}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: tc.spec}
			if diff := cmp.Diff(tc.want, dnsOf(pod, cluster)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if !cmp.Equal(cluster.Host, host) {
		t.Errorf("pods have changed the configuration of the node to %+v", cluster.Host)
	}
	if got := dnsOf(&corev1.Pod{}, ClusterDNS{Servers: cluster.Servers, Host: cluster.Host}); !slices.Equal(got.Searches, cluster.Host.Searches) || !slices.Equal(got.Servers, cluster.Servers) {
		t.Errorf("without a domain: %+v", got)
	}
	if got := dnsOf(&corev1.Pod{}, ClusterDNS{Host: cluster.Host}); !cmp.Equal(got, cluster.Host) {
		t.Errorf("without a DNS service: %+v", got)
	}
}

func TestHostnames(t *testing.T) {
	for name, tc := range map[string]struct {
		spec       corev1.PodSpec
		name, fqdn string
	}{
		"the name of the pod": {corev1.PodSpec{}, "pod", ""},
		"its own":             {corev1.PodSpec{Hostname: "web"}, "web", ""},
		"in a subdomain":      {corev1.PodSpec{Hostname: "web", Subdomain: "sub"}, "web", "web.sub.ns.svc.cluster.local"},
		"as a full name":      {corev1.PodSpec{Subdomain: "sub", SetHostnameAsFQDN: new(true)}, "pod.sub.ns.svc.cluster.local", "pod.sub.ns.svc.cluster.local"},
		"not as a full name":  {corev1.PodSpec{Subdomain: "sub", SetHostnameAsFQDN: new(false)}, "pod", "pod.sub.ns.svc.cluster.local"},
		"no subdomain":        {corev1.PodSpec{SetHostnameAsFQDN: new(true)}, "pod", ""},
		"overridden by none":  {corev1.PodSpec{Hostname: "web", HostnameOverride: new("")}, "web", ""},
		"overridden":          {corev1.PodSpec{Hostname: "web", Subdomain: "sub", HostnameOverride: new("other.example")}, "other.example", ""},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod"}, Spec: tc.spec}
			if host, fqdn := hostnameOf(pod, "cluster.local"); host != tc.name || fqdn != tc.fqdn {
				t.Errorf("%q and %q, want %q and %q", host, fqdn, tc.name, tc.fqdn)
			}
		})
	}
	for name, want := range map[string]string{
		strings.Repeat("a", 63): strings.Repeat("a", 63), strings.Repeat("a", 64): strings.Repeat("a", 63), strings.Repeat("a", 60) + ".-.bc": strings.Repeat("a", 60),
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Subdomain: "sub"}}
		if host, fqdn := hostnameOf(pod, ""); host != want || fqdn != "" {
			t.Errorf("%s became %q and, without a domain, %q", name, host, fqdn)
		}
	}
	long := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("a", 62) + "-b"}}
	if host, _ := hostnameOf(long, ""); host != strings.Repeat("a", 62) {
		t.Errorf("a long name became %q", host)
	}
}

func TestHostsFile(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{HostAliases: []corev1.HostAlias{{IP: "192.0.2.7", Hostnames: []string{"a.example", "b.example"}}}}}
	got := string(hostsFile(pod, []string{"10.0.0.1", "fd00::1"}, "web", "web.sub.ns.svc.cluster.local", nil))
	for _, want := range []string{"# Kubernetes-managed hosts file.\n", "127.0.0.1\tlocalhost\n", "10.0.0.1\tweb.sub.ns.svc.cluster.local\tweb\n", "fd00::1\tweb.sub", "192.0.2.7\ta.example\tb.example\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	pod.Spec.HostNetwork = true
	got = string(hostsFile(pod, []string{"10.0.0.1"}, "web", "", []byte("192.0.2.1\tnode\n")))
	if strings.Contains(got, "hosts file.\n") || strings.Contains(got, "10.0.0.1") || !strings.Contains(got, "192.0.2.1\tnode\n") || !strings.Contains(got, "b.example") {
		t.Errorf("in the host's network:\n%s", got)
	}
}

func TestHostsFileNamesThePod(t *testing.T) {
	for fqdn, want := range map[string]string{"": "10.0.0.1\tweb\n", "web": "10.0.0.1\tweb\n", "web.sub": "10.0.0.1\tweb.sub\tweb\n"} {
		got := string(hostsFile(&corev1.Pod{}, []string{"10.0.0.1"}, "web", fqdn, nil))
		if !strings.HasSuffix(got, "allrouters\n"+want) {
			t.Errorf("%q: no line %q at the end of\n%s", fqdn, want, got)
		}
	}
}
