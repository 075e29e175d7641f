// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// The log at V2 of an eventful day. Steady renewals are not in it.
const wantLog = `
INFO lease: Created node lease lease="kube-node-lease/node-1"
INFO lease: Changed phase of node lease lease="kube-node-lease/node-1" from="Pending" to="Held"
ERROR lease: Failed to renew node lease err="lease: node \"node-1\": Internal error occurred: broken" lease="kube-node-lease/node-1"
INFO lease: Renewing node leases again lease="kube-node-lease/node-1" failures=3 members=1
INFO lease: Node lease is held by another process lease="kube-node-lease/node-1" holder="other" process=""
INFO lease: Changed phase of node lease lease="kube-node-lease/node-1" from="Foreign" to="Held"
INFO lease: Took over node lease lease="kube-node-lease/node-1" from="other" process=""
INFO lease: Renewed a node lease that had expired lease="kube-node-lease/node-1"
INFO lease: Clock is behind the renew time of a node lease: counting up from there lease="kube-node-lease/node-1" behind="59m50.000001s"
INFO lease: Stopped renewal of node lease: its Node does not exist lease="kube-node-lease/node-1"
`

func TestLog(t *testing.T) {
	bubble(t, func(_ *fixture, cfg *Config) { cfg.ErrorHandler = nil }, func(f *fixture) {
		logger := ktesting.NewLogger(ktesting.NopTL{}, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(2)))
		ctx, cancel := context.WithCancel(klog.NewContext(f.Context(), logger))
		done := make(chan error)
		go func() { done <- f.controller.Run(ctx) }()
		pass(25 * time.Second)
		restore := f.server.Inject(apitest.Fault{Status: statuserr.InternalError("broken"), Times: 3})
		pass(20 * time.Second)
		restore()
		f.steal("other", 0)
		pass(70 * time.Second)
		f.stepClock(-time.Hour)
		pass(21 * time.Second)
		apitest.Remove[*corev1.Node](f.server, "", nodeName)
		f.controller.Trigger(nodeName)
		pass(time.Hour)
		cancel()
		<-done
		text := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
		text = regexp.MustCompile(` outage="[^"]*"`).ReplaceAllString(text, "") // has jitter in it
		if diff := cmp.Diff(strings.TrimSpace(wantLog), strings.TrimSpace(text)); diff != "" {
			t.Errorf("the log differs (-want +got):\n%s", diff)
		}
	})
}
