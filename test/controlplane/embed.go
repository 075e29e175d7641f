// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import "embed"

// source is everything that the control plane is built from, so that the launcher works from any directory and its cache key
// can't miss a file. (Directories that begin with "_" are embedded only when named like this.)
//
//go:embed _program/*.go versions/*.mod versions/*.sum
var source embed.FS
