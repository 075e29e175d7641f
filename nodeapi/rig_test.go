// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"iter"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

const (
	nodeName = "node-1"
	patience = time.Minute
)

// authority is a certificate authority of a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// issue returns a certificate and its key in PEM.
func (a *authority) issue(t testing.TB, name string, usage x509.ExtKeyUsage, expires time.Time) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{usage},
		KeyUsage: x509.KeyUsageDigitalSignature, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: expires,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})
}

// sign returns the certificate for a request, in PEM.
func (a *authority) sign(t testing.TB, request []byte) []byte {
	t.Helper()
	block, _ := pem.Decode(request)
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(3), Subject: csr.Subject, IPAddresses: csr.IPAddresses, DNSNames: csr.DNSNames,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, csr.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// testBackend has every capability, by functions.
type testBackend struct {
	logs    func(ctx context.Context, c Container, opts LogOptions) (io.ReadCloser, error)
	exec    func(ctx context.Context, c Container, command []string, streams Streams) error
	attach  func(ctx context.Context, c Container, streams Streams) error
	forward func(ctx context.Context, p Pod, port uint16, stream io.ReadWriteCloser) error
	stats   func(ctx context.Context) (*statsv1alpha1.Summary, error)
}

func (b *testBackend) Logs(ctx context.Context, c Container, opts LogOptions) (io.ReadCloser, error) {
	return b.logs(ctx, c, opts)
}

func (b *testBackend) Exec(ctx context.Context, c Container, command []string, streams Streams) error {
	return b.exec(ctx, c, command, streams)
}

func (b *testBackend) Attach(ctx context.Context, c Container, streams Streams) error {
	return b.attach(ctx, c, streams)
}

func (b *testBackend) PortForward(ctx context.Context, p Pod, port uint16, stream io.ReadWriteCloser) error {
	return b.forward(ctx, p, port, stream)
}

func (b *testBackend) StatsSummary(ctx context.Context) (*statsv1alpha1.Summary, error) {
	return b.stats(ctx)
}

// grant is a permission on a node: verb and subresource.
type grant struct{ node, verb, subresource string }

// tokens are the bearer tokens of tests: what their users may do.
var tokens = map[string][]grant{
	"admin":      {{nodeName, "*", "*"}},
	"proxy":      {{nodeName, "get", "proxy"}, {nodeName, "create", "proxy"}},
	"none":       nil,
	"other":      {{"node-2", "*", "*"}},
	"read":       {{nodeName, "get", "*"}},
	"read-proxy": {{nodeName, "get", "proxy"}},
	"metrics":    {{nodeName, "get", "metrics"}, {nodeName, "get", "stats"}},
	"pods":       {{nodeName, "get", "pods"}},
	"log":        {{nodeName, "get", "log"}},
	"healthz":    {{nodeName, "get", "healthz"}},
	"configz":    {{nodeName, "get", "configz"}},
}

// reviewer is an API server that knows reviews and one ConfigMap.
type reviewer struct {
	configMap string // the client CA, or "" if the ConfigMap does not exist
}

func (a reviewer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	reply := func(code int, obj any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(obj)
	}
	status := func(code int) {
		reply(code, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code), Message: "injected"})
	}
	switch r.Method + " " + r.URL.Path {
	case "POST /apis/authentication.k8s.io/v1/tokenreviews":
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			status(500)
			return
		}
		if _, ok := tokens[review.Spec.Token]; ok {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: review.Spec.Token}}
		}
		reply(201, review)
	case "POST /apis/authorization.k8s.io/v1/subjectaccessreviews":
		var review authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			status(500)
			return
		}
		at := review.Spec.ResourceAttributes
		review.Status.Allowed = at != nil && at.Resource == "nodes" && slices.ContainsFunc(tokens[review.Spec.User], func(g grant) bool {
			return g.node == at.Name && (g.verb == "*" || g.verb == at.Verb) && (g.subresource == "*" || g.subresource == at.Subresource)
		})
		reply(201, review)
	case "GET /api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication":
		if a.configMap == "" {
			status(404)
			return
		}
		reply(200, corev1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}, Data: map[string]string{"client-ca-file": a.configMap}})
	default:
		status(404)
	}
}

// client returns a clientset for the API server.
func (a reviewer) client(t testing.TB) kubernetes.Interface {
	t.Helper()
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// rig is a Server that runs until the end of the test.
type rig struct {
	testing.TB
	*Server
	url  string
	stop func() // ends Run and waits for it

	mu       sync.Mutex
	requests []Request
	pods     []*corev1.Pod
	change   chan struct{}
}

func testPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "1234-abcd"},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "setup"}},
			Containers:     []corev1.Container{{Name: "main"}},
			EphemeralContainers: []corev1.EphemeralContainer{
				{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debugger"}},
			},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{
			{Name: "main", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
		}},
	}
}

func (r *rig) all() iter.Seq[*corev1.Pod] {
	return func(yield func(*corev1.Pod) bool) {
		r.mu.Lock()
		pods := slices.Clone(r.pods)
		r.mu.Unlock()
		for _, p := range pods {
			if !yield(p) {
				return
			}
		}
	}
}

func (r *rig) setPods(pods ...*corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pods = pods
}

// start runs a Server with backend on loopback.
func start(t testing.TB, backend any, change func(*Config)) *rig {
	t.Helper()
	return startWith(t, backend, change, func(*Server) {})
}

// startWith calls tune before Run.
func startWith(t testing.TB, backend any, change func(*Config), tune func(*Server)) *rig {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{TB: t, url: "https://" + listener.Addr().String(), pods: []*corev1.Pod{testPod()}, change: make(chan struct{}, 1)}
	cfg := Config{
		NodeName: nodeName, Backend: backend, Client: reviewer{}.client(t), Listener: listener, Pods: r.all(), ClientCA: newAuthority(t, "client-ca").pem,
		Hooks: Hooks{Request: func(done Request) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.requests = append(r.requests, done)
			select {
			case r.change <- struct{}{}:
			default:
			}
		}},
		ErrorHandler: func(context.Context, error, string) {},
	}
	if change != nil {
		change(&cfg)
	}
	if r.Server, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	tune(r.Server)
	ctx, cancel := context.WithCancel(klog.NewContext(context.WithoutCancel(t.Context()), klog.Logger{}))
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	select {
	case <-r.Ready().Done():
	case err := <-ended:
		cancel()
		t.Fatal(err)
	}
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// config returns a client configuration with a bearer token.
func (r *rig) config(token string) *rest.Config {
	return &rest.Config{Host: r.url, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
}

// do sends a request and returns the status and the body.
func (r *rig) do(method, path, token string, client *http.Client) (code int, body string) {
	r.Helper()
	if client == nil {
		client = insecureClient(nil)
		defer client.CloseIdleConnections()
	}
	req, err := http.NewRequestWithContext(r.Context(), method, r.url+path, nil)
	if err != nil {
		r.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		r.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

// get sends a GET with every permission.
func (r *rig) get(path string) (int, string) {
	r.Helper()
	return r.do(http.MethodGet, path, "admin", nil)
}

// insecureClient returns a client that does not verify the server, with a client
// certificate if there is one.
func insecureClient(cert *tls.Certificate) *http.Client {
	cfg := &tls.Config{InsecureSkipVerify: true}
	if cert != nil {
		cfg.Certificates = []tls.Certificate{*cert}
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: true}}
}

// awaitRequest waits for the report of a request to an endpoint.
func (r *rig) awaitRequest(e endpoint) Request {
	r.Helper()
	timeout := time.After(patience)
	for {
		r.mu.Lock()
		i := slices.IndexFunc(r.requests, func(q Request) bool { return q.Endpoint == string(e) })
		var found Request
		if i >= 0 {
			found = r.requests[i]
		}
		r.mu.Unlock()
		if i >= 0 {
			return found
		}
		select {
		case <-r.change:
		case <-timeout:
			r.Fatalf("no request to %s was reported", e)
		}
	}
}

// await receives from a channel that must not block for long.
func await[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("waited %v for %s", patience, what)
		panic("unreachable")
	}
}

// text returns a log that ends.
func text(s string) io.ReadCloser { return io.NopCloser(strings.NewReader(s)) }

// endless is a log that has no end of its own.
type endless struct {
	io.Reader
	closed chan struct{}
	once   sync.Once
}

func newEndless(first string) *endless {
	e := &endless{closed: make(chan struct{})}
	e.Reader = io.MultiReader(strings.NewReader(first), readerFunc(func([]byte) (int, error) {
		<-e.closed
		return 0, errors.New("closed")
	}))
	return e
}

func (e *endless) Close() error {
	e.once.Do(func() { close(e.closed) })
	return nil
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
