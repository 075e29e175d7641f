// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodelifecycle judges the nodes of an apitest server by the rule of
// kube-controller-manager's node-lifecycle controller, for the tests of this
// module.
package nodelifecycle

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
)

// The defaults of kube-controller-manager.
const (
	DefaultGracePeriod        = 50 * time.Second // --node-monitor-grace-period
	DefaultStartupGracePeriod = 60 * time.Second // --node-startup-grace-period
	DefaultMonitorPeriod      = 5 * time.Second  // --node-monitor-period
)

// Options configures a Judge. Zero fields have the defaults above.
type Options struct {
	GracePeriod        time.Duration
	StartupGracePeriod time.Duration
	MonitorPeriod      time.Duration
	// Write makes the Judge set the conditions of a dead node to Unknown on the
	// server. Without Write it only records its verdicts.
	Write bool
}

// Judge decides at each tick which nodes are alive. A node has shown life since
// the last tick if the renewTime of its lease in kube-node-lease is later than
// any earlier one, or if the lastHeartbeatTime of its Ready condition has
// changed. The Judge's own clock dates these signs. A node without a sign of life for
// the grace period is Unknown.
type Judge struct {
	s    *apitest.Server
	opts Options

	mu      sync.Mutex
	health  map[string]*nodeHealth
	outages map[string][]Outage
}

// Outage is the time during which a node was Unknown. To is zero while the
// outage lasts. Both are times of ticks.
type Outage struct{ From, To time.Time }

type nodeHealth struct {
	uid       string
	ready     *corev1.NodeCondition // as last seen
	lease     *metav1.MicroTime     // renewTime of the last lease that counted
	leaseSeen bool
	probe     time.Time // when it last showed life
}

// New returns a Judge of the nodes of s. It does nothing before Run or Tick.
func New(s *apitest.Server, opts Options) *Judge {
	if opts.GracePeriod == 0 {
		opts.GracePeriod = DefaultGracePeriod
	}
	if opts.StartupGracePeriod == 0 {
		opts.StartupGracePeriod = DefaultStartupGracePeriod
	}
	if opts.MonitorPeriod == 0 {
		opts.MonitorPeriod = DefaultMonitorPeriod
	}
	return &Judge{s: s, opts: opts, health: map[string]*nodeHealth{}, outages: map[string][]Outage{}}
}

// Run ticks every monitor period until ctx is done.
func (j *Judge) Run(ctx context.Context) {
	ticker := time.NewTicker(j.opts.MonitorPeriod)
	defer ticker.Stop()
	for ctx.Err() == nil {
		j.Tick()
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// Tick judges every node once.
func (j *Judge) Tick() {
	nodes := apitest.List[*corev1.Node](j.s, "")
	renewals := map[string]*coordinationv1.Lease{}
	for _, lease := range apitest.List[*coordinationv1.Lease](j.s, corev1.NamespaceNodeLease) {
		renewals[lease.Name] = lease
	}
	now := time.Now()
	var dead []string
	j.mu.Lock()
	seen := map[string]bool{}
	for _, n := range nodes {
		seen[n.Name] = true
		if j.judge(n, renewals[n.Name], now) {
			dead = append(dead, n.Name)
		}
	}
	maps.DeleteFunc(j.health, func(name string, _ *nodeHealth) bool { return !seen[name] })
	for name := range j.outages {
		if !seen[name] {
			j.record(name, false, now)
		}
	}
	j.mu.Unlock()
	if j.opts.Write {
		for _, name := range dead {
			j.markUnknown(name)
		}
	}
}

// judge updates the health of a node and reports whether the node is dead.
func (j *Judge) judge(n *corev1.Node, lease *coordinationv1.Lease, now time.Time) bool {
	h := j.health[n.Name]
	if h != nil && h.uid != string(n.UID) {
		h = nil
	}
	ready := readyOf(n)
	grace := j.opts.GracePeriod
	var savedLease *metav1.MicroTime
	savedSeen := false
	if h != nil {
		savedLease, savedSeen = h.lease, h.leaseSeen
	}
	fresh := func(probe time.Time) *nodeHealth {
		return &nodeHealth{uid: string(n.UID), ready: ready, probe: probe}
	}
	switch {
	case ready == nil && h == nil:
		// The node never posted a status, so its creation counts.
		h = fresh(n.CreationTimestamp.Time)
		grace = j.opts.StartupGracePeriod
	case ready == nil:
		grace = j.opts.StartupGracePeriod
		h.ready = nil
	case h == nil || h.ready == nil || !h.ready.LastHeartbeatTime.Equal(&ready.LastHeartbeatTime):
		h = fresh(now)
	default:
		h.ready = ready
	}
	if lease != nil && (!savedSeen || savedLease.Before(lease.Spec.RenewTime)) {
		h.lease, h.leaseSeen = lease.Spec.RenewTime, true
		h.probe = now
	}
	j.health[n.Name] = h
	dead := now.After(h.probe.Add(grace))
	j.record(n.Name, dead, now)
	return dead
}

func readyOf(n *corev1.Node) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == corev1.NodeReady {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

// record opens or closes an outage.
func (j *Judge) record(name string, dead bool, now time.Time) {
	list := j.outages[name]
	open := len(list) > 0 && list[len(list)-1].To.IsZero()
	switch {
	case dead && !open:
		j.outages[name] = append(list, Outage{From: now})
	case !dead && open:
		list[len(list)-1].To = now
	}
}

// markUnknown writes the conditions that the real controller writes for a dead node.
func (j *Judge) markUnknown(name string) {
	n := apitest.Edit(j.s, "", name, func(n *corev1.Node) {
		now := metav1.Now().Rfc3339Copy()
		for _, typ := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
			i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == typ })
			if i < 0 {
				n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
					Type: typ, Status: corev1.ConditionUnknown, Reason: "NodeStatusNeverUpdated", Message: "Kubelet never posted node status.",
					LastHeartbeatTime: n.CreationTimestamp, LastTransitionTime: now})
			} else if c := &n.Status.Conditions[i]; c.Status != corev1.ConditionUnknown {
				c.Status, c.Reason, c.Message = corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status."
				c.LastTransitionTime = now
			}
		}
	})
	if n == nil {
		return
	}
	// A write of the Judge is not a sign of life.
	j.mu.Lock()
	defer j.mu.Unlock()
	if h := j.health[name]; h != nil && h.ready == nil {
		h.ready = readyOf(n)
	}
}

// Outages returns the times during which a node was Unknown.
func (j *Judge) Outages(node string) []Outage {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.outages[node])
}

// AllOutages returns the outages of every node that had one.
func (j *Judge) AllOutages() map[string][]Outage {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := map[string][]Outage{}
	for name, list := range j.outages {
		out[name] = slices.Clone(list)
	}
	return out
}
