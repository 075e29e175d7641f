// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kubewright_test

import (
	"strings"
	"testing"

	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	resourcev1client "k8s.io/client-go/kubernetes/typed/resource/v1"

	"github.com/kubewright/kubewright/configcheckpoint"
	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/election/coordinator"
	"github.com/kubewright/kubewright/lease"
	"github.com/kubewright/kubewright/nodestatus"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
	"github.com/kubewright/kubewright/podsync/podruntime"
	"github.com/kubewright/kubewright/resourceslice"
	"github.com/kubewright/kubewright/resourceslice/claimstore"
)

type source struct{ configcheckpoint.Source }

type containers struct{ podruntime.Runtime }

// TestATypedNilIsNotSet: the error of a constructor was ignored, or a variable was never
// set. New names the field; without that the program panics hours later, in a goroutine.
func TestATypedNilIsNotSet(t *testing.T) {
	for field, new := range map[string]func() error{
		"lease: Client": func() error {
			_, err := lease.New(lease.Config{Client: (*coordinationv1.CoordinationV1Client)(nil)})
			return err
		},
		"nodestatus: Client": func() error {
			_, err := nodestatus.New(nodestatus.Config{Client: (*corev1client.CoreV1Client)(nil)})
			return err
		},
		"nodestatus: Lease": func() error {
			_, err := nodestatus.New(nodestatus.Config{Lease: (*lease.Controller)(nil)})
			return err
		},
		"podsync: Client": func() error {
			_, err := podsync.New(podsync.Config{Client: (*corev1client.CoreV1Client)(nil)})
			return err
		},
		"podsync: Provider": func() error { _, err := podsync.New(podsync.Config{Provider: (*podruntime.Provider)(nil)}); return err },
		"podenv: Secrets": func() error {
			_, err := podenv.New(podenv.Config{Secrets: (*corev1client.CoreV1Client)(nil)})
			return err
		},
		"claimstore: Claims": func() error {
			_, err := claimstore.Open(t.Context(), claimstore.Config[string]{Claims: (*resourcev1client.ResourceV1Client)(nil)})
			return err
		},
		"podruntime: Runtime": func() error {
			_, err := podruntime.New(podruntime.Config{Runtime: (*containers)(nil)})
			return err
		},
		"election: Client": func() error {
			_, err := election.New(election.Config{Client: (*coordinationv1.CoordinationV1Client)(nil)})
			return err
		},
		"coordinator: Client": func() error {
			_, err := coordinator.New(coordinator.Config{Client: (*coordinationv1.CoordinationV1Client)(nil)})
			return err
		},
		"resourceslice: Client": func() error {
			_, err := resourceslice.New(resourceslice.Config{Client: (*resourcev1client.ResourceV1Client)(nil)})
			return err
		},
		"configcheckpoint: Source": func() error {
			_, err := configcheckpoint.New(configcheckpoint.Config[string]{Source: (*source)(nil)})
			return err
		},
	} {
		pkg, name, _ := strings.Cut(field, ": ")
		if err := new(); err == nil || !strings.HasPrefix(err.Error(), pkg+": invalid config") || !strings.Contains(err.Error(), name+": Required value") {
			t.Errorf("%s: %v", field, err)
		}
	}
}
