// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package nodestatus

import "errors"

func freeSpace(string) (space, error) { return space{}, errors.ErrUnsupported }
