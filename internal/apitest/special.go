// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

func (c *call) special() (*answer, error) { return nil, errNoPath }
