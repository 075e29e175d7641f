// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator

import (
	"testing"

	"github.com/kubewright/kubewright/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }
