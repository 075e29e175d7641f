// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/testlog"
	"github.com/kubewright/kubewright/internal/testmain"
	"github.com/kubewright/kubewright/resourceslice"
)

func TestMain(m *testing.M) { testmain.Run(m) }

const (
	node   = "n1"
	driver = "gpu.example.com"
)

var pool = resourceslice.PoolID{Driver: driver, Name: node}

// bubble runs a test in a bubble with an API server, a consumer that checks
// every event, and a node.
func bubble(t *testing.T, test func(*rig)) {
	t.Helper()
	synctest.Test(t, func(inside *testing.T) {
		r := &rig{T: testlog.New(inside), s: apitest.New(apitest.Options{})}
		r.s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
		r.consumer = watchAll(r.T, r.s)
		test(r)
		if r.stop != nil {
			r.halt()
		}
		r.consumer.close()
		if t.Failed() {
			r.Tell()
		}
	})
}

// rig is a test's world.
type rig struct {
	*testlog.T
	s        *apitest.Server
	c        *resourceslice.Controller
	consumer *consumer
	user     apitest.User // zero: the node

	concurrency int          // of writes; 0: the default
	logger      *klog.Logger // nil: the log of the test

	stop context.CancelFunc
	done chan error

	mu        sync.Mutex
	errs      []error
	published []resourceslice.Published
}

// admin may do everything, as the zero User, which a rig takes for the node.
var admin = apitest.User{Name: "kubernetes-admin", Groups: []string{"system:masters"}}

func (r *rig) config() resourceslice.Config {
	if r.user.Name == "" {
		r.user = apitest.NodeUser(node)
	}
	cs := r.s.Client(r.user)
	return resourceslice.Config{
		Client: cs.ResourceV1(), NodeName: node, Owner: resourceslice.NodeOwner(cs.CoreV1().Nodes(), node),
		ErrorHandler: func(_ context.Context, err error, _ string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.errs = append(r.errs, err)
		},
		Hooks: resourceslice.Hooks{Published: func(p resourceslice.Published) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.published = append(r.published, p)
		}},
	}
}

// start makes and runs a controller.
func (r *rig) start(change ...func(*resourceslice.Config)) {
	r.Helper()
	cfg := r.config()
	for _, f := range change {
		f(&cfg)
	}
	c, err := resourceslice.New(cfg)
	if err != nil {
		r.Fatal(err)
	}
	r.run(c)
}

func (r *rig) run(c *resourceslice.Controller) {
	if r.concurrency > 0 {
		resourceslice.SetConcurrency(c, r.concurrency)
	}
	resourceslice.OnCheck(c, func(err error) {
		if err != nil {
			r.Error(err)
		}
	})
	ctx, cancel := context.WithCancel(r.Context())
	if r.logger != nil {
		ctx = klog.NewContext(ctx, *r.logger)
	}
	r.c, r.stop, r.done = c, cancel, make(chan error, 1)
	go func() { r.done <- c.Run(ctx) }()
}

// halt stops the controller.
func (r *rig) halt() {
	r.Helper()
	r.stop()
	if err := <-r.done; err != nil {
		r.Errorf("Run = %v", err)
	}
	r.stop = nil
}

func (r *rig) set(p resourceslice.Pool) {
	r.Helper()
	if err := r.c.Set(pool, p); err != nil {
		r.Fatalf("Set: %v", err)
	}
}

// publish sets a pool and waits until it is published.
func (r *rig) publish(p resourceslice.Pool) {
	r.Helper()
	r.set(p)
	r.wait()
}

func (r *rig) wait() {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), 10*time.Minute)
	defer cancel()
	if err := r.c.Wait(ctx, pool); err != nil {
		r.Fatalf("Wait: %v", err)
	}
	synctest.Wait()
}

// settle lets some time pass.
func (r *rig) settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// sending matches the requests of the verbs that send a slice of which is says true.
func sending(verbs string, is func(s sliceType) bool) apitest.Match {
	return apitest.Match{Verb: verbs, Resource: "resourceslices", Func: func(q apitest.Request) bool {
		obj, err := q.Object()
		s, ok := obj.(sliceType)
		return err == nil && ok && is(s)
	}}
}

// foreign calls do as another client: its events are not the controller's.
func (r *rig) foreign(do func()) {
	synctest.Wait()
	r.consumer.tolerate(true)
	do()
	synctest.Wait()
	r.consumer.tolerate(false)
}

// writes counts the writes of slices since the journal was reset, without dry
// runs.
func (r *rig) writes() map[string]int {
	counts := map[string]int{}
	for _, verb := range []string{"create", "update", "delete", "patch", "deletecollection"} {
		if n := len(r.s.Requests(apitest.Match{Verb: verb, Resource: "resourceslices", Func: func(q apitest.Request) bool { return !q.DryRun }})); n > 0 {
			counts[verb] = n
		}
	}
	return counts
}

// expect checks how many writes there were since the last call.
func (r *rig) expect(what string, creates, updates, deletes int) {
	r.Helper()
	synctest.Wait()
	want := map[string]int{}
	for verb, n := range map[string]int{"create": creates, "update": updates, "delete": deletes} {
		if n > 0 {
			want[verb] = n
		}
	}
	if got := r.writes(); !maps.Equal(got, want) {
		r.Errorf("%s: writes %v, want %v", what, got, want)
	}
	r.s.ResetJournal()
}

func (r *rig) slices() []*resourcev1.ResourceSlice {
	all := apitest.List[*resourcev1.ResourceSlice](r.s, "")
	slices.SortFunc(all, func(a, b *resourcev1.ResourceSlice) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return all
}

// devices returns the devices that a consumer sees: those of the newest generation.
func (r *rig) devices() map[string]resourcev1.Device {
	all := map[string]resourcev1.Device{}
	for _, s := range r.slices() {
		for _, d := range s.Spec.Devices {
			all[d.Name] = d
		}
	}
	return all
}

func (r *rig) reported() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.errs)
}

// has reports whether an error of the type was reported, and how often.
func has[T error](r *rig) (last T, n int) {
	for _, err := range r.reported() {
		if e, ok := errors.AsType[T](err); ok {
			last, n = e, n+1
		}
	}
	return last, n
}

func (r *rig) window() (total time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.published {
		total += p.Window
	}
	return total
}

// change publishes devices that cost so many updates, in which the pool is never incomplete.
func (r *rig) change(what string, devices []resourcev1.Device, updates int) {
	r.Helper()
	window := r.window()
	r.publish(resourceslice.Pool{Devices: devices})
	r.expect(what, 0, updates, 0)
	if r.window() != window {
		r.Errorf("%s: the pool was incomplete for %v", what, r.window()-window)
	}
}

// device makes a device with a few attributes; v is one of them.
func device(i int, v string) resourcev1.Device {
	return resourcev1.Device{
		Name: fmt.Sprintf("dev-%05d", i),
		Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
			"index": {IntValue: new(int64(i))},
			"model": {StringValue: new("model-" + v)},
		},
		Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: resource.MustParse("40Gi")}},
	}
}

func devices(n int) []resourcev1.Device {
	all := make([]resourcev1.Device, n)
	for i := range all {
		all[i] = device(i, "a")
	}
	return all
}

// tainted makes devices of which every one has a taint: 64 fit on a slice.
func tainted(n int) []resourcev1.Device {
	all := devices(n)
	for i := range all {
		all[i].Taints = []resourcev1.DeviceTaint{{Key: "example.com/health", Effect: resourcev1.DeviceTaintEffectNone}}
	}
	return all
}

// consumer watches slices as the scheduler does, and checks the invariants with
// every event.
type consumer struct {
	t    *testlog.T
	w    watch.Interface
	done chan struct{}

	mu        sync.Mutex
	tolerant  bool            // events come from another client
	removing  bool            // pools may be deleted
	dead      map[string]bool // field managers of processes that crashed
	slices    map[string]*resourcev1.ResourceSlice
	complete  map[string]bool
	completed int             // times that a pool became complete
	withheld  map[string]bool // devices that must have a taint or counters
}

func watchAll(t *testlog.T, s *apitest.Server) *consumer {
	w, err := s.Client(apitest.User{}).ResourceV1().ResourceSlices().Watch(t.Context(), metav1.ListOptions{TimeoutSeconds: new(int64(1000 * 3600))})
	if err != nil {
		t.Fatal(err)
	}
	c := &consumer{t: t, w: w, done: make(chan struct{}), slices: map[string]*resourcev1.ResourceSlice{}, complete: map[string]bool{}, dead: map[string]bool{}}
	go func() {
		defer close(c.done)
		for event := range w.ResultChan() {
			if slice, ok := event.Object.(*resourcev1.ResourceSlice); ok {
				c.see(event.Type, slice)
			}
		}
	}()
	s.ResetJournal()
	return c
}

func (c *consumer) close() {
	c.w.Stop()
	<-c.done
}

func (c *consumer) tolerate(is bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tolerant = is
}

// remove allows pools to be deleted from now on.
func (c *consumer) remove() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removing = true
}

// withhold makes it a fault if one of these devices has neither taints nor
// counters.
func (c *consumer) withhold(names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.withheld = make(map[string]bool)
	for _, name := range names {
		c.withheld[name] = true
	}
}

func key(s *resourcev1.ResourceSlice) string { return s.Spec.Driver + "/" + s.Spec.Pool.Name }

// died records that the process with this field manager has crashed. The API server
// may carry out its last requests later, at a generation that its successor has
// left behind. No consumer reads that generation.
func (c *consumer) died(manager string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dead[manager] = true
}

func (c *consumer) ofTheDead(s *resourcev1.ResourceSlice) bool {
	return slices.ContainsFunc(s.ManagedFields, func(e metav1.ManagedFieldsEntry) bool { return c.dead[e.Manager] })
}

// lateWrite reports whether the last write of a slice was one of a process that had
// been killed before. DESIGN.md, Crashes, says when such a write can't be prevented
// from spoiling the pool until it is repaired.
func (c *consumer) lateWrite(s *resourcev1.ResourceSlice) bool {
	var last time.Time
	for _, e := range s.ManagedFields {
		if e.Time != nil && e.Time.After(last) {
			last = e.Time.Time
		}
	}
	return slices.ContainsFunc(s.ManagedFields, func(e metav1.ManagedFieldsEntry) bool {
		return e.Time != nil && e.Time.Time.Equal(last) && c.dead[e.Manager]
	})
}

// top returns the newest generation of a pool and its slices.
func (c *consumer) top(pool string) (generation int64, newest []*resourcev1.ResourceSlice) {
	generation = -1
	for _, s := range c.slices {
		if key(s) != pool {
			continue
		}
		if g := s.Spec.Pool.Generation; g > generation {
			generation, newest = g, nil
		}
		if s.Spec.Pool.Generation == generation {
			newest = append(newest, s)
		}
	}
	return generation, newest
}

func (c *consumer) see(event watch.EventType, s *resourcev1.ResourceSlice) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pool := key(s)
	before, _ := c.top(pool)
	old := c.slices[s.Name]
	if event == watch.Deleted {
		delete(c.slices, s.Name)
	} else {
		c.slices[s.Name] = s
	}
	generation, newest := c.top(pool)
	complete := len(newest) > 0 && int(newest[0].Spec.Pool.ResourceSliceCount) == len(newest)
	fail := func(format string, args ...any) {
		if !c.tolerant {
			c.t.Errorf("%s of %s in pool %s: "+format, append([]any{event, s.Name, pool}, args...)...)
		}
	}
	if event != watch.Deleted && s.Spec.Pool.Generation < generation && !c.ofTheDead(s) && !(old != nil && old.Spec.Pool.Generation == s.Spec.Pool.Generation) {
		fail("one generation in flight: a write at generation %d while there is %d", s.Spec.Pool.Generation, generation)
	}
	if complete && !c.complete[pool] {
		c.completed++
		if event == watch.Deleted {
			fail("completion by a write: the pool becomes complete by a delete")
		}
	}
	late := slices.ContainsFunc(newest, c.lateWrite)
	for _, other := range newest {
		if !late && other.Spec.Pool.ResourceSliceCount != newest[0].Spec.Pool.ResourceSliceCount {
			fail("one count per generation: slices of generation %d disagree on their number", generation)
		}
	}
	if complete && !late {
		if problem := invalidPool(newest); problem != "" {
			fail("complete implies valid: %s", problem)
		}
	}
	for _, d := range s.Spec.Devices {
		if c.withheld[d.Name] && len(d.Taints)+len(d.ConsumesCounters) == 0 {
			fail("device %s is offered without its restriction", d.Name)
		}
	}
	if event == watch.Deleted && s.Spec.Pool.Generation == before && !c.removing {
		fail("the newest generation stays: a slice of the newest generation was deleted")
	}
	if generation >= 0 && generation < before && !c.removing {
		fail("generations never fall: the generation fell from %d to %d", before, generation)
	}
	c.complete[pool] = complete
}

// invalidPool returns the reason why a complete pool is unusable, or "".
func invalidPool(newest []*resourcev1.ResourceSlice) string {
	devices, sets := map[string]bool{}, map[string]map[string]resourcev1.Counter{}
	for _, s := range newest {
		for _, set := range s.Spec.SharedCounters {
			if sets[set.Name] != nil {
				return "counter set " + set.Name + " is there twice"
			}
			sets[set.Name] = set.Counters
		}
	}
	for _, s := range newest {
		for _, d := range s.Spec.Devices {
			if devices[d.Name] {
				return "device " + d.Name + " is there twice"
			}
			devices[d.Name] = true
			for _, c := range d.ConsumesCounters {
				for name := range c.Counters {
					if _, ok := sets[c.CounterSet][name]; !ok {
						return "device " + d.Name + " consumes what isn't there"
					}
				}
			}
		}
	}
	return ""
}

type sliceType = *resourcev1.ResourceSlice

func contains(err error, text string) bool { return err != nil && strings.Contains(err.Error(), text) }

var quantity = resource.MustParse
