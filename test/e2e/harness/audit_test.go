// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// TestAuditEvents sends known requests and expects exactly these, each once.
func TestAuditEvents(t *testing.T) {
	t.Parallel()
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

func TestParseAudit(t *testing.T) {
	const log = `{"auditID":"a","stage":"RequestReceived","verb":"patch","requestReceivedTimestamp":"2026-11-01T10:00:00.000001Z"}
{"auditID":"w","stage":"RequestReceived","verb":"watch","requestReceivedTimestamp":"2026-11-01T10:00:01Z"}
{"auditID":"b","stage":"RequestReceived","verb":"get","requestReceivedTimestamp":"2026-11-01T10:00:02Z"}
{"auditID":"w","stage":"ResponseStarted","verb":"watch","requestReceivedTimestamp":"2026-11-01T10:00:01Z"}
{"auditID":"b","stage":"ResponseComplete","verb":"get","responseStatus":{"code":404},"requestReceivedTimestamp":"2026-11-01T10:00:02Z"}
{"auditID":"w","stage":"ResponseComplete","verb":"watch","requestReceivedTimestamp":"2026-11-01T10:00:01Z"}
{"kind":"Event","auditID":"k","stage":"ResponseComplete","verb":"cr{"kind":"Event","auditID":"n","stage":"ResponseComplete","verb":"get"}
{"auditID":"p","stage":"Panic","verb":"list","responseStatus":{"code":500},"requestReceivedTimestamp":"2026-11-01T10:00:03Z"}
{"auditID":"c","stage":"Requ`
	events, underWay, err := parseAudit([]byte(log))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range events {
		got = append(got, fmt.Sprint(e.ID, " ", e.Verb, " ", e.Code))
	}
	if want := []string{"w watch 0", "b get 404", "n get 0", "p list 500"}; !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
	if want := map[string]time.Time{"a": time.Date(2026, 11, 1, 10, 0, 0, 1000, time.UTC)}; !maps.Equal(underWay, want) {
		t.Errorf("under way: %v, want %v", underWay, want)
	}
}

func TestParseAuditRefusesNonsense(t *testing.T) {
	if _, _, err := parseAudit([]byte("{\"auditID\":\"a\"}\n{\n")); err == nil {
		t.Error("half a line was accepted")
	}
}

// TestAuditEventsWaitForWritesThatWereSeen counts writes as soon as a watch
// shows them, before they are answered.
func TestAuditEventsWaitForWritesThatWereSeen(t *testing.T) {
	t.Parallel()
	c := shared.Cluster(t)
	cfg := c.AdminConfig()
	cfg.UserAgent = "audit-test-seen-" + rand.Text() // the test may run again
	client := newClient(t, cfg).CoreV1().ConfigMaps("default")
	w, err := newClient(t, c.AdminConfig()).CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=seen"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	large := map[string]string{"a": strings.Repeat("x", 500_000)} // the answer takes longer than the event
	const rounds = 20
	done := make(chan error, rounds)
	for i := range rounds {
		go func() {
			_, err := client.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "seen"}, Data: large}, metav1.CreateOptions{})
			done <- err
		}()
		if e, ok := <-w.ResultChan(); !ok || e.Type != watch.Added {
			t.Fatalf("event %v", e.Type)
		}
		creates := 0
		for _, e := range c.AuditEvents(t) {
			if e.UserAgent == cfg.UserAgent && e.Verb == "create" {
				creates++
			}
		}
		if creates != i+1 {
			t.Fatalf("%d creations after %d were seen", creates, i+1)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if err := client.Delete(t.Context(), "seen", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if e, ok := <-w.ResultChan(); !ok || e.Type != watch.Deleted {
			t.Fatalf("event %v", e.Type)
		}
	}
}

// TestNoAuditWithoutOption: the log costs the API server time, so it is off by
// default.
func TestNoAuditWithoutOption(t *testing.T) {
	t.Parallel()
	c := Start(t, bare)
	if c.status.AuditLog != "" {
		t.Errorf("audit log %s", c.status.AuditLog)
	}
	if _, err := os.Stat(c.Dir() + "/audit.log"); err == nil {
		t.Error("there is an audit log")
	}
}
