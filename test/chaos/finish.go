// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/internal/mounts"
	"github.com/kubewright/kubewright/test/e2e/harness"
)

// finish checks the state after the last fault has been repaired, deletes
// everything, and checks the remains.
func (r *rig) finish(ctx context.Context) (verdicts []verdict, err error) {
	decide := func(rule string, examined int, found []finding) {
		verdicts = append(verdicts, verdict{rule, examined, found})
		if len(found) > 0 {
			r.log("broken: %s: %d times", rule, len(found))
		}
	}
	// The controllers are not under test, and some give up: the Deployment
	// controller after fifteen failures; the ReplicaSet controller does nothing
	// for five minutes if the API server dies before it answers about a pod.
	r.log("restarting kube-controller-manager")
	if err := r.host.try(func() { r.cluster.Restart(r.host, harness.ControllerManager) }); err != nil {
		return nil, err
	}
	began := time.Now()
	r.log("waiting until everything has settled")
	found := settle(ctx, settlePatience, r.unsettled)
	r.log("settled after %v", time.Since(began).Round(100*time.Millisecond))
	decide(ruleSettled, len(r.record.pods()), found)
	decide(ruleCounted, len(r.record.pods()), settle(ctx, 10*time.Second, r.miscounted))
	decide(ruleSlices, runtime.NumCPU(), settle(ctx, 30*time.Second, r.missliced))
	decide(ruleSettings, 2, r.settings(ctx))

	r.log("deleting everything")
	if err := r.deleteAll(ctx); err != nil {
		return verdicts, err
	}
	left := settle(ctx, time.Minute, r.remains)
	end, cancel := context.WithTimeout(ctx, orderlyEnd)
	defer cancel()
	if err := r.kubelet.end(end, syscall.SIGTERM); err != nil {
		return verdicts, fmt.Errorf("the kubelet does not end: %w", err)
	}
	left = append(left, r.leftovers(ctx)...)
	decide(ruleLeft, 1, left)
	exits, _ := r.kubelet.ended()
	decide(ruleKubelet, len(exits), r.kubeletEnds(exits))
	return verdicts, nil
}

// missliced returns the faults of the node's ResourceSlices.
func (r *rig) missliced(ctx context.Context) []finding {
	v := verdict{Rule: ruleSlices}
	list, err := r.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + nodeName})
	if err != nil {
		v.add("", "%v", err)
		return v.Findings
	}
	devices := map[string]int{}
	for _, s := range list.Items {
		if s.Spec.Driver != cpuDriver || s.Spec.Pool.Name != nodeName || s.Spec.Pool.ResourceSliceCount != int64(len(list.Items)) ||
			s.Spec.Pool.Generation != list.Items[0].Spec.Pool.Generation {
			v.add("", "slice %s of %d has driver %s and pool %+v", s.Name, len(list.Items), s.Spec.Driver, s.Spec.Pool)
		}
		for _, d := range s.Spec.Devices {
			devices[d.Name]++
		}
	}
	for n := range runtime.NumCPU() {
		if name := fmt.Sprint("cpu-", n); devices[name] != 1 {
			v.add("", "device %s is there %d times", name, devices[name])
		}
	}
	if len(devices) != runtime.NumCPU() {
		v.add("", "%d devices, want %d: %v", len(devices), runtime.NumCPU(), devices)
	}
	return v.Findings
}

// settings rolls out valid settings, which must be accepted, and then invalid
// settings, which must change nothing.
func (r *rig) settings(ctx context.Context) []finding {
	v := verdict{Rule: ruleSettings}
	expect := func(status corev1.ConditionStatus, reason string) {
		v.Findings = append(v.Findings, settle(ctx, time.Minute, func(context.Context) []finding {
			if text := settingsAre(r.node.get(), status, reason, "last"); text != "" {
				return []finding{{Rule: ruleSettings, Text: text}}
			}
			return nil
		})...)
	}
	if err := r.churn.configure(ctx, goodSettings("last")); err != nil {
		v.add("", "%v", err)
	}
	expect(corev1.ConditionTrue, "Good")
	if err := r.churn.configure(ctx, invalidSettings); err != nil {
		v.add("", "%v", err)
	}
	expect(corev1.ConditionFalse, "ValidationFailed")
	return v.Findings
}

// deleteAll deletes the pods and the objects that create pods.
func (r *rig) deleteAll(ctx context.Context) error {
	return r.host.try(func() {
		r.cluster.Kubectl(r.host, "delete", "-n", r.make.namespace, "--wait=false", "--all", "deployments,daemonsets,jobs,pods")
	})
}

// leftovers returns the objects that remain after the kubelet has ended.
func (r *rig) leftovers(ctx context.Context) []finding {
	v := verdict{Rule: ruleLeft}
	if err := r.look(); err != nil {
		v.add("", "%v", err)
	}
	r.mu.Lock()
	for _, p := range r.left {
		v.add("", "process %d of %s", p.PID, p.Run)
	}
	r.mu.Unlock()
	// Only the settings and empty directories may outlive a kubelet.
	entries, err := os.ReadDir(r.root())
	if err != nil {
		v.add("", "%v", err)
	}
	for _, e := range entries {
		switch e.Name() {
		case "lock", "config", "pods", "trash":
		default:
			v.add("", "file %s", e.Name())
		}
	}
	if temporary, err := filepath.Glob(filepath.Join(r.root(), "config", "*tmp*")); err != nil || len(temporary) > 0 {
		v.add("", "files %v (%v)", temporary, err)
	}
	if err := r.disk.Unmount(); err != nil {
		v.add("", "%v", err)
	}
	if left, err := mounts.Below(r.dir); err != nil || len(left) > 0 {
		v.add("", "mounts %v (%v)", left, err)
	}
	v.Findings = append(v.Findings, settle(ctx, 10*time.Second, func(context.Context) []finding {
		if ready := condition(r.node.get(), corev1.NodeReady); ready.Status != corev1.ConditionFalse {
			return []finding{{Rule: ruleLeft, Text: fmt.Sprintf("after an orderly end the Node is Ready=%s, %s", ready.Status, ready.Reason)}}
		}
		return nil
	})...)
	return v.Findings
}

// expectedErrors are errors with which the kubelet may end: it cannot use its
// settings, or it cannot start on a full disk.
var expectedErrors = []string{"nodestatus: invalid config", "no space left on device", "configcheckpoint: restart"}

// kubeletEnds checks the exit statuses of the kubelet.
func (r *rig) kubeletEnds(exits []kubeletExit) []finding {
	v := verdict{Rule: ruleKubelet}
	for _, e := range exits {
		// The kubelet may have been about to end on its own when it got the
		// signal. The log has the reason for status 1.
		if signaled := e.Code == -1; signaled && !e.ByUs || !signaled && e.Code != 0 && e.Code != 1 && e.Code != 75 {
			v.add("", "%s: %s", e.At.Format(time.TimeOnly), e.State)
		}
	}
	data, err := os.ReadFile(r.kubelet.log.Name())
	if err != nil {
		v.add("", "%v", err)
	}
	for entry := range bytes.Lines(data) {
		text := strings.TrimSpace(string(entry))
		switch {
		case strings.HasPrefix(text, "panic: "), strings.HasPrefix(text, "fatal error: "):
			v.add("", "%s", text)
		case strings.HasPrefix(text, "Error: ") && !containsAny(text, expectedErrors):
			v.add("", "%s", text)
		}
	}
	return v.Findings
}

func containsAny(text string, parts []string) bool {
	for _, p := range parts {
		if strings.Contains(text, p) {
			return true
		}
	}
	return false
}
