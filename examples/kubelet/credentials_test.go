// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/examples/internal/exampletest"
)

const bootstrapToken = "abcdef.0123456789abcdef"

// issuer is an API server that knows its clients by their certificates, and the
// bootstrap token. It approves and signs certificates as kube-controller-manager does.
type issuer struct {
	*testing.T
	api      *apitest.Server
	cert     *x509.Certificate
	key      *ecdsa.PrivateKey
	lifetime time.Duration
	server   *httptest.Server
	config   string // path of the bootstrap kubeconfig

	serial int64 // of the last certificate

	mu   sync.Mutex
	seen map[string]bool // serial numbers of the client certificates of requests
}

func newIssuer(t *testing.T, api *apitest.Server, lifetime time.Duration) *issuer {
	i := &issuer{T: t, api: api, lifetime: lifetime, seen: make(map[string]bool)}
	i.cert, i.key = i.authority()
	server := httptest.NewUnstartedServer(http.HandlerFunc(i.serve))
	roots := x509.NewCertPool()
	roots.AddCert(i.cert)
	server.TLS = &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: roots}
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	i.server = server
	i.config = filepath.Join(t.TempDir(), "bootstrap")
	i.writeConfig(bootstrapToken)
	return i
}

// writeConfig writes the bootstrap kubeconfig.
func (i *issuer) writeConfig(token string) {
	i.Helper()
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["test"] = &clientcmdapi.Cluster{
		Server:                   i.server.URL,
		CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.server.Certificate().Raw}),
	}
	cfg.AuthInfos["test"] = &clientcmdapi.AuthInfo{Token: token}
	cfg.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	cfg.CurrentContext = "test"
	if err := clientcmd.WriteToFile(*cfg, i.config); err != nil {
		i.Fatal(err)
	}
}

func (i *issuer) authority() (*x509.Certificate, *ecdsa.PrivateKey) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		i.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		i.Fatal(err)
	}
	return cert, key
}

// serve authenticates like kube-apiserver.
func (i *issuer) serve(w http.ResponseWriter, r *http.Request) {
	user := apitest.User{Name: "system:anonymous", Groups: []string{"system:unauthenticated"}}
	switch {
	case len(r.TLS.PeerCertificates) > 0:
		cert := r.TLS.PeerCertificates[0]
		if time.Now().After(cert.NotAfter) {
			http.Error(w, "the certificate has expired", http.StatusUnauthorized)
			return
		}
		user = apitest.User{Name: cert.Subject.CommonName, Groups: cert.Subject.Organization}
		i.mu.Lock()
		i.seen[cert.SerialNumber.String()] = true
		i.mu.Unlock()
	case r.Header.Get("Authorization") == "Bearer "+bootstrapToken:
		user = apitest.User{Name: "system:bootstrap:abcdef", Groups: []string{"system:bootstrappers"}}
	}
	i.api.Handler(user).ServeHTTP(w, r)
}

// requests returns the requests to a signer.
func (i *issuer) requests(signer string) []*certificatesv1.CertificateSigningRequest {
	return slices.DeleteFunc(apitest.List[*certificatesv1.CertificateSigningRequest](i.api, ""), func(csr *certificatesv1.CertificateSigningRequest) bool {
		return csr.Spec.SignerName != signer
	})
}

// sign issues the certificates of all requests to a signer that have none.
func (i *issuer) sign(signer string) {
	i.Helper()
	for _, csr := range i.requests(signer) {
		if len(csr.Status.Certificate) > 0 {
			continue
		}
		block, _ := pem.Decode(csr.Spec.Request)
		request, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			i.Fatal(err)
		}
		usage := x509.ExtKeyUsageClientAuth
		if signer == certificatesv1.KubeletServingSignerName {
			usage = x509.ExtKeyUsageServerAuth
		}
		i.serial++
		template := &x509.Certificate{
			SerialNumber: big.NewInt(100 + i.serial), Subject: request.Subject, DNSNames: request.DNSNames, IPAddresses: request.IPAddresses,
			NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(i.lifetime),
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
		}
		der, err := x509.CreateCertificate(rand.Reader, template, i.cert, request.PublicKey, i.key)
		if err != nil {
			i.Fatal(err)
		}
		apitest.Edit(i.api, "", csr.Name, func(csr *certificatesv1.CertificateSigningRequest) {
			csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}}
			csr.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		})
	}
}

// certificates returns the number of client certificates that requests came with.
func (i *issuer) certificates() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.seen)
}

// serving returns the certificate that a node serves with.
func (i *issuer) serving(node *corev1.Node) *x509.Certificate {
	i.Helper()
	address := net.JoinHostPort(node.Status.Addresses[0].Address, strconv.Itoa(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)))
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		i.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	return conn.ConnectionState().PeerCertificates[0]
}

// The role of every cluster that the manifest binds.
const bootstrapperRole = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: system:node-bootstrapper
rules:
  - apiGroups: [certificates.k8s.io]
    resources: [certificatesigningrequests]
    verbs: [create, get, list, watch]
`

// bootstrapServer authorizes bootstrap tokens and nodes as a cluster with the
// manifest does.
func bootstrapServer(t *testing.T) *apitest.Server {
	manifest, err := os.ReadFile("../rbac/kubelet-bootstrap.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rbac, err := apitest.RBACFrom(manifest, []byte(bootstrapperRole))
	if err != nil {
		t.Fatal(err)
	}
	s := apitest.New(apitest.Options{})
	s.Authorize(apitest.AnyOf(apitest.NodeRules, rbac))
	return s
}

func TestANodeJoinsWithABootstrapToken(t *testing.T) {
	i := newIssuer(t, bootstrapServer(t), time.Hour)
	root := filepath.Join(t.TempDir(), "kubelet")
	args := []string{"--bootstrap-kubeconfig", i.config, "--node-name=n1", "--root-dir", root, "--port=0", "--rotate-server-certificates"}
	nodeIsReady := func() bool {
		node := apitest.Get[*corev1.Node](i.api, "", "n1")
		return node != nil && ready(node) == corev1.ConditionTrue
	}
	program := exampletest.Start(t, run, args...)
	exampletest.Eventually(t, i.api, "a node that is ready and asks for a serving certificate", func() bool {
		i.sign(certificatesv1.KubeAPIServerClientKubeletSignerName)
		return nodeIsReady() && len(i.requests(certificatesv1.KubeletServingSignerName)) > 0
	})
	for _, issuer := range []string{"n1", "ca"} { // self-signed until a certificate is issued
		exampletest.Eventually(t, i.api, "a serving certificate of "+issuer, func() bool {
			return i.serving(apitest.Get[*corev1.Node](i.api, "", "n1")).Issuer.CommonName == issuer
		})
		i.sign(certificatesv1.KubeletServingSignerName)
	}
	if err := program.Stop(); err != nil {
		t.Error(err)
	}

	// The next process has the certificate, and needs no token.
	i.writeConfig("no-token")
	before := len(i.requests(certificatesv1.KubeAPIServerClientKubeletSignerName))
	program = exampletest.Start(t, run, args...)
	exampletest.Eventually(t, i.api, "the node to be ready again", nodeIsReady)
	if err := program.Stop(); err != nil {
		t.Error(err)
	}
	if after := len(i.requests(certificatesv1.KubeAPIServerClientKubeletSignerName)); before != 1 || after != before {
		t.Errorf("%d, then %d client certificates were requested, want 1", before, after)
	}
	exampletest.NothingRefused(t, i.api)
	for _, r := range i.api.Requests(apitest.Match{}) {
		if r.User.Name != "system:node:n1" && (r.Resource != "certificatesigningrequests" || r.User.Name != "system:bootstrap:abcdef") {
			t.Errorf("not with the certificate: %v", r)
		}
	}
}

func TestAClientCertificateIsRotatedBeforeItExpires(t *testing.T) {
	// It is valid for 75 s, of which 60 are over when it is issued. A certificate is
	// rotated after 70 to 90 % of its life.
	i := newIssuer(t, bootstrapServer(t), 15*time.Second)
	root := filepath.Join(t.TempDir(), "kubelet")
	program := exampletest.Start(t, run, "--bootstrap-kubeconfig", i.config, "--node-name=n1", "--root-dir", root, "--port=0")
	exampletest.Eventually(t, i.api, "requests with three certificates", func() bool {
		i.sign(certificatesv1.KubeAPIServerClientKubeletSignerName)
		return i.certificates() >= 3
	})
	if err := program.Stop(); err != nil {
		t.Error(err)
	}
	for _, r := range i.api.Requests(apitest.Match{Verb: "create", Resource: "certificatesigningrequests"})[1:] {
		if r.User.Name != "system:node:n1" {
			t.Errorf("a rotation by %s, want the node itself", r.User.Name)
		}
	}
	exampletest.NothingRefused(t, i.api)
}

func TestACertificateOfAnotherNodeIsNotUsed(t *testing.T) {
	i := newIssuer(t, bootstrapServer(t), time.Hour)
	root := t.TempDir()
	start := func(node string) *exampletest.Program {
		return exampletest.Start(t, run, "--bootstrap-kubeconfig", i.config, "--node-name", node, "--root-dir", root, "--port=0")
	}
	first := start("n1")
	exampletest.Eventually(t, i.api, "the Node", func() bool {
		i.sign(certificatesv1.KubeAPIServerClientKubeletSignerName)
		return apitest.Get[*corev1.Node](i.api, "", "n1") != nil
	})
	if err := first.Stop(); err != nil {
		t.Error(err)
	}
	if err := start("n2").Wait(); err == nil || !strings.Contains(err.Error(), `is the certificate of "system:node:n1"`) {
		t.Errorf("with the directory of n1, n2 ended with %v", err)
	}
}

func TestAJoinEndsWithItsContext(t *testing.T) {
	i := newIssuer(t, bootstrapServer(t), time.Hour)
	program := exampletest.Start(t, run, "--bootstrap-kubeconfig", i.config, "--node-name=n1", "--root-dir", t.TempDir(), "--port=0")
	exampletest.Eventually(t, i.api, "the request", func() bool {
		return len(i.requests(certificatesv1.KubeAPIServerClientKubeletSignerName)) == 1
	})
	if err := program.Stop(); err != nil {
		t.Errorf("a program that was stopped while it waits ends with %v", err)
	}
}
