// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// leaders maps identities to processes of examples/leader.
type leaders struct {
	*electionRig
	binary, kubeconfig string
	programs           map[string]*program
}

func (l *leaders) start(identity string, args ...string) {
	l.Helper()
	args = append([]string{"--kubeconfig=" + l.kubeconfig, "--identity=" + identity, "--interval=50ms", "--min-tenure=2s"}, args...)
	l.programs[identity] = startBinary(l.T, l.binary, args...)
}

// awaitHolder waits until one of the identities holds the Lease.
func (l *leaders) awaitHolder(identities ...string) string {
	l.Helper()
	lease := l.awaitLease("held by "+strings.Join(identities, " or "), func(lease *coordinationv1.Lease) bool {
		return slices.ContainsFunc(identities, func(id string) bool { return heldBy(id + "_")(lease) })
	})
	id, _, _ := strings.Cut(holder(lease), "_")
	return id
}

// count is a write of the ConfigMap.
type count struct {
	n, token int
	by       string
	seen     time.Time
}

// watchCounts collects the writes until stop is called. await waits until one of
// the identities has written 20 times in a row, a second's work.
func (l *leaders) watchCounts() (await func(identities ...string) string, stop func() []count) {
	l.Helper()
	w, err := l.admin.CoreV1().ConfigMaps("kubewright").Watch(l.Context(), metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, "example").String()})
	if err != nil {
		l.Fatal(err)
	}
	written := make(chan count, 100_000)
	go func() {
		defer close(written)
		for event := range w.ResultChan() {
			if cm, ok := event.Object.(*corev1.ConfigMap); ok {
				c := count{by: cm.Data["by"], seen: time.Now()}
				c.n, _ = strconv.Atoi(cm.Data["count"])
				c.token, _ = strconv.Atoi(cm.Data["token"])
				written <- c
			}
		}
	}()
	var all []count
	await = func(identities ...string) string {
		l.Helper()
		row := 0
		for timeout := time.After(patience); ; {
			select {
			case c := <-written:
				if len(all) > 0 && all[len(all)-1].by != c.by {
					row = 0
				}
				all = append(all, c)
				if row++; row >= 20 && slices.Contains(identities, c.by) {
					return c.by
				}
			case <-timeout:
				l.Fatalf("none of %v works", identities)
			}
		}
	}
	return await, func() []count {
		w.Stop()
		for c := range written {
			all = append(all, c)
		}
		return all
	}
}

// TestExampleLeaderUnderItsManifests runs three processes with the permissions
// of the manifests. One is killed, one leaves, and a better one joins. Each
// number is counted once.
func TestExampleLeaderUnderItsManifests(t *testing.T) {
	quiet(t)
	cluster := shared.Cluster(t)
	alone(t, &exampleLease)
	applyManifests(t, cluster, "election.yaml", "election-work.yaml")
	l := &leaders{
		electionRig: newElectionRig(t, cluster, "kubewright", "example"), binary: buildExample(t, "leader"),
		kubeconfig: cluster.ServiceAccountKubeconfig(t, "kubewright", "virtual-node"), programs: map[string]*program{},
	}
	await, stop := l.watchCounts()
	for _, id := range []string{"a", "b", "c"} {
		l.start(id)
	}
	first := await("a", "b", "c")

	began := time.Now()
	if err := l.programs[first].cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = l.programs[first].cmd.Wait()
	others := slices.DeleteFunc([]string{"a", "b", "c"}, func(id string) bool { return id == first })
	second := l.awaitHolder(others...)
	if took := time.Since(began); took > crashFailover {
		t.Errorf("%v until another led after a kill, at most %v", took, crashFailover)
	}
	await(second)

	l.start("better", "--priority=1")
	await("better")

	l.programs["better"].stop()
	await(others...)
	for _, id := range others {
		l.programs[id].stop()
	}

	counts := stop()
	order := []string{}
	for i, c := range counts {
		if i == 0 {
			order = append(order, c.by)
			continue
		}
		before := counts[i-1]
		if c.n != before.n+1 || c.token < before.token {
			t.Errorf("%+v follows %+v", c, before)
		}
		if c.by == before.by {
			continue
		}
		order = append(order, c.by)
		gap := c.seen.Sub(before.seen)
		t.Logf("%s works %v after %s", c.by, gap, before.by)
		if before.by != first && gap > handOver {
			t.Errorf("nobody worked for %v between %s and %s", gap, before.by, c.by)
		}
		if c.token == before.token {
			t.Errorf("%s and %s have the token %d", before.by, c.by, c.token)
		}
	}
	if len(order) < 4 || order[0] != first || order[1] != second || order[2] != "better" {
		t.Errorf("%v worked, in this order", order)
	}
	if refused := refusals(t, cluster, serviceAccount, "leader"); len(refused) > 0 {
		t.Errorf("the manifests do not allow %v", refused)
	}
}

// TestExampleLeaderAsLeaseCandidate runs the same program on a cluster that
// serves LeaseCandidates, with examples/coordinator and the API server's gate
// off.
func TestExampleLeaderAsLeaseCandidate(t *testing.T) {
	busy(t)
	o := coordinatedCluster
	o.FeatureGates, o.SingleProcess = nil, true
	cluster := ownCluster(t, o)
	applyManifests(t, cluster, "election.yaml", "election-work.yaml", "election-controller.yaml")
	l := &leaders{
		electionRig: newElectionRig(t, cluster, "kubewright", "example"), binary: buildExample(t, "leader"),
		kubeconfig: cluster.ServiceAccountKubeconfig(t, "kubewright", "virtual-node"), programs: map[string]*program{},
	}
	coordinator := startExample(t, "coordinator", "--kubeconfig="+cluster.ServiceAccountKubeconfig(t, "kubewright", "election-controller"), "--identity=coordinator")
	l.start("a", "--lease-candidates")
	l.awaitHolder("a")
	l.start("b", "--lease-candidates")
	time.Sleep(2 * time.Second)
	l.programs["a"].stop()
	l.awaitHolder("b")
	l.programs["b"].stop()
	coordinator.stop()
	for example, user := range map[string]string{"leader": serviceAccount, "coordinator": "system:serviceaccount:kubewright:election-controller"} {
		if refused := refusals(t, cluster, user, example); len(refused) > 0 {
			t.Errorf("the manifests do not allow %v", refused)
		}
	}
}
