// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package claimstore

import (
	"strings"
	"testing"
)

func TestBootID(t *testing.T) {
	first, err := BootID()
	if again, _ := BootID(); err != nil || first != again || strings.TrimSpace(first) != first || len(first) < 30 {
		t.Errorf("%q, then %q, %v", first, again, err)
	}
}
