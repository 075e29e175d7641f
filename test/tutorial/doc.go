// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package tutorial has no code. Its test does what docs/tutorial.md says; the module has
// what the tutorial's program requires.
package tutorial

// The requirements of that program.
import (
	_ "github.com/kubewright/kubewright"
	_ "github.com/kubewright/kubewright/nodeapi"
)
