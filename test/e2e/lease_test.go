// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/test/e2e/harness"
)

// createReadyNode creates a Node that is Ready, like a kubelet. From then on
// its lease is its only heartbeat.
func createReadyNode(t *testing.T, client kubernetes.Interface, name string) *corev1.Node {
	t.Helper()
	now := metav1.Now()
	node, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Test", LastHeartbeatTime: now, LastTransitionTime: now,
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	return node
}

// leaseClient returns a client for heartbeats with its own user agent in the
// audit log.
func leaseClient(t *testing.T, config *rest.Config, agent string) kubernetes.Interface {
	t.Helper()
	config = rest.CopyConfig(config)
	config.UserAgent = agent
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// runLease runs a controller until the returned function is called or the test
// ends.
func runLease(t *testing.T, c *lease.Controller) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop = func() {
		if ctx.Err() != nil {
			return
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// by returns the requests of a user agent in order, as "get 404".
func by(t *testing.T, cluster *harness.Cluster, agent string) (calls []string) {
	t.Helper()
	for _, e := range cluster.AuditEvents(t) {
		if e.UserAgent == agent {
			calls = append(calls, fmt.Sprintf("%s %s/%s %d", e.Verb, e.Resource, e.Name, e.Code))
		}
	}
	return calls
}

// TestLease checks the requests with a node's credentials: one PUT per renewal
// and nothing else, as long as the Node exists.
func TestLease(t *testing.T) {
	quiet(t)
	const name, agent, interval = "lease-1", "kubewright-e2e-lease", 3 * time.Second
	cluster := shared.Cluster(t)
	admin := kubernetes.NewForConfigOrDie(cluster.AdminConfig())
	node := createReadyNode(t, admin, name)

	// An informer's view of the Node with the same credentials.
	nodes := cache.NewSharedIndexInformerWithOptions(
		cache.NewListWatchFromClient(leaseClient(t, cluster.NodeConfig(t, name), "kubewright-e2e-informer").CoreV1().RESTClient(),
			"nodes", metav1.NamespaceAll, fields.OneTermEqualSelector(metav1.ObjectNameField, name)),
		&corev1.Node{}, cache.SharedIndexInformerOptions{})
	go nodes.RunWithContext(t.Context())
	if !cache.WaitForCacheSync(t.Context().Done(), nodes.HasSynced) {
		t.Fatal("the cache of the Node is not synced")
	}

	var renewals atomic.Int32
	phases := make(chan lease.Phase, 100)
	c, err := lease.New(lease.Config{
		Client:   leaseClient(t, cluster.NodeConfig(t, name), agent).CoordinationV1(),
		NodeName: name,
		Owner:    lease.NodeOwner(storeGetter{nodes.GetStore()}),
		Duration: 4 * interval,
		// Its default is an interval, which a request may take on a busy machine.
		CallTimeout: 4 * interval,
		Hooks: lease.Hooks{
			Renewed:      func(lease.Renewed) { renewals.Add(1) },
			PhaseChanged: func(p lease.PhaseChanged) { phases <- p.To },
		},
		ErrorHandler: func(_ context.Context, err error, msg string) { t.Errorf("%s: %v", msg, err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	handler := func(any) { c.Trigger(name) }
	if _, err := nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: handler, DeleteFunc: handler}); err != nil {
		t.Fatal(err)
	}
	stop := runLease(t, c)
	awaitLeaseRenewals(t, admin, name, node, 6)
	if got := awaitPhase(t, phases); got != lease.PhaseHeld {
		t.Fatalf("phase %v, want Held", got)
	}

	// Delete the Node. The garbage collector deletes the lease, and the
	// controller sends no further request.
	if err := admin.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := awaitPhase(t, phases); got != lease.PhaseNoOwner {
		t.Fatalf("phase %v after the Node was deleted, want NoOwner", got)
	}
	awaitLeaseGone(t, admin, name)
	calls := by(t, cluster, agent)
	want := []string{fmt.Sprintf("get leases/%s 404", name), fmt.Sprintf("create leases/%s 201", name)}
	for range renewals.Load() - 1 {
		want = append(want, fmt.Sprintf("update leases/%s 200", name))
	}
	if !slices.Equal(calls, want) {
		t.Errorf("the requests of %d renewals are %q", renewals.Load(), calls)
	}

	// Create the Node again. The lease is created too, with the new owner.
	node = createReadyNode(t, admin, name)
	awaitLeaseRenewals(t, admin, name, node, 3)
	stop()
	between := by(t, cluster, agent)[len(calls):]
	if len(between) < 2 || between[0] != want[0] || between[1] != want[1] {
		t.Errorf("the requests after the Node is back are %q", between)
	}
	// The API server may record later the renewal that Run has cancelled, if any.
	after := by(t, cluster, agent)[len(calls)+len(between):]
	if len(after) > 1 || len(after) == 1 && !strings.HasPrefix(after[0], "update leases/"+name+" ") {
		t.Errorf("requests after Run has returned: %q", after)
	}
}

// storeGetter is a lease.NodeGetter for the store of an informer.
type storeGetter struct{ cache.Store }

func (s storeGetter) Get(name string) (*corev1.Node, error) {
	obj, ok, err := s.GetByKey(name)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
	}
	return obj.(*corev1.Node), nil
}

func awaitPhase(t *testing.T, phases <-chan lease.Phase) lease.Phase {
	t.Helper()
	select {
	case phase := <-phases:
		return phase
	case <-time.After(30 * time.Second):
		t.Fatal("the phase has not changed for 30 s")
		return lease.PhaseStopped
	}
}

func awaitLeaseGone(t *testing.T, admin kubernetes.Interface, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	w, err := admin.CoordinationV1().Leases(corev1.NamespaceNodeLease).Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	_, err = admin.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, name, metav1.GetOptions{})
	for !apierrors.IsNotFound(err) {
		if _, ok := <-w.ResultChan(); !ok {
			t.Fatalf("the lease is still there: %v", err)
		}
		_, err = admin.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, name, metav1.GetOptions{})
	}
}

// TestLeaseOfAnotherNode checks the message for mixed-up node names or
// credentials against the real API server's error text.
func TestLeaseOfAnotherNode(t *testing.T) {
	quiet(t)
	cluster := shared.Cluster(t)
	refused := make(chan error, 10)
	c, err := lease.New(lease.Config{
		Client:       leaseClient(t, cluster.NodeConfig(t, "lease-2"), "kubewright-e2e-wrong").CoordinationV1(),
		NodeName:     "lease-3",
		Owner:        lease.NoOwner,
		ErrorHandler: func(_ context.Context, err error, _ string) { refused <- err },
	})
	if err != nil {
		t.Fatal(err)
	}
	runLease(t, c)
	select {
	case err := <-refused:
		wrong, ok := errors.AsType[*lease.IdentityError](err)
		if !ok || wrong.Identity != "system:node:lease-2" || wrong.NodeName != "lease-3" {
			t.Errorf("reported %#v: %v", err, err)
		}
		t.Log(err)
	case <-time.After(30 * time.Second):
		t.Fatal("nothing was reported")
	}
}

// TestLeaseShutdownPolicies checks the preconditions of a release on the real
// API server: the controller's own lease is released, a lease that another
// client has taken is not.
func TestLeaseShutdownPolicies(t *testing.T) {
	quiet(t)
	cluster := shared.Cluster(t)
	admin := kubernetes.NewForConfigOrDie(cluster.AdminConfig())
	leases := admin.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	for i, policy := range []lease.ShutdownPolicy{lease.ShutdownLeave, lease.ShutdownDelete, lease.ShutdownExpire} {
		for _, stolen := range []bool{false, true} {
			name := fmt.Sprintf("lease-shutdown-%d-%v", i, stolen)
			node := createReadyNode(t, admin, name)
			c, err := lease.New(lease.Config{
				Client:   leaseClient(t, cluster.NodeConfig(t, name), name).CoordinationV1(),
				NodeName: name,
				Owner: func(context.Context, string) (metav1.OwnerReference, error) {
					return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: name, UID: node.UID}, nil
				},
				OnShutdown:   policy,
				ErrorHandler: func(_ context.Context, err error, msg string) { t.Errorf("%s: %v", msg, err) },
			})
			if err != nil {
				t.Fatal(err)
			}
			stop := runLease(t, c)
			<-c.Ready().Done()
			if stolen {
				if _, err := leases.Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"holderIdentity":"thief"}}`), metav1.PatchOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			stop()
			l, err := leases.Get(t.Context(), name, metav1.GetOptions{})
			switch {
			case stolen:
				if err != nil || *l.Spec.HolderIdentity != "thief" {
					t.Errorf("%v: the lease of another is %v, %v", policy, l, err)
				}
			case policy == lease.ShutdownDelete:
				if !apierrors.IsNotFound(err) {
					t.Errorf("%v: lease is %v, %v", policy, l, err)
				}
			case policy == lease.ShutdownExpire:
				if err != nil || l.Spec.HolderIdentity != nil || *l.Spec.LeaseDurationSeconds != 1 {
					t.Errorf("%v: lease is %v, %v", policy, l, err)
				}
			default:
				if err != nil || *l.Spec.HolderIdentity != name {
					t.Errorf("%v: lease is %v, %v", policy, l, err)
				}
			}
		}
	}
}

// TestLeaseKeepsNodeReady checks the purpose of the package. With a short grace
// period, kube-controller-manager never marks the node Unknown while its
// process runs and API server outages stay within the bound. It always does if
// the process is stopped.
func TestLeaseKeepsNodeReady(t *testing.T) {
	quiet(t)
	const name, grace = "lease-ready", 20 * time.Second
	cluster := ownCluster(t, harness.Options{ExtraArgs: map[string][]string{
		harness.ControllerManager: {"--node-monitor-grace-period=" + grace.String(), "--node-monitor-period=1s"},
	}})
	admin := kubernetes.NewForConfigOrDie(cluster.AdminConfig())
	binary := buildExample(t, "lease") // before the grace period begins
	node := createReadyNode(t, admin, name)
	// Renewals are 2 s apart, a call may take 2 s, and so may a backoff. The
	// API server may be down for the rest of the grace period, 14 s.
	p := startBinary(t, binary, "--kubeconfig="+cluster.NodeKubeconfig(t, name), "--node-name="+name, "--lease-duration=8s")
	awaitLeaseRenewals(t, admin, name, node, 2)
	verdicts := watchReady(t, cluster.AdminConfig(), name)

	for range 2 {
		began := time.Now()
		cluster.Restart(t, harness.APIServer)
		took := time.Since(began)
		late := took > grace-6*time.Second
		if late {
			t.Logf("the API server was away for %v: no promise is kept or broken", took)
		}
		// Long enough for kube-controller-manager to notice missed renewals.
		last := corev1.ConditionTrue
		for noticed := time.After(grace + 5*time.Second); noticed != nil; {
			select {
			case last = <-verdicts:
				if last != corev1.ConditionTrue && !late {
					t.Fatalf("Ready is %s after a restart of the API server that took %v", last, took)
				}
			case <-noticed:
				noticed = nil
			}
		}
		if last != corev1.ConditionTrue {
			// Only a kubelet would repair this.
			patch := `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"Test"}]}}`
			if _, err := admin.CoreV1().Nodes().Patch(t.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
				t.Fatal(err)
			}
			if status := <-verdicts; status != corev1.ConditionTrue {
				t.Fatalf("Ready is %s after it was repaired", status)
			}
		}
	}
	signal := func(s syscall.Signal) {
		if err := p.cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	stopped := time.Now()
	for {
		select {
		case status := <-verdicts:
			if status != corev1.ConditionUnknown {
				continue
			}
		case <-time.After(2 * grace):
			t.Error("the node is still Ready although its process has stood still for twice the grace period")
		}
		break
	}
	if took := time.Since(stopped); took < grace-3*time.Second {
		t.Errorf("Unknown %v after the process was stopped, less than the grace period", took)
	}
	signal(syscall.SIGCONT)
	p.stop()
}

// watchReady reports the status of the Ready condition whenever it changes,
// across restarts of the API server.
func watchReady(t *testing.T, config *rest.Config, name string) <-chan corev1.ConditionStatus {
	t.Helper()
	client := leaseClient(t, config, "kubewright-e2e-watch")
	nodes := cache.NewSharedIndexInformerWithOptions(
		cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", metav1.NamespaceAll, fields.OneTermEqualSelector(metav1.ObjectNameField, name)),
		&corev1.Node{}, cache.SharedIndexInformerOptions{})
	verdicts := make(chan corev1.ConditionStatus, 100)
	last := corev1.ConditionTrue
	see := func(obj any) {
		if status := condition(obj.(*corev1.Node), corev1.NodeReady).Status; status != last {
			last = status
			verdicts <- status
		}
	}
	if _, err := nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, obj any) { see(obj) }}); err != nil {
		t.Fatal(err)
	}
	go nodes.RunWithContext(t.Context())
	return verdicts
}
