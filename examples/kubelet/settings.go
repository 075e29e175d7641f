// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"errors"
	"flag"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

// settings can change without a new command line.
type settings struct {
	// SyncInterval is the time between two lists of all pods.
	SyncInterval metav1.Duration `json:"syncInterval"`
	// OrphanDelay is the time for which a pod must be unknown to the API before the
	// kubelet asks the API about it and removes it.
	OrphanDelay metav1.Duration `json:"orphanDelay"`
	// MassHold is the time for which suspiciously many pods must be unknown to the
	// API before they are removed.
	MassHold metav1.Duration `json:"massHold"`
	// BackoffInitial, BackoffMax and BackoffReset are the restart backoff of
	// containers; see podruntime.Backoff.
	BackoffInitial metav1.Duration `json:"backoffInitial"`
	BackoffMax     metav1.Duration `json:"backoffMax"`
	BackoffReset   metav1.Duration `json:"backoffReset"`
	// MaxPods is the node's capacity for pods.
	MaxPods int `json:"maxPods"`
	// Labels are set on the Node. With a label that a node may not set the program
	// fails at its start and is rolled back to its last settings.
	Labels map[string]string `json:"labels,omitempty"`
}

// addFlags sets the defaults, and adds a flag for each that a command line may
// change. They are in force while no settings are assigned.
func (s *settings) addFlags(flags *flag.FlagSet) {
	*s = settings{
		BackoffInitial: metav1.Duration{Duration: podruntime.DefaultBackoffInitial},
		BackoffMax:     metav1.Duration{Duration: podruntime.DefaultBackoffMax},
		BackoffReset:   metav1.Duration{Duration: podruntime.DefaultBackoffReset},
		MaxPods:        110,
	}
	// The provider lists its pods from memory, which costs nothing.
	flags.DurationVar(&s.SyncInterval.Duration, "sync-interval", podsync.DefaultRelist, "`time` between two lists of all pods, which find missed changes (setting syncInterval)")
	flags.DurationVar(&s.OrphanDelay.Duration, "orphan-delay", podsync.DefaultOrphanDelay, "`time` for which a pod must be unknown to the API before it is removed (setting orphanDelay)")
	flags.DurationVar(&s.MassHold.Duration, "mass-hold", podsync.DefaultMassHold, "`time` for which suspiciously many pods must be unknown to the API before they are removed (setting massHold)")
}

// decode reads settings. Keys that are missing from data keep their value in s; an
// unknown key is an error.
func (s settings) decode(data []byte) (settings, error) {
	err := yaml.UnmarshalStrict(data, &s)
	return s, err
}

// validate returns all that is wrong.
func (s settings) validate() error {
	var problems []error
	for _, d := range []struct {
		name  string
		value metav1.Duration
		least time.Duration
	}{
		{"syncInterval", s.SyncInterval, 100 * time.Millisecond},
		{"orphanDelay", s.OrphanDelay, time.Millisecond},
		{"massHold", s.MassHold, time.Millisecond},
		{"backoffInitial", s.BackoffInitial, time.Millisecond},
		{"backoffMax", s.BackoffMax, s.BackoffInitial.Duration},
		{"backoffReset", s.BackoffReset, time.Millisecond},
	} {
		if d.value.Duration < d.least {
			problems = append(problems, fmt.Errorf("%s: %v is less than %v", d.name, d.value.Duration, d.least))
		}
	}
	if s.MaxPods < 1 || s.MaxPods > 10000 {
		problems = append(problems, fmt.Errorf("maxPods: %d is not between 1 and 10000", s.MaxPods))
	}
	for key, value := range s.Labels {
		for _, why := range append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...) {
			problems = append(problems, fmt.Errorf("labels: %s=%s: %s", key, value, why))
		}
	}
	return errors.Join(problems...)
}

// backoff is that of containers.
func (s settings) backoff() podruntime.Backoff {
	return podruntime.Backoff{Initial: s.BackoffInitial.Duration, Max: s.BackoffMax.Duration, Reset: s.BackoffReset.Duration}
}
