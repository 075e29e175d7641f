// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/test/e2e/harness"
)

// electionRig is an election for one Lease, with its candidates.
type electionRig struct {
	*testing.T
	cluster *harness.Cluster
	admin   kubernetes.Interface
	lease   types.NamespacedName

	mu    sync.Mutex
	terms []*electionTerm
}

// electionTerm is a period in which a candidate did the work.
type electionTerm struct {
	who      string
	token    uint64
	from, to time.Time // to is zero while the term lasts
}

// newElectionRig creates a rig. At the end of the test it checks that there
// were never two leaders, that the tokens have grown, and that no other
// candidate took the Lease before it had expired.
func newElectionRig(t *testing.T, cluster *harness.Cluster, namespace, name string) *electionRig {
	r := &electionRig{
		T: t, cluster: cluster, admin: kubernetes.NewForConfigOrDie(cluster.AdminConfig()),
		lease: types.NamespacedName{Namespace: namespace, Name: name},
	}
	t.Cleanup(r.neverTwo)
	t.Cleanup(r.watchHolders())
	return r
}

func (r *electionRig) begin(who string, token uint64) *electionTerm {
	r.mu.Lock()
	defer r.mu.Unlock()
	term := &electionTerm{who: who, token: token, from: time.Now()}
	r.terms = append(r.terms, term)
	return term
}

func (r *electionRig) end(term *electionTerm) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if term.to.IsZero() {
		term.to = time.Now()
	}
}

// neverTwo checks that each term began after the previous one had ended.
func (r *electionRig) neverTwo() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, term := range r.terms[:max(0, len(r.terms)-1)] {
		next := r.terms[i+1]
		if term.to.IsZero() || next.from.Before(term.to) {
			r.Errorf("%s leads from %v while %s leads from %v to %v", next.who, next.from, term.who, term.from, term.to)
		}
		if next.token != 0 && term.token >= next.token {
			r.Errorf("token %d of %s follows %d of %s", next.token, next.who, term.token, term.who)
		}
	}
}

// leader returns the current leader, or "", and the gap before its term.
func (r *electionRig) leader() (who string, gap time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.terms) == 0 || !r.terms[len(r.terms)-1].to.IsZero() {
		return "", 0
	}
	last := r.terms[len(r.terms)-1]
	if len(r.terms) > 1 {
		gap = last.from.Sub(r.terms[len(r.terms)-2].to)
	}
	return last.who, gap
}

// awaitLeader waits until who leads, and returns the time without a leader
// before.
func (r *electionRig) awaitLeader(who string) time.Duration {
	r.Helper()
	deadline := time.Now().Add(90 * time.Second)
	for {
		leader, gap := r.leader()
		if leader == who {
			r.Logf("%s leads after a gap of %v", who, gap)
			return gap
		}
		if time.Now().After(deadline) {
			r.Fatalf("%q leads, not %s", leader, who)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// awaitLease waits until the Lease satisfies the condition.
func (r *electionRig) awaitLease(what string, condition func(*coordinationv1.Lease) bool) *coordinationv1.Lease {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), 90*time.Second)
	defer cancel()
	event, err := watchtools.UntilWithSync(ctx, r.listWatch(), &coordinationv1.Lease{}, nil, func(event watch.Event) (bool, error) {
		lease, ok := event.Object.(*coordinationv1.Lease)
		return ok && event.Type != watch.Deleted && condition(lease), nil
	})
	if err != nil {
		r.Fatalf("waiting for Lease %v to be %s: %v", r.lease, what, err)
	}
	return event.Object.(*coordinationv1.Lease)
}

// listWatch lists and watches only the Lease.
func (r *electionRig) listWatch() *cache.ListWatch {
	return cache.NewListWatchFromClient(r.admin.CoordinationV1().RESTClient(), "leases", r.lease.Namespace, fields.OneTermEqualSelector(metav1.ObjectNameField, r.lease.Name))
}

// holder returns the holder of a Lease, or "".
func holder(l *coordinationv1.Lease) string {
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// heldBy returns a condition that name holds the Lease. Identities have a
// random suffix.
func heldBy(name string) func(*coordinationv1.Lease) bool {
	return func(l *coordinationv1.Lease) bool { return strings.HasPrefix(holder(l), name) }
}

// wire forwards requests until it is cut, as if the machine had lost its
// network.
type wire struct {
	base http.RoundTripper
	cut  *atomic.Bool
}

func (w wire) RoundTrip(req *http.Request) (*http.Response, error) {
	if w.cut.Load() {
		<-req.Context().Done()
		return nil, req.Context().Err()
	}
	return w.base.RoundTrip(req)
}

// client returns a client with its own user agent in the audit log, and the
// switch that disconnects it.
func (r *electionRig) client(cfg *rest.Config, agent string) (*kubernetes.Clientset, *atomic.Bool) {
	cut := new(atomic.Bool)
	cfg = rest.CopyConfig(cfg)
	cfg.UserAgent = agent
	cfg.Wrap(func(base http.RoundTripper) http.RoundTripper { return wire{base, cut} })
	return kubernetes.NewForConfigOrDie(cfg), cut
}

// contender is a candidate in this process.
type contender struct {
	r     *electionRig
	name  string
	agent string
	stop  func() // ends it gracefully
	cut   *atomic.Bool

	mu   sync.Mutex
	errs []error
}

// stand starts a candidate. Its name is a prefix of its identity.
func (r *electionRig) stand(name, version string, native bool, cfg *rest.Config, change ...func(*election.Config)) *contender {
	r.Helper()
	c := &contender{r: r, name: name, agent: "kubewright-e2e-" + r.lease.Name + "-" + name}
	client, cut := r.client(cfg, c.agent)
	c.cut = cut
	config := election.Config{
		Client:   client.CoordinationV1(),
		Lease:    r.lease,
		Self:     election.Peer{Identity: name, BinaryVersion: version},
		Strategy: election.OldestEmulationVersion(),
		Timing:   election.Timing{MinTenure: 5 * time.Second},
		Lead: func(ctx context.Context, term election.Term) error {
			work := r.begin(name, term.Token())
			<-ctx.Done()
			r.end(work)
			return nil
		},
		ErrorHandler: func(_ context.Context, err error, _ string) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.errs = append(c.errs, err)
		},
	}
	if native {
		config.Registry = election.LeaseCandidates(client.CoordinationV1beta1())
	}
	for _, f := range change {
		f(&config)
	}
	candidate, err := election.New(config)
	if err != nil {
		r.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	done := make(chan error, 1)
	go func() { done <- candidate.Run(ctx) }()
	c.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.Errorf("%s: Run = %v", name, err)
		}
	})
	r.Cleanup(c.stop)
	return c
}

// reported waits for a reported error that matches.
func (c *contender) reported(match func(error) bool) error {
	c.r.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		c.mu.Lock()
		i := slices.IndexFunc(c.errs, match)
		if i >= 0 {
			defer c.mu.Unlock()
			return c.errs[i]
		}
		c.mu.Unlock()
		if time.Now().After(deadline) {
			c.r.Fatalf("%s reported nothing such, only %v", c.name, c.errs)
		}
	}
}

// requests counts the requests of an agent in the last span, with keys such as
// "update leases".
func (r *electionRig) requests(agent string, span time.Duration) map[string]int {
	r.Helper()
	since := time.Now().Add(-span)
	counts := map[string]int{}
	for _, e := range r.cluster.AuditEvents(r) {
		switch {
		case e.UserAgent != agent || !e.Time.After(since):
		case e.Code == http.StatusConflict:
			counts["conflict"]++
		default:
			counts[fmt.Sprintf("%s %s", e.Verb, e.Resource)]++
		}
	}
	return counts
}

// handOver bounds the gap when a leader hands the lease over. It takes
// milliseconds, but the machine is busy.
const handOver = time.Second

// crashFailover is the exported bound plus a margin for a busy machine.
var crashFailover = election.Timing{}.CrashFailover() + 2*time.Second

// TestElectionOnLease runs an election on a cluster with the defaults of
// Kubernetes: steady state, a better candidate, an exit, and a loss of the
// network.
func TestElectionOnLease(t *testing.T) {
	quiet(t)
	r := newElectionRig(t, shared.Cluster(t), metav1.NamespaceDefault, "on-lease")
	cfg := r.cluster.AdminConfig()
	a := r.stand("a", "1.31.0", false, cfg)
	r.awaitLeader("a")
	b := r.stand("b", "1.32.0", false, cfg)
	r.awaitLease("with the record of b", func(l *coordinationv1.Lease) bool {
		for _, value := range l.Annotations {
			if strings.Contains(value, `"id":"b_`) {
				return true
			}
		}
		return false
	})

	// The leader sends one PUT per renewal; the others send nothing.
	const span = 15 * time.Second
	time.Sleep(span + 2*time.Second)
	if got := r.requests(a.agent, span); got["update leases"] < 4 || got["update leases"] > 6 || len(got) > 1 {
		t.Errorf("the leader sent %v in %v", got, span)
	}
	if got := r.requests(b.agent, span); len(got) > 0 {
		t.Errorf("a standby sent %v in %v", got, span)
	}

	c := r.stand("c", "1.30.0", false, cfg) // the oldest candidate leads
	if gap := r.awaitLeader("c"); gap > handOver {
		t.Errorf("nobody led for %v when a better candidate came", gap)
	}
	lease := r.awaitLease("held by c", heldBy("c"))
	if lease.Spec.PreferredHolder != nil || lease.Spec.Strategy != nil {
		t.Errorf("fields that a server with the gate off drops: %+v", lease.Spec)
	}

	c.stop()
	if gap := r.awaitLeader("a"); gap > handOver {
		t.Errorf("nobody led for %v after an orderly exit", gap)
	}

	// When disconnected, the leader stops on its own before another candidate
	// begins.
	begin := time.Now()
	a.cut.Store(true)
	r.awaitLeader("b")
	if took := time.Since(begin); took > crashFailover {
		t.Errorf("%v until another led, at most %v", took, crashFailover)
	}
	before := *lease.Spec.LeaseTransitions
	if lease = r.awaitLease("held by b", heldBy("b")); *lease.Spec.LeaseTransitions != before+2 {
		t.Errorf("leaseTransitions %d after %d and two terms", *lease.Spec.LeaseTransitions, before)
	}
	a.cut.Store(false)
}

// TestElectionSharedWatch runs ten elections between two processes with one watch each. A
// process that is disconnected is replaced in all of them.
func TestElectionSharedWatch(t *testing.T) {
	quiet(t)
	cluster := shared.Cluster(t)
	cfg := cluster.AdminConfig()
	var rigs []*electionRig
	for i := range 10 {
		rigs = append(rigs, newElectionRig(t, cluster, metav1.NamespaceDefault, fmt.Sprint("shared-", i)))
	}
	cuts := map[string][]*atomic.Bool{}
	agents := map[string][]string{}
	for _, name := range []string{"a", "b"} {
		client, cut := rigs[0].client(cfg, "kubewright-e2e-shared-watch-"+name)
		watch, err := election.NewSharedWatch(client.CoordinationV1(), metav1.NamespaceDefault)
		if err != nil {
			t.Fatal(err)
		}
		cuts[name] = []*atomic.Bool{cut}
		for _, r := range rigs {
			c := r.stand(name, "1.31.0", false, cfg, func(c *election.Config) { c.Watch = watch })
			cuts[name], agents[name] = append(cuts[name], c.cut), append(agents[name], c.agent)
		}
		for _, r := range rigs {
			r.awaitLeader("a")
		}
	}
	time.Sleep(10 * time.Second)
	for name := range agents {
		if n := rigs[0].requests("kubewright-e2e-shared-watch-"+name, time.Minute)["watch leases"]; n != 1 {
			t.Errorf("%s has %d watches", name, n)
		}
		for _, agent := range agents[name] {
			if n := rigs[0].requests(agent, time.Minute)["watch leases"]; n != 0 {
				t.Errorf("%s watches its own Lease", agent)
			}
		}
	}
	begin := time.Now()
	for _, cut := range cuts["a"] {
		cut.Store(true)
	}
	for _, r := range rigs {
		r.awaitLeader("b")
	}
	if took := time.Since(begin); took > crashFailover {
		t.Errorf("%v until b led everywhere, at most %v", took, crashFailover)
	}
	for _, cut := range cuts["a"] {
		cut.Store(false)
	}
}

// TestElectionNodeCredentials: a candidate with node credentials is refused,
// and its error says why.
func TestElectionNodeCredentials(t *testing.T) {
	quiet(t)
	cluster := shared.Cluster(t)
	for _, native := range []bool{false, true} {
		r := newElectionRig(t, cluster, metav1.NamespaceDefault, fmt.Sprintf("node-%t", native))
		c := r.stand("n1", "1.31.0", native, cluster.NodeConfig(t, "n1"))
		// Its record is refused too if LeaseCandidates are served; this test
		// checks the Lease.
		err := c.reported(func(err error) bool { return strings.Contains(err.Error(), r.lease.Name) })
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "system:node:n1") {
			t.Errorf("%v does not say that it is forbidden, and to whom", err)
		}
		time.Sleep(5 * time.Second)
		c.stop()
		if got := r.requests(c.agent, time.Minute); got["get leases"]+got["list leases"]+got["watch leases"]+got["create leases"] > 20 {
			t.Errorf("refused, a candidate sent %v", got)
		}
	}
}
