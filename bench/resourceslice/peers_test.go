// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	upstream "k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/resourceslice"
)

const (
	node   = "node-1"
	driver = "gpu.example.com"
)

// peer is a publisher of complete states.
type peer interface {
	start(t testing.TB, client kubernetes.Interface)
	set(devices []resourcev1.Device)
	stop()
}

var peers = map[string]func() peer{
	"kubewright": func() peer { return &ours{} },
	"upstream":   func() peer { return &theirs{synced: make(chan struct{}, 1)} },
}

// peerNames is the order of the tables.
var peerNames = []string{"kubewright", "upstream"}

type ours struct {
	shutdown time.Duration // 0 for the default

	t      testing.TB
	c      *resourceslice.Controller
	cancel context.CancelFunc
	done   chan error
}

func (o *ours) start(t testing.TB, client kubernetes.Interface) {
	c, err := resourceslice.New(resourceslice.Config{
		Client: client.ResourceV1(), NodeName: node, Driver: driver, Owner: resourceslice.NodeOwner(client.CoreV1().Nodes(), node),
		ShutdownTimeout: o.shutdown,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	o.t, o.c, o.cancel, o.done = t, c, cancel, make(chan error, 1)
	go func() { o.done <- c.Run(ctx) }()
}

func (o *ours) set(devices []resourcev1.Device) {
	if err := o.c.Set(resourceslice.PoolID{Driver: driver, Name: node}, resourceslice.Pool{Devices: devices}); err != nil {
		o.t.Fatal(err)
	}
}

func (o *ours) stop() {
	o.cancel()
	<-o.done
}

type theirs struct {
	c      *upstream.Controller
	synced chan struct{} // receives a token when a sync has ended
}

func (u *theirs) start(t testing.TB, client kubernetes.Interface) {
	queue := &notifyingQueue{
		TypedRateLimitingInterface: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
		done:                       u.synced,
	}
	c, err := upstream.StartController(context.Background(), upstream.Options{
		DriverName: driver, KubeClient: client, Owner: &upstream.Owner{APIVersion: "v1", Kind: "Node", Name: node}, Queue: queue,
		ErrorHandler: func(context.Context, error, string) {}, // the controller retries on its own
	})
	if err != nil {
		t.Fatal(err)
	}
	u.c = c
}

func (u *theirs) set(devices []resourcev1.Device) {
	var slices []upstream.Slice
	for len(devices) > 0 {
		n := min(128, len(devices))
		slices = append(slices, upstream.Slice{Devices: devices[:n]})
		devices = devices[n:]
	}
	u.c.Update(&upstream.DriverResources{Pools: map[string]upstream.Pool{node: {Slices: slices}}})
}

func (u *theirs) stop() { u.c.Stop() }

// notifyingQueue reports when an item was processed.
type notifyingQueue struct {
	workqueue.TypedRateLimitingInterface[string]
	done chan struct{}
}

// AddAfter adds a moment to d. The helper checks whether a given time is past,
// and requeues the item for that time. In virtual time it wakes exactly then,
// which is not past, and would requeue the item without end.
func (q *notifyingQueue) AddAfter(item string, d time.Duration) {
	q.TypedRateLimitingInterface.AddAfter(item, d+time.Microsecond)
}

func (q *notifyingQueue) Done(item string) {
	q.TypedRateLimitingInterface.Done(item)
	select {
	case q.done <- struct{}{}:
	default:
	}
}

// device returns a device with seven attributes and one capacity.
func device(i int, model string) resourcev1.Device {
	return resourcev1.Device{
		Name: fmt.Sprintf("gpu-%06d", i),
		Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
			"index":            {IntValue: new(int64(i))},
			"uuid":             {StringValue: new(fmt.Sprintf("GPU-%032x", i))},
			"productName":      {StringValue: new(model)},
			"brand":            {StringValue: new("Example")},
			"architecture":     {StringValue: new("Whatever")},
			"driverVersion":    {VersionValue: new("550.54.15")},
			"example.com/numa": {IntValue: new(int64(i % 2))},
		},
		Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}},
	}
}

func devices(n int) []resourcev1.Device {
	all := make([]resourcev1.Device, n)
	for i := range all {
		all[i] = device(i, "Example Accelerator 9000")
	}
	return all
}

// sent matches the requests that are counted.
var sent = apitest.Match{Resource: "resourceslices", Func: func(q apitest.Request) bool { return q.Verb != "watch" && q.Verb != "list" }}

func newServer() *apitest.Server {
	s := apitest.New(apitest.Options{})
	s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
	return s
}

var poolID = resourceslice.PoolID{Driver: driver, Name: node}
