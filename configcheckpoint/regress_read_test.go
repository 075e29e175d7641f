// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
)

// Each of these was a fault of this package, found by reading it.

// TestTyposDontForgetACrashLoop: four rejections at the door made a build try
// once more what had taken the process down.
func TestTyposDontForgetACrashLoop(t *testing.T) { synctest.Test(t, testTyposDontForgetACrashLoop) }
func testTyposDontForgetACrashLoop(t *testing.T) {
	n := proven(t, "A")
	n.delivers("X")
	n.restarts()
	for range DefaultAttempts {
		n.kill()
		n.start()
	}
	n.is("A", isFalse, PhaseRolledBack, ReasonCrashLoop)
	n.delivers("A")
	for i := range 2 * maxRejected {
		n.delivers(fmt.Sprint("bad ", i))
	}
	n.delivers("X")
	n.goes(time.Hour)
	n.runs()
	n.is("A", isFalse, PhaseGood, ReasonCrashLoop)
}

// TestRepairsAreForgotten: the fourth repair of a configuration in its whole
// life was refused, however long it had run well since the third.
func TestRepairsAreForgotten(t *testing.T) { synctest.Test(t, testRepairsAreForgotten) }
func testRepairsAreForgotten(t *testing.T) {
	n := proven(t, "A")
	for range 2 * DefaultAttempts {
		n.kill()
		n.spoil("A")
		n.start()
		n.delivers("A")
		n.restarts()
		n.goes(DefaultSoak)
		n.is("A", isTrue, PhaseGood, ReasonGood)
	}
	commits := n.disk.calls["commit"]
	n.goes(24 * time.Hour)
	if got := n.disk.calls["commit"]; got != commits {
		t.Errorf("%d commits in a day of nothing", got-commits)
	}
}

// TestSlotsThatCanNotBeReadNow: a slot that could not be read for want of a file
// descriptor was taken for damaged, and overwritten with the older one or set
// aside.
func TestSlotsThatCanNotBeReadNow(t *testing.T) {
	for name, unreadable := range map[string][]string{"one": {slotA}, "the other": {slotB}, "both": {slotA, slotB}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := proven(t, "A")
				n.delivers("B")
				n.restarts()
				n.goes(DefaultSoak)
				n.kill()
				for _, slot := range unreadable {
					n.disk.unreadable[slot] = syscall.ENFILE
				}
				n.start()
				n.is("default", isFalse, PhaseDefault, ReasonStoreFailed)
				n.disk.mu.Lock()
				clear(n.disk.unreadable)
				n.disk.mu.Unlock()
				n.goes(time.Minute) // the store is tried again
				n.restarts()
				n.is("B", isTrue, PhaseGood, ReasonGood)
			})
		})
	}
}

// TestWatchThatIsAlwaysExpired: a stream whose first event says that the
// resource version is gone was listed for and begun anew at once, without end.
func TestWatchThatIsAlwaysExpired(t *testing.T) {
	synctest.Test(t, testWatchThatIsAlwaysExpired)
}
func testWatchThatIsAlwaysExpired(t *testing.T) {
	s := apitest.New(apitest.Options{})
	s.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "agent"}, Data: map[string]string{"config.yaml": "A"}})
	answers := 0
	heal := s.Inject(apitest.Fault{Match: apitest.Match{Verb: "watch"}, Answer: func(apitest.Request) (*http.Response, error) {
		if answers++; answers > 1000 {
			return nil, apitest.ErrConnReset
		}
		return &http.Response{
			StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
			Body: io.NopCloser(strings.NewReader(`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"message":"too old"}}`)),
		}, nil
	}})
	w := watchConfigMap(t, s)
	time.Sleep(10 * time.Minute)
	if a := w.last(); !apierrors.IsResourceExpired(a.err) {
		t.Errorf("yielded %+v, want 410", a)
	}
	if n := s.Total(); n > 50 {
		t.Errorf("%d requests in ten minutes", n)
	}
	heal()
	time.Sleep(2 * time.Minute)
	w.yields("A")
}
