// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
)

// TestAnAgentShowsItsConditionBesideAKubelet runs examples/agent with --node-name on a Node that
// another client maintains, without its permission at first.
func TestAnAgentShowsItsConditionBesideAKubelet(t *testing.T) {
	quiet(t)
	cluster := shared.Cluster(t)
	client := kubernetes.NewForConfigOrDie(cluster.AdminConfig())
	const name, user, kind = "condition-node", "condition-agent", "AgentConfigOK"
	var round atomic.Value
	round.Store("before")
	cfg := statusConfig(t, cluster, name)
	cfg.Setters = append(cfg.Setters, func(_ context.Context, n *corev1.Node) error {
		n.Labels["example.com/round"] = round.Load().(string)
		return nil
	})
	kubelet := runStatus(t, cfg)
	awaitNode(t, client, name, "ready", isReady)

	dir := t.TempDir()
	agent := startExample(t, "agent", "--kubeconfig="+cluster.UserKubeconfig(t, user), "--store="+dir+"/store", "--node-name="+name)
	said := func(text string) bool {
		agent.mu.Lock()
		defer agent.mu.Unlock()
		return strings.Contains(agent.out.String(), text)
	}
	for began := time.Now(); !said("Failed to write the condition of the Node") || !said("examples/rbac/node-condition.yaml"); time.Sleep(100 * time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatal("the agent has not named the manifest")
		}
	}
	applyManifests(t, cluster, "node-condition.yaml")
	cluster.Kubectl(t, "create", "clusterrolebinding", user, "--clusterrole=kubewright-node-condition", "--user="+user)
	shown := func(n *corev1.Node) bool { return condition(n, kind).Status == corev1.ConditionTrue && isReady(n) }
	awaitNode(t, client, name, "shown the condition", shown)

	// The next write of the other client leaves it alone.
	round.Store("after")
	kubelet.Trigger(name)
	awaitNode(t, client, name, "written again", func(n *corev1.Node) bool {
		if n.Labels["example.com/round"] != "after" {
			return false
		}
		if !shown(n) {
			t.Errorf("the conditions are %v", n.Status.Conditions)
		}
		return true
	})
	agent.stop()
	for _, event := range refusals(t, cluster, user, "agent") {
		if !strings.Contains(event.URI, "/status") && !strings.Contains(event.URI, "/configmaps") {
			t.Errorf("the manifest does not allow %v", event)
		}
	}
}
