// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/examples/internal/exampletest"
)

// get returns a page of the program, whose address is in its output.
func get(t *testing.T, program *exampletest.Program, page string) (int, string) {
	t.Helper()
	_, rest, _ := strings.Cut(program.Output(), "serving ")
	url, _, _ := strings.Cut(rest, "/metrics\n")
	resp, err := http.Get(url + page)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// scrape returns the value of each series, histograms' buckets included.
func scrape(t *testing.T, program *exampletest.Program) map[string]float64 {
	t.Helper()
	_, body := get(t, program, "/metrics")
	series := map[string]float64{}
	for lines := bufio.NewScanner(strings.NewReader(body)); lines.Scan(); {
		if line := lines.Text(); !strings.HasPrefix(line, "#") {
			cut := strings.LastIndexByte(line, ' ')
			value, err := strconv.ParseFloat(line[cut+1:], 64)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			series[line[:cut]] = value
		}
	}
	return series
}

func TestNodeIsMeasured(t *testing.T) {
	s := exampletest.Server(t, "../rbac/lease.yaml", "../rbac/nodestatus.yaml", "../rbac/podsync.yaml", "../rbac/resourceslice.yaml")
	dir := t.TempDir()
	settings := filepath.Join(dir, "settings")
	if err := os.WriteFile(settings, []byte("colour: blue\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	program := exampletest.Start(t, run, "--kubeconfig", exampletest.Kubeconfig(t, s, apitest.ServiceAccountUser("kubewright", "virtual-node")),
		"--node-name", "n1", "--listen", "127.0.0.1:0", "--devices", "3", "--settings", settings, "--store", filepath.Join(dir, "store"))
	exampletest.Eventually(t, s, "the address", func() bool { return strings.Contains(program.Output(), "/metrics\n") })
	exampletest.Eventually(t, s, "the slices", func() bool { return len(apitest.List[*resourcev1.ResourceSlice](s, "")) > 0 })
	s.Put(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "app", Image: "app:1"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodPending},
	})
	atLeast := func(got, want float64) bool { return got >= want } // the program keeps running in the meantime
	exactly := func(got, want float64) bool { return got == want }
	for series, want := range map[string]struct {
		value float64
		is    func(got, want float64) bool
	}{
		`kubewright_lease_renewals_total`:                                                                     {1, atLeast},
		`kubewright_lease_nodes{phase="Held"}`:                                                                {1, exactly},
		`kubewright_nodestatus_registrations_total{created="true"}`:                                           {1, exactly},
		`kubewright_podsync_pods{stage="Running"}`:                                                            {1, exactly},
		`kubewright_podsync_status_lag_seconds_count`:                                                         {1, atLeast},
		`kubewright_podsync_provider_call_duration_seconds_count{op="start",result="ok"}`:                     {1, exactly},
		`kubewright_resourceslice_writes_total{driver="prometheus.kubewright.dev",result="ok",verb="create"}`: {1, exactly},
		`kubewright_resourceslice_devices{driver="prometheus.kubewright.dev"}`:                                {3, exactly},
		`kubewright_configcheckpoint_info{role="Assigned"}`:                                                   {1, exactly},
		`kubewright_configcheckpoint_trial`:                                                                   {1, exactly},
		`kubewright_configcheckpoint_deliveries_total{result="payload"}`:                                      {1, atLeast},
		`go_goroutines`: {1, atLeast},
		`promhttp_metric_handler_errors_total{cause="encoding"}`: {0, exactly},
	} {
		exampletest.Eventually(t, s, series, func() bool {
			got, ok := scrape(t, program)[series]
			return ok && want.is(got, want.value)
		})
	}
	if code, body := get(t, program, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d %s", code, body)
	}
	if err := program.Stop(); err != nil {
		t.Errorf("the program ended with %v", err)
	}
	exampletest.NothingRefused(t, s)
}
