// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/testlog"
	"github.com/kubewright/kubewright/nodestatus/internal/status"
)

// world is one bubble: a server, a controller that serves node n1, and the
// values its setters give.
type world struct {
	*testlog.T
	server *apitest.Server
	c      *Controller
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

const node1 = "n1"

// patches and the other matches count the requests of a node's controller.
var (
	posts   = apitest.Match{Verb: "create", Resource: "nodes"}
	gets    = apitest.Match{Verb: "get", Resource: "nodes"}
	patches = apitest.Match{Verb: "patch", Resource: "nodes/status"}
)

// start makes a world with a running controller. Unset fields of cfg get what
// a test of a kubelet wants.
func start(t *testing.T, s *apitest.Server, cfg Config) *world {
	t.Helper()
	if cfg.NodeName == "" {
		cfg.NodeName = node1
	}
	if cfg.Client == nil {
		cfg.Client = s.Client(apitest.NodeUser(cfg.NodeName)).CoreV1()
		cfg.NodeCredentials = true
	}
	if cfg.Template == nil {
		cfg.Template = template()
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.EventHandler() // no watch: most tests count all requests
	checked(t, c)
	w := &world{T: testlog.New(t), server: s, c: c, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(w.Context())
	w.cancel = cancel
	go func() {
		defer close(w.done)
		w.err = c.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-w.done
	})
	synctest.Wait()
	return w
}

// checked has the invariants of every node checked after each event.
func checked(t *testing.T, c *Controller) {
	c.clock.check = func(s *status.State, err error) {
		if err = errors.Join(err, s.Check()); err != nil {
			t.Error(err)
		}
	}
}

// template is a node as a virtual kubelet would describe it.
func template() *corev1.Node {
	n := &corev1.Node{}
	n.Labels = map[string]string{"kubernetes.io/hostname": node1, "example.com/pool": "a"}
	n.Annotations = map[string]string{"example.com/build": "7"}
	n.Spec.ProviderID = "example://n1"
	n.Spec.Taints = []corev1.Taint{{Key: "example.com/virtual", Effect: corev1.TaintEffectNoSchedule}}
	n.Status.Capacity = corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("4"),
		corev1.ResourceMemory: resource.MustParse("8Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeHostName, Address: node1}}
	return n
}

// stop ends Run and returns its error.
func (w *world) stop() error {
	w.cancel()
	<-w.done
	return w.err
}

// pass lets time pass and everything that is due happen.
func (w *world) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// node returns the Node that the server holds.
func (w *world) node() *corev1.Node {
	w.Helper()
	n := apitest.Get[*corev1.Node](w.server, "", node1)
	if n == nil {
		w.Fatal("there is no Node")
	}
	return n
}

// condition returns a condition of the Node that the server holds.
func (w *world) condition(kind corev1.NodeConditionType) corev1.NodeCondition {
	w.Helper()
	c := status.FindCondition(w.node().Status.Conditions, kind)
	if c == nil {
		w.Fatalf("the Node has no condition %s", kind)
	}
	return *c
}

// expect checks how many creates, reads and patches there were since the last
// time, and forgets them.
func (w *world) expect(creates, reads, writes int) {
	w.Helper()
	c, r, p := len(w.server.Requests(posts)), len(w.server.Requests(gets)), len(w.server.Requests(patches))
	journal := w.server.Requests(apitest.Match{})
	if c != creates || r != reads || p != writes || len(journal) != c+r+p {
		w.Errorf("%d creates, %d reads, %d patches, want %d, %d, %d and nothing else: %v", c, r, p, creates, reads, writes, journal[:min(len(journal), 30)])
	}
	w.server.ResetJournal()
}

func TestRegistrationIsOnePost(t *testing.T) { synctest.Test(t, testRegistrationIsOnePost) }

// Registration is exactly one POST with the Ready condition and the taints.
func testRegistrationIsOnePost(t *testing.T) {
	s := apitest.New(apitest.Options{})
	w := start(t, s, Config{})
	sent, err := w.server.Requests(posts)[0].Object()
	if err != nil {
		t.Fatal(err)
	}
	w.expect(1, 0, 0)
	conditions := sent.(*corev1.Node).Status.Conditions
	if last := conditions[len(conditions)-1]; last.Type != corev1.NodeReady || last.Status != corev1.ConditionTrue || last.LastHeartbeatTime.IsZero() || last.LastTransitionTime.IsZero() {
		t.Errorf("the last condition of the POST is %+v, want Ready=True with times", last)
	}
	if len(conditions) != 4 {
		t.Errorf("%d conditions, want the kubelet's four: %v", len(conditions), conditions)
	}
	n := w.node()
	taints := n.Spec.Taints
	if len(taints) == 0 || taints[0].Key != "example.com/virtual" {
		t.Errorf("taints are %v", taints)
	}
	if n.Labels["kubernetes.io/hostname"] != node1 || n.Spec.ProviderID != "example://n1" || n.Annotations["example.com/build"] != "7" {
		t.Errorf("the Node lacks something of the template: %+v", n)
	}
	select {
	case <-w.c.Ready().Done():
	default:
		t.Error("not ready after registration")
	}
}

func TestAnUnchangedHourIsTwelvePatches(t *testing.T) {
	hours := 24
	if testing.Short() {
		hours = 3
	}
	synctest.Test(t, func(t *testing.T) { testUnchangedHours(t, hours) })
}

// An unchanged hour is twelve patches, give or take one, and no read. A patch is small, and
// has no list of images and no annotation with the status in it.
func testUnchangedHours(t *testing.T, hours int) {
	s := apitest.New(apitest.Options{})
	w := start(t, s, Config{Setters: []Setter{Images(func(context.Context, string) ([]corev1.ContainerImage, error) {
		return slices.Repeat([]corev1.ContainerImage{{Names: []string{strings.Repeat("x", 100)}, SizeBytes: 1}}, maxImages), nil
	})}})
	w.expect(1, 0, 0)
	for range hours {
		w.pass(time.Hour)
		n := len(s.Requests(patches))
		if n < 11 || n > 13 {
			t.Errorf("%d patches in an unchanged hour, want 12±1", n)
		}
		for _, r := range s.Requests(patches) {
			if body := string(r.Body); len(body) > 1300 || strings.Contains(body, "annotations") || strings.Contains(body, "images") {
				t.Errorf("a heartbeat of %d bytes: %s", len(body), body)
			}
		}
		w.expect(0, 0, n)
	}
}

// The cause of a context is the program's: it may be of a type that can't be
// compared.
func TestCauseThatCannotBeCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Config{Client: apitest.New(apitest.Options{}).Client(apitest.User{}).CoreV1(), NodeName: node1})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(utilerrors.NewAggregate([]error{errors.New("one"), errors.New("two")}))
		if err := c.Run(ctx); err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
}
