// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"net"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/kubewright/kubewright/examples/internal/kube"
)

// TestTheServingCAIsNoClientCA: with a CA that signs for a company, its servers and
// people were users of each node.
func TestTheServingCAIsNoClientCA(t *testing.T) {
	loopback, public := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7)}
	everywhere := &net.TCPAddr{IP: net.IPv6zero}
	data := &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: []byte("pem"), CAFile: "api.crt"}}
	named := &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAFile: "api.crt"}}
	for _, c := range []struct {
		path         string
		api          *rest.Config
		listens      net.Addr
		file, bundle string
		note         string
	}{
		{"ca.crt", data, public, "ca.crt", "", ""},
		{"ca.crt", data, loopback, "ca.crt", "", ""},
		{"", data, public, "", "", "--client-ca-file is not set"},
		{"", named, everywhere, "", "", "--client-ca-file is not set"},
		{"", data, loopback, "", "pem", "For development"},
		{"", named, loopback, "api.crt", "", "For development"},
		{"", &rest.Config{}, loopback, "", "", "--client-ca-file is not set"},
	} {
		file, bundle, note := kube.ClientCA(c.path, c.api, c.listens)
		if file != c.file || string(bundle) != c.bundle || !strings.HasPrefix(note, c.note) || (note == "") != (c.note == "") || note != "" && !strings.Contains(note, "--client-ca-file") {
			t.Errorf("%q at %v: %q %q %q", c.path, c.listens, file, bundle, note)
		}
	}
}
