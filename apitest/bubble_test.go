// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// TestBubbleNeedsNoTestMain runs in a process of its own, whose TestMain leaves
// apimachinery's error handlers as they are.
func TestBubbleNeedsNoTestMain(t *testing.T) {
	const inChild = "APITEST_WITHOUT_TESTMAIN"
	if os.Getenv(inChild) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestBubbleNeedsNoTestMain$", "-test.timeout=60s")
		cmd.Env = append(os.Environ(), inChild+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	apitest.Bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		ctx, cancel := context.WithCancel(t.Context())
		f := informers.NewSharedInformerFactory(s.Client(apitest.User{}), 0)
		nodes := f.Core().V1().Nodes().Informer()
		f.StartWithContext(ctx)
		// An hour of failing lists and watches, of which each calls the handlers.
		remove := s.Inject(apitest.Fault{Status: statuserr.InternalError("down")})
		s.BreakWatches(apitest.Match{})
		time.Sleep(time.Hour)
		remove()
		s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
		begin := time.Now()
		time.Sleep(time.Hour)
		if n := len(nodes.GetStore().List()); n != 1 || time.Since(begin) > 2*time.Hour {
			t.Errorf("%d nodes after %v", n, time.Since(begin))
		}
		cancel()
		f.Shutdown()
	})
}
