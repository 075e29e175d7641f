// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// These rules hold at the end, a while after the last fault.
const (
	ruleSettled  = "afterwards exactly the wanted pods run, and all others have ended"
	ruleCounted  = "restart counts are those of the commands"
	ruleSlices   = "the ResourceSlices list the CPUs, each once"
	ruleSettings = "the last good settings are in force"
	ruleLeft     = "nothing is left behind"
	ruleKubelet  = "the kubelet ends on a signal, and otherwise only because of its settings or its disk"
)

// settlePatience is the time within which the cluster settles after the last
// fault. The longest waits are the five minutes for which DiskPressure stays after
// the disk was full, so that no new pod is bound to the node, and then a minute: the
// kubelet's backoff before it restarts a container.
const settlePatience = 5*time.Minute + 150*time.Second

// settle waits until missing returns nothing, and returns its last result.
func settle(ctx context.Context, patience time.Duration, missing func(context.Context) []finding) []finding {
	deadline := time.Now().Add(patience)
	for {
		call, cancel := context.WithTimeout(ctx, 2*callTimeout)
		found := missing(call)
		cancel()
		if len(found) == 0 || time.Now().After(deadline) || ctx.Err() != nil {
			return found
		}
		sleep(ctx, pause)
	}
}

// unsettled returns the differences from the wanted state after all faults are
// repaired.
func (r *rig) unsettled(ctx context.Context) []finding {
	v := verdict{Rule: ruleSettled}
	if ready := condition(r.node.get(), corev1.NodeReady); ready.Status != corev1.ConditionTrue {
		v.add("", "the Node is Ready=%s, %s: %s", ready.Status, ready.Reason, ready.Message)
	}
	if err := r.look(); err != nil {
		v.add("", "%v", err)
	}
	wanted := r.wantedPods(ctx, &v)
	pods := r.record.pods()
	alive := map[types.UID]bool{}
	counts := map[string]int{}
	for _, p := range pods {
		alive[p.UID] = true
		counts[p.Labels[appLabel]]++
		r.podUnsettled(&v, p, wanted)
	}
	for app, want := range wanted {
		if counts[app] != want {
			v.add("", "%d pods of %s, want %d", counts[app], app, want)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, n := range r.running {
		if !alive[key.uid] {
			v.add(key.uid, "container %s of a pod that is gone runs %d times", key.name, n)
		}
	}
	return v.Findings
}

// podUnsettled records the faults of a pod that is in the API.
func (r *rig) podUnsettled(v *verdict, p *corev1.Pod, wanted map[string]int) {
	_, service := wanted[p.Labels[appLabel]]
	r.mu.Lock()
	n := r.running[containerKey{p.UID, "c"}]
	r.mu.Unlock()
	switch {
	case p.DeletionTimestamp != nil:
		v.add(p.UID, "it is still being deleted, in phase %s", p.Status.Phase)
	case service && (p.Status.Phase != corev1.PodRunning || !podReady(p)):
		v.add(p.UID, "it is %s, ready: %t; want Running and ready: %s %s", p.Status.Phase, podReady(p), p.Status.Reason, p.Status.Message)
	case service && n != 1:
		v.add(p.UID, "it is Running, and its command runs %d times", n)
	case !service && !terminal(p.Status.Phase):
		v.add(p.UID, "it is %s, and should have ended: %s %s", p.Status.Phase, p.Status.Reason, p.Status.Message)
	case !service && n != 0:
		v.add(p.UID, "it is %s, and its command runs %d times", p.Status.Phase, n)
	}
}

// wantedPods returns the number of pods of each app that should run, and records the
// controllers that have not reached their wanted state.
func (r *rig) wantedPods(ctx context.Context, v *verdict) map[string]int {
	wanted := map[string]int{}
	list := metav1.ListOptions{}
	deployments, err := r.client.AppsV1().Deployments(r.make.namespace).List(ctx, list)
	if err != nil {
		v.add("", "%v", err)
		return wanted
	}
	for _, d := range deployments.Items {
		want := *d.Spec.Replicas
		wanted[d.Name] = int(want)
		if s := d.Status; s.ObservedGeneration != d.Generation || s.ReadyReplicas != want || s.UpdatedReplicas != want || s.Replicas != want {
			v.add("", "Deployment %s has %s, wants %d", d.Name, counted(s), want)
		}
	}
	agent, err := r.client.AppsV1().DaemonSets(r.make.namespace).Get(ctx, "agent", metav1.GetOptions{})
	if err != nil {
		v.add("", "%v", err)
		return wanted
	}
	wanted[agent.Name] = 1
	if s := agent.Status; s.ObservedGeneration != agent.Generation || s.NumberReady != 1 || s.UpdatedNumberScheduled != 1 {
		v.add("", "DaemonSet %s has %d of 1 ready, %d new", agent.Name, s.NumberReady, s.UpdatedNumberScheduled)
	}
	for _, name := range r.churn.jobs {
		job, err := r.client.BatchV1().Jobs(r.make.namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err): // it was never created, or its deletion had no answer
		case err != nil:
			v.add("", "%v", err)
		case !complete(job):
			v.add("", "Job %s has %d of %d pods succeeded and %d failed, and is not complete", name, job.Status.Succeeded, *job.Spec.Completions, job.Status.Failed)
		case job.Status.Succeeded != *job.Spec.Completions || job.Status.Failed > 0:
			v.add("", "Job %s has had %d pods succeed and %d fail, want %d and none", name, job.Status.Succeeded, job.Status.Failed, *job.Spec.Completions)
		}
	}
	return wanted
}

func counted(s appsv1.DeploymentStatus) string {
	return fmt.Sprintf("%d pods, %d of them new, %d ready", s.Replicas, s.UpdatedReplicas, s.ReadyReplicas)
}

func complete(job *batchv1.Job) bool {
	for _, c := range job.Status.Conditions {
		if c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// miscounted compares the restart counts of running pods with the recorded
// starts. A command may have started a moment ago, so the caller repeats the
// check until it succeeds.
func (r *rig) miscounted(context.Context) []finding {
	v := verdict{Rule: ruleCounted}
	data, err := os.ReadFile(r.make.out)
	if err != nil {
		v.add("", "%v", err)
	}
	starts := map[containerKey]int32{}
	lines, _ := parseLines(string(data))
	for _, l := range lines {
		starts[containerKey{l.UID, l.Container}]++
	}
	for _, p := range r.record.pods() {
		for _, c := range p.Status.ContainerStatuses {
			if n := starts[containerKey{p.UID, c.Name}]; c.State.Running != nil && n != c.RestartCount+1 {
				v.add(p.UID, "container %s was started %d times according to its output, but the API has %d restarts", c.Name, n, c.RestartCount)
			}
		}
	}
	return v.Findings
}

// remains returns the remains of pods when no pod should exist.
func (r *rig) remains(context.Context) []finding {
	v := verdict{Rule: ruleLeft}
	for _, p := range r.record.pods() {
		v.add(p.UID, "it is still in the API, in phase %s", p.Status.Phase)
	}
	if err := r.look(); err != nil {
		v.add("", "%v", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.left {
		v.add("", "process %d of %s (a shim: %t)", p.PID, p.Run, p.Shim)
	}
	for _, folder := range []string{"pods", "trash"} {
		entries, err := os.ReadDir(filepath.Join(r.root(), folder))
		if err != nil {
			v.add("", "%v", err)
		}
		for _, e := range entries {
			v.add("", "file %s", filepath.Join(folder, e.Name()))
		}
	}
	return v.Findings
}
