// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/examples/internal/exampletest"
)

func TestSettings(t *testing.T) {
	o, err := parse([]string{"--node-name=n1", "--sync-interval=3s"})
	if err != nil {
		t.Fatal(err)
	}
	s, err := o.builtin.decode([]byte("orphanDelay: 7s\nmassHold: 9s\nlabels: {a: b}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if s.SyncInterval.Duration != 3*time.Second || s.OrphanDelay.Duration != 7*time.Second || s.MassHold.Duration != 9*time.Second || s.MaxPods != 110 || s.Labels["a"] != "b" {
		t.Errorf("decoded %+v", s)
	}
	if o.builtin.OrphanDelay == s.OrphanDelay {
		t.Error("decode has changed what is built in")
	}
	if err := s.validate(); err != nil {
		t.Error(err)
	}
	for text, want := range map[string]string{
		"maxPods: 0":            "maxPods",
		"syncInterval: 1ms":     "syncInterval",
		"backoffMax: 1s":        "backoffMax",
		"backoffInitial: 0s":    "backoffInitial",
		"labels: {a b: c}":      "labels: a b=c",
		"syncIntervall: 1s":     "syncIntervall",
		"maxPods: many":         "maxPods",
		"orphanDelay: tomorrow": "tomorrow",
		"massHold: 0s":          "massHold",
	} {
		s, err := o.builtin.decode([]byte(text))
		if err == nil {
			err = s.validate()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s in it", text, err, want)
		}
	}
}

func TestArguments(t *testing.T) {
	for _, args := range [][]string{
		{"--node-ip=here"},
		{"--sync-interval=1ns"},
		{"--no-such-flag"},
	} {
		if _, err := parse(args); err == nil {
			t.Errorf("%v: accepted", args)
		}
	}
	o, err := parse([]string{"--config-map=a/b/c", "--config-file=d"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.source(apitest.New(apitest.Options{}).Client(apitest.User{}).CoreV1()); err == nil {
		t.Error("two sources are accepted")
	}
}

// supervised is run as a supervisor runs it: again, whenever it fails.
func supervised(ctx context.Context, args []string, stdout io.Writer) error {
	for {
		err := run(ctx, args, stdout)
		if err == nil || ctx.Err() != nil {
			return err
		}
		fmt.Fprintln(stdout, "supervisor:", err)
	}
}

// rollOut writes the settings.
func rollOut(api *apitest.Server, text string) {
	api.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kubewright", Name: "kubelet"}, Data: map[string]string{"settings.yaml": text}})
}

func settingsCondition(api *apitest.Server) corev1.NodeCondition {
	if node := apitest.Get[*corev1.Node](api, "", "n1"); node != nil {
		for _, c := range node.Status.Conditions {
			if c.Type == configCondition {
				return c
			}
		}
	}
	return corev1.NodeCondition{}
}

func TestRollOuts(t *testing.T) {
	api := exampletest.Server(t, "../rbac/kubelet.yaml")
	k := newNodeWith(t, api, supervised, "--config-map=kubewright/kubelet/settings.yaml", "--config-soak=1s")
	condition := func(what string, status corev1.ConditionStatus, reason string) {
		t.Helper()
		exampletest.Eventually(t, api, what, func() bool {
			c := settingsCondition(api)
			return c.Status == status && c.Reason == reason
		})
	}
	label := func() string { return apitest.Get[*corev1.Node](api, "", "n1").Labels["room"] }
	k.bind("service", corev1.RestartPolicyAlways, "exec sleep 1000")
	before := k.await("service", "to run", phase(corev1.PodRunning))

	rollOut(api, "labels: {room: blue}")
	condition("good settings", corev1.ConditionTrue, "Good")
	if got := label(); got != "blue" {
		t.Errorf("the label is %q", got)
	}

	rollOut(api, "maxPods: -1")
	condition("settings that are not valid to be rejected", corev1.ConditionFalse, "ValidationFailed")

	// No validation here knows which labels a node may set: this one takes the
	// program down.
	rollOut(api, "labels: {node-role.kubernetes.io/king: yes}")
	condition("settings that crash to be rolled back", corev1.ConditionFalse, "CrashLoop")
	if n := strings.Count(k.program.Output(), "supervisor: nodestatus: invalid config"); n != 3 {
		t.Errorf("%d starts with the bad settings, want 3:\n%s", n, k.program.Output())
	}
	if got := label(); got != "blue" {
		t.Errorf("after the roll-back the label is %q", got)
	}

	rollOut(api, "labels: {room: green}")
	condition("the next settings", corev1.ConditionTrue, "Good")
	exampletest.Eventually(t, api, "its label", func() bool { return label() == "green" })

	// None of that has touched the pod.
	after := k.await("service", "to run", phase(corev1.PodRunning))
	if a, b := after.Status.ContainerStatuses[0], before.Status.ContainerStatuses[0]; a.ContainerID != b.ContainerID || a.RestartCount != 0 {
		t.Errorf("the pod was %+v and is %+v", b, a)
	}
	k.delete("service")
	k.await("service", "to be gone", gone)
	k.stop()
	exampletest.NothingRefused(t, api)
}
