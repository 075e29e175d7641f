// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	goruntime "runtime"
	"syscall"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	componenthelpers "k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	kwok "sigs.k8s.io/kwok/pkg/kwok/controllers"

	"github.com/kubewright/kubewright/lease"
)

const (
	duration = 40 * time.Second
	interval = 10 * time.Second
)

// figures are the measurements that a client process makes of itself.
type figures struct {
	Heap, Stack uint64 // bytes, after a collection
	Goroutines  int
	CPU         time.Duration
}

func measure() figures {
	goruntime.GC()
	goruntime.GC() // the first collection only queues finalizers and sweeps
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage) // can't fail for the calling process
	return figures{m.HeapAlloc, m.StackInuse, goruntime.NumGoroutine(), time.Duration(usage.Utime.Nano() + usage.Stime.Nano())}
}

// keep runs one client process. It starts the peer with the given number of
// nodes, and prints its figures for each line of input.
func keep(peer string) error {
	var nodes int
	var cert []byte
	if _, err := fmt.Sscan(os.Getenv("BENCH_NODES"), &nodes); err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(os.Getenv("BENCH_CERT")), &cert); err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host:            os.Getenv("BENCH_URL"),
		QPS:             -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})},
		// Protobuf, which all three use in production.
		ContentConfig: rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf", AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json"},
	})
	if err != nil {
		return err
	}
	names := make([]string, nodes)
	for i := range names {
		names[i] = fmt.Sprintf("virtual-node-%05d.example.internal", i)
	}
	answer := json.NewEncoder(os.Stdout)
	if err := answer.Encode(measure()); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := peers[peer](ctx, client, names); err != nil {
		return err
	}
	var line string
	for {
		if _, err := fmt.Scanln(&line); err != nil {
			return nil // the benchmark has ended
		}
		if err := answer.Encode(measure()); err != nil {
			return err
		}
	}
}

// peers start to renew the leases of names until ctx is done.
var peers = map[string]func(ctx context.Context, client kubernetes.Interface, names []string) error{
	"kubewright":        startKubewright,
	"component-helpers": startComponentHelpers,
	"kwok":              startKwok,
}

// owner invents a Node for each lease, so that all three clients send an owner.
func owner(name string) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID("10000000-0000-4000-8000-" + name[len("virtual-node-"):][:5] + "0000000")}
}

func startKubewright(ctx context.Context, client kubernetes.Interface, names []string) error {
	controller, err := lease.New(lease.Config{
		Client: client.CoordinationV1(),
		Fleet:  true,
		Owner: func(_ context.Context, name string) (metav1.OwnerReference, error) {
			return owner(name), nil
		},
	})
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := controller.Add(name); err != nil {
			return err
		}
	}
	go controller.Run(ctx)
	return nil
}

func startComponentHelpers(ctx context.Context, client kubernetes.Interface, names []string) error {
	for _, name := range names {
		setOwner := func(l *coordinationv1.Lease) error {
			l.OwnerReferences = []metav1.OwnerReference{owner(name)}
			return nil
		}
		controller := componenthelpers.NewController(clock.RealClock{}, client, name, int32(duration.Seconds()), nil, interval, name, corev1.NamespaceNodeLease, setOwner)
		go controller.Run(ctx)
	}
	return nil
}

// startKwok starts kwok's controller like kwok does: with four workers, and
// with leases from an informer.
func startKwok(ctx context.Context, client kubernetes.Interface, names []string) error {
	lw := cache.NewListWatchFromClient(client.CoordinationV1().RESTClient(), "leases", corev1.NamespaceNodeLease, fields.Everything())
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{ListerWatcher: lw, ObjectType: &coordinationv1.Lease{}, Handler: cache.ResourceEventHandlerFuncs{}})
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return ctx.Err()
	}
	controller, err := kwok.NewNodeLeaseController(kwok.NodeLeaseControllerConfig{
		HolderIdentity:       "kwok",
		TypedClient:          client,
		LeaseDurationSeconds: uint(duration.Seconds()),
		LeaseParallelism:     4, // kwok's default
		GetLease: func(name string) (*coordinationv1.Lease, bool) {
			object, ok, err := store.GetByKey(corev1.NamespaceNodeLease + "/" + name)
			if !ok || err != nil {
				return nil, false
			}
			return object.(*coordinationv1.Lease), true
		},
		RenewInterval:       interval,
		RenewIntervalJitter: 0.04,
		MutateLeaseFunc: func(l *coordinationv1.Lease) error {
			l.OwnerReferences = []metav1.OwnerReference{owner(l.Name)}
			l.Spec.LeaseDurationSeconds = ptr.To(int32(duration.Seconds()))
			return nil
		},
	})
	if err != nil {
		return err
	}
	if err := controller.Start(ctx); err != nil {
		return err
	}
	for _, name := range names {
		controller.TryHold(name)
	}
	return nil
}
