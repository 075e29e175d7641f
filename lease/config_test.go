// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func validConfig() Config {
	return Config{
		Client:   kubernetes.NewForConfigOrDie(&rest.Config{Host: "http://unused.invalid"}).CoordinationV1(),
		NodeName: "node-1",
		Owner:    NoOwner,
	}
}

func TestDefaults(t *testing.T) {
	cfg := validConfig()
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	if cfg.Duration != 40*time.Second || cfg.RenewInterval != 10*time.Second || cfg.CallTimeout != 10*time.Second ||
		cfg.ShutdownTimeout != 5*time.Second || cfg.Workers != 40 || cfg.Name != "lease" ||
		cfg.OnShutdown != ShutdownLeave {
		t.Errorf("defaults are %+v", cfg)
	}
	for duration, want := range map[time.Duration]struct{ interval, timeout time.Duration }{
		time.Second:      {250 * time.Millisecond, time.Second},
		2 * time.Second:  {500 * time.Millisecond, time.Second},
		20 * time.Second: {5 * time.Second, 5 * time.Second},
		10 * time.Minute: {150 * time.Second, 10 * time.Second},
	} {
		cfg := validConfig()
		cfg.Duration = duration
		if err := cfg.complete(); err != nil || cfg.RenewInterval != want.interval || cfg.CallTimeout != want.timeout {
			t.Errorf("Duration %v: RenewInterval %v, CallTimeout %v, error %v, want %v", duration, cfg.RenewInterval, cfg.CallTimeout, err, want)
		}
	}
}

func TestInvalidConfig(t *testing.T) {
	for name, test := range map[string]struct {
		mutate func(*Config)
		want   []string
	}{
		"nothing set":       {func(cfg *Config) { *cfg = Config{} }, []string{"Client: Required", "NodeName: Required"}},
		"no node name":      {func(cfg *Config) { cfg.NodeName = "" }, []string{"NodeName: Required value", "unless Fleet"}},
		"node name":         {func(cfg *Config) { cfg.NodeName = "Node_1" }, []string{`NodeName: Invalid value: "Node_1"`}},
		"fraction":          {func(cfg *Config) { cfg.Duration = 1500 * time.Millisecond }, []string{"Duration: Invalid", "whole seconds"}},
		"negative duration": {func(cfg *Config) { cfg.Duration = -time.Second }, []string{"Duration: Invalid"}},
		"endless duration":  {func(cfg *Config) { cfg.Duration = 100 * 365 * 24 * time.Hour }, []string{"Duration: Invalid", "must be at most 596523h14m7s"}},
		"negative interval": {func(cfg *Config) { cfg.RenewInterval = -1 }, []string{"RenewInterval: Invalid"}},
		"long interval":     {func(cfg *Config) { cfg.RenewInterval = 21 * time.Second }, []string{"RenewInterval: Invalid", "half of Duration"}},
		"long call":         {func(cfg *Config) { cfg.CallTimeout = 41 * time.Second }, []string{"CallTimeout: Invalid"}},
		"workers":           {func(cfg *Config) { cfg.Workers = -1 }, []string{"Workers: Invalid"}},
		"policy":            {func(cfg *Config) { cfg.OnShutdown = -1 }, []string{"OnShutdown: Unsupported"}},
		"all at once": {func(cfg *Config) {
			*cfg = Config{NodeName: "-", Duration: -1, RenewInterval: -1, CallTimeout: -1, ShutdownTimeout: -1, Workers: -1, OnShutdown: 9}
		}, []string{"Client", "NodeName", "Duration", "RenewInterval", "CallTimeout", "ShutdownTimeout", "Workers", "OnShutdown"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := validConfig()
			test.mutate(&cfg)
			_, err := New(cfg)
			if err == nil {
				t.Fatal("no error")
			}
			if !strings.HasPrefix(err.Error(), "lease: invalid config: ") {
				t.Errorf("error is %q", err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not contain %q", err, want)
				}
			}
		})
	}
}

func TestAFleetNeedsNoFirstNode(t *testing.T) {
	cfg := validConfig()
	cfg.NodeName, cfg.Fleet = "", true
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if n := c.nodes.Len(); n != 0 {
		t.Errorf("%d nodes from the start, want none", n)
	}
	if err := c.Add(""); err == nil {
		t.Error("Add has nothing against an empty node name")
	}
}

func TestConfigIsCopied(t *testing.T) {
	cfg := validConfig()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Duration != 0 {
		t.Error("New has written to its argument's copy")
	}
	cfg.NodeName = "other"
	if _, ok := c.Status("node-1"); !ok || c.cfg.NodeName != "node-1" {
		t.Error("a change after New has an effect")
	}
}

func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		PhaseHeld.String(): "Held", PhaseStopped.String(): "Stopped", Phase(99).String(): "Invalid(99)",
		ShutdownExpire.String(): "Expire", ShutdownPolicy(-1).String(): "Invalid(-1)",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
