// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package harness_test

import (
	"os"
	"strings"
	"testing"

	"github.com/kubewright/kubewright/test/e2e/harness"
)

var shared = harness.Shared{Options: harness.Options{Audit: true}}

func TestMain(m *testing.M) { os.Exit(shared.Run(m)) }

func TestKubectl(t *testing.T) {
	cluster := shared.Cluster(t)
	if got := cluster.Kubectl(t, "get", "--raw=/version"); !strings.Contains(got, `"gitVersion": "`+cluster.Version()+`"`) {
		t.Errorf("the server says %s, want version %s", got, cluster.Version())
	}
}
