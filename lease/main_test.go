// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"testing"

	"github.com/kubewright/kubewright/internal/leasestub"
	"github.com/kubewright/kubewright/internal/testmain"
)

func TestMain(m *testing.M) {
	if leasestub.ServeChild() {
		return
	}
	testmain.Run(m)
}
