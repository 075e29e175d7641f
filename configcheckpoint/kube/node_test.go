// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/configcheckpoint"
	"github.com/kubewright/kubewright/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

const (
	isTrue  = true
	isFalse = false
)

// node is a machine with a store, on which an agent runs that follows a ConfigMap.
type node struct {
	t   *testing.T
	cfg configcheckpoint.Config[string]

	c      *configcheckpoint.Controller[string]
	active configcheckpoint.Active[string]
	cancel context.CancelFunc
	done   chan struct{}
	err    error // of Run
}

// inDir runs a test in a bubble, with a directory on the real disk.
func inDir(t *testing.T, f func(t *testing.T, dir string)) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) { f(t, dir) })
}

// newNode makes a node inside a bubble.
func newNode(t *testing.T, s *apitest.Server, dir string) *node {
	n := &node{t: t}
	n.cfg = configcheckpoint.Config[string]{
		Dir: filepath.Join(dir, "store"), Build: "1",
		Codec: configcheckpoint.Codec[string]{
			Decode: func(data []byte) (string, error) {
				if strings.HasPrefix(string(data), "bad") {
					return "", errors.New("bad from the start")
				}
				return string(data), nil
			},
			Default: func() (string, error) { return "default", nil },
		},
		ErrorHandler: func(_ context.Context, err error, msg string) { t.Logf("%s: %v", msg, err) },
	}
	n.follows(s, "config.yaml")
	t.Cleanup(func() {
		if n.cancel != nil {
			n.stop(nil)
		}
	})
	return n
}

// follows makes a key of the ConfigMap the source of the next process.
func (n *node) follows(s *apitest.Server, key string) {
	n.t.Helper()
	source, err := ConfigMap(s.Client(apitest.User{}).CoreV1(), "kube-system", "agent", key)
	if err != nil {
		n.t.Fatal(err)
	}
	n.cfg.Source = source
}

// start starts a process.
func (n *node) start() {
	n.t.Helper()
	c, err := configcheckpoint.New(n.cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	n.c = c
	if n.active, err = c.Boot(n.t.Context()); err != nil {
		n.t.Fatalf("Boot: %v", err)
	}
	ctx, cancel := context.WithCancel(n.t.Context())
	n.cancel, n.done = cancel, make(chan struct{})
	go func() {
		defer close(n.done)
		n.err = c.Run(ctx)
	}()
	synctest.Wait()
}

// stop ends the process in good order; why is the reason.
func (n *node) stop(why error) {
	n.t.Helper()
	n.cancel()
	<-n.done
	n.cancel = nil
	if err := n.c.Close(why); err != nil {
		n.t.Error(err)
	}
}

// restarts waits for the restart that Run asks for and carries it out.
func (n *node) restarts() {
	n.t.Helper()
	synctest.Wait()
	select {
	case <-n.done:
	default:
		n.t.Fatalf("Run goes on, want a restart: %+v", n.c.Status())
	}
	if !errors.Is(n.err, configcheckpoint.ErrRestart) {
		n.t.Fatalf("Run returned %v, want ErrRestart", n.err)
	}
	n.stop(nil)
	n.start()
}

// goes lets time pass.
func (n *node) goes(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// is checks what runs and the status.
func (n *node) is(config string, ok bool, phase configcheckpoint.Phase, reason configcheckpoint.Reason) {
	n.t.Helper()
	if s := n.c.Status(); s.OK != ok || s.Phase != phase || s.Reason != reason {
		n.t.Errorf("the status is %t %s %s (%s), want %t %s %s", s.OK, s.Phase, s.Reason, s.Message, ok, phase, reason)
	}
	if n.active.Config != config {
		n.t.Errorf("runs %q, want %q", n.active.Config, config)
	}
}

// runs checks that Run goes on.
func (n *node) runs() {
	n.t.Helper()
	synctest.Wait()
	select {
	case <-n.done:
		n.t.Errorf("Run has returned %v", n.err)
	default:
	}
}

// record returns the two copies of the record.
func (n *node) record() string {
	n.t.Helper()
	var all []byte
	for _, name := range []string{"slot.a", "slot.b"} {
		data, err := os.ReadFile(filepath.Join(n.cfg.Dir, name))
		if err != nil {
			n.t.Fatal(err)
		}
		all = append(all, data...)
	}
	return string(all)
}
