// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/certificate"
)

type namedCheck struct {
	name string
	err  error
}

func (c namedCheck) Name() string              { return c.name }
func (c namedCheck) Check(*http.Request) error { return c.err }

func TestInvalidConfigNamesEveryField(t *testing.T) {
	_, err := New(Config{
		NodeName: "Node_1", Certificate: Certificate{CertFile: "a", Dir: "b", Hosts: []string{"_"}}, ClientCA: []byte("x"), ClientCAFile: "y",
		Checks:      []Check{namedCheck{name: "a"}, namedCheck{name: "a"}, nil, namedCheck{name: "ping"}},
		CallTimeout: -1, ShutdownTimeout: -1, StreamIdleTimeout: -1, StreamCreationTimeout: -1,
	})
	if err == nil || !strings.HasPrefix(err.Error(), "nodeapi: invalid config: ") {
		t.Fatal(err)
	}
	for _, field := range []string{"NodeName", "Backend", "Client: ", "Certificate.KeyFile", "Certificate.Hosts[0]", "ClientCA", "Checks[1]", "Checks[2]", "Checks[3]",
		"CallTimeout", "ShutdownTimeout", "StreamIdleTimeout", "StreamCreationTimeout"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not named: %v", field, err)
		}
	}
	if _, err := New(Config{NodeName: "a", Backend: struct{}{}, Client: fake.NewClientset(), Certificate: Certificate{Dir: "d"}}); err == nil || !strings.Contains(err.Error(), "Certificate.Hosts") {
		t.Error(err)
	}
	if _, err := New(Config{NodeName: "a", Backend: (*namedCheck)(nil), Client: (*kubernetes.Clientset)(nil)}); err == nil || !strings.Contains(err.Error(), "Backend: Required") || !strings.Contains(err.Error(), "Client: Required") {
		t.Error(err)
	}
	s, err := New(Config{NodeName: "a", Backend: struct{}{}, Client: fake.NewClientset()})
	if err != nil || s.Name() != DefaultName || s.Ready().Name() != DefaultName || s.Check(nil) != nil {
		t.Error(err)
	}
}

func TestABackendWithoutCapabilitiesIs501WithTheirNames(t *testing.T) {
	r := start(t, struct{}{}, func(cfg *Config) { cfg.Pods = nil })
	for _, c := range []struct{ method, path, name string }{
		{"GET", "/containerLogs/default/web/main", "nodeapi.LogSource"},
		{"POST", "/exec/default/web/main?command=a&output=1", "nodeapi.Executor"},
		{"POST", "/run/default/web/main?cmd=a", "nodeapi.Executor"},
		{"POST", "/attach/default/web/main?output=1", "nodeapi.Attacher"},
		{"POST", "/portForward/default/web", "nodeapi.PortForwarder"},
		{"GET", "/stats/summary", "nodeapi.StatsSource"},
		{"GET", "/metrics/resource", "nodeapi.MetricsSource"},
		{"GET", "/pods", "Config.Pods"},
		{"GET", "/runningpods/", "Config.Pods"},
		{"GET", "/metrics", "Config.Metrics"},
		{"GET", "/metrics/probes", "Config.ProbeMetrics"},
		{"GET", "/configz", "Config.Configz"},
		{"GET", "/debug/pprof/", "Config.Pprof"},
	} {
		if code, body := r.do(c.method, c.path, "admin", nil); code != 501 || !strings.Contains(body, c.name) || !strings.HasPrefix(body, "this node does not ") {
			t.Errorf("%s %s: %d %q", c.method, c.path, code, body)
		}
	}
}

func TestHealthNamesTheCheckThatFails(t *testing.T) {
	r := start(t, struct{}{}, func(cfg *Config) {
		cfg.Checks = []Check{namedCheck{name: "lease"}, namedCheck{name: "pods", err: errors.New("pods are stuck")}}
	})
	for path, want := range map[string]struct {
		code int
		body string
	}{
		"/healthz":             {500, "[+]ping ok\n[+]lease ok\n[-]pods failed: pods are stuck\nhealthz check failed\n"},
		"/readyz":              {500, "[+]ping ok\n[+]lease ok\n[-]pods failed: pods are stuck\nreadyz check failed\n"},
		"/livez/pods":          {500, "[+]ping ok\n[-]pods failed: pods are stuck\nlivez check failed\n"},
		"/livez/lease":         {200, "ok"},
		"/livez/lease?verbose": {200, "[+]ping ok\n[+]lease ok\nlivez check passed\n"},
		"/readyz/ping":         {200, "ok"},
		"/livez/nodes":         {404, "there is no health check \"nodes\"\n"},
		"/healthz/../pods":     {400, "the path has an element \"..\"\n"},
	} {
		if code, body := r.get(path); code != want.code || body != want.body {
			t.Errorf("%s: %d %q, want %d %q", path, code, body, want.code, want.body)
		}
	}
}

// leaf returns the certificate that the server shows, and the TLS version.
func (r *rig) leaf(t *testing.T) (*x509.Certificate, uint16) {
	t.Helper()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(r.url, "https://"), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	return conn.ConnectionState().PeerCertificates[0], conn.ConnectionState().Version
}

func TestServingCertificateFromFilesIsReadAgain(t *testing.T) {
	ca := newAuthority(t, "serving-ca")
	dir := t.TempDir()
	notAfter := time.Now()
	write := func(name string) {
		notAfter = notAfter.Add(time.Hour)
		certPEM, keyPEM := ca.issue(t, name, x509.ExtKeyUsageServerAuth, notAfter)
		for file, data := range map[string][]byte{"tls.crt": certPEM, "tls.key": keyPEM} {
			if err := os.WriteFile(filepath.Join(dir, file), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	pair := Certificate{CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key")}
	s, err := New(Config{NodeName: nodeName, Backend: struct{}{}, Client: fake.NewClientset(), Certificate: pair, Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "load the serving certificate") {
		t.Errorf("Run without the files: %v", err)
	}
	write("first")
	var used []CertificateUsed
	s, err = New(Config{
		NodeName: nodeName, Backend: struct{}{}, Client: fake.NewClientset(), Certificate: pair,
		Hooks: Hooks{Certificate: func(c CertificateUsed) { used = append(used, c) }},
	})
	if err != nil {
		t.Fatal(err)
	}
	var cfg *tls.Config
	name := func() string {
		certificate, err := cfg.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := x509.ParseCertificate(certificate.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		return parsed.Subject.CommonName
	}
	synctest.Test(t, func(t *testing.T) {
		var stop func()
		if cfg, stop, err = s.certificate(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer stop()
		if got := name(); got != "first" {
			t.Error(got)
		}
		write("second")
		if got := name(); got != "first" {
			t.Errorf("%s: the files are read at each connection", got)
		}
		time.Sleep(certificateAge)
		if got := name(); got != "second" {
			t.Errorf("%s after the files have changed", got)
		}
		if err := os.Remove(pair.KeyFile); err != nil {
			t.Fatal(err)
		}
		time.Sleep(certificateAge)
		if got := name(); got != "second" {
			t.Errorf("%s after a file was lost", got)
		}
		// Once for each certificate, however often the files are read.
		if len(used) != 2 || used[0].SelfSigned || !used[0].NotAfter.Before(used[1].NotAfter) {
			t.Errorf("Hooks.Certificate was called with %v", used)
		}
	})
}

func TestSelfSignedCertificateNamesTheHosts(t *testing.T) {
	used := make(chan CertificateUsed, 1)
	r := start(t, struct{}{}, func(cfg *Config) {
		cfg.Certificate.Hosts = []string{"127.0.0.1", "node.example"}
		cfg.Hooks.Certificate = func(c CertificateUsed) { used <- c; panic("in a hook") }
		cfg.ErrorHandler = func(context.Context, error, string) {}
	})
	leaf, version := r.leaf(t)
	if c := await(t, "the hook", used); !c.SelfSigned || !c.NotAfter.Equal(leaf.NotAfter) {
		t.Errorf("the hook was called with %v, want %v", c, leaf.NotAfter)
	}
	if err := errors.Join(leaf.VerifyHostname("127.0.0.1"), leaf.VerifyHostname("node.example"), leaf.VerifyHostname(nodeName)); err != nil {
		t.Error(err)
	}
	if version < tls.VersionTLS12 {
		t.Errorf("TLS version %x", version)
	}
	_, err := tls.Dial("tcp", strings.TrimPrefix(r.url, "https://"), &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
	if err == nil {
		t.Error("TLS 1.1 is accepted")
	}
}

// TestServingCertificateIsRequestedFromTheSigner, used when it is issued, and kept for the
// next process.
func TestServingCertificateIsRequestedFromTheSigner(t *testing.T) {
	ca := newAuthority(t, "serving-ca")
	dir := t.TempDir()
	client := fake.NewClientset()
	approve := make(chan struct{})
	client.PrependReactor("create", "certificatesigningrequests", func(action clienttesting.Action) (bool, runtime.Object, error) {
		csr := action.(clienttesting.CreateAction).GetObject().(*certificatesv1.CertificateSigningRequest).DeepCopy()
		csr.Name, csr.UID = "csr-1", "1"
		block, _ := pem.Decode(csr.Spec.Request)
		asked, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil || csr.Spec.SignerName != "kubernetes.io/kubelet-serving" || asked.Subject.CommonName != "system:node:"+nodeName || asked.Subject.Organization[0] != "system:nodes" || len(asked.IPAddresses) != 1 {
			t.Errorf("signer %q is asked for %+v: %v", csr.Spec.SignerName, asked, err)
		}
		<-approve
		csr.Status.Certificate = ca.sign(t, csr.Spec.Request)
		csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}}
		return true, csr, client.Tracker().Add(csr)
	})
	change := func(cfg *Config) {
		cfg.Client = client
		cfg.Certificate = Certificate{Dir: dir, Hosts: []string{"127.0.0.1"}}
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	verified := func(r *rig) error {
		leaf, _ := r.leaf(t)
		_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "127.0.0.1"})
		return err
	}
	t.Run("issued", func(t *testing.T) {
		r := start(t, struct{}{}, change)
		if verified(r) == nil {
			t.Fatal("a certificate is used before it is issued")
		}
		close(approve)
		again, timeout := time.NewTicker(10*time.Millisecond), time.After(patience)
		defer again.Stop()
		for err := verified(r); err != nil; err = verified(r) {
			select {
			case <-again.C:
			case <-timeout:
				t.Fatalf("the issued certificate is not used: %v", err)
			}
		}
	})
	t.Run("kept", func(t *testing.T) {
		client.PrependReactor("create", "certificatesigningrequests", func(clienttesting.Action) (bool, runtime.Object, error) {
			t.Error("a second certificate is requested")
			return true, nil, errors.New("there is one")
		})
		if err := verified(start(t, struct{}{}, change)); err != nil {
			t.Errorf("the next process does not use it: %v", err)
		}
	})
}

// TestARenewalFollowsTheClock: the machine was suspended, or its clock was wrong when the
// process began. The timer of the manager would renew the certificate too late.
func TestARenewalFollowsTheClock(t *testing.T) {
	begin := time.Now()
	at := func(hours int) time.Time { return begin.Add(time.Duration(hours) * time.Hour) }
	// issued returns a certificate that is valid for 100 hours.
	issued := func(hours int) *tls.Certificate {
		return &tls.Certificate{Leaf: &x509.Certificate{NotBefore: at(hours), NotAfter: at(hours + 100)}}
	}
	var made []*lateManager
	var stored *tls.Certificate
	var failure error
	r := &renewal{make: func() (certificate.Manager, error) {
		if failure != nil {
			return nil, failure
		}
		made = append(made, &lateManager{cert: stored})
		return made[len(made)-1], nil
	}}
	if err := r.begin(); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name    string
		hour    int
		cert    *tls.Certificate // nil if there is none or it has expired
		failure error
		made    int
	}{
		{"no certificate yet", 0, nil, nil, 1},
		{"the first one", 1, issued(1), nil, 1},
		{"before the last time for the next one", 90, issued(1), nil, 1},
		{"after it", 91, issued(1), nil, 2},
		{"the signer is slow", 95, issued(1), nil, 2},
		{"and even slower", 101, nil, nil, 2},
		{"the next one", 102, issued(102), nil, 2},
		{"it has expired on a suspended machine whose disk fails", 300, nil, errors.New("input/output error"), 2},
		{"the disk works again", 301, nil, nil, 3},
		{"and nothing happens", 302, nil, nil, 3},
		{"one that is late when it comes", 303, issued(210), nil, 3},
		{"which the manager knows", 304, issued(210), nil, 3},
		{"the clock was wrong when this one came", 20, issued(305), nil, 3},
		{"and is right", 399, issued(305), nil, 4},
	} {
		stored, failure = step.cert, step.failure
		made[len(made)-1].cert = step.cert
		if err := r.look(at(step.hour)); !errors.Is(err, step.failure) {
			t.Errorf("%s: %v", step.name, err)
		}
		if len(made) != step.made {
			t.Errorf("%s: %d managers, want %d", step.name, len(made), step.made)
		}
		for i, m := range made {
			if last := i == len(made)-1; !m.started || m.stopped == last || last && r.current() != m.cert {
				t.Errorf("%s: manager %d of %d: %+v", step.name, i, len(made), m)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r.follow(ctx, func(err error) { t.Error(err) })
	if !made[len(made)-1].stopped {
		t.Error("the manager outlives the renewal")
	}
}

// lateManager is a certificate.Manager that records its calls.
type lateManager struct {
	certificate.Manager
	cert             *tls.Certificate
	started, stopped bool
}

func (m *lateManager) Start()                    { m.started = true }
func (m *lateManager) Stop()                     { m.stopped = true }
func (m *lateManager) Current() *tls.Certificate { return m.cert }
