// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	core "github.com/kubewright/kubewright/podsync/internal/pod"
)

// Tests that kill mutants of the drivers, one by one, without Run.

// atRest returns a Controller that does not run.
func atRest(t *testing.T, edit ...func(*Config)) *Controller {
	t.Helper()
	cfg := Config{Client: silent{}, Provider: empty{}, NodeName: "n"}
	for _, f := range edit {
		f(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.run.callCtx = klog.NewContext(t.Context(), klog.Logger{}) // which prints nothing
	c.run.apiCtx = c.run.callCtx
	return c
}

// podOf returns a pod of the node n with a resourceVersion.
func podOf(name string, uid types.UID) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid, ResourceVersion: "1"}, Spec: corev1.PodSpec{NodeName: "n"}}
}

// clean makes no pod dirty, as after a round of the loop.
func (b *table) clean() {
	for _, t := range b.dirty {
		t.dirty = false
	}
	b.dirty = nil
}

// woken reports whether ch was woken.
func woken(ch chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// runs adds a pod that runs, and that a List has shown.
func (c *Controller) runs(pod *corev1.Pod) *entry {
	at := c.pods.moment()
	t := c.pods.add(RefOf(pod), core.New(&c.pods.rules, at.Since, c.pods.tick(), core.Saved{}))
	c.pods.apply(t, at, core.Seen{Version: core.Cached(pod)})
	c.pods.apply(t, at, core.Reported{Seq: c.pods.tick(), Report: &core.Report{}, FP: 1})
	c.pods.apply(t, at, core.ListEnded{Seq: c.pods.tick(), Shown: true, First: true, Open: true})
	return t
}

// An informer that others use goes on after Run, and so may the provider's reports.
func TestNothingIsRecordedAfterRun(t *testing.T) {
	c := atRest(t)
	a := podOf("a", "u")
	c.intake.onUpdate(a)
	c.pods.clean()
	c.close()
	c.intake.onUpdate(podOf("b", "v"))
	c.intake.handlers().OnUpdate(a, podOf("a", "w"))
	c.intake.onDelete(a)
	c.Report(State{Ref: Ref{UID: "x", Namespace: "ns", Name: "c"}})
	c.Report(State{Ref: RefOf(a), Stopped: true})
	if len(c.pods.pods) != 1 || len(c.pods.dirty) != 0 || len(c.reports.early) != 0 || !c.pods.pods["u"].Cached() {
		t.Errorf("%d pods, %d are dirty, %d reports wait", len(c.pods.pods), len(c.pods.dirty), len(c.reports.early))
	}
}

// A report that came during a List is older than those that come after it, whenever its pod is seen.
func TestAReportThatCameDuringAListIsNotTheLastOne(t *testing.T) {
	c := atRest(t)
	pod := podOf("a", "u")
	says := func(message string) State {
		return State{Ref: RefOf(pod), Status: corev1.PodStatus{Message: message}}
	}
	begin := c.pods.tick()
	c.Report(says("during the List"))
	list := says("in the List")
	c.lister.apply(c.pods.moment(), begin, &list, c.reports.prints.of(&list))
	orphan := c.pods.pods["u"]
	if got := orphan.LastReport().Message; got != "during the List" {
		t.Errorf("the last report is the one %s", got)
	}
	c.Report(says("after the List"))
	c.intake.onUpdate(pod)
	if got := orphan.LastReport().Message; got != "after the List" {
		t.Errorf("the last report is the one %s", got)
	}
}

// An event without news, such as the echo of a write, must not leave the pod decoded. A pod that
// waits for the loop is decoded once.
func TestAnEventWithoutNewsLeavesThePodEncoded(t *testing.T) {
	c := atRest(t)
	obj, err := Compact(podOf("a", "u"))
	if err != nil {
		t.Fatal(err)
	}
	decoded := func() bool {
		a, b := c.pods.pods["u"].Version(), c.pods.pods["u"].Version()
		return a.Open() == b.Open() // else each copy has decoded it for itself
	}
	c.intake.onUpdate(obj)
	if c.intake.onUpdate(obj); !decoded() {
		t.Error("the loop must decode it again")
	}
	c.pods.clean()
	if c.intake.onUpdate(obj); decoded() {
		t.Error("it stays decoded")
	}
}

// A failing is a Checkpoint whose Remove returns err.
type failing struct {
	Checkpoint
	err error
}

func (f *failing) Remove(context.Context, types.UID) error { return f.err }

// Records that can't be removed are reported once in each outage of the disk.
func TestEachOutageOfTheCheckpointIsReported(t *testing.T) {
	ctx := klog.NewContext(t.Context(), klog.Logger{})
	told := 0
	disk := &failing{}
	c := atRest(t, func(cfg *Config) {
		cfg.Checkpoint = disk
		cfg.ErrorHandler = func(context.Context, error, string) { told++ }
	})
	for i, err := range []error{errFailed, errFailed, nil, errFailed} {
		disk.err = err
		c.records.removeAll(ctx, map[types.UID]*record{"u": {}})
		if want := []int{1, 1, 1, 2}[i]; told != want {
			t.Errorf("after %d calls %d errors are reported, want %d", i+1, told, want)
		}
	}
}

// A new pod of its name says that a pod of the informer is gone. It proves nothing about a pod that
// the API had before it was restored, or that only the checkpoint has: the API is asked.
func TestWhichPodsANewOneOfTheirNameEnds(t *testing.T) {
	c := atRest(t)
	for _, name := range []string{"seen", "restored"} {
		c.intake.onUpdate(podOf(name, types.UID(name)))
	}
	c.records.unclaimed["recorded"] = &record{Pod: podOf("recorded", "recorded")}
	c.records.goOffline(t.Context())
	c.intake.restored = true
	c.intake.onDelete(cache.DeletedFinalStateUnknown{Key: "ns/restored", Obj: podOf("restored", "restored")})
	for name, want := range map[string]bool{"seen": true, "restored": false, "recorded": false} {
		c.intake.onUpdate(podOf(name, types.UID("new-"+name)))
		if _, ends := c.pods.pods[types.UID(name)].Ending(); ends != want {
			t.Errorf("%s: it ends: %v", name, ends)
		}
	}
}

// due adds a pod of which a call of Start and a PATCH are due at the moment that is returned.
func (c *Controller) due(pod *corev1.Pod) (*entry, core.Moment) {
	at := c.pods.moment()
	t := c.pods.add(RefOf(pod), core.New(&c.pods.rules, at.Since, c.pods.tick(), core.Saved{}))
	c.pods.apply(t, at, core.Seen{Version: core.Cached(pod)})
	c.pods.apply(t, at, core.ListEnded{Seq: c.pods.tick(), First: true, Open: true})
	return t, core.Moment{Since: at.Since + time.Minute, Wall: at.Wall.Add(time.Minute)}
}

// A gate that closes just before a call and a request are made ends both: each lane is free, and so
// are the places.
func TestAGateThatClosesFreesBothLanes(t *testing.T) {
	c := atRest(t, func(cfg *Config) { cfg.Gate = func(context.Context, string) error { return errFailed } })
	pod, at := c.due(podOf("a", "u"))
	c.gates.nodes["n"] = &gatedNode{state: gateOpen}
	c.pods.mu.Lock()
	c.loop.caller.start(pod, at, false)
	c.loop.writer.start(pod, at, false)
	if pod.InFlight(core.Calls) == nil || pod.InFlight(core.Writes) == nil {
		t.Error("nothing is under way")
	}
	c.pods.mu.Unlock()
	c.run.calls.Wait()
	if pod.InFlight(core.Calls) != nil || pod.InFlight(core.Writes) != nil || !c.loop.caller.idle() || c.loop.writer.running != 0 {
		t.Error("a call or a request is under way")
	}
	if c.gates.nodes["n"].state != gateClosed {
		t.Error("the gate counts as open")
	}
}

// The first success after the breaker has tripped ends the backoff of every pod. A success before
// says nothing of the pods of other namespaces.
func TestTheServerThatIsBackEndsEveryBackoff(t *testing.T) {
	for _, tripped := range []bool{false, true} {
		c := atRest(t)
		w := c.loop.writer
		waiting, at := c.due(podOf("a", "u"))
		c.pods.apply(waiting, at, core.Sent{Action: waiting.Next(at.Since, core.Writes, true)})
		c.pods.apply(waiting, at, core.WriteFailed{After: time.Hour})
		other := podOf("b", "v")
		other.Namespace = "other"
		works, at := c.due(other)
		call := c.pods.apply(works, at, core.Sent{Action: works.Next(at.Since, core.Writes, true)}).Call
		if w.breaker.Trip = 2; tripped {
			w.breaker.Failed(0)
			w.breaker.Failed(0)
		}
		w.running = 1
		w.finish(works, call, nil, core.Stored{Pod: other})
		if due := waiting.Next(at.Since, core.Writes, true).Op != ""; due != tripped {
			t.Errorf("tripped: %v, another pod is due: %v", tripped, due)
		}
	}
}

// listing is a provider whose List returns states.
type listing struct {
	Provider
	states []State
}

func (l *listing) List(context.Context) ([]State, error) { return l.states, nil }

// A List in which nothing has changed costs the loop nothing, and one that has news is applied.
func TestOnlyAListWithNewsWakesAPod(t *testing.T) {
	ctx := klog.NewContext(t.Context(), klog.Logger{})
	provider := &listing{states: []State{{Ref: RefOf(podOf("a", "u"))}}}
	c := atRest(t, func(cfg *Config) { cfg.Provider = provider })
	for i, message := range []string{"m", "m", "m", "other"} {
		provider.states[0].Status.Message = message
		if err := c.lister.list(ctx); err != nil {
			t.Fatal(err)
		}
		if n := len(c.pods.dirty); n > 0 != (i == 0 || i == 3) {
			t.Errorf("List %d: %d pods are dirty", i, n)
		}
		c.pods.clean()
	}
}

// The message of a pod that waits for the name of an orphan.
func TestWhyAPodWaitsForAnOrphan(t *testing.T) {
	ctx := klog.NewContext(t.Context(), klog.Logger{})
	for name, tc := range map[string]struct {
		reported bool
		is       core.Suspicion
		want     string
	}{
		"the API was not asked":          {false, core.Suspicion{}, ""},
		"it has not answered":            {false, core.Suspicion{Unsure: true}, "has not confirmed yet"},
		"too many are gone":              {false, core.Suspicion{GoneSince: 1}, "too many pods are gone"},
		"the credentials can't see it":   {true, core.Suspicion{}, "can't see whether its pod exists"},
		"they can't, and it has failed":  {true, core.Suspicion{Unsure: true}, "can't see whether its pod exists"},
		"they can't, and it may be gone": {true, core.Suspicion{GoneSince: 1}, "can't see whether its pod exists"},
	} {
		c := atRest(t)
		list := State{Ref: RefOf(podOf("a", "u"))}
		c.lister.apply(c.pods.moment(), c.pods.tick(), &list, 1)
		waiting, at := c.due(podOf("a", "v"))
		orphan := c.pods.pods["u"]
		orphan.reported = tc.reported
		c.suspects.announce(ctx, at, orphan, tc.is)
		err := waiting.LastError()
		if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A defect of the core is reported once for each pod: an Update of a pod that was never started is
// a step that it does not take.
func TestAnIllegalStepIsReportedOnce(t *testing.T) {
	var told []string
	c := atRest(t, func(cfg *Config) {
		cfg.ErrorHandler = func(_ context.Context, err error, _ string) { told = append(told, err.Error()) }
	})
	pod, at := c.due(podOf("a", "u"))
	for range 2 {
		wrong := pod.Next(at.Since, core.Calls, true)
		wrong.Op = core.Update
		c.pods.apply(pod, at, core.Called{Seq: c.pods.tick(), Action: wrong})
		c.pods.apply(pod, at, core.Returned{Seq: c.pods.tick(), Report: &core.Report{}})
	}
	for _, effect := range c.pods.effects {
		effect()
	}
	if len(told) != 1 || !strings.Contains(told[0], "follow pod ns/a") {
		t.Errorf("%d errors: %q", len(told), told)
	}
}

// A memory is a Checkpoint in memory.
type memory struct {
	records map[types.UID][]byte
	err     error
}

func (m *memory) Load(context.Context) (map[types.UID][]byte, error) { return m.records, m.err }

func (m *memory) Save(_ context.Context, uid types.UID, record []byte) error {
	if m.err == nil {
		m.records[uid] = record
	}
	return m.err
}

func (m *memory) Remove(_ context.Context, uid types.UID) error {
	if m.err == nil {
		delete(m.records, uid)
	}
	return m.err
}

// An api is a client whose requests are answered by functions.
type api struct {
	corev1client.PodInterface
	get    func() (*corev1.Pod, error)
	list   func(metav1.ListOptions) (*corev1.PodList, error)
	delete func(metav1.DeleteOptions) error
	patch  func(body []byte) (*corev1.Pod, error)
}

func (a *api) Pods(string) corev1client.PodInterface { return a }

func (a *api) Get(context.Context, string, metav1.GetOptions) (*corev1.Pod, error) { return a.get() }

func (a *api) List(_ context.Context, opts metav1.ListOptions) (*corev1.PodList, error) {
	return a.list(opts)
}

func (a *api) Patch(_ context.Context, _ string, _ types.PatchType, body []byte, _ metav1.PatchOptions, _ ...string) (*corev1.Pod, error) {
	return a.patch(body)
}

func (a *api) Delete(_ context.Context, _ string, opts metav1.DeleteOptions) error {
	return a.delete(opts)
}

// flush calls the effects that wait, as a round of the loop does.
func (c *Controller) flush() {
	effects := c.pods.effects
	c.pods.effects = nil
	for _, effect := range effects {
		effect()
	}
}

// A notebook has what a Controller says.
type notebook struct {
	dropped, told []string
	masses        []MassOrphans
}

// uses makes a Controller write into the notebook.
func (n *notebook) uses(cfg *Config) {
	cfg.ErrorHandler = func(_ context.Context, err error, _ string) { n.told = append(n.told, err.Error()) }
	cfg.Hooks.Dropped = func(d Dropped) { n.dropped = append(n.dropped, d.Reason) }
	cfg.Hooks.MassOrphans = func(m MassOrphans) { n.masses = append(n.masses, m) }
}
