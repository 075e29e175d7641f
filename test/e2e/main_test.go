// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"testing"

	"github.com/kubewright/kubewright/test/e2e/harness"
)

// shared is the cluster of all tests that do not disturb it. It has the
// defaults of Kubernetes and an audit log for counting requests. Tests that
// kill or pause a component, or need other settings, start their own cluster.
var shared = harness.Shared{Options: harness.Options{Audit: true}}

func TestMain(m *testing.M) { os.Exit(shared.Run(m)) }
