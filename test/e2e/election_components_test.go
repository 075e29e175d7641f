// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/test/e2e/harness"
)

// component is a real kube-scheduler or kube-controller-manager with two
// instances that use coordinated election.
type component struct {
	*electionRig
	name       string
	identities map[string]string // by instance
	ended      []electionTerm    // when the test ended an instance
}

// startInstance starts an instance and finds out the identity of its candidate.
func (c *component) startInstance(instance string) {
	c.Helper()
	before := c.candidates()
	c.cluster.Restart(c.T, instance)
	deadline := time.Now().Add(time.Minute)
	for {
		for _, name := range c.candidates() {
			if !slices.Contains(before, name) {
				c.identities[instance] = name
				return
			}
		}
		if time.Now().After(deadline) {
			c.Fatalf("%s does not stand for election", instance)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (c *component) candidates() (names []string) {
	c.Helper()
	list, err := c.admin.CoordinationV1beta1().LeaseCandidates(metav1.NamespaceSystem).List(c.Context(), metav1.ListOptions{})
	if err != nil {
		c.Fatal(err)
	}
	for _, item := range list.Items {
		if item.Spec.LeaseName == c.lease.Name {
			names = append(names, item.Name)
		}
	}
	return names
}

// awaitInstance waits until an instance other than old leads, according to its
// own log.
func (c *component) awaitInstance(old string) string {
	c.Helper()
	for deadline := time.Now().Add(90 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		for instance := range c.identities {
			terms := c.leadership(instance)
			if instance != old && len(terms) > 0 && terms[len(terms)-1].to.IsZero() {
				lease := c.awaitLease("held by "+instance, func(l *coordinationv1.Lease) bool { return holder(l) == c.identities[instance] })
				c.Logf("%s leads, transitions %d", instance, *lease.Spec.LeaseTransitions)
				return instance
			}
		}
		if time.Now().After(deadline) {
			c.Fatalf("no %s but %s leads", c.name, old)
		}
	}
}

// The log lines that begin and end a term of a component.
var (
	klogTime  = regexp.MustCompile(`^[IWEF](\d{4} \d\d:\d\d:\d\d\.\d{6})`)
	beginLine = "successfully acquired lease" // with a capital letter since 1.35
	// The lines that an instance logs when it ends on SIGTERM or has lost the
	// lease.
	endLines = []string{"leaderelection lost", "Leaderelection lost", "leader election lost", "Requested to terminate"}
)

// leadership returns the terms in an instance's log. A term ends with a log
// line or when the test ends the instance.
func (c *component) leadership(instance string) (terms []*electionTerm) {
	c.Helper()
	var ends []time.Time
	all := c.cluster.Components(c.T)
	i := slices.IndexFunc(all, func(p harness.Component) bool { return p.Name == instance })
	data, err := os.ReadFile(all[i].Log)
	if err != nil {
		c.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		match := klogTime.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		at, err := time.ParseInLocation("20060102 15:04:05.000000", time.Now().Format("2006")+match[1], time.Local)
		if err != nil {
			c.Fatal(err)
		}
		switch {
		case strings.Contains(strings.ToLower(line), beginLine) && strings.Contains(line, c.lease.Name):
			terms = append(terms, &electionTerm{who: instance, from: at})
		case slices.ContainsFunc(endLines, func(s string) bool { return strings.Contains(line, s) }):
			ends = append(ends, at)
		}
	}
	for _, e := range c.ended {
		if e.who == instance {
			ends = append(ends, e.to)
		}
	}
	for _, term := range terms {
		for _, at := range ends {
			if at.After(term.from) && (term.to.IsZero() || at.Before(term.to)) {
				term.to = at
			}
		}
	}
	return terms
}

// endInstance ends an instance, and waits until another one leads.
func (c *component) endInstance(end func(testing.TB, string), instance, how string) (next string) {
	c.Helper()
	// It does nothing after the signal.
	began := time.Now()
	c.ended = append(c.ended, electionTerm{who: instance, to: began})
	end(c.T, instance)
	next = c.awaitInstance(instance)
	c.Logf("%s: %v until the next one leads after %s", c.name, time.Since(began), how)
	return next
}

// record adds the terms of all instances to the rig, which checks that no two
// of them overlap.
func (c *component) record() {
	for instance := range c.identities {
		c.terms = append(c.terms, c.leadership(instance)...)
	}
	slices.SortFunc(c.terms, func(a, b *electionTerm) int { return a.from.Compare(b.from) })
	for i, term := range c.terms {
		if i > 0 {
			c.Logf("%s: %s leads %v after %s", c.name, term.who, term.from.Sub(c.terms[i-1].to), c.terms[i-1].who)
		}
	}
	if n := len(c.terms); n > 0 && c.terms[n-1].to.IsZero() {
		c.terms[n-1].to = time.Now()
	}
}

// TestElectionOfComponents: this library's Controller elects real
// kube-schedulers and kube-controller-managers. The API server's gate is off,
// so the API server elects no candidate and drops preferredHolder.
func TestElectionOfComponents(t *testing.T) {
	busy(t)
	electComponents(t, harness.Options{})
}

// TestElectionOfComponentsInsteadOfBuiltInController is the same test with the
// gate on and the API server's controller displaced.
func TestElectionOfComponentsInsteadOfBuiltInController(t *testing.T) {
	busy(t)
	electComponents(t, harness.Options{FeatureGates: coordinatedCluster.FeatureGates})
}

func electComponents(t *testing.T, o harness.Options) {
	o.SingleProcess, o.Audit = true, true
	o.Without = []string{harness.ControllerManager, harness.Scheduler}
	o.RuntimeConfig = coordinatedCluster.RuntimeConfig
	o.ExtraArgs = map[string][]string{}
	components := []string{harness.Scheduler, harness.ControllerManager}
	for _, name := range components {
		o.Extra = append(o.Extra, name+"-a", name+"-b")
		o.ExtraArgs[name] = []string{"--leader-elect=true", "--feature-gates=CoordinatedLeaderElection=true"}
	}
	gate := len(o.FeatureGates) > 0
	cluster := ownCluster(t, o)
	applyManifests(t, cluster, "election-controller.yaml")
	args := []string{"--kubeconfig=" + cluster.ServiceAccountKubeconfig(t, "kubewright", "election-controller"), "--identity=coordinator"}
	if gate {
		args = append(args, "--displace")
	}
	coordinator := startExample(t, "coordinator", args...)
	if gate {
		displace(t, cluster, "coordinator_")
	}

	t.Run("side by side", func(t *testing.T) {
		for _, name := range components {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				c := &component{electionRig: newElectionRig(t, cluster, metav1.NamespaceSystem, name), name: name, identities: map[string]string{}}
				c.startInstance(name + "-a")
				c.startInstance(name + "-b")
				first := c.awaitInstance("")
				second := c.endInstance(cluster.Kill, first, "a kill")
				c.startInstance(first) // under another identity
				c.endInstance(cluster.Terminate, second, "an exit")
				c.record()
			})
		}
	})
	coordinator.stop()
	for _, e := range cluster.AuditEvents(t) {
		if e.User == "system:serviceaccount:kubewright:election-controller" && e.Code == 403 {
			t.Errorf("the manifests do not allow %v", e)
		}
	}
}
