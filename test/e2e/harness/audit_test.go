// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestAuditEvents sends known requests and expects exactly these, each once.
func TestAuditEvents(t *testing.T) {
	c := shared.Cluster(t)
	cfg := c.NodeConfig(t, "audited")
	cfg.UserAgent = "audit-test"
	client := newClient(t, cfg)
	leases := client.CoordinationV1().Leases("kube-node-lease")
	began := time.Now()
	lease, err := leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "audited"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const renewals = 25
	for range renewals {
		now := metav1.NowMicro()
		lease.Spec.RenewTime = &now
		if lease, err = leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// A watch counts when it starts; its end does not count again.
	w, err := client.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=audited"})
	if err != nil {
		t.Fatal(err)
	}
	watching := countOwn(c.AuditEvents(t))
	w.Stop()
	// Refused requests count too.
	_, err = client.CoreV1().Nodes().Patch(t.Context(), "audited", types.StrategicMergePatchType, []byte(`{"status":{}}`), metav1.PatchOptions{}, "status")
	if err == nil {
		t.Fatal("patched a node that isn't there")
	}

	type key = [4]string
	want := map[key]int{
		{"create", "leases", "", "kube-node-lease"}: 1,
		{"update", "leases", "", "kube-node-lease"}: renewals,
		{"watch", "pods", "", ""}:                   1,
	}
	if !maps.Equal(watching, want) {
		t.Errorf("while watching: %v, want %v", watching, want)
	}
	events := c.AuditEvents(t)
	want[key{"patch", "nodes", "status", ""}] = 1
	if got := countOwn(events); !maps.Equal(got, want) {
		t.Errorf("at the end: %v, want %v", got, want)
	}
	i := slices.IndexFunc(events, func(e AuditEvent) bool { return own(e) && e.Verb == "patch" })
	e := events[i]
	if e.User != "system:node:audited" || e.Name != "audited" || e.Code != 404 || e.URI != "/api/v1/nodes/audited/status" || e.Time.Before(began) || e.Time.After(time.Now()) {
		t.Errorf("event %+v", e)
	}
	i = slices.IndexFunc(events, func(e AuditEvent) bool { return own(e) && e.Verb == "create" })
	if e = events[i]; e.APIGroup != "coordination.k8s.io" || e.Code != 201 {
		t.Errorf("event %+v", e)
	}
}

func own(e AuditEvent) bool { return e.UserAgent == "audit-test" }

// countOwn counts the test's own requests by verb, resource, subresource and namespace.
func countOwn(events []AuditEvent) map[[4]string]int {
	n := map[[4]string]int{}
	for _, e := range events {
		if own(e) {
			n[[4]string{e.Verb, e.Resource, e.Subresource, e.Namespace}]++
		}
	}
	return n
}

func TestCutLine(t *testing.T) {
	const data = "one\ntwo mark x\nthree\n"
	before, after, found := cutLine([]byte(data), []byte("mark"))
	if string(before) != "one\n" || string(after) != "three\n" || !found {
		t.Errorf("before %q, after %q, %t", before, after, found)
	}
	for _, data := range []string{"", "one\n", "one\nmark and not yet all"} {
		if _, _, found := cutLine([]byte(data), []byte("mark")); found {
			t.Errorf("found in %q", data)
		}
	}
}

func TestParseAuditRefusesNonsense(t *testing.T) {
	if _, err := parseAudit([]byte("{\"auditID\":\"a\"}\n{")); err == nil {
		t.Error("half a line was accepted")
	}
}

// TestNoAuditWithoutOption: the log costs the API server time, so it is off by
// default.
func TestNoAuditWithoutOption(t *testing.T) {
	c := Start(t, bare)
	if c.status.AuditLog != "" {
		t.Errorf("audit log %s", c.status.AuditLog)
	}
	if _, err := os.Stat(c.Dir() + "/audit.log"); err == nil {
		t.Error("there is an audit log")
	}
}
