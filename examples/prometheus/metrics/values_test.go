// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubewright/kubewright/configcheckpoint"
	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/election/coordinator"
	"github.com/kubewright/kubewright/examples/prometheus/metrics"
	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/nodeapi"
	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/resourceslice"
)

// hooksOf returns the hooks of a package without hooks of the program.
func hooksOf[H any](t *testing.T, f func(prometheus.Registerer, H) (H, error)) (H, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	var none H
	hooks, err := f(registry, none)
	if err != nil {
		t.Fatal(err)
	}
	return hooks, registry
}

// check compares all series of a registry with the wanted series.
func check(t *testing.T, registry *prometheus.Registry, want map[string]float64) {
	t.Helper()
	got := gather(t, registry)
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if value, ok := got[name]; !ok || value != want[name] {
			t.Errorf("%s is %v (there: %t), want %v", name, value, ok, want[name])
		}
		delete(got, name)
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		t.Errorf("unexpected: %s %v", name, got[name])
	}
}

func TestLease(t *testing.T) {
	hooks, registry := hooksOf(t, metrics.Lease)
	phase := func(node string, from, to lease.Phase) {
		hooks.PhaseChanged(lease.PhaseChanged{NodeName: node, From: from, To: to})
	}
	for i := range 3 {
		phase(fmt.Sprint("n", i), lease.PhasePending, lease.PhaseHeld)
		hooks.Renewed(lease.Renewed{Latency: 250 * time.Millisecond})
	}
	phase("n0", lease.PhaseHeld, lease.PhasePending) // its holder must be found out again
	phase("n0", lease.PhasePending, lease.PhaseForeign)
	phase("n1", lease.PhaseHeld, lease.PhaseGateClosed)
	phase("n2", lease.PhaseHeld, lease.PhaseStopped)
	phase("n3", lease.PhasePending, lease.PhaseStopped) // never managed
	phase("n2", lease.PhasePending, lease.PhaseHeld)    // added again
	hooks.Failed(lease.Failed{Class: "Timeout"})
	hooks.Failed(lease.Failed{Class: "Timeout"})
	hooks.Failed(lease.Failed{Class: "Forbidden"})
	hooks.Recovered(lease.Recovered{Outage: time.Minute})
	hooks.TakenOver(lease.TakenOver{})
	hooks.Overloaded(lease.Overloaded{})
	hooks.Overloaded(lease.Overloaded{Ended: true})
	check(t, registry, map[string]float64{
		"kubewright_lease_renewals_total":                    3,
		"kubewright_lease_renewal_duration_seconds_count":    3,
		"kubewright_lease_renewal_duration_seconds_sum":      0.75,
		`kubewright_lease_failures_total{class="Timeout"}`:   2,
		`kubewright_lease_failures_total{class="Forbidden"}`: 1,
		"kubewright_lease_outage_duration_seconds_count":     1,
		"kubewright_lease_outage_duration_seconds_sum":       60,
		`kubewright_lease_nodes{phase="Held"}`:               1,
		`kubewright_lease_nodes{phase="Foreign"}`:            1,
		`kubewright_lease_nodes{phase="GateClosed"}`:         1,
		"kubewright_lease_contentions_total":                 0,
		"kubewright_lease_takeovers_total":                   1,
		"kubewright_lease_overloads_total":                   1,
	})
}

func TestNodeStatus(t *testing.T) {
	hooks, registry := hooksOf(t, metrics.NodeStatus)
	hooks.Registered(nodestatus.Registered{Created: true})
	hooks.Overloaded(nodestatus.Overloaded{})
	hooks.Overloaded(nodestatus.Overloaded{Ended: true})
	hooks.Written(nodestatus.Written{Cause: nodestatus.CauseReport, Bytes: 512, Latency: time.Second / 4})
	hooks.Written(nodestatus.Written{Cause: nodestatus.CauseReport, Bytes: 512, Latency: time.Second / 4})
	hooks.Failed(nodestatus.Failed{Verb: "patch", Class: "Server"})
	hooks.Recovered(nodestatus.Recovered{Outage: 90 * time.Second})
	hooks.SetterFailed(nodestatus.SetterFailed{Field: "Setters[1]", Late: true})
	hooks.Deleted(nodestatus.Deleted{})
	hooks.Rebooted(nodestatus.Rebooted{})
	hooks.Replaced(nodestatus.Replaced{})
	hooks.ConditionChanged(nodestatus.ConditionChanged{Condition: corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse}})
	check(t, registry, map[string]float64{
		`kubewright_nodestatus_writes_total{cause="Report"}`:                          2,
		`kubewright_nodestatus_write_duration_seconds_count{cause="Report"}`:          2,
		`kubewright_nodestatus_write_duration_seconds_sum{cause="Report"}`:            0.5,
		`kubewright_nodestatus_write_bytes_count{cause="Report"}`:                     2,
		`kubewright_nodestatus_write_bytes_sum{cause="Report"}`:                       1024,
		`kubewright_nodestatus_failures_total{class="Server",verb="patch"}`:           1,
		"kubewright_nodestatus_outage_duration_seconds_count":                         1,
		"kubewright_nodestatus_outage_duration_seconds_sum":                           90,
		`kubewright_nodestatus_setter_failures_total{field="Setters[1]",late="true"}`: 1,
		`kubewright_nodestatus_registrations_total{created="true"}`:                   1,
		"kubewright_nodestatus_reboots_total":                                         1,
		"kubewright_nodestatus_deletions_total":                                       1,
		"kubewright_nodestatus_overloads_total":                                       1,
		"kubewright_nodestatus_replacements_total":                                    1,
		`kubewright_nodestatus_condition_changes_total{status="False",type="Ready"}`:  1,
	})
}

func TestPodSync(t *testing.T) {
	hooks, registry := hooksOf(t, metrics.PodSync)
	for _, err := range []error{nil, podsync.Reject("NoGPU", "there is none"), fmt.Errorf("x: %w", podsync.ErrNotFound), errors.New("the backend is down"), nil} {
		hooks.ProviderCall(podsync.ProviderCall{Op: podsync.OpStart, Latency: time.Second, Err: err})
	}
	hooks.APICall(podsync.APICall{Op: podsync.OpPatch, Latency: time.Second})
	hooks.APICall(podsync.APICall{Op: podsync.OpPatch, Latency: time.Second, Err: apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "a")})
	hooks.APICall(podsync.APICall{Op: podsync.OpPatch, Latency: time.Second, Err: errors.New("connection reset by peer")})
	hooks.StatusStored(podsync.StatusStored{Lag: time.Second / 2})
	stage := func(from, to podsync.Stage) { hooks.StageChanged(podsync.StageChanged{From: from, To: to}) }
	stage(podsync.StageUnsynced, podsync.StageWaiting)
	stage(podsync.StageUnsynced, podsync.StageRunning)
	stage(podsync.StageUnsynced, podsync.StageReleased)
	stage(podsync.StageWaiting, podsync.StageRunning)
	hooks.StageChanged(podsync.StageChanged{From: podsync.StageReleased, To: podsync.StageReleased, Forgotten: true})
	hooks.StageChanged(podsync.StageChanged{Forgotten: true}) // never counted
	hooks.Dropped(podsync.Dropped{Reason: podsync.DroppedInvalid})
	hooks.MassOrphans(podsync.MassOrphans{Refs: make([]podsync.Ref, 7), Held: 8})
	if got := gather(t, registry)["kubewright_podsync_orphans_held_back"]; got != 7 {
		t.Errorf("%v orphans are held back, want 7", got)
	}
	hooks.MassOrphans(podsync.MassOrphans{Held: 8})
	hooks.MassOrphans(podsync.MassOrphans{Refs: make([]podsync.Ref, 3), Held: 4, Lost: true})
	const call, request = "kubewright_podsync_provider_call_duration_seconds", "kubewright_podsync_api_call_duration_seconds"
	check(t, registry, map[string]float64{
		call + `_count{op="start",result="ok"}`:                    2,
		call + `_sum{op="start",result="ok"}`:                      2,
		call + `_count{op="start",result="rejected"}`:              1,
		call + `_sum{op="start",result="rejected"}`:                1,
		call + `_count{op="start",result="not_found"}`:             1,
		call + `_sum{op="start",result="not_found"}`:               1,
		call + `_count{op="start",result="error"}`:                 1,
		call + `_sum{op="start",result="error"}`:                   1,
		request + `_count{op="patch",result="ok"}`:                 1,
		request + `_sum{op="patch",result="ok"}`:                   1,
		request + `_count{op="patch",result="404"}`:                1,
		request + `_sum{op="patch",result="404"}`:                  1,
		request + `_count{op="patch",result="unanswered"}`:         1,
		request + `_sum{op="patch",result="unanswered"}`:           1,
		"kubewright_podsync_status_lag_seconds_count":              1,
		"kubewright_podsync_status_lag_seconds_sum":                0.5,
		`kubewright_podsync_pods{stage="Waiting"}`:                 0,
		`kubewright_podsync_pods{stage="Running"}`:                 2,
		`kubewright_podsync_pods{stage="Released"}`:                0,
		`kubewright_podsync_dropped_total{reason="InvalidStatus"}`: 1,
		"kubewright_podsync_orphans_held_back":                     0,
		"kubewright_podsync_losses_held_back":                      3,
	})
}

func TestResourceSlice(t *testing.T) {
	hooks, registry := hooksOf(t, metrics.ResourceSlice)
	pool := func(driver, name string) resourceslice.PoolID {
		return resourceslice.PoolID{Driver: driver, Name: name}
	}
	publish := func(p resourceslice.PoolID, devices int, repair bool) {
		hooks.Published(resourceslice.Published{Pool: p, Slices: min(devices, 1), Devices: devices, Latency: time.Second, Window: time.Second / 4, Repair: repair})
	}
	hooks.APICall(resourceslice.APICall{Pool: pool("gpu", "a"), Verb: "create"})
	hooks.APICall(resourceslice.APICall{Pool: pool("gpu", "a"), Verb: "create", Err: apierrors.NewTooManyRequests("later", 1)})
	hooks.WatchFailed(resourceslice.WatchFailed{Err: apierrors.NewTooManyRequests("later", 1)})
	publish(pool("gpu", "a"), 8, false)
	publish(pool("gpu", "b"), 4, false)
	publish(pool("gpu", "a"), 6, true)
	publish(pool("gpu", "b"), 0, false) // removed
	publish(pool("nic", "a"), 2, false)
	check(t, registry, map[string]float64{
		`kubewright_resourceslice_writes_total{driver="gpu",result="ok",verb="create"}`:  1,
		`kubewright_resourceslice_writes_total{driver="gpu",result="429",verb="create"}`: 1,
		`kubewright_resourceslice_watch_failures_total{result="429"}`:                    1,
		`kubewright_resourceslice_publish_duration_seconds_count{driver="gpu"}`:          4,
		`kubewright_resourceslice_publish_duration_seconds_sum{driver="gpu"}`:            4,
		`kubewright_resourceslice_publish_duration_seconds_count{driver="nic"}`:          1,
		`kubewright_resourceslice_publish_duration_seconds_sum{driver="nic"}`:            1,
		`kubewright_resourceslice_incomplete_seconds_total{driver="gpu"}`:                1,
		`kubewright_resourceslice_incomplete_seconds_total{driver="nic"}`:                0.25,
		`kubewright_resourceslice_repairs_total{driver="gpu"}`:                           1,
		`kubewright_resourceslice_repairs_total{driver="nic"}`:                           0,
		`kubewright_resourceslice_devices{driver="gpu"}`:                                 6,
		`kubewright_resourceslice_devices{driver="nic"}`:                                 2,
	})
}

func TestConfigCheckpoint(t *testing.T) {
	hooks, registry := hooksOf(t, metrics.ConfigCheckpoint)
	ref := configcheckpoint.Ref{Digest: configcheckpoint.DigestOf([]byte("a: 1"))}
	hooks.Delivered(configcheckpoint.Delivered{Ref: ref})
	hooks.Delivered(configcheckpoint.Delivered{})
	hooks.Delivered(configcheckpoint.Delivered{Err: errors.New("no such ConfigMap")})
	hooks.StatusChanged(configcheckpoint.Status{Role: configcheckpoint.RoleDefault, Reason: configcheckpoint.ReasonDefault, OK: true, Phase: configcheckpoint.PhaseDefault})
	hooks.StatusChanged(configcheckpoint.Status{Role: configcheckpoint.RoleAssigned, Reason: configcheckpoint.ReasonTrial, OK: true, Phase: configcheckpoint.PhaseTrial})
	trial := gather(t, registry)
	if trial["kubewright_configcheckpoint_trial"] != 1 || trial[`kubewright_configcheckpoint_condition{reason="Trial"}`] != 1 {
		t.Errorf("during a trial: %v", trial)
	}
	hooks.Rejected(configcheckpoint.Rejected{Ref: ref, Reason: configcheckpoint.ReasonUnhealthy})
	hooks.StatusChanged(configcheckpoint.Status{Role: configcheckpoint.RoleLastKnownGood, Reason: configcheckpoint.ReasonUnhealthy, Phase: configcheckpoint.PhaseRolledBack})
	hooks.Promoted(configcheckpoint.Promoted{Ref: ref})
	check(t, registry, map[string]float64{
		`kubewright_configcheckpoint_info{role="LastKnownGood"}`:            1,
		"kubewright_configcheckpoint_trial":                                 0,
		`kubewright_configcheckpoint_deliveries_total{result="payload"}`:    1,
		`kubewright_configcheckpoint_deliveries_total{result="unassigned"}`: 1,
		`kubewright_configcheckpoint_deliveries_total{result="error"}`:      1,
		"kubewright_configcheckpoint_promotions_total":                      1,
		`kubewright_configcheckpoint_rejections_total{reason="Unhealthy"}`:  1,
		`kubewright_configcheckpoint_condition{reason="Unhealthy"}`:         0,
	})
}

func TestElection(t *testing.T) {
	hooks, registry := hooksOf(t, balancer)
	const leader = `kubewright_election_leader{election="balancer"}`
	for cause, err := range map[string]error{
		"finished": nil, "lost": election.ErrLost, "expired": fmt.Errorf("x: %w", election.ErrExpired),
		"superseded": election.ErrSuperseded, "resigned": election.ErrResigned, "stopped": context.Canceled,
	} {
		hooks.TermStarted(election.TermStarted{Vacant: 10 * time.Second})
		if got := gather(t, registry)[leader]; got != 1 {
			t.Errorf("in a term that will be %s: leader is %v", cause, got)
		}
		hooks.TermEnded(election.TermEnded{Cause: err, Duration: time.Minute, Drained: time.Second / 4})
	}
	hooks.TermStarted(election.TermStarted{}) // the duration of the vacancy is not known
	hooks.TermEnded(election.TermEnded{Drained: time.Second / 2})
	hooks.Renewed(election.Renewed{Latency: time.Second / 8})
	hooks.Failed(election.Failed{Op: election.OpRenew, Class: "Timeout"})
	hooks.OfferEnded(election.OfferEnded{To: "c", Accepted: true})
	check(t, registry, map[string]float64{
		leader: 0,
		`kubewright_election_terms_total{cause="finished",election="balancer"}`:              2,
		`kubewright_election_terms_total{cause="lost",election="balancer"}`:                  1,
		`kubewright_election_terms_total{cause="expired",election="balancer"}`:               1,
		`kubewright_election_terms_total{cause="superseded",election="balancer"}`:            1,
		`kubewright_election_terms_total{cause="resigned",election="balancer"}`:              1,
		`kubewright_election_terms_total{cause="stopped",election="balancer"}`:               1,
		`kubewright_election_term_duration_seconds_count{election="balancer"}`:               7,
		`kubewright_election_term_duration_seconds_sum{election="balancer"}`:                 360,
		`kubewright_election_drain_duration_seconds_count{election="balancer"}`:              7,
		`kubewright_election_drain_duration_seconds_sum{election="balancer"}`:                2,
		`kubewright_election_vacancy_duration_seconds_count{election="balancer"}`:            6,
		`kubewright_election_vacancy_duration_seconds_sum{election="balancer"}`:              60,
		`kubewright_election_renewal_duration_seconds_count{election="balancer"}`:            1,
		`kubewright_election_renewal_duration_seconds_sum{election="balancer"}`:              0.125,
		`kubewright_election_failures_total{class="Timeout",election="balancer",op="renew"}`: 1,
		`kubewright_election_offers_total{accepted="true",election="balancer"}`:              1,
	})
}

// A process may stand in two elections, which have metrics of their own.
func TestTwoElections(t *testing.T) {
	hooks, registry := hooksOf(t, balancer)
	if _, err := metrics.Election(registry, "other", election.Hooks{}); err != nil {
		t.Fatal(err)
	}
	hooks.TermStarted(election.TermStarted{})
	got := gather(t, registry)
	if a, b := got[`kubewright_election_leader{election="balancer"}`], got[`kubewright_election_leader{election="other"}`]; a != 1 || b != 0 {
		t.Errorf("leader is %v and %v", a, b)
	}
}

func TestElectionController(t *testing.T) {
	hooks, registry := hooksOf(t, metrics.ElectionController)
	hooks.Elected(coordinator.Elected{Strategy: "OldestEmulationVersion", Unrenewed: 15 * time.Second})
	hooks.Elected(coordinator.Elected{Strategy: "OldestEmulationVersion"}) // the first election of the Lease
	hooks.Preferred(coordinator.Preferred{})
	hooks.Silent(coordinator.Silent{})
	hooks.Collected(coordinator.Collected{})
	hooks.RequestFailed(coordinator.RequestFailed{Action: "assign", Class: "Conflict"})
	const prefix = "kubewright_election_controller_"
	check(t, registry, map[string]float64{
		prefix + `elections_total{strategy="OldestEmulationVersion"}`: 2,
		prefix + "vacancy_duration_seconds_count":                     1,
		prefix + "vacancy_duration_seconds_sum":                       15,
		prefix + "preferences_total":                                  1,
		prefix + "silences_total":                                     1,
		prefix + "collections_total":                                  1,
		prefix + `failures_total{action="assign",class="Conflict"}`:   1,
	})
}

// A controller whose loop is stuck, if err is set.
type loop struct {
	name string
	err  error
}

func (l *loop) Name() string              { return l.name }
func (l *loop) Check(*http.Request) error { return l.err }

func TestHealthFollowsCheck(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	well, stuck := &loop{name: "lease"}, &loop{name: "podsync"}
	if err := metrics.Health(registry, well, stuck); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{nil, errors.New("no progress"), nil} {
		stuck.err = err
		want := map[string]float64{`kubewright_healthy{controller="lease"}`: 1, `kubewright_healthy{controller="podsync"}`: 1}
		if err != nil {
			want[`kubewright_healthy{controller="podsync"}`] = 0
		}
		if got := gather(t, registry); !maps.Equal(got, want) {
			t.Errorf("%v: %v", err, got)
		}
	}
	if err := metrics.Health(registry, well); err == nil {
		t.Error("two controllers of one name are accepted")
	}
}

func TestMethodsAreNoFreeText(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	hooks, err := metrics.NodeAPI(registry, nodeapi.Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	for _, method := range []string{"GET", "a", "b", "c"} {
		hooks.Request(nodeapi.Request{Endpoint: "unknown", Method: method, Code: 405})
	}
	if got := gather(t, registry)[`kubewright_nodeapi_request_duration_seconds_count{code="405",endpoint="unknown",method="other"}`]; got != 3 {
		t.Errorf("%v requests with other methods, want 3", got)
	}
}
