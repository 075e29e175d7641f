// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kubewright/kubewright/apitest"
)

// All examples that can be copied have this file. It runs the program in its
// test, with real arguments and a real connection, against apitest.

// patience bounds every wait. A test that needs all of it has failed.
const patience = time.Minute

// newServer returns an API server that authorizes nodes with the Node
// authorizer, all other users with the roles and bindings in the manifests, and
// administrators always.
func newServer(t *testing.T, manifests ...string) *apitest.Server {
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
	return apitest.New(apitest.Options{Authorizer: apitest.AnyOf(apitest.NodeRules, rbac)})
}

// kubeconfig serves s to user on loopback for the rest of the test, and returns
// the path of a kubeconfig file for it.
func kubeconfig(t *testing.T, s *apitest.Server, user apitest.User) string {
	t.Helper()
	server := httptest.NewServer(s.Handler(user))
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

// program is a run of the program.
type program struct {
	t    *testing.T
	stop context.CancelFunc
	done chan struct{}
	err  error

	mu  sync.Mutex
	out bytes.Buffer
}

// startProgram runs the program until Stop or the end of the test.
func startProgram(t *testing.T, args ...string) *program {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &program{t: t, stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = run(ctx, args, io.Writer(p))
	}()
	t.Cleanup(func() { _ = p.Stop() })
	return p
}

// Stop ends the program as SIGTERM does, and returns its error.
func (p *program) Stop() error {
	p.t.Helper()
	p.stop()
	return p.Wait()
}

// Wait waits until the program ends on its own, and returns its error.
func (p *program) Wait() error {
	p.t.Helper()
	select {
	case <-p.done:
		return p.err
	case <-time.After(patience):
		p.t.Fatalf("the program still runs after %v; it printed:\n%s", patience, p.Output())
		return nil
	}
}

// Write collects the program's output.
func (p *program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

// Output returns the program's output so far.
func (p *program) Output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// eventually waits until the condition holds.
func eventually(t *testing.T, s *apitest.Server, what string, condition func() bool) {
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

// nothingRefused checks that the permissions in the manifests sufficed.
func nothingRefused(t *testing.T, s *apitest.Server) {
	t.Helper()
	for _, r := range s.Requests(apitest.Match{}) {
		if r.Code == http.StatusForbidden {
			t.Errorf("refused: %v", r)
		}
	}
}
