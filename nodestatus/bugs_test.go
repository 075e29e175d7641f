// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
)

// The tests of this file are about defects that virtual-kubelet's node controller and
// the kubelet's have or had.

// As in virtual-kubelet #956: Unknown is written between the view that a patch is
// made from and the patch. All of each condition is in it, so Ready is right
// after it whatever was there.
func TestUnknownBetweenViewAndPatch(t *testing.T) { synctest.Test(t, testUnknownBetweenViewAndPatch) }

func testUnknownBetweenViewAndPatch(t *testing.T) {
	s := apitest.New(apitest.Options{})
	pods := &knob[int64]{value: 1}
	w := start(t, s, Config{Setters: []Setter{podsSetter(pods)}})
	s.Inject(apitest.Fault{Match: patches, Latency: time.Second})
	pods.set(2) // Ready does not change, so a diff would leave it out
	w.c.Trigger(node1)
	w.pass(500 * time.Millisecond)
	unknown(s)
	w.pass(time.Second)
	for _, kind := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		if c := w.condition(kind); c.Status == corev1.ConditionUnknown || c.Reason == "NodeStatusUnknown" || strings.Contains(c.Message, "stopped posting") {
			t.Errorf("%s is %+v after the patch", kind, c)
		}
	}
}

// A setter that sets a condition only leaves everything else alone.
func TestPartialSetter(t *testing.T) { synctest.Test(t, testPartialSetter) }

func testPartialSetter(t *testing.T) {
	s := apitest.New(apitest.Options{})
	named := template()
	named.Name, named.Status.NodeInfo.KernelVersion = node1, "6.1"
	s.Put(named)
	before := w1(s)
	w := start(t, s, Config{Template: &corev1.Node{}, Setters: []Setter{func(_ context.Context, n *corev1.Node) error {
		SetCondition(n, corev1.NodeCondition{Type: "Fit", Status: corev1.ConditionTrue})
		return nil
	}}})
	w.pass(time.Hour)
	n := w.node()
	if len(n.Status.Capacity) != len(before.Status.Capacity) || len(n.Status.Addresses) != len(before.Status.Addresses) ||
		n.Status.NodeInfo.KernelVersion != "6.1" || len(n.Labels) != len(before.Labels) || len(n.Annotations) != len(before.Annotations) {
		t.Errorf("a setter of one condition has wiped out something: %+v", n)
	}
}

// Nothing is shared with the program: its later changes to the objects it
// gave or was given changes nothing (and is no race).
func TestNothingIsShared(t *testing.T) { synctest.Test(t, testNothingIsShared) }

func testNothingIsShared(t *testing.T) {
	s := apitest.New(apitest.Options{})
	var kept notes[*corev1.Node]
	claimed := metav1.NewTime(time.Unix(1, 0))
	conditions := []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "R", LastHeartbeatTime: claimed},
		{Type: "Fit", Status: corev1.ConditionTrue, Reason: "R", LastHeartbeatTime: claimed},
	}
	capacity := corev1.ResourceList{"cpu": resource.MustParse("4000m")}
	before := fmt.Sprint(conditions, capacity)
	w := start(t, s, Config{
		Setters: []Setter{func(_ context.Context, n *corev1.Node) error {
			n.Status.Conditions, n.Status.Capacity = conditions, capacity // shared by all nodes and rounds
			kept.add(n)
			return nil
		}},
		Hooks: Hooks{Registered: func(r Registered) { r.Node.Labels["hook"] = "x"; r.Node.Status.Conditions[0].Reason = "hook" }},
	})
	for range 5 {
		for _, n := range kept.get() {
			n.Labels["later"] = "x"
		}
		if n := w.c.Node(node1); n != nil {
			n.Status.Conditions[0].Reason, n.Labels["mine"] = "mine", "x"
		}
		w.c.Trigger(node1)
		w.pass(time.Second)
	}
	n := w.node()
	if n.Labels["later"] != "" || n.Labels["hook"] != "" || n.Labels["mine"] != "" || w.condition("Fit").Reason != "R" {
		t.Errorf("the embedder's later edits have come through: %+v", n)
	}
	if after := fmt.Sprint(conditions, capacity); after != before {
		t.Errorf("what the embedder has shared was changed:\n%s\n%s", before, after)
	}
	w.expect(1, 0, 0)
}

// No condition has an empty status, whether by default or by a setter.
func TestNoEmptyStatus(t *testing.T) { synctest.Test(t, testNoEmptyStatus) }

func testNoEmptyStatus(t *testing.T) {
	s := apitest.New(apitest.Options{})
	var notes notes[SetterFailed]
	w := start(t, s, Config{
		Setters: []Setter{func(_ context.Context, n *corev1.Node) error {
			SetCondition(n, corev1.NodeCondition{Type: "Fit"})
			return nil
		}},
		Hooks: Hooks{SetterFailed: notes.add},
	})
	w.pass(DefaultGracePeriod + DefaultSyncInterval)
	for _, c := range w.node().Status.Conditions {
		if c.Status != corev1.ConditionTrue && c.Status != corev1.ConditionFalse {
			t.Errorf("%s has status %q", c.Type, c.Status)
		}
	}
	if failed := notes.get(); len(failed) == 0 || !strings.Contains(failed[0].Err.Error(), "condition Fit has status") {
		t.Errorf("told %+v", failed)
	}
}

// A patch that hangs ends with Run's context, at once, and every patch says
// which object it is for.
func TestPatchesEndWithRunAndNameTheirObject(t *testing.T) {
	synctest.Test(t, testPatchesEndWithRunAndNameTheirObject)
}

func testPatchesEndWithRunAndNameTheirObject(t *testing.T) {
	s := apitest.New(apitest.Options{})
	pods := &knob[int64]{value: 1}
	w := start(t, s, Config{Setters: []Setter{podsSetter(pods)}})
	w.pass(time.Hour)
	uid := string(w.node().UID)
	for _, r := range s.Requests(patches) {
		if !strings.Contains(string(r.Body), `"uid":"`+uid+`"`) {
			t.Errorf("a patch without uid: %s", r.Body)
		}
	}
	s.Inject(apitest.Fault{Match: patches, Hang: true})
	pods.set(2)
	w.c.Trigger(node1)
	w.pass(3 * time.Second)
	begin := time.Now()
	if err := w.stop(); err != nil || time.Since(begin) > 0 {
		t.Errorf("Run returned %v after %v", err, time.Since(begin))
	}
}

// Registration is retried with growing, jittered pauses, and stops with Run.
func TestRegistrationIsRetriedWithJitter(t *testing.T) {
	var gaps [2][]time.Duration
	for i := range gaps {
		synctest.Test(t, func(t *testing.T) {
			s := apitest.New(apitest.Options{})
			s.Inject(apitest.Fault{Match: posts, Err: apitest.ErrConnRefused})
			w := start(t, s, Config{ErrorHandler: func(context.Context, error, string) {}})
			w.pass(time.Minute)
			begin := time.Now()
			if err := w.stop(); err != nil || time.Since(begin) > 0 {
				t.Errorf("Run returned %v after %v", err, time.Since(begin))
			}
			var last time.Time
			for _, r := range s.Requests(posts) {
				if !last.IsZero() {
					gaps[i] = append(gaps[i], r.Time.Sub(last))
				}
				last = r.Time
			}
		})
	}
	for _, g := range gaps {
		if len(g) < 10 || len(g) > 25 || g[0] > 200*time.Millisecond || slices.Max(g) > 7*time.Second+time.Millisecond {
			t.Errorf("the pauses were %v", g)
		}
	}
	if slices.Equal(gaps[0], gaps[1]) {
		t.Error("two nodes have the same pauses: there is no jitter")
	}
}

// stripper is the transport to an API server whose admission webhook takes a
// label out of every patch.
type stripper struct{ next http.RoundTripper }

func (s stripper) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPatch {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		body = regexp.MustCompile(`"labels":\{[^}]*\},`).ReplaceAll(body, nil)
		r = r.Clone(r.Context())
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(string(body))), int64(len(body))
	}
	return s.next.RoundTrip(r)
}

// A webhook that undoes part of each write is answered once, then with each
// report; not every ten seconds.
func TestWebhookThatUndoesAWrite(t *testing.T) { synctest.Test(t, testWebhook) }

func testWebhook(t *testing.T) {
	s := apitest.New(apitest.Options{})
	restConfig := s.Config(apitest.NodeUser(node1))
	restConfig.Wrap(func(next http.RoundTripper) http.RoundTripper { return stripper{next} })
	client, err := kubernetes.NewForConfig(restConfig)
	if err != nil {
		t.Fatal(err)
	}
	zone := &knob[string]{value: "a"}
	w := start(t, s, Config{Client: client.CoreV1(), NodeCredentials: true, Setters: []Setter{func(_ context.Context, n *corev1.Node) error {
		n.Labels["zone"] = zone.get()
		return nil
	}}})
	watch(t, w.c, s.Client(apitest.NodeUser(node1)))
	s.ResetJournal()
	zone.set("b")
	w.c.Trigger(node1)
	w.pass(time.Hour)
	// Two for the change, two for each report; the time to the next report is
	// drawn again after each, and is half of the interval at least.
	if n := len(s.Requests(patches)); n < 12 || n > 2+2*24 {
		t.Errorf("%d patches in an hour", n)
	}
	if w.node().Labels["zone"] != "a" {
		t.Error("the webhook did not strip the label")
	}
}
