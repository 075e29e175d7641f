// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/testmain"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

func TestMain(m *testing.M) { testmain.Run(m) }

const (
	node     = "n1"
	nodeUser = "system:node:" + node
)

var (
	patches = apitest.Match{User: nodeUser, Verb: "patch", Resource: "pods/status"}
	deletes = apitest.Match{User: nodeUser, Verb: "delete", Resource: "pods"}
	gets    = apitest.Match{User: nodeUser, Verb: "get", Resource: "pods"}
	watches = apitest.Match{User: nodeUser, Verb: "watch", Resource: "pods"}
)

// A world is an API server and a backend, and at most one controller between
// them at a time.
type world struct {
	t        *testing.T
	server   *apitest.Server
	backend  *podsynctest.Backend
	provider *podsynctest.Provider
	c        *podsync.Controller
	cfg      podsync.Config
	wrap     func(*podsynctest.Provider) podsync.Provider
	writers  int         // the number of concurrent API requests; 0: the default
	admin    bool        // the controller has an administrator's credentials
	logger   klog.Logger // zero: prints nothing
	blocked  bool        // a hook blocks the loop, which then leaves everything undone

	cancel  context.CancelFunc
	done    chan struct{}
	unwatch func()
	began   time.Time
	dropped []podsync.Dropped
	masses  []int // how many orphans were held back, in each call of the hook

	mu     sync.Mutex
	errors []string
}

// told returns the errors that the controllers have reported.
func (w *world) told() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.errors)
}

// logs returns what the controllers will log.
func (w *world) logs(options ...textlogger.ConfigOption) *lines {
	log := &lines{}
	w.logger = textlogger.NewLogger(textlogger.NewConfig(append(options, textlogger.Output(log))...))
	return log
}

// simple hides all capabilities.
func simple(p *podsynctest.Provider) podsync.Provider { return struct{ podsync.Provider }{p} }

// releasing shows Release only.
func releasing(p *podsynctest.Provider) podsync.Provider {
	return struct {
		podsync.Provider
		podsync.Releaser
	}{p, p}
}

func full(p *podsynctest.Provider) podsync.Provider { return p }

// mute says in its answers no more than it must: the rest comes by Watch.
func mute(p *podsynctest.Provider) podsync.Provider { return muteProvider{p} }

type muteProvider struct{ *podsynctest.Provider }

func (p muteProvider) Start(ctx context.Context, pod *corev1.Pod) (podsync.State, error) {
	_, err := p.Provider.Start(ctx, pod)
	return podsync.State{}, err
}

func (p muteProvider) Update(ctx context.Context, pod *corev1.Pod) (podsync.State, error) {
	_, err := p.Provider.Update(ctx, pod)
	return podsync.State{}, err
}

func (p muteProvider) Stop(ctx context.Context, ref podsync.Ref, opts podsync.StopOptions) (podsync.State, error) {
	st, err := p.Provider.Stop(ctx, ref, opts)
	return podsync.State{Stopped: st.Stopped}, err
}

func newWorld(t *testing.T, opts podsynctest.Options) *world {
	w := &world{t: t, server: apitest.New(apitest.Options{}), backend: podsynctest.NewBackend(opts), wrap: full, began: time.Now()}
	w.server.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
	t.Cleanup(func() {
		w.stop()
		if v := w.backend.Violations(); len(v) > 0 {
			t.Errorf("the contract was broken:\n%s", strings.Join(v, "\n"))
		}
	})
	return w
}

// run starts a controller.
func (w *world) run() {
	w.t.Helper()
	w.start()
	w.isReady()
}

// run2 starts a controller that needs time to be ready.
func (w *world) run2(d time.Duration) {
	w.t.Helper()
	w.start()
	pass(d)
	w.isReady()
}

func (w *world) isReady() {
	w.t.Helper()
	select {
	case <-w.c.Ready().Done():
	default:
		w.t.Fatal("the controller is not ready")
	}
}

func (w *world) start() {
	w.t.Helper()
	w.provider = w.backend.Connect()
	cfg := w.cfg
	user := apitest.NodeUser(node)
	if w.admin {
		user = apitest.User{}
	}
	cfg.Client = w.server.Client(user).CoreV1()
	cfg.Provider = w.wrap(w.provider)
	if cfg.NodeName == "" && cfg.Informer == nil {
		cfg.NodeName = node
	}
	cfg.Hooks.Dropped = func(d podsync.Dropped) { w.dropped = append(w.dropped, d) }
	cfg.Hooks.MassOrphans = func(m podsync.MassOrphans) { w.masses = append(w.masses, len(m.Refs)) }
	if cfg.ErrorHandler == nil {
		cfg.ErrorHandler = func(_ context.Context, err error, _ string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.errors = append(w.errors, err.Error())
		}
	}
	c, err := podsync.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.c = c
	if w.writers > 0 {
		c.LimitWrites(w.writers)
	}
	ctx, cancel := context.WithCancel(klog.NewContext(w.t.Context(), w.logger))
	w.cancel, w.done = cancel, make(chan struct{})
	w.unwatch = func() {}
	if !w.blocked {
		w.unwatch = watchRest(w.t, c)
	}
	go func() {
		defer close(w.done)
		if err := c.Run(ctx); err != nil {
			w.t.Errorf("Run: %v", err)
		}
	}()
	settle()
}

// stop ends the controller in peace.
func (w *world) stop() {
	if w.cancel == nil {
		return
	}
	w.cancel()
	<-w.done
	w.cancel = nil
	w.unwatch()
	w.provider.Crash()
}

// crash kills the controller: nothing that it has planned is done.
func (w *world) crash() {
	if w.cancel == nil {
		return
	}
	w.provider.Crash()
	remove := w.server.Inject(apitest.Fault{Match: apitest.Match{User: nodeUser}, Err: apitest.ErrConnRefused})
	w.cancel()
	<-w.done
	w.cancel = nil
	w.unwatch()
	remove()
}

// A resting is a controller whose invariants are checked whenever all goroutines wait.
type resting struct {
	t       *testing.T
	c       *podsync.Controller
	history podsync.History
}

// atRest are the controllers that run. No two tests of this package run at once.
var atRest = map[*resting]bool{}

// maxChecked is the number of pods above which the invariants are not checked, because that takes
// too long.
const maxChecked = 300

// watchRest checks the invariants of a controller until the result is called, after Run has returned.
func watchRest(t *testing.T, c *podsync.Controller) (end func()) {
	r := &resting{t: t, c: c, history: podsync.History{}}
	atRest[r] = true
	return func() {
		if !atRest[r] {
			return
		}
		delete(atRest, r)
		for _, left := range c.Remains() {
			t.Errorf("after Run: %s", left)
		}
	}
}

// settle waits until all goroutines wait.
func settle() {
	synctest.Wait()
	for r := range atRest {
		if r.c.Size() > maxChecked {
			continue
		}
		for _, broken := range append(r.c.BrokenInvariants(r.history), r.c.Unrest()...) {
			r.t.Errorf("%v: %s", time.Now().Format(time.TimeOnly), broken)
			delete(atRest, r) // once is enough
		}
	}
}

// pass lets time pass.
func pass(d time.Duration) {
	time.Sleep(d)
	settle()
}

func newPod(name string, edit ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PodSpec{
			NodeName:   node,
			Containers: []corev1.Container{{Name: "main", Image: "registry.example/app:1"}},
		},
		Status: corev1.PodStatus{
			Phase:      corev1.PodPending,
			QOSClass:   corev1.PodQOSBestEffort,
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}},
		},
	}
	for _, f := range edit {
		f(pod)
	}
	return pod
}

func restart(policy corev1.RestartPolicy) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.RestartPolicy = policy }
}

// bind makes a pod that is bound to the node.
func (w *world) bind(pod *corev1.Pod) *corev1.Pod {
	created := w.server.Put(pod).(*corev1.Pod)
	settle()
	return created
}

func (w *world) pod(name string) *corev1.Pod {
	return apitest.Get[*corev1.Pod](w.server, "default", name)
}

// kubectlDelete deletes as a user does; a negative grace is the pod's own.
func (w *world) kubectlDelete(name string, grace int64) {
	w.t.Helper()
	opts := metav1.DeleteOptions{}
	if grace >= 0 {
		opts.GracePeriodSeconds = &grace
	}
	if err := w.server.Client(apitest.User{}).CoreV1().Pods("default").Delete(w.t.Context(), name, opts); err != nil {
		w.t.Fatalf("deleting %s: %v", name, err)
	}
	settle()
}

func (w *world) expectPhase(name string, phase corev1.PodPhase) *corev1.Pod {
	w.t.Helper()
	pod := w.pod(name)
	if pod == nil {
		w.t.Fatalf("pod %s is gone, want phase %s", name, phase)
	}
	if pod.Status.Phase != phase {
		w.t.Errorf("pod %s is %s (%s: %s), want %s", name, pod.Status.Phase, pod.Status.Reason, pod.Status.Message, phase)
	}
	return pod
}

func (w *world) expectGone(name string) {
	w.t.Helper()
	if pod := w.pod(name); pod != nil {
		w.t.Errorf("pod %s is still there: phase %s, deletionTimestamp %v", name, pod.Status.Phase, pod.DeletionTimestamp)
	}
}

// expectRequests compares the number of status patches, deletions and gets of
// single pods since the last call of ResetJournal.
func (w *world) expectRequests(wantPatches, wantDeletes, wantGets int) {
	w.t.Helper()
	p, d, g := len(w.server.Requests(patches)), len(w.server.Requests(deletes)), len(w.server.Requests(gets))
	if p != wantPatches || d != wantDeletes || g != wantGets {
		w.t.Errorf("%d PATCH, %d DELETE, %d GET; want %d, %d, %d:\n%s", p, d, g, wantPatches, wantDeletes, wantGets, w.journal())
	}
}

func (w *world) journal() string {
	var b strings.Builder
	for _, r := range w.server.Requests(apitest.Match{}) {
		if r.Resource == "pods" && r.Verb != "list" && r.Verb != "watch" {
			fmt.Fprintf(&b, "%s %s %s/%s %s -> %d %v\n", r.Time.Format("15:04:05.000"), r.Verb, r.Name, r.Subresource, r.Body, r.Code, r.Err)
		}
	}
	return b.String()
}

// expectCalls compares the journal of the backend, without lists and watches.
func (w *world) expectCalls(want ...string) {
	w.t.Helper()
	var got []string
	for _, c := range w.backend.Calls("") {
		switch c.Op {
		case podsync.OpList, podsync.OpAdmit:
		case podsync.OpStop:
			got = append(got, fmt.Sprintf("stop %s %v %s", c.Ref.Name, c.Grace, c.Reason))
		default:
			got = append(got, fmt.Sprintf("%s %s", c.Op, c.Ref.Name))
		}
	}
	if !slices.Equal(got, want) {
		w.t.Errorf("calls of the provider:\n  got  %q\n  want %q", got, want)
	}
}

func (w *world) stage(uid types.UID) string {
	for ref, info := range w.c.All() {
		if ref.UID == uid {
			return info.Stage.String()
		}
	}
	return "forgotten"
}

// known returns the number of pods of which the controller keeps anything.
func (w *world) known() (n int) {
	for range w.c.All() {
		n++
	}
	return n
}

func condition(pod *corev1.Pod, typ corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == typ {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

func setCondition(p *corev1.Pod, typ corev1.PodConditionType, status corev1.ConditionStatus) {
	c := condition(p, typ)
	if c == nil {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: typ})
		c = &p.Status.Conditions[len(p.Status.Conditions)-1]
	}
	c.Status, c.LastTransitionTime = status, metav1.Now()
}

func terminal(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
}

func isReady(pod *corev1.Pod) bool {
	c := condition(pod, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// patched decodes the bodies of the status patches of a pod.
func (w *world) patched(name string) (bodies []map[string]any) {
	for _, r := range w.server.Requests(apitest.Match{Verb: "patch", Resource: "pods/status", Name: name}) {
		var body map[string]any
		if err := json.Unmarshal(r.Body, &body); err != nil {
			w.t.Fatal(err)
		}
		bodies = append(bodies, body)
	}
	return bodies
}
