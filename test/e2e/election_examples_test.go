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

	"github.com/kubewright/kubewright/test/e2e/harness"
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

// watchCounts collects the writes until the returned function is called.
func (l *leaders) watchCounts() (stop func() []count) {
	l.Helper()
	w, err := l.admin.CoreV1().ConfigMaps("kubewright").Watch(l.Context(), metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, "example").String()})
	if err != nil {
		l.Fatal(err)
	}
	done := make(chan []count)
	go func() {
		var all []count
		for event := range w.ResultChan() {
			if cm, ok := event.Object.(*corev1.ConfigMap); ok {
				c := count{by: cm.Data["by"], seen: time.Now()}
				c.n, _ = strconv.Atoi(cm.Data["count"])
				c.token, _ = strconv.Atoi(cm.Data["token"])
				all = append(all, c)
			}
		}
		done <- all
	}()
	return func() []count {
		w.Stop()
		return <-done
	}
}

// TestExampleLeaderUnderItsManifests runs three processes with the permissions
// of the manifests. One is killed, one leaves, and a better one joins. Each
// number is counted once.
func TestExampleLeaderUnderItsManifests(t *testing.T) {
	cluster := shared.Cluster(t)
	applyManifests(t, cluster, "election.yaml", "election-work.yaml")
	l := &leaders{
		electionRig: newElectionRig(t, cluster, "kubewright", "example"), binary: buildExample(t, "leader"),
		kubeconfig: cluster.ServiceAccountKubeconfig(t, "kubewright", "virtual-node"), programs: map[string]*program{},
	}
	stop := l.watchCounts()
	for _, id := range []string{"a", "b", "c"} {
		l.start(id)
	}
	first := l.awaitHolder("a", "b", "c")
	time.Sleep(3 * time.Second)

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
	time.Sleep(2 * time.Second)

	l.start("better", "--priority=1")
	l.awaitHolder("better")
	time.Sleep(2 * time.Second)

	l.programs["better"].stop()
	l.awaitHolder(others...)
	time.Sleep(time.Second)
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
	if refused := refusals(t, cluster, serviceAccount); len(refused) > 0 {
		t.Errorf("the manifests do not allow %v", refused)
	}
}

// TestExampleLeaderAsLeaseCandidate runs the same program on a cluster that
// serves LeaseCandidates, with examples/coordinator and the API server's gate
// off.
func TestExampleLeaderAsLeaseCandidate(t *testing.T) {
	o := coordinatedCluster
	o.FeatureGates, o.SingleProcess = nil, true
	cluster := harness.Start(t, o)
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
	for _, user := range []string{serviceAccount, "system:serviceaccount:kubewright:election-controller"} {
		if refused := refusals(t, cluster, user); len(refused) > 0 {
			t.Errorf("the manifests do not allow %v", refused)
		}
	}
}
