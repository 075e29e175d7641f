// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

func TestConformance(t *testing.T) {
	podsynctest.TestProvider(t, podsynctest.Suite{
		New: func(testing.TB) podsync.Provider { return Adapt(newCloud("vk"), nil) },
	})
}
