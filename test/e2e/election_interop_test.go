// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/kubewright/kubewright/election/coordinator"
	"github.com/kubewright/kubewright/test/e2e/harness"
)

// legacy is client-go's elector with the usual timing.
type legacy struct {
	stop func()
	cut  *atomic.Bool
}

// legacy starts an elector for the rig's Lease, which releases the lease at its
// end if release is true. If it can't renew in time, it releases the lease
// before it stops its work, so two leaders are possible.
func (r *electionRig) legacy(name string, release bool) *legacy {
	client, cut := r.client(r.cluster.AdminConfig(), "kubewright-e2e-"+name)
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	var work sync.WaitGroup
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: r.lease.Namespace, Name: r.lease.Name},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: name},
		},
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		ReleaseOnCancel: release, Name: name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				work.Add(1)
				defer work.Done()
				term := r.begin(name, 0)
				<-ctx.Done()
				r.end(term)
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		r.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		elector.Run(ctx)
	}()
	l := &legacy{cut: cut, stop: sync.OnceFunc(func() {
		cancel()
		<-done
		work.Wait()
	})}
	r.Cleanup(l.stop)
	return l
}

// TestElectionUpgradeAndDowngrade replaces the replicas of a program that uses
// client-go's elector by replicas with a Candidate, one after the other, and
// back.
func TestElectionUpgradeAndDowngrade(t *testing.T) {
	quiet(t)
	r := newElectionRig(t, shared.Cluster(t), metav1.NamespaceDefault, "upgrade")
	cfg := r.cluster.AdminConfig()
	old := r.legacy("old", true)
	r.awaitLeader("old")
	a := r.stand("a", "1.31.0", false, cfg)
	b := r.stand("b", "1.31.0", false, cfg)

	// The old leader continues undisturbed: each candidate writes one record
	// and nothing else. It may conflict with the two other writers.
	const span = 20 * time.Second
	time.Sleep(span)
	if who, _ := r.leader(); who != "old" {
		t.Fatalf("%q leads", who)
	}
	for _, c := range []*contender{a, b} {
		if got := r.requests(c.agent, span+5*time.Second); got["update leases"] > 1 || got["patch leases"] > 0 {
			t.Errorf("%s sent %v while another led", c.name, got)
		}
	}

	old.stop()
	began := time.Now()
	for who := ""; who != "a" && who != "b"; who, _ = r.leader() {
		if time.Since(began) > time.Minute {
			t.Fatal("nobody took over")
		}
		time.Sleep(5 * time.Millisecond)
	}
	first, gap := r.leader()
	t.Logf("%s took over from client-go's elector after %v", first, gap)
	if gap > 3*time.Second { // it was released: a random delay, and the busy machine
		t.Errorf("nobody led for %v", gap)
	}

	// Downgrade: the old program stands by as long as a Candidate leads, and
	// takes over when the last of them has gone.
	again := r.legacy("again", false)
	time.Sleep(5 * time.Second)
	leader, other := a, b
	if first == "b" {
		leader, other = b, a
	}
	other.stop()
	leader.stop()
	r.awaitLeader("again")
	// An old leader that dies is replaced after its lease has expired.
	r.stand("c", "1.31.0", false, cfg)
	time.Sleep(3 * time.Second)
	died := time.Now()
	again.cut.Store(true)
	r.awaitLeader("c")
	// Its last renewal was up to 2 s earlier; its lease lasts 15 s.
	if took := time.Since(died); took < 10*time.Second || took > crashFailover {
		t.Errorf("%v until ours took over from a dead elector", took)
	}
	again.cut.Store(false)
}

// coordinatedCluster has the gate on and serves the API, so the API server
// elects.
var coordinatedCluster = harness.Options{
	Without: []string{harness.ControllerManager, harness.Scheduler}, Audit: true,
	FeatureGates:  map[string]bool{"CoordinatedLeaderElection": true},
	RuntimeConfig: map[string]bool{"coordination.k8s.io/v1beta1": true},
}

// TestElectionBuiltInController: the API server's controller elects candidates
// of this library.
func TestElectionBuiltInController(t *testing.T) {
	quiet(t)
	r := newElectionRig(t, ownCluster(t, coordinatedCluster), metav1.NamespaceDefault, "built-in")
	cfg := r.cluster.AdminConfig()
	a := r.stand("a", "1.31.0", true, cfg)
	r.awaitLeader("a")
	lease := r.awaitLease("coordinated", func(l *coordinationv1.Lease) bool { return l.Spec.Strategy != nil })
	if *lease.Spec.Strategy != coordinationv1.OldestEmulationVersion {
		t.Errorf("strategy %s", *lease.Spec.Strategy)
	}

	// A better candidate: the controller asks a to give way, and it does so
	// without a gap.
	time.Sleep(2 * time.Second)
	began := time.Now()
	c := r.stand("c", "1.30.0", true, cfg)
	gap := r.awaitLeader("c")
	t.Logf("a better candidate led %v after it came", time.Since(began))
	if gap > handOver {
		t.Errorf("nobody led for %v when a better candidate came", gap)
	}

	// Exit: the record is deleted, the lease is free, and the controller elects
	// a.
	c.stop()
	r.awaitLeader("a")
	candidates, err := r.admin.CoordinationV1beta1().LeaseCandidates(r.lease.Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(candidates.Items); n != 1 {
		t.Errorf("%d LeaseCandidates after an exit, want that of a", n)
	}

	// Loss of the network.
	b := r.stand("b", "1.31.0", true, cfg)
	time.Sleep(3 * time.Second)
	began = time.Now()
	a.cut.Store(true)
	r.awaitLeader("b")
	t.Logf("%v until another led", time.Since(began))

	// The steady-state cost. (The built-in controller prefers a to b, because a
	// is older; a would lead again if it came back.)
	time.Sleep(12 * time.Second)
	if got := r.requests(b.agent, 10*time.Second); got["update leases"] < 2 || got["update leases"] > 5 {
		t.Errorf("the leader sent %v in 10 s", got)
	}
	a.cut.Store(false)
}

// displace releases the Lease of the API server's controller on its behalf, and
// waits until that controller has ended. The controller writes its Lease every two
// seconds, and acquires it again if that comes just before our claim. Then the Lease is
// released again.
func displace(t *testing.T, cluster *harness.Cluster, ours ...string) *electionRig {
	t.Helper()
	r := newElectionRig(t, cluster, metav1.NamespaceSystem, coordinator.BuiltInLease)
	held := func(l *coordinationv1.Lease) bool { return holder(l) != "" }
	isOurs := func(l *coordinationv1.Lease) bool {
		return slices.ContainsFunc(ours, func(name string) bool { return heldBy(name)(l) })
	}
	r.awaitLease("held by the API server", held)
	time.Sleep(2 * time.Second) // until our candidate sees it
	for tries := 1; ; tries++ {
		cluster.Kubectl(t, "patch", "lease", "-n", r.lease.Namespace, r.lease.Name, "--type=merge", fmt.Sprintf(`-p={"spec":{"holderIdentity":"","leaseDurationSeconds":1,"acquireTime":%[1]q,"renewTime":%[1]q}}`, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")))
		lease := r.awaitLease("held again", held)
		if isOurs(lease) {
			break
		}
		if tries == 5 {
			t.Fatalf("the Lease was released %d times, and %s holds it", tries, holder(lease))
		}
	}
	time.Sleep(12 * time.Second) // client-go's elector keeps working for RenewDeadline
	return r
}

// TestElectionDisplacesBuiltInController: a Controller that holds the Lease of
// the API servers' controllers replaces them; they no longer write anything.
func TestElectionDisplacesBuiltInController(t *testing.T) {
	quiet(t)
	cluster := ownCluster(t, coordinatedCluster)
	applyManifests(t, cluster, "election-controller.yaml")
	r := newElectionRig(t, cluster, metav1.NamespaceDefault, "displaced")
	cfg := cluster.AdminConfig()
	const account = "system:serviceaccount:kubewright:election-controller"
	kubeconfig := cluster.ServiceAccountKubeconfig(t, "kubewright", "election-controller")
	binary := buildExample(t, "coordinator")
	one := startBinary(t, binary, "--kubeconfig="+kubeconfig, "--identity=one", "--displace")
	two := startBinary(t, binary, "--kubeconfig="+kubeconfig, "--identity=two", "--displace")

	own := displace(t, cluster, "one_", "two_")
	lease := own.awaitLease("held", func(l *coordinationv1.Lease) bool { return holder(l) != "" })
	leader, other := one, two
	if heldBy("two_")(lease) {
		leader, other = two, one
	}

	quiet := time.Now()
	r.stand("a", "1.31.0", true, cfg)
	r.awaitLeader("a")
	began := time.Now()
	c := r.stand("c", "1.30.0", true, cfg)
	gap := r.awaitLeader("c") // DefaultMinTenure after a began
	t.Logf("our Controller: a better candidate led %v after it came, with a gap of %v", time.Since(began), gap)

	// The Controller is highly available.
	leader.stop()
	own.awaitLease("held by the other", func(l *coordinationv1.Lease) bool { return holder(l) != holder(lease) && holder(l) != "" })
	if who, _ := r.leader(); who != "c" {
		t.Errorf("%q leads after the end of a coordinator", who)
	}
	time.Sleep(time.Second)
	c.stop()
	if gap := r.awaitLeader("a"); gap > 2*handOver {
		t.Errorf("nobody led for %v after an orderly exit", gap)
	}
	other.stop()

	for _, e := range cluster.AuditEvents(t) {
		switch {
		case e.Time.Before(quiet), e.APIGroup != "coordination.k8s.io":
		case e.User == "system:apiserver" && slices.Contains([]string{"create", "update", "patch", "delete"}, e.Verb) && e.Name != own.lease.Name && e.Namespace == r.lease.Namespace:
			t.Errorf("the built-in controller did %s %s %s", e.Verb, e.Resource, e.Name)
		case e.User == account && e.Code == 403:
			t.Errorf("the manifests do not allow %v", e)
		}
	}
}
