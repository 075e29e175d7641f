// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import "embed"

// source holds all files from which the control plane is built, so that the launcher works from any directory and its cache
// key covers every file. Directories that begin with "_" are embedded only if they are named like this.
//
//go:embed _program/*.go versions/*.mod versions/*.sum
var source embed.FS
