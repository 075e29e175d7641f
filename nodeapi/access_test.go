// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// everything is every endpoint: a request that is served if it is allowed, and
// the subresource that allows it alone.
var everything = []struct {
	name, method, path string
	fine               string
	create             bool
	code               int // with every permission
}{
	{"healthz", "GET", "/healthz", "healthz", false, 200},
	{"livez", "GET", "/livez", "healthz", false, 200},
	{"readyz", "GET", "/readyz", "healthz", false, 200},
	{"pods", "GET", "/pods", "pods", false, 200},
	{"runningpods", "GET", "/runningpods/", "pods", false, 200},
	{"logs", "GET", "/containerLogs/default/web/main", "log", false, 200},
	{"exec by GET", "GET", "/exec/default/web/main?command=id&output=1", "", true, 400},
	{"exec by POST", "POST", "/exec/default/web/main?command=id&output=1", "", true, 400},
	{"attach by GET", "GET", "/attach/default/web/main?output=1", "", true, 400},
	{"attach by POST", "POST", "/attach/default/web/main?output=1", "", true, 400},
	{"run", "POST", "/run/default/web/main?cmd=id", "", true, 200},
	{"run by GET", "GET", "/run/default/web/main?cmd=id", "", true, 405},
	{"portForward by GET", "GET", "/portForward/default/web", "", true, 400},
	{"portForward by POST", "POST", "/portForward/default/web", "", true, 400},
	{"stats", "GET", "/stats/summary", "stats", false, 200},
	{"resource metrics", "GET", "/metrics/resource", "metrics", false, 200},
	{"metrics", "GET", "/metrics", "metrics", false, 200},
	{"probe metrics", "GET", "/metrics/probes", "metrics", false, 200},
	{"configz", "GET", "/configz", "configz", false, 200},
	{"pprof", "GET", "/debug/pprof/cmdline", "", false, 200},
	{"unknown path", "GET", "/checkpoint/default/web/main", "", false, 404},
	{"path that is malformed", "GET", "/pods/../configz", "", false, 400},
}

func everyBackend() *testBackend {
	return &testBackend{
		logs: func(context.Context, Container, LogOptions) (io.ReadCloser, error) { return text("a line\n"), nil },
		exec: func(_ context.Context, _ Container, _ []string, s Streams) error {
			_, err := io.WriteString(s.Stdout, "uid=0")
			return err
		},
		attach:  func(context.Context, Container, Streams) error { return nil },
		forward: func(context.Context, Pod, uint16, io.ReadWriteCloser) error { return nil },
		stats:   func(context.Context) (*statsv1alpha1.Summary, error) { return &statsv1alpha1.Summary{}, nil },
	}
}

func startEverything(t *testing.T, change func(*Config)) *rig {
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "page") })
	return start(t, everyBackend(), func(cfg *Config) {
		cfg.Metrics, cfg.ProbeMetrics, cfg.Pprof = page, page, true
		cfg.Configz = func() (any, error) { return map[string]int{"a": 1}, nil }
		if change != nil {
			change(cfg)
		}
	})
}

func TestNothingIsServedWithoutCredentialsOrPermission(t *testing.T) {
	ca, unknown := newAuthority(t, "client-ca"), newAuthority(t, "client-ca")
	client := func(a *authority, expires time.Time) *http.Client {
		certPEM, keyPEM := a.issue(t, "admin", x509.ExtKeyUsageClientAuth, expires)
		pair, err := tls.X509KeyPair(certPEM, keyPEM)
		if err != nil {
			t.Fatal(err)
		}
		c := insecureClient(&pair)
		t.Cleanup(c.CloseIdleConnections)
		return c
	}
	known := client(ca, time.Now().Add(time.Hour))
	unknownCA := client(unknown, time.Now().Add(time.Hour))
	expired := client(ca, time.Now().Add(-time.Hour))
	plain := insecureClient(nil)
	t.Cleanup(plain.CloseIdleConnections)
	r := startEverything(t, func(cfg *Config) { cfg.ClientCA = ca.pem })

	for _, e := range everything {
		readProxy, proxy, read := e.code, e.code, e.code
		if e.create {
			readProxy, read = 403, 403
		}
		if e.fine == "stats" || e.fine == "metrics" { // as in a kubelet
			readProxy, proxy = 403, 403
		}
		for _, c := range []struct {
			name, token string
			client      *http.Client
			want        int
		}{
			{"no credentials", "", plain, 401},
			{"an unknown CA", "", unknownCA, 401},
			{"an expired certificate", "", expired, 401},
			{"an unknown token", "stranger", plain, 401},
			{"a token without rights", "none", plain, 403},
			{"rights on another node", "other", plain, 403},
			{"read rights on the proxy", "read-proxy", plain, readProxy},
			{"read rights on everything", "read", plain, read},
			{"rights on the proxy", "proxy", plain, proxy},
			{"every right", "admin", plain, e.code},
			{"a certificate with every right", "", known, e.code},
		} {
			code, body := r.do(e.method, e.path, c.token, c.client)
			if code != c.want {
				t.Errorf("%s with %s: %d %q, want %d", e.name, c.name, code, body, c.want)
			}
			if c.want >= 400 && len(strings.TrimSpace(body)) < 20 {
				t.Errorf("%s with %s: the answer %q is no sentence", e.name, c.name, body)
			}
		}
		// One fine-grained subresource opens its endpoints and no other.
		for _, fine := range []string{"healthz", "pods", "log", "configz", "metrics"} {
			want := 403
			if e.fine == fine || e.fine == "stats" && fine == "metrics" { // that token has both
				want = e.code
			}
			if code, body := r.do(e.method, e.path, fine, plain); code != want {
				t.Errorf("%s with nodes/%s: %d %q, want %d", e.name, fine, code, body, want)
			}
		}
	}
}

func TestExecNeedsCreateWhateverTheMethod(t *testing.T) {
	r := startEverything(t, nil)
	for _, path := range []string{"/exec/default/web/main?command=id&output=1", "/attach/default/web/main?output=1", "/portForward/default/web"} {
		code, body := r.do(http.MethodGet, path, "read", nil)
		if code != 403 || !strings.Contains(body, `user "read" may not create nodes/proxy of node "node-1"`) {
			t.Errorf("GET %s with read rights: %d %q", path, code, body)
		}
	}
}

func TestAHeadRequestIsARead(t *testing.T) {
	r := startEverything(t, nil)
	for token, want := range map[string]int{"read": 200, "pods": 200, "none": 403} {
		if code, _ := r.do(http.MethodHead, "/pods", token, nil); code != want {
			t.Errorf("HEAD /pods with the permissions of %s: %d, want %d", token, code, want)
		}
	}
}

func TestClientCAComesFromTheConfigMapOrTheFile(t *testing.T) {
	ca := newAuthority(t, "client-ca")
	certPEM, keyPEM := ca.issue(t, "admin", x509.ExtKeyUsageClientAuth, time.Now().Add(time.Hour))
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, ca.pem, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		client reviewer
		file   string
		want   int
	}{
		"ConfigMap":           {reviewer{configMap: string(ca.pem)}, "", 200},
		"no ConfigMap":        {reviewer{}, "", 503},
		"file":                {reviewer{}, file, 200},
		"file that is absent": {reviewer{}, file + "-", 503},
	} {
		t.Run(name, func(t *testing.T) {
			reported := make(chan string, 10)
			r := startEverything(t, func(cfg *Config) {
				cfg.Client, cfg.ClientCA, cfg.ClientCAFile = c.client.client(t), nil, c.file
				cfg.ErrorHandler = func(_ context.Context, _ error, msg string) { reported <- msg }
			})
			client := insecureClient(&pair)
			defer client.CloseIdleConnections()
			for range 2 {
				if code, body := r.do("GET", "/pods", "", client); code != c.want || code == 503 && !strings.Contains(body, "could not check the client certificate") || code == 503 && !strings.Contains(body, "ClientCAFile and ClientCA") {
					t.Errorf("%d %q, want %d", code, body, c.want)
				}
				if code, body := r.do("GET", "/pods", "admin", client); code != 200 {
					t.Errorf("with a token in addition: %d %q", code, body)
				}
			}
			if reports := len(reported); c.want == 503 && reports != 1 || c.want == 200 && reports != 0 {
				t.Errorf("%d reports", reports)
			}
		})
	}
}

func TestAClientCAThatIsAbsentIsLoggedWithoutAnErrorHandler(t *testing.T) {
	certPEM, keyPEM := newAuthority(t, "client-ca").issue(t, "admin", x509.ExtKeyUsageClientAuth, time.Now().Add(time.Hour))
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{NodeName: nodeName, Backend: everyBackend(), Client: reviewer{}.client(t)})
	if err != nil {
		t.Fatal(err)
	}
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	r := httptest.NewRequestWithContext(klog.NewContext(t.Context(), logger), http.MethodGet, "/pods", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	if log := logger.GetSink().(ktesting.Underlier).GetBuffer().String(); w.Code != 503 || !strings.Contains(log, "Client certificates are checked with the previous CA") {
		t.Errorf("%d, logged %q", w.Code, log)
	}
}

// TestAPanicOfALoadIsItsError, and the previous value stays: all later requests with a client
// certificate waited without limit.
func TestAPanicOfALoadIsItsError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := false
		c := &cached[string]{maxAge: time.Minute, load: func(context.Context) (string, error) {
			if broken {
				panic("load broke")
			}
			return "value", nil
		}}
		for _, previous := range []string{"", "value"} {
			broken = true
			if _, ok := errors.AsType[*PanicError](c.refresh(t.Context())); !ok {
				t.Error("the panic is no error")
			}
			if value, err := c.get(); value != previous || (err == nil) != (previous != "") {
				t.Errorf("%q, %v after a load that failed", value, err)
			}
			broken = false
			time.Sleep(retryAfter)
			if err := c.refresh(t.Context()); err != nil {
				t.Error(err)
			}
			if value, err := c.get(); err != nil || value != "value" {
				t.Errorf("%q, %v", value, err)
			}
			time.Sleep(c.maxAge)
		}
	})
}
