// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The settings of the real node-lifecycle controller.
const (
	DefaultGracePeriod        = 50 * time.Second // --node-monitor-grace-period
	DefaultStartupGracePeriod = 60 * time.Second // --node-startup-grace-period
	DefaultMonitorPeriod      = 5 * time.Second  // --node-monitor-period
)

// NodeLifecycleOptions configure a NodeLifecycle; zero fields have the
// defaults above.
type NodeLifecycleOptions struct {
	GracePeriod        time.Duration
	StartupGracePeriod time.Duration
	MonitorPeriod      time.Duration
	// Write makes it act: conditions of a node it takes for dead become
	// Unknown on the server. Without it the verdicts are only recorded.
	Write bool
}

// NodeLifecycle judges by the real node-lifecycle controller's rule whether
// nodes are alive. At each tick a node has shown life since the last one if the
// renewTime of its lease in kube-node-lease is later than any it has seen, or
// if the lastHeartbeatTime of its Ready condition is another one; when life was
// last seen is a matter of its own clock. A node that has shown none for the
// grace period is Unknown.
type NodeLifecycle struct {
	s    *Server
	opts NodeLifecycleOptions

	mu      sync.Mutex
	health  map[string]*nodeHealth
	outages map[string][]Outage
}

// Outage is a time during which a node would be Unknown: To is zero while it
// lasts. Both are times of ticks.
type Outage struct{ From, To time.Time }

type nodeHealth struct {
	uid       string
	ready     *corev1.NodeCondition // as last seen
	lease     *metav1.MicroTime     // renewTime of the last lease that counted
	leaseSeen bool
	probe     time.Time // when it last showed life
}

// NodeLifecycle makes a judge of the server's nodes. It does nothing before
// Run or Tick.
func (s *Server) NodeLifecycle(opts NodeLifecycleOptions) *NodeLifecycle {
	if opts.GracePeriod == 0 {
		opts.GracePeriod = DefaultGracePeriod
	}
	if opts.StartupGracePeriod == 0 {
		opts.StartupGracePeriod = DefaultStartupGracePeriod
	}
	if opts.MonitorPeriod == 0 {
		opts.MonitorPeriod = DefaultMonitorPeriod
	}
	return &NodeLifecycle{s: s, opts: opts, health: map[string]*nodeHealth{}, outages: map[string][]Outage{}}
}

// Run ticks every monitor period until ctx is done.
func (l *NodeLifecycle) Run(ctx context.Context) {
	for {
		l.Tick()
		if sleep(ctx, l.opts.MonitorPeriod) != nil {
			return
		}
	}
}

// Tick looks at every node once.
func (l *NodeLifecycle) Tick() {
	st := l.s.store
	st.mu.Lock()
	nodes := st.named["nodes"].sorted("")
	renewals := make(map[string]*coordinationv1.Lease, len(nodes))
	for _, it := range nodes {
		if lease := st.named["leases"].items[key{corev1.NamespaceNodeLease, it.key.name}]; lease != nil {
			renewals[it.key.name] = lease.obj.(*coordinationv1.Lease)
		}
	}
	st.mu.Unlock()
	now := time.Now()
	var dead []string
	l.mu.Lock()
	seen := map[string]bool{}
	for _, it := range nodes {
		n := it.obj.(*corev1.Node)
		seen[n.Name] = true
		if l.judge(n, renewals[n.Name], now) {
			dead = append(dead, n.Name)
		}
	}
	maps.DeleteFunc(l.health, func(name string, _ *nodeHealth) bool { return !seen[name] })
	for name := range l.outages {
		if !seen[name] {
			l.record(name, false, now)
		}
	}
	l.mu.Unlock()
	if l.opts.Write {
		for _, name := range dead {
			l.markUnknown(name)
		}
	}
}

// judge updates what is known of a node and reports whether it is dead.
func (l *NodeLifecycle) judge(n *corev1.Node, lease *coordinationv1.Lease, now time.Time) bool {
	h := l.health[n.Name]
	if h != nil && h.uid != string(n.UID) {
		h = nil
	}
	ready := readyOf(n)
	grace := l.opts.GracePeriod
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
		// Never posted a status: its life is counted from its creation.
		h = fresh(n.CreationTimestamp.Time)
		grace = l.opts.StartupGracePeriod
	case ready == nil:
		grace = l.opts.StartupGracePeriod
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
	l.health[n.Name] = h
	dead := now.After(h.probe.Add(grace))
	l.record(n.Name, dead, now)
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
func (l *NodeLifecycle) record(name string, dead bool, now time.Time) {
	list := l.outages[name]
	open := len(list) > 0 && list[len(list)-1].To.IsZero()
	switch {
	case dead && !open:
		l.outages[name] = append(list, Outage{From: now})
	case !dead && open:
		list[len(list)-1].To = now
	}
}

// markUnknown writes what the real controller writes about a dead node.
func (l *NodeLifecycle) markUnknown(name string) {
	n := Edit(l.s, "", name, func(n *corev1.Node) {
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
	// What it wrote itself is no sign of life.
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.health[name]; h != nil && h.ready == nil {
		h.ready = readyOf(n)
	}
}

// Outages returns the times during which a node was Unknown.
func (l *NodeLifecycle) Outages(node string) []Outage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.outages[node])
}

// AllOutages returns the outages of every node that had any.
func (l *NodeLifecycle) AllOutages() map[string][]Outage {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[string][]Outage{}
	for name, list := range l.outages {
		out[name] = slices.Clone(list)
	}
	return out
}
