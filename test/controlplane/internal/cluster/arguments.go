// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// layout holds the directory and the ports of a cluster.
type layout struct {
	dir   string
	ports map[string]int // by component, and etcdPeer
}

// etcdPeer is the key of the port on which etcd would listen to other members.
const etcdPeer = "etcd-peer"

func (l layout) file(name string) string { return filepath.Join(l.dir, name) }

// url returns the base URL of a component.
func (l layout) url(component string) string {
	scheme := "https"
	if component == Etcd || component == etcdPeer {
		scheme = "http"
	}
	return fmt.Sprintf("%s://127.0.0.1:%d", scheme, l.ports[component])
}

// Files of a cluster's directory.
const (
	caCert      = "pki/ca.crt"
	caKey       = "pki/ca.key"
	servingCert = "pki/serving.crt"
	servingKey  = "pki/serving.key"
	proxyCA     = "pki/front-proxy-ca.crt"
	proxyCert   = "pki/front-proxy.crt"
	proxyKey    = "pki/front-proxy.key"
	kubeletCert = "pki/kubelet-client.crt"
	kubeletKey  = "pki/kubelet-client.key"
	tokenKey    = "pki/service-account.key"
	tokenPub    = "pki/service-account.pub"
	adminConfig = "admin.kubeconfig"
	auditLog    = "audit.log"
	auditPolicy = "audit-policy.yaml"
	etcdData    = "etcd"
)

// proxyUser is the user as which the API server authenticates to aggregated API servers.
const proxyUser = "front-proxy-client"

// auditPolicyYAML logs every request when it is received and when it ends, and a watch when its answer begins too. So a
// reader of the log knows which requests are under way.
const auditPolicyYAML = `apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: Metadata
`

// arguments returns the arguments of every running component and of the further instances.
func arguments(o Options, l layout) map[string][]string {
	args := map[string][]string{
		Etcd:              etcdArguments(l),
		APIServer:         apiServerArguments(o, l),
		ControllerManager: controllerManagerArguments(l, ControllerManager),
		Scheduler:         schedulerArguments(l, Scheduler),
	}
	for _, name := range o.Without {
		delete(args, name)
	}
	for _, name := range o.Extra {
		if componentOf(name) == Scheduler {
			args[name] = schedulerArguments(l, name)
		} else {
			args[name] = controllerManagerArguments(l, name)
		}
	}
	for name := range args {
		component := componentOf(name)
		// In a single process the gates are global, and the flag may be given only once.
		if o.FeatureGates != "" && name != Etcd && (name == APIServer || o.process(name) == name) {
			args[name] = append(args[name], "--feature-gates="+o.FeatureGates)
		}
		args[name] = override(args[name], o.ExtraArgs[component])
		if name != component {
			args[name] = override(args[name], o.ExtraArgs[name])
		}
	}
	return args
}

// override returns args and extra, without the flags of args that extra replaces. Repeating a flag would suffice for
// most flags, but lists such as --authorization-mode would grow.
func override(args, extra []string) []string {
	kept := slices.DeleteFunc(slices.Clone(args), func(arg string) bool {
		return !merges[flagName(arg)] && slices.ContainsFunc(extra, func(e string) bool { return flagName(e) == flagName(arg) })
	})
	return append(kept, extra...)
}

// merges lists the flags whose values are maps: the caller's entries are added to ours.
var merges = map[string]bool{"--feature-gates": true, "--runtime-config": true}

// flagName returns --flag of --flag=value.
func flagName(arg string) string {
	name, _, _ := strings.Cut(arg, "=")
	return name
}

// singleArguments returns the arguments of the process that runs all components.
func singleArguments(o Options, l layout) []string {
	args := arguments(o, l)
	var all []string
	for _, name := range o.running() {
		all = append(append(all, "--", name), args[name]...)
	}
	return all
}

func etcdArguments(l layout) []string {
	return []string{
		"--name=default",
		"--data-dir=" + l.file(etcdData),
		"--unsafe-no-fsync", // the data is discarded at the end
		"--listen-client-urls=" + l.url(Etcd),
		"--advertise-client-urls=" + l.url(Etcd),
		"--listen-peer-urls=" + l.url(etcdPeer),
		"--initial-advertise-peer-urls=" + l.url(etcdPeer),
		"--initial-cluster=default=" + l.url(etcdPeer),
		"--socket-reuse-port",
	}
}

func apiServerArguments(o Options, l layout) []string {
	args := []string{
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", l.ports[APIServer]),
		"--permit-port-sharing",
		"--etcd-servers=" + l.url(Etcd),
		"--tls-cert-file=" + l.file(servingCert),
		"--tls-private-key-file=" + l.file(servingKey),
		"--client-ca-file=" + l.file(caCert),
		// For aggregated API servers, such as metrics-server.
		"--requestheader-client-ca-file=" + l.file(proxyCA),
		"--requestheader-allowed-names=" + proxyUser,
		"--proxy-client-cert-file=" + l.file(proxyCert),
		"--proxy-client-key-file=" + l.file(proxyKey),
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		// For logs, exec and port-forward of nodes, which have loopback addresses here and no resolvable names.
		"--kubelet-client-certificate=" + l.file(kubeletCert),
		"--kubelet-client-key=" + l.file(kubeletKey),
		"--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		// The kubernetes Service may not have a loopback address as its endpoint.
		"--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=10.0.0.0/24",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + l.file(tokenPub),
		"--service-account-signing-key-file=" + l.file(tokenKey),
		"--allow-privileged",
	}
	if slices.Contains(o.Without, ControllerManager) {
		// No controller creates the default ServiceAccount, without which this plugin rejects every pod.
		args = append(args, "--disable-admission-plugins=ServiceAccount")
	}
	if o.RuntimeConfig != "" {
		args = append(args, "--runtime-config="+o.RuntimeConfig)
	}
	if o.Audit {
		args = append(args,
			"--audit-policy-file="+l.file(auditPolicy),
			"--audit-log-path="+l.file(auditLog),
			"--audit-log-mode=blocking",  // an entry is in the file when its request ends
			"--audit-log-maxsize=100000", // MB; never rotates
		)
	}
	return args
}

func controllerManagerArguments(l layout, name string) []string {
	return append(clientArguments(l, name),
		"--use-service-account-credentials",
		// With the default of 20 requests per second, the first default ServiceAccount is seconds late, because every
		// controller first requests a token.
		"--kube-api-qps=500",
		"--kube-api-burst=1000",
		"--root-ca-file="+l.file(caCert),
		"--service-account-private-key-file="+l.file(tokenKey),
		"--cluster-signing-cert-file="+l.file(caCert),
		"--cluster-signing-key-file="+l.file(caKey),
	)
}

func schedulerArguments(l layout, name string) []string {
	return append(clientArguments(l, name), "--kube-api-qps=500", "--kube-api-burst=1000")
}

// clientArguments returns the common arguments of the controller manager and the scheduler.
func clientArguments(l layout, name string) []string {
	kubeconfig := l.file(componentOf(name) + ".kubeconfig")
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", l.ports[name]),
		"--permit-port-sharing",
		"--tls-cert-file=" + l.file(servingCert),
		"--tls-private-key-file=" + l.file(servingKey),
		// There is one instance. After a kill, its successor would have to wait until the dead instance's lease
		// expires.
		"--leader-elect=false",
	}
}
