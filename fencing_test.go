// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kubewright_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/testlog"
	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// A host runs the composition of doc.go for node n1. It has its own name and a
// cable to the API server that can be unplugged.
type host struct {
	*testlog.T
	name    string
	server  *apitest.Server
	backend *podsynctest.Backend

	mu     sync.Mutex
	cable  chan struct{} // closed while requests pass
	writes int           // except for those of the lease
	starts []string      // names of pods

	leases *lease.Controller
	kill   context.CancelFunc
	done   chan struct{}
}

func newHost(t *testlog.T, name string, server *apitest.Server, backend *podsynctest.Backend) *host {
	h := &host{T: t, name: name, server: server, backend: backend, cable: make(chan struct{})}
	close(h.cable)
	return h
}

// A wire is the transport of a host.
type wire struct {
	*host
	next http.RoundTripper
}

func (w wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	cable := w.cable
	w.mu.Unlock()
	select {
	case <-cable:
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if r.Method != http.MethodGet && !strings.Contains(r.URL.Path, "/leases") {
		w.mu.Lock()
		w.writes++
		w.mu.Unlock()
	}
	return w.next.RoundTrip(r)
}

// Start implements podsync.Provider, and records the pod.
func (p provider) Start(ctx context.Context, pod *corev1.Pod) (podsync.State, error) {
	p.mu.Lock()
	p.starts = append(p.starts, pod.Name)
	p.mu.Unlock()
	return p.Provider.Start(ctx, pod)
}

type provider struct {
	podsync.Provider
	*host
}

// run starts or restarts the host.
func (h *host) run() {
	config := h.server.Config(apitest.NodeUser("n1"))
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return wire{h, next} })
	client := kubernetes.NewForConfigOrDie(config)
	leases, err1 := lease.New(lease.Config{Client: client.CoordinationV1(), NodeName: "n1", Process: h.name})
	pods, err2 := podsync.New(podsync.Config{
		Client: client.CoreV1(), NodeName: "n1", Gate: leases.Holds,
		Provider: provider{h.backend.Connect(), h},
	})
	node, err3 := nodestatus.New(nodestatus.Config{
		Client: client.CoreV1(), NodeName: "n1", Lease: leases,
		HealthChecks: []nodestatus.HealthCheck{pods.CheckProvider},
	})
	if err := errors.Join(err1, err2, err3); err != nil {
		h.Fatal(err)
	}
	h.leases = leases
	ctx, cancel := context.WithCancel(h.Context())
	var group sync.WaitGroup
	for _, run := range []func(context.Context) error{leases.Run, node.Run, pods.Run} {
		group.Go(func() { _ = run(ctx) })
	}
	done := make(chan struct{})
	h.kill, h.done = cancel, done
	go func() { group.Wait(); close(done) }()
}

func (h *host) stop() { h.kill(); <-h.done }

func (h *host) setCable(whole bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if whole {
		close(h.cable)
	} else {
		h.cable = make(chan struct{})
	}
}

// acted returns the pods that the host has started and the number of its writes
// since the last call.
func (h *host) acted() (starts string, writes int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	starts, writes = strings.Join(h.starts, " "), h.writes
	h.starts, h.writes = nil, 0
	return starts, writes
}

func putPod(server *apitest.Server, name string) {
	server.Put(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "registry.example/c:1"}}},
	})
}

func TestOfTwoProcessesWithOneNodeNameOneActs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := testlog.New(t)
		server := apitest.New(apitest.Options{})
		backend := podsynctest.NewBackend(podsynctest.Options{})
		first, second := newHost(log, "host-1", server, backend), newHost(log, "host-2", server, backend)
		created := 0
		// passes creates a pod, lets time pass, and checks which host has
		// acted.
		passes := func(d time.Duration, want, waits *host) {
			t.Helper()
			created++
			name := fmt.Sprintf("pod-%d", created)
			putPod(server, name)
			for end := time.Now().Add(d); time.Now().Before(end); {
				time.Sleep(500 * time.Millisecond)
				synctest.Wait()
				if a, b := first.leases.Holds(t.Context(), "n1"), second.leases; a == nil && b != nil && b.Holds(t.Context(), "n1") == nil {
					t.Fatal("both hold the lease")
				}
			}
			if starts, writes := want.acted(); starts != name || writes == 0 {
				t.Errorf("%s: %s started %q with %d writes, want %s", name, want.name, starts, writes, name)
			}
			if starts, writes := waits.acted(); starts != "" || writes != 0 {
				t.Errorf("%s: %s started %q with %d writes, want nothing", name, waits.name, starts, writes)
			}
			if pod := apitest.Get[*corev1.Pod](server, "default", name); pod.Status.Phase != corev1.PodRunning {
				t.Errorf("%s is %s", name, pod.Status.Phase)
			}
		}

		first.run()
		passes(time.Minute, first, second)
		second.run()
		time.Sleep(time.Second)
		if starts, writes := second.acted(); starts != "" || writes != 1 {
			t.Errorf("the second has started %q with %d writes: want its attempt to register the Node, which exists", starts, writes)
		}
		passes(10*time.Minute, first, second)

		// The first host can no longer send, but still receives events.
		first.setCable(false)
		time.Sleep(45 * time.Second)
		passes(2*time.Minute, second, first)
		// It can send again, and leaves the pods and the Node alone.
		first.setCable(true)
		passes(10*time.Minute, second, first)

		// The second host dies. The first continues with its pods.
		second.stop()
		passes(time.Minute, first, second)

		// A restart continues at once.
		first.stop()
		first.run()
		passes(3*time.Second, first, second)
		first.stop()
		if n := len(backend.Held()); n != created {
			t.Errorf("%d instances of %d pods", n, created)
		}
		if ready := apitest.Get[*corev1.Node](server, "", "n1").Status.Conditions; len(ready) == 0 || ready[len(ready)-1].Status != corev1.ConditionTrue {
			t.Errorf("conditions are %+v", ready)
		}
	})
}
