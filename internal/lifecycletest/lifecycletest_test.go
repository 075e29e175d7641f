// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lifecycletest_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/internal/lifecycletest"
	"github.com/kubewright/kubewright/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

var errAlreadyRun = errors.New("already run")

// poller is a minimal controller that fulfills the contract.
type poller struct {
	client   kubernetes.Interface
	once     lifecycle.Once
	ready    *lifecycle.Ready
	progress *lifecycle.Progress
}

func (p *poller) Name() string              { return "poller" }
func (p *poller) Ready() cache.DoneChecker  { return p.ready }
func (p *poller) Check(*http.Request) error { return p.progress.Check() }

func (p *poller) Run(ctx context.Context) error {
	if !p.once.Begin() {
		return errAlreadyRun
	}
	defer p.progress.Stop()
	for ctx.Err() == nil {
		p.progress.Beat()
		p.poll(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(30 * time.Second):
		}
	}
	return nil
}

func (p *poller) poll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := p.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err == nil {
		p.ready.Mark()
	}
}

// TestContractHoldsForASmallController tests the contract test itself: a small
// controller can fulfill it.
func TestContractHoldsForASmallController(t *testing.T) {
	lifecycletest.Test(t, lifecycletest.Subject{
		New: func(_ *testing.T, s *apitest.Server, _ int) lifecycletest.Controller {
			return &poller{
				client:   s.Client(apitest.User{}),
				ready:    lifecycle.NewReady("poller"),
				progress: lifecycle.NewProgress("poller", 2*time.Minute),
			}
		},
		ErrAlreadyRun: errAlreadyRun,
		MaxPerHour:    120 * 11, // client-go repeats a throttled request ten times
		ReadyWithin:   time.Minute,
	}, testing.Short())
}
