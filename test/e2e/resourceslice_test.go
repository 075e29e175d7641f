// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubewright/kubewright/resourceslice"
	"github.com/kubewright/kubewright/test/e2e/harness"
)

const (
	gpuDriver = "gpu.example.com"
	allDriver = "all.example.com"
	patience  = 90 * time.Second
)

// dra is a cluster whose nodes stay Ready without a kubelet.
type dra struct {
	*testing.T
	cluster  *harness.Cluster
	admin    kubernetes.Interface
	consumer *poolWatch
	pods     int
}

func startDRA(t *testing.T, o harness.Options) *dra {
	o.ExtraArgs = map[string][]string{harness.ControllerManager: {"--controllers=*,-node-lifecycle-controller,-taint-eviction-controller"}}
	cluster := ownCluster(t, o)
	d := &dra{T: t, cluster: cluster, admin: kubernetes.NewForConfigOrDie(cluster.AdminConfig())}
	d.consumer = watchPools(t, d.admin)
	for _, name := range []string{"dra-1", "dra-2"} {
		d.createNode(name)
	}
	for _, driver := range []string{gpuDriver, allDriver} {
		_, err := d.admin.ResourceV1().DeviceClasses().Create(t.Context(), &resourcev1.DeviceClass{
			ObjectMeta: metav1.ObjectMeta{Name: driver},
			Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{
				CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", driver)},
			}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	d.eventually("the default ServiceAccount", func() bool {
		_, err := d.admin.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	return d
}

func (d *dra) createNode(name string) *corev1.Node {
	d.Helper()
	_, err := d.admin.CoreV1().Nodes().Create(d.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Test"}},
			Capacity:    corev1.ResourceList{"cpu": resource.MustParse("100"), "memory": resource.MustParse("100Gi"), "pods": resource.MustParse("1000")},
			Allocatable: corev1.ResourceList{"cpu": resource.MustParse("100"), "memory": resource.MustParse("100Gi"), "pods": resource.MustParse("1000")},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		d.Fatal(err)
	}
	// TaintNodesByCondition taints every new node. The controller that would
	// remove the taint does not run.
	node, err := d.admin.CoreV1().Nodes().Patch(d.Context(), name, types.MergePatchType, []byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{})
	if err != nil {
		d.Fatal(err)
	}
	return node
}

func (d *dra) eventually(what string, condition func() bool) {
	d.Helper()
	err := wait.PollUntilContextTimeout(d.Context(), 5*time.Millisecond, patience, true, func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		d.Fatalf("waited %v for %s", patience, what)
	}
}

// publisher is a controller with a record of its reports.
type publisher struct {
	*resourceslice.Controller
	d    *dra
	node string
	stop func()

	mu        sync.Mutex
	errs      []error
	publishes []resourceslice.Published
	writes    atomic.Int64
}

func (d *dra) publish(node string, cfg *rest.Config, change ...func(*resourceslice.Config)) *publisher {
	d.Helper()
	if cfg == nil {
		cfg = d.cluster.NodeConfig(d.T, node)
	}
	client := kubernetes.NewForConfigOrDie(cfg)
	p := &publisher{d: d, node: node}
	config := resourceslice.Config{
		Client: client.ResourceV1(), NodeName: node, Owner: resourceslice.NodeOwner(client.CoreV1().Nodes(), node),
		MinInterval: 10 * time.Millisecond,
		ErrorHandler: func(_ context.Context, err error, _ string) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.errs = append(p.errs, err)
		},
		Hooks: resourceslice.Hooks{
			APICall: func(resourceslice.APICall) { p.writes.Add(1) },
			Published: func(done resourceslice.Published) {
				p.mu.Lock()
				defer p.mu.Unlock()
				p.publishes = append(p.publishes, done)
			},
		},
	}
	for _, f := range change {
		f(&config)
	}
	c, err := resourceslice.New(config)
	if err != nil {
		d.Fatal(err)
	}
	p.Controller = c
	ctx, cancel := context.WithCancel(context.WithoutCancel(d.Context()))
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	var once sync.Once
	p.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				d.Errorf("Run = %v", err)
			}
		})
	}
	d.Cleanup(p.stop)
	return p
}

// set sets a pool and waits until it is published.
func (p *publisher) set(driver string, pool resourceslice.Pool) {
	p.d.Helper()
	id := resourceslice.PoolID{Driver: driver, Name: p.node}
	if err := p.Set(id, pool); err != nil {
		p.d.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(p.d.Context(), patience)
	defer cancel()
	if err := p.Wait(ctx, id); err != nil {
		p.d.Fatalf("Wait: %v; reported %v", err, p.reported())
	}
}

func (p *publisher) reported() []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.errs)
}

func (p *publisher) last() resourceslice.Published {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.publishes[len(p.publishes)-1]
}

func gpu(i int, model string) resourcev1.Device {
	return resourcev1.Device{
		Name: fmt.Sprintf("gpu-%05d", i),
		Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
			"model": {StringValue: new(model)}, "index": {IntValue: new(int64(i))},
		},
	}
}

func gpusFrom(from, to int, model string) (all []resourcev1.Device) {
	for i := from; i < to; i++ {
		all = append(all, gpu(i, model))
	}
	return all
}

// claim creates a ResourceClaim and a Pod that uses it, and returns their name.
func (d *dra) claim(class, node, cel string, mode resourcev1.DeviceAllocationMode) string {
	d.Helper()
	d.pods++
	name := fmt.Sprintf("dra-%d", d.pods)
	exact := &resourcev1.ExactDeviceRequest{DeviceClassName: class, AllocationMode: mode}
	if cel != "" {
		exact.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: cel}}}
	}
	_, err := d.admin.ResourceV1().ResourceClaims("default").Create(d.Context(), &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "r", Exactly: exact}}}},
	}, metav1.CreateOptions{})
	if err != nil {
		d.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			Containers:     []corev1.Container{{Name: "c", Image: "none", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new(name)}},
		},
	}
	if node != "" {
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	}
	if _, err := d.admin.CoreV1().Pods("default").Create(d.Context(), pod, metav1.CreateOptions{}); err != nil {
		d.Fatal(err)
	}
	return name
}

// scheduled waits until a pod has a node, and returns the node and the devices
// allocated to its claim.
func (d *dra) scheduled(name string) (node string, devices []string) {
	d.Helper()
	d.eventually("pod "+name+" to be scheduled", func() bool {
		pod, err := d.admin.CoreV1().Pods("default").Get(d.Context(), name, metav1.GetOptions{})
		if err != nil {
			d.Fatal(err)
		}
		node = pod.Spec.NodeName
		return node != ""
	})
	claim, err := d.admin.ResourceV1().ResourceClaims("default").Get(d.Context(), name, metav1.GetOptions{})
	if err != nil || claim.Status.Allocation == nil {
		d.Fatalf("claim of pod %s: %v %v", name, claim.Status, err)
	}
	for _, result := range claim.Status.Allocation.Devices.Results {
		devices = append(devices, result.Driver+"/"+result.Pool+"/"+result.Device)
	}
	return node, devices
}

// unscheduled waits until the scheduler has given up on a pod for now, and
// returns the reason.
func (d *dra) unscheduled(name string) (reason, message string) {
	d.Helper()
	d.eventually("the scheduler's verdict on pod "+name, func() bool {
		pod, err := d.admin.CoreV1().Pods("default").Get(d.Context(), name, metav1.GetOptions{})
		if err != nil {
			d.Fatal(err)
		}
		if pod.Spec.NodeName != "" {
			d.Fatalf("pod %s was scheduled to %s", name, pod.Spec.NodeName)
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
				reason, message = c.Reason, c.Message
			}
		}
		return reason != ""
	})
	return reason, message
}

func (d *dra) finish(name string) {
	d.Helper()
	if err := d.admin.CoreV1().Pods("default").Delete(d.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		d.Fatal(err)
	}
	if err := d.admin.ResourceV1().ResourceClaims("default").Delete(d.Context(), name, metav1.DeleteOptions{}); err != nil {
		d.Fatal(err)
	}
	// The claim is deleted when its controller has removed its finalizer; then
	// its devices are free.
	d.eventually("claim "+name+" to go", func() bool {
		_, err := d.admin.ResourceV1().ResourceClaims("default").Get(d.Context(), name, metav1.GetOptions{})
		return err != nil
	})
}

// failedScheduling returns the FailedScheduling events of a pod.
func (d *dra) failedScheduling(name string) (messages []string) {
	d.Helper()
	list, err := d.admin.EventsV1().Events("default").List(d.Context(), metav1.ListOptions{})
	if err != nil {
		d.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Regarding.Name == name && e.Reason == "FailedScheduling" {
			messages = append(messages, e.Note)
		}
	}
	return messages
}

func (d *dra) slicesOf(driver, node string) (all []resourcev1.ResourceSlice) {
	d.Helper()
	list, err := d.admin.ResourceV1().ResourceSlices().List(d.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node + ",spec.driver=" + driver})
	if err != nil {
		d.Fatal(err)
	}
	return list.Items
}

// poolWatch watches slices like the scheduler. It measures how long each pool
// is incomplete, and which event completes it.
type poolWatch struct {
	t *testing.T

	mu         sync.Mutex
	slices     map[string]*resourcev1.ResourceSlice
	since      map[string]time.Time // the start of the incomplete period
	incomplete map[string]time.Duration
	byDelete   []string
	removed    int
}

func watchPools(t *testing.T, client kubernetes.Interface) *poolWatch {
	w, err := client.ResourceV1().ResourceSlices().Watch(t.Context(), metav1.ListOptions{TimeoutSeconds: new(int64(3600))})
	if err != nil {
		t.Fatal(err)
	}
	p := &poolWatch{t: t, slices: map[string]*resourcev1.ResourceSlice{}, since: map[string]time.Time{}, incomplete: map[string]time.Duration{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range w.ResultChan() {
			if s, ok := event.Object.(*resourcev1.ResourceSlice); ok {
				p.see(event.Type, s)
			}
		}
	}()
	t.Cleanup(func() {
		w.Stop()
		<-done
	})
	return p
}

func (p *poolWatch) see(event watch.EventType, s *resourcev1.ResourceSlice) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pool := s.Spec.Driver + "/" + s.Spec.Pool.Name
	if event == watch.Deleted {
		delete(p.slices, s.Name)
		p.removed++
	} else {
		p.slices[s.Name] = s
	}
	top, n, count := int64(-1), int64(0), int64(0)
	for _, other := range p.slices {
		if other.Spec.Driver+"/"+other.Spec.Pool.Name != pool {
			continue
		}
		if g := other.Spec.Pool.Generation; g > top {
			top, n, count = g, 0, other.Spec.Pool.ResourceSliceCount
		}
		if other.Spec.Pool.Generation == top {
			n++
		}
	}
	begin, was := p.since[pool]
	switch complete := n == count; {
	case !complete && !was:
		p.since[pool] = time.Now()
	case complete && was:
		p.incomplete[pool] += time.Since(begin)
		delete(p.since, pool)
		if event == watch.Deleted && n > 0 {
			p.byDelete = append(p.byDelete, pool)
		}
	}
}

// window returns the time for which a pool was incomplete since the last call. It waits
// until the watch has seen the pool complete.
func (d *dra) window(driver, node string) (total time.Duration) {
	d.Helper()
	p, pool := d.consumer, driver+"/"+node
	d.eventually("the watch to see pool "+pool+" complete", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		if _, open := p.since[pool]; open {
			return false
		}
		total = p.incomplete[pool]
		delete(p.incomplete, pool)
		return true
	})
	return total
}

func (p *poolWatch) deletes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.removed
	p.removed = 0
	return n
}

// TestResourceSlice tests the package with the real scheduler, API server,
// garbage collector and node authorizer.
func TestResourceSlice(t *testing.T) {
	busy(t)
	// API servers before 1.36 drop taints by default, and that of 1.34 doesn't know
	// the effect None.
	var o harness.Options
	taints := isAtLeast(shared.Cluster(t), "1.35")
	if taints {
		o.FeatureGates = map[string]bool{"DRADeviceTaints": true}
	}
	d := startDRA(t, o)
	exact := resourcev1.DeviceAllocationModeExactCount
	one := d.publish("dra-1", nil)
	two := d.publish("dra-2", nil)

	// A published device can be allocated.
	one.set(gpuDriver, resourceslice.Pool{Devices: []resourcev1.Device{gpu(0, "a")}})
	pod := d.claim(gpuDriver, "", "", exact)
	if node, devices := d.scheduled(pod); node != "dra-1" || len(devices) != 1 || devices[0] != "gpu.example.com/dra-1/gpu-00000" {
		t.Errorf("pod on %s with %v", node, devices)
	}
	d.finish(pod)

	// Pods get devices from a pool of 10,000 while two of the devices, in
	// different slices, change continuously.
	all := gpusFrom(0, 10_000, "b")
	two.set(gpuDriver, resourceslice.Pool{Devices: all})
	t.Logf("10,000 devices: %d writes in %v, incomplete for %v", two.last().Writes, two.last().Latency, d.window(gpuDriver, "dra-2"))
	pod = d.claim(gpuDriver, "dra-2", "", exact)
	d.scheduled(pod) // the scheduler has seen the whole pool
	d.finish(pod)
	for i := range 20 {
		all[i], all[5000+i] = gpu(i, fmt.Sprint("c", i)), gpu(5000+i, fmt.Sprint("c", i))
		two.set(gpuDriver, resourceslice.Pool{Devices: all})
		if writes := two.last().Writes; writes != 2 {
			t.Errorf("two devices changed: %d writes", writes)
		}
		pod := d.claim(gpuDriver, "dra-2", "", exact)
		d.scheduled(pod)
		if failed := d.failedScheduling(pod); len(failed) > 0 {
			t.Errorf("pod %s: %v", pod, failed)
		}
		d.finish(pod)
	}
	if w := d.window(gpuDriver, "dra-2"); w != 0 {
		t.Errorf("the pool was incomplete for %v", w)
	}

	d.allModeDuringChanges(one, two)
	if taints {
		d.bump(two, all)
		d.taints(one)
		d.crash(one)
	}
	d.nodeAnew(one)

	// A withdrawn device cannot be allocated.
	if err := one.Withdraw(t.Context()); err != nil {
		t.Error(err)
	}
	if n := len(d.slicesOf(gpuDriver, "dra-1")) + len(d.slicesOf(allDriver, "dra-1")); n != 0 {
		t.Errorf("%d slices are left", n)
	}
	pod = d.claim(gpuDriver, "dra-1", "", exact)
	if reason, message := d.unscheduled(pod); reason != corev1.PodReasonUnschedulable || !strings.Contains(message, "cannot allocate all claims") {
		t.Errorf("%s: %s", reason, message)
	}
	for _, p := range []*publisher{one, two} {
		if errs := p.reported(); len(errs) != 0 {
			t.Errorf("publisher of %s reported %v", p.node, errs)
		}
	}
	if len(d.consumer.byDelete) != 0 {
		t.Errorf("pools became complete by a delete: %v", d.consumer.byDelete)
	}
}

// allModeDuringChanges checks that a Pod that wants all devices of one node can
// be scheduled while another node's devices change.
func (d *dra) allModeDuringChanges(one, two *publisher) {
	d.Helper()
	one.set(allDriver, resourceslice.Pool{Devices: gpusFrom(0, 2, "mine")})
	changing := gpusFrom(0, 640, "a")
	two.set(allDriver, resourceslice.Pool{Devices: changing})
	d.window(allDriver, "dra-2")
	mine := `device.attributes["all.example.com"].model == "mine"`
	// When this pod is scheduled, the scheduler has seen both pools.
	pod := d.claim(allDriver, "", mine, resourcev1.DeviceAllocationModeAll)
	d.scheduled(pod)
	d.finish(pod)
	ctx, cancel := context.WithCancel(d.Context())
	done := make(chan int)
	go func() {
		id := resourceslice.PoolID{Driver: allDriver, Name: "dra-2"}
		n := 0
		for ; ctx.Err() == nil && n < 400; n++ {
			for slice := range 4 {
				i := slice*160 + n%64
				changing[i] = gpu(i, fmt.Sprint("m", n))
			}
			if two.Set(id, resourceslice.Pool{Devices: changing}) != nil || two.Wait(ctx, id) != nil {
				break
			}
		}
		done <- n
	}()
	for range 10 {
		pod := d.claim(allDriver, "", mine, resourcev1.DeviceAllocationModeAll)
		if node, devices := d.scheduled(pod); node != "dra-1" || len(devices) != 2 {
			d.Errorf("pod on %s with %v", node, devices)
		}
		for _, message := range d.failedScheduling(pod) {
			d.Errorf("pod %s: %s", pod, message)
		}
		d.finish(pod)
	}
	cancel()
	if n := <-done; n < 20 {
		d.Errorf("only %d changes meanwhile", n)
	}
	if w := d.window(allDriver, "dra-2"); w != 0 {
		d.Errorf("the pool was incomplete for %v", w)
	}
}

// bump changes the number of slices, and checks that the write that completes
// the pool wakes the Pod that waits for the new device.
func (d *dra) bump(two *publisher, all []resourcev1.Device) {
	d.Helper()
	for i := range all[:157] { // full: each of 157 slices has a device with a taint
		all[i*64%len(all)].Taints = []resourcev1.DeviceTaint{{Key: "example.com/t", Effect: resourcev1.DeviceTaintEffectNone}}
	}
	two.set(gpuDriver, resourceslice.Pool{Devices: all})
	d.window(gpuDriver, "dra-2")
	pod := d.claim(gpuDriver, "dra-2", `device.attributes["gpu.example.com"].model == "wanted"`, resourcev1.DeviceAllocationModeExactCount)
	d.unscheduled(pod)
	more := slices.Clone(all)
	for i := range 200 {
		device := gpu(20_000+i, "wanted")
		device.Taints = []resourcev1.DeviceTaint{{Key: "example.com/t", Effect: resourcev1.DeviceTaintEffectNone}}
		more = append(more, device)
	}
	two.set(gpuDriver, resourceslice.Pool{Devices: more})
	published := time.Now()
	p := two.last()
	d.scheduled(pod)
	took := time.Since(published)
	d.Logf("a switch of %d slices: %d writes in %v, incomplete for %v; the waiting pod was scheduled %v later", p.Slices, p.Writes, p.Latency, d.window(gpuDriver, "dra-2"), took)
	if p.Window == 0 {
		d.Error("the number of slices did not change")
	}
	if took > 10*time.Second {
		d.Errorf("the waiting pod was scheduled after %v", took)
	}
	d.finish(pod)
}

// taints checks that a tainted device is avoided, that a removed device is not
// allocated, and that a re-added one is.
func (d *dra) taints(one *publisher) {
	d.Helper()
	exact := resourcev1.DeviceAllocationModeExactCount
	devices := gpusFrom(0, 2, "a")
	devices[0].Taints = []resourcev1.DeviceTaint{{Key: "example.com/broken", Effect: resourcev1.DeviceTaintEffectNoSchedule}}
	one.set(gpuDriver, resourceslice.Pool{Devices: devices})
	pod := d.claim(gpuDriver, "dra-1", "", exact)
	if _, got := d.scheduled(pod); got[0] != "gpu.example.com/dra-1/gpu-00001" {
		d.Errorf("pod with %v, the other one has a taint", got)
	}
	waiting := d.claim(gpuDriver, "dra-1", "", exact)
	d.unscheduled(waiting)
	d.finish(pod)
	d.scheduled(waiting)
	d.finish(waiting)
	one.set(gpuDriver, resourceslice.Pool{})
	waiting = d.claim(gpuDriver, "dra-1", "", exact)
	d.unscheduled(waiting)
	one.set(gpuDriver, resourceslice.Pool{Devices: devices[1:]})
	begin := time.Now()
	d.scheduled(waiting)
	d.Logf("a pod that waited for a device was scheduled %v after it was published", time.Since(begin))
	d.finish(waiting)
}

// dying passes a number of writes and then none, as if the process had died.
type dying struct {
	http.RoundTripper
	left *atomic.Int64
}

var errDead = errors.New("the process is gone")

func (r dying) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodGet && r.left.Add(-1) < 0 {
		return nil, errDead
	}
	return r.RoundTripper.RoundTrip(req)
}

// crash simulates a process that dies in the middle of a switch. The next
// process makes the remaining writes, and deletes nothing.
func (d *dra) crash(one *publisher) {
	d.Helper()
	full := func(n int) resourceslice.Pool {
		devices := gpusFrom(0, n, "a")
		for i := range devices {
			devices[i].Taints = []resourcev1.DeviceTaint{{Key: "example.com/t", Effect: resourcev1.DeviceTaintEffectNone}}
		}
		return resourceslice.Pool{Devices: devices}
	}
	one.set(allDriver, full(10*64))
	before := len(d.slicesOf(allDriver, "dra-1"))
	after := before + 1 + (before+1+7)/8 // one more slice, and one eighth spare
	one.stop()
	d.consumer.deletes()

	left := new(atomic.Int64)
	left.Store(5)
	cfg := d.cluster.NodeConfig(d.T, "dra-1")
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { return dying{rt, left} })
	dead := d.publish("dra-1", cfg)
	id := resourceslice.PoolID{Driver: allDriver, Name: "dra-1"}
	if err := dead.Set(id, full((before+1)*64)); err != nil {
		d.Fatal(err)
	}
	d.eventually("the process to die", func() bool { return left.Load() < 0 })
	dead.stop()

	next := d.publish("dra-1", nil)
	if err := next.Set(resourceslice.PoolID{Driver: gpuDriver, Name: "dra-1"}, resourceslice.Pool{Devices: gpusFrom(1, 2, "a")}); err != nil {
		d.Fatal(err)
	}
	next.set(allDriver, full((before+1)*64))
	slices := d.slicesOf(allDriver, "dra-1")
	// The dead process made five writes, and one write of the next is for the other pool.
	writes := int(next.writes.Load())
	d.Logf("%d writes after the restart, %d would do", writes, after-5+1)
	if writes > after-5+2 || len(slices) != after {
		d.Errorf("%d writes after the restart, %d slices, want %d at most and %d", writes, len(slices), after-5+2, after)
	}
	if n := d.consumer.deletes(); n != 0 {
		d.Errorf("%d slices were deleted", n)
	}
	*one = publisher{Controller: next.Controller, d: d, node: "dra-1", stop: next.stop}
}

// nodeAnew deletes and re-creates the Node. The slices get its new UID, and the
// garbage collector leaves them.
func (d *dra) nodeAnew(one *publisher) {
	d.Helper()
	if err := d.admin.CoreV1().Nodes().Delete(d.Context(), "dra-1", metav1.DeleteOptions{}); err != nil {
		d.Fatal(err)
	}
	d.eventually("the garbage collector", func() bool { return len(d.slicesOf(allDriver, "dra-1")) == 0 })
	node := d.createNode("dra-1")
	d.eventually("slices that the new Node owns", func() bool {
		slices := d.slicesOf(allDriver, "dra-1")
		for _, s := range slices {
			if len(s.OwnerReferences) != 1 || s.OwnerReferences[0].UID != node.UID {
				return false
			}
		}
		return len(slices) > 0 && len(slices) == int(slices[0].Spec.Pool.ResourceSliceCount)
	})
	d.consumer.deletes()
	time.Sleep(5 * time.Second) // in which a garbage collector would delete them again
	if n := d.consumer.deletes(); n != 0 {
		d.Errorf("%d slices were deleted again", n)
	}
}
