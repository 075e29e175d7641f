// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package exampletest runs the examples in their own tests, against the
// in-memory API server over a real connection.
package exampletest

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kubewright/kubewright/apitest"
)

// patience bounds every wait. A test that needs all of it has failed.
const patience = time.Minute

// Kubeconfig serves s to user on loopback for the rest of the test, and returns
// the path of a kubeconfig file for it.
func Kubeconfig(t *testing.T, s *apitest.Server, user apitest.User) string {
	t.Helper()
	return KubeconfigOf(t, s.Handler(user))
}

// KubeconfigOf is Kubeconfig for any handler, for example one that wraps the
// handler of a Server.
func KubeconfigOf(t *testing.T, handler http.Handler) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["test"] = &clientcmdapi.Cluster{Server: server.URL}
	cfg.AuthInfos["test"] = clientcmdapi.NewAuthInfo()
	cfg.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	cfg.CurrentContext = "test"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// Program is a running example.
type Program struct {
	t    *testing.T
	stop context.CancelFunc
	done chan struct{}
	err  error
	out  output
}

// Start runs the example's run function until Stop or the end of the test.
func Start(t *testing.T, run func(ctx context.Context, args []string, stdout io.Writer) error, args ...string) *Program {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &Program{t: t, stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = run(ctx, args, &p.out)
	}()
	t.Cleanup(func() { _ = p.Stop() })
	return p
}

// Stop ends the program as SIGTERM does, and returns its error.
func (p *Program) Stop() error {
	p.t.Helper()
	p.stop()
	return p.Wait()
}

// Wait waits until the program ends on its own, and returns its error.
func (p *Program) Wait() error {
	p.t.Helper()
	select {
	case <-p.done:
		return p.err
	case <-time.After(patience):
		p.t.Fatalf("the program still runs after %v; it printed:\n%s", patience, p.Output())
		return nil
	}
}

// Output returns the program's output so far.
func (p *Program) Output() string { return p.out.String() }

// Eventually waits until the condition holds. A test can observe a separate
// program only through its requests and its output.
func Eventually(t *testing.T, s *apitest.Server, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline.C:
			t.Fatalf("waited %v for: %s; requests: %v", patience, what, s.Requests(apitest.Match{}))
		case <-tick.C:
		}
	}
}

// Server returns an API server with real authorization: nodes by the Node
// authorizer and NodeRestriction, other users by the roles and bindings in the
// manifests, and administrators always.
func Server(t *testing.T, manifests ...string) *apitest.Server {
	t.Helper()
	var contents [][]byte
	for _, path := range manifests {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		contents = append(contents, content)
	}
	rbac, err := apitest.RBACFrom(contents...)
	if err != nil {
		t.Fatal(err)
	}
	s := apitest.New(apitest.Options{})
	s.Authorize(apitest.AnyOf(apitest.NodeRules, rbac))
	return s
}

// FreeAddress returns an address of this machine at which a program can listen.
func FreeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// Has gets a page of a program and checks that it has each of the texts.
func Has(t *testing.T, address, page string, texts ...string) {
	t.Helper()
	resp, err := http.Get("http://" + address + page)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("%s: %s, %v", page, resp.Status, err)
	}
	for _, text := range texts {
		if !strings.Contains(string(body), text) {
			t.Errorf("%s has no %s:\n%s", page, text, body)
		}
	}
}

// NothingRefused checks that the program sent no request that its permissions
// do not allow.
func NothingRefused(t *testing.T, s *apitest.Server) {
	t.Helper()
	for _, r := range s.Requests(apitest.Match{}) {
		if r.Code == http.StatusForbidden {
			t.Errorf("refused: %v", r)
		}
	}
}

// output is a buffer that is safe for concurrent use.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}
