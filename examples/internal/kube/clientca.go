// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net"

	"k8s.io/client-go/rest"
)

// ClientCAUsage is the help of the flag whose value ClientCA takes.
const ClientCAUsage = "`path` of the CAs of client certificates, the client-ca-file of ConfigMap kube-system/extension-apiserver-authentication (default: that ConfigMap, which a node may not read; on a loopback address the CA of the API server)"

// ClientCA returns what signs the certificates by which a node's server recognizes
// its clients, the API server above all: path, the value of --client-ca-file, if it
// is set. If both results are empty, package nodeapi reads the ConfigMap of the
// cluster. note says what the default means.
//
// The CA of the API server's own certificate is the default for development only, on a
// loopback address. It may be one that signs for a whole company, and whoever it
// certifies would be a user of the node.
func ClientCA(path string, api *rest.Config, listens net.Addr) (file string, bundle []byte, note string) {
	if path != "" {
		return path, nil, ""
	}
	if tcp, ok := listens.(*net.TCPAddr); ok && tcp.IP.IsLoopback() && (api.CAFile != "" || len(api.CAData) > 0) {
		note = "For development, on a loopback address: client certificates are checked with the CA of the API server. Set --client-ca-file for the CA that signs them"
		if len(api.CAData) > 0 {
			return "", api.CAData, note
		}
		return api.CAFile, nil, note
	}
	return "", nil, "--client-ca-file is not set: kubectl logs, exec and port-forward fail unless the node may read ConfigMap kube-system/extension-apiserver-authentication, which the credentials of a node do not allow"
}
