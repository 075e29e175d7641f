// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/configcheckpoint"
	"github.com/kubewright/kubewright/internal/lifecycletest"
)

// bootAndRun is a process without work of its own: it boots, runs and takes
// every configuration as it comes.
type bootAndRun struct {
	c *configcheckpoint.Controller[string]
}

func (b bootAndRun) Run(ctx context.Context) error {
	// The contract runs it twice; the second Boot is refused as well.
	if _, err := b.c.Boot(ctx); err != nil && err != configcheckpoint.ErrAlreadyBooted {
		return err
	}
	return b.c.Run(ctx)
}
func (b bootAndRun) Ready() cache.DoneChecker      { return b.c.Ready() }
func (b bootAndRun) Name() string                  { return b.c.Name() }
func (b bootAndRun) Check(req *http.Request) error { return b.c.Check(req) }

func TestLifecycle(t *testing.T) {
	dir := t.TempDir()
	var next atomic.Int32
	lifecycletest.Test(t, lifecycletest.Subject{
		New: func(t *testing.T, s *apitest.Server, i int) lifecycletest.Controller {
			s.Put(agentConfig("A"))
			source, err := ConfigMap(s.Client(apitest.ServiceAccountUser("kube-system", fmt.Sprint("agent-", i))).CoreV1(), "kube-system", "agent", "config.yaml")
			if err != nil {
				t.Fatal(err)
			}
			c, err := configcheckpoint.New(configcheckpoint.Config[string]{
				Dir: filepath.Join(dir, fmt.Sprint(next.Add(1))), Codec: configcheckpoint.Codec[string]{Decode: func(data []byte) (string, error) { return string(data), nil }, Default: func() (string, error) { return "default", nil }}, Source: source,
				Apply:        func(context.Context, configcheckpoint.Active[string]) error { return nil },
				ErrorHandler: func(context.Context, error, string) {},
			})
			if err != nil {
				t.Fatal(err)
			}
			return bootAndRun{c}
		},
		ErrAlreadyRun: configcheckpoint.ErrAlreadyRun,
		// A request a minute once the backoff has grown, which client-go
		// repeats ten times if the server asks for it or resets.
		MaxPerHour: 1000,
		// The source's pause after errors, and the reflector's.
		ReadyWithin: 2 * time.Minute,
	}, testing.Short())
}

// agentConfig is the ConfigMap of the tests with one content.
func agentConfig(text string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "agent"},
		Data:       map[string]string{"config.yaml": text},
	}
}
