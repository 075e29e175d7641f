// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

func TestConfigProblemsAllAtOnce(t *testing.T) {
	_, err := podsync.New(podsync.Config{
		Owns:         func(*corev1.Pod) bool { return true },
		Relist:       time.Millisecond,
		MaxCalls:     -1,
		OfflineAfter: -1,
		Policy:       podsync.Policy{Lost: -1, OrphanDelay: -1},
	})
	if err == nil || !strings.HasPrefix(err.Error(), "podsync: invalid config: ") {
		t.Fatalf("error %v", err)
	}
	for _, name := range []string{
		"Client", "Provider", "NodeName", "Owns", "Relist", "MaxCalls", "OfflineAfter",
		"Policy.Lost", "Policy.OrphanDelay",
	} {
		if !strings.Contains(err.Error(), name+":") {
			t.Errorf("%s is missing in %v", name, err)
		}
	}
}

func TestConfigDefaultsAreValid(t *testing.T) {
	cfg := podsync.Config{
		Client:   apitest.New(apitest.Options{}).Client(apitest.User{}).CoreV1(),
		Provider: podsynctest.NewBackend(podsynctest.Options{}).Connect(),
		NodeName: "n",
	}
	c, err := podsync.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if c.Name() != "podsync" || c.Ready().Name() != "podsync" {
		t.Errorf("names %q, %q", c.Name(), c.Ready().Name())
	}
	cfg.NodeName = "Not_A_Name"
	if _, err := podsync.New(cfg); err == nil || !strings.Contains(err.Error(), "NodeName: Invalid value") {
		t.Errorf("an impossible node name: %v", err)
	}
}

// An Informer may show the pods of all nodes: a node name that was left empty must not
// make one node run them.
func TestOnlyAFleetRunsThePodsOfAllNodes(t *testing.T) {
	informer := cache.NewSharedIndexInformer(nil, &corev1.Pod{}, 0, nil)
	owns := func(*corev1.Pod) bool { return true }
	for _, c := range []struct {
		cfg  podsync.Config
		want string // "" if it is valid
	}{
		{podsync.Config{Informer: informer}, "NodeName: Required"},
		{podsync.Config{Informer: informer, NodeName: "n"}, ""},
		{podsync.Config{Informer: informer, Owns: owns}, ""},
		{podsync.Config{Informer: informer, NodeName: "n", Owns: owns}, ""},
		{podsync.Config{Informer: informer, Fleet: true}, ""},
		{podsync.Config{Fleet: true}, "Fleet: Forbidden: needs Informer"},
		{podsync.Config{Informer: informer, NodeName: "n", Fleet: true}, "Fleet: Forbidden: with NodeName or Owns"},
		{podsync.Config{Informer: informer, Owns: owns, Fleet: true}, "Fleet: Forbidden: with NodeName or Owns"},
	} {
		c.cfg.Client = apitest.New(apitest.Options{}).Client(apitest.User{}).CoreV1()
		c.cfg.Provider = podsynctest.NewBackend(podsynctest.Options{}).Connect()
		_, err := podsync.New(c.cfg)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("informer %t, node name %q, owns %t, fleet %t: got %v, want %q",
				c.cfg.Informer != nil, c.cfg.NodeName, c.cfg.Owns != nil, c.cfg.Fleet, err, c.want)
		}
	}
}

func TestErrors(t *testing.T) {
	err := errors.New("no")
	if podsync.RetryAfter(nil, time.Second) != nil {
		t.Error("RetryAfter of no error is one")
	}
	if !errors.Is(podsync.RetryAfter(err, time.Second), err) {
		t.Error("RetryAfter hides its error")
	}
	if got := podsync.Reject("Reason", "message").Error(); got != "Reason: message" {
		t.Error(got)
	}
	if got := (podsync.Ref{UID: "u", Namespace: "ns", Name: "n"}).String(); got != "ns/n(u)" {
		t.Error(got)
	}
	if podsync.StageReleased.String() != "Released" || podsync.Stage(99).String() != "Invalid(99)" {
		t.Error("names of stages")
	}
}

func TestReportsBeforeAndAfterRun(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		w.run()
		pod := w.bind(newPod("a"))
		w.stop()
		w.c.Report(podsync.State{Ref: podsync.RefOf(pod), Stopped: true})
		if err := w.c.Run(context.Background()); !errors.Is(err, podsync.ErrAlreadyRun) {
			t.Errorf("second Run: %v", err)
		}
		if err := w.c.Evict(podsync.Ref{UID: "nobody"}, podsync.Eviction{}); !errors.Is(err, podsync.ErrNotFound) {
			t.Errorf("evicting nobody: %v", err)
		}
		w.expectPhase("a", corev1.PodRunning)
	})
}
