// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/configcheckpoint/internal/slotstore/slottest"
	"github.com/kubewright/kubewright/internal/lifecycletest"
)

// bootAndRun is a process without work of its own: it boots, runs and takes
// every configuration as it comes.
type bootAndRun struct{ c *Controller[string] }

func (b bootAndRun) Run(ctx context.Context) error {
	// The contract runs it twice; the second Boot is refused as well.
	if _, err := b.c.Boot(ctx); err != nil && err != ErrAlreadyBooted {
		return err
	}
	return b.c.Run(ctx)
}
func (b bootAndRun) Ready() cache.DoneChecker      { return b.c.Ready() }
func (b bootAndRun) Name() string                  { return b.c.Name() }
func (b bootAndRun) Check(req *http.Request) error { return b.c.Check(req) }

func TestLifecycle(t *testing.T) {
	lifecycletest.Test(t, lifecycletest.Subject{
		New: func(t *testing.T, s *apitest.Server, i int) lifecycletest.Controller {
			s.Put(agentConfig("A"))
			source, err := ConfigMap(s.Client(apitest.ServiceAccountUser("kube-system", fmt.Sprint("agent-", i))).CoreV1(), "kube-system", "agent", "config.yaml")
			if err != nil {
				t.Fatal(err)
			}
			c, err := New(Config[string]{
				Dir: "/crashfs", Codec: testCodec(), Source: source,
				Apply:        func(context.Context, Active[string]) error { return nil },
				ErrorHandler: func(context.Context, error, string) {},
			})
			if err != nil {
				t.Fatal(err)
			}
			c.store = storeOn(slottest.New())
			return bootAndRun{c}
		},
		ErrAlreadyRun: ErrAlreadyRun,
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
