// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
)

// TestControllerSkew runs one history with candidates whose clocks are wrong,
// each in its own way: the requests of the Controller, and their times, are the
// same as with clocks that are right.
func TestControllerSkew(t *testing.T) {
	trace := func(skews ...time.Duration) (trace []string) {
		ctlBubble(func(r *ctlRig) {
			var stubs []*ctlStub
			for i, skew := range skews {
				stubs = append(stubs, r.stub(fmt.Sprintf("c-%d", i), "1.19.0", "1.19.0").set(func(s *ctlStub) { s.skew = skew }).start())
			}
			r.start()
			r.advance(time.Minute)
			stubs[0].stop()
			r.advance(time.Minute)
			r.stub("better", "1.18.0", "1.18.0").set(func(s *ctlStub) { s.skew = skews[0] }).start()
			r.advance(time.Minute)
			for _, s := range stubs {
				s.mu.Lock()
				if s.puts > 3 {
					r.Errorf("with %v: %s has written its record %d times", skews, s.name, s.puts)
				}
				s.mu.Unlock()
			}
			for _, q := range r.server.Requests(apitest.Match{User: ctlUser}) {
				trace = append(trace, fmt.Sprintf("%v %s %s %s %d", q.Time.Sub(ctlEpoch), q.Verb, q.Resource, q.Name, q.Code))
			}
		})(t)
		return trace
	}
	want := trace(0, 0, 0)
	if n := len(slices.DeleteFunc(slices.Clone(want), func(s string) bool { return !strings.Contains(s, "patch") && !strings.Contains(s, "create") })); n < 7 {
		t.Fatalf("nothing happens: %v", want)
	}
	for _, skew := range []time.Duration{6 * time.Second, -6 * time.Second, time.Hour, -time.Hour} {
		for _, skews := range [][]time.Duration{{skew, skew, skew}, {skew, 0, -skew}, {0, skew, 0}, {0, -skew, skew}} {
			if got := trace(skews...); !slices.Equal(got, want) {
				t.Errorf("with clocks off by %v:\n%s\nwant\n%s", skews, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
	}
}

// TestControllerHushes: the built-in controller pings by its own clock. A
// candidate that is behind would answer a hundred times a second.
func TestControllerHushes(t *testing.T) {
	ctlBubble(func(r *ctlRig) {
		r.start()
		a := r.stub("a", "1.19.0", "1.19.0").set(func(s *ctlStub) { s.skew = -time.Minute }).start()
		apitest.Edit(r.server, ctlNamespace, "a", func(c *coordinationv1beta1.LeaseCandidate) {
			c.Spec.PingTime = ptr.To(metav1.NowMicro())
		})
		r.advance(time.Minute)
		a.set(func(s *ctlStub) {
			if s.puts > 5 {
				r.Errorf("the candidate has answered %d times", s.puts)
			}
		})
		r.want("hushes", len(r.server.Requests(apitest.Match{User: ctlUser, Verb: "patch", Resource: "leasecandidates"})), 1)
		if len(r.server.Requests(apitest.Match{Func: func(q apitest.Request) bool { return q.Code == http.StatusConflict }})) > 3 {
			r.Error("more than three conflicts")
		}
	})(t)
}
