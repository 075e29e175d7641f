// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"testing"

	"k8s.io/client-go/rest"
)

// credentials is an identity in the launcher's format.
type credentials struct {
	Server string `json:"server"`
	CA     []byte `json:"ca"`
	Cert   []byte `json:"cert"`
	Key    []byte `json:"key"`
	Token  string `json:"token"`

	Kubeconfig string `json:"kubeconfig"`
}

// config returns a new client configuration.
func (c credentials) config() *rest.Config {
	return &rest.Config{
		Host:            c.Server,
		BearerToken:     c.Token,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.CA, CertData: c.Cert, KeyData: c.Key},
		QPS:             -1,
	}
}

// NodeConfig returns a client configuration with the identity of the kubelet on the node called name: user system:node:NAME,
// group system:nodes.
func (c *Cluster) NodeConfig(t testing.TB, name string) *rest.Config {
	t.Helper()
	return c.issue(t, identity{Node: name}).config()
}

// NodeKubeconfig returns the path of a kubeconfig file for the identity of NodeConfig.
func (c *Cluster) NodeKubeconfig(t testing.TB, name string) string {
	t.Helper()
	return c.issue(t, identity{Node: name}).Kubeconfig
}

// ServiceAccountConfig returns a client configuration with a token of a ServiceAccount, and creates the ServiceAccount
// if it does not exist. The namespace must exist. The token is valid for a day.
func (c *Cluster) ServiceAccountConfig(t testing.TB, namespace, name string) *rest.Config {
	t.Helper()
	return c.issue(t, identity{Namespace: namespace, ServiceAccount: name}).config()
}

// ServiceAccountKubeconfig returns the path of a kubeconfig file for the identity of ServiceAccountConfig.
func (c *Cluster) ServiceAccountKubeconfig(t testing.TB, namespace, name string) string {
	t.Helper()
	return c.issue(t, identity{Namespace: namespace, ServiceAccount: name}).Kubeconfig
}

// UserConfig returns a client configuration with the identity of any user in groups.
func (c *Cluster) UserConfig(t testing.TB, user string, groups ...string) *rest.Config {
	t.Helper()
	return c.issue(t, identity{User: user, Groups: groups}).config()
}

// UserKubeconfig returns the path of a kubeconfig file for the identity of UserConfig. The groups are those of the last
// call for this user.
func (c *Cluster) UserKubeconfig(t testing.TB, user string, groups ...string) string {
	t.Helper()
	return c.issue(t, identity{User: user, Groups: groups}).Kubeconfig
}

// AdminKubeconfig returns the path of a kubeconfig file for the identity of AdminConfig.
func (c *Cluster) AdminKubeconfig() string { return c.status.Kubeconfig }

func (c *Cluster) issue(t testing.TB, id identity) credentials {
	t.Helper()
	var creds credentials
	c.must(t, request{Op: "kubeconfig", Identity: &id}, &creds)
	return creds
}
