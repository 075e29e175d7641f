// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"testing"
)

func newAuthority(t *testing.T) (*Authority, *x509.CertPool) {
	t.Helper()
	a, err := NewAuthority("test-ca")
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(a.Cert) {
		t.Fatal("the authority's certificate can't be read")
	}
	return a, roots
}

// leaf parses pair, whose certificate and key must match.
func leaf(t *testing.T, pair Pair, err error) *x509.Certificate {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	c, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	return c.Leaf
}

func TestServer(t *testing.T) {
	a, roots := newAuthority(t)
	pair, err := a.Server("kube-apiserver", "127.0.0.1", "localhost")
	cert := leaf(t, pair, err)
	for host, want := range map[string]bool{"127.0.0.1": true, "localhost": true, "127.0.0.2": false, "example.com": false} {
		if _, err := cert.Verify(x509.VerifyOptions{DNSName: host, Roots: roots}); (err == nil) != want {
			t.Errorf("%s: %v", host, err)
		}
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err == nil {
		t.Error("a server's certificate authenticates a client")
	}
	_, others := newAuthority(t)
	if _, err := cert.Verify(x509.VerifyOptions{Roots: others}); err == nil {
		t.Error("another cluster's authority accepts the certificate")
	}
}

func TestClient(t *testing.T) {
	a, roots := newAuthority(t)
	pair, err := a.Client("system:node:worker-1", "system:nodes", "more")
	cert := leaf(t, pair, err)
	groups := slices.Sorted(slices.Values(cert.Subject.Organization)) // they are a set in a certificate
	if cert.Subject.CommonName != "system:node:worker-1" || !slices.Equal(groups, []string{"more", "system:nodes"}) {
		t.Errorf("subject %s", cert.Subject)
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
	if cert.IsCA {
		t.Error("a client may sign certificates")
	}
}

func TestSigningKey(t *testing.T) {
	private, public, err := SigningKey()
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(private)
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	block, _ = pem.Decode(public)
	pub, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if !pub.(*ecdsa.PublicKey).Equal(&key.PublicKey) {
		t.Error("the two keys don't belong together")
	}
}
