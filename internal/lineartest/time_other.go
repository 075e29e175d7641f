// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package lineartest

import "time"

// processTime reports that the time is not known.
func processTime() (time.Duration, bool) { return 0, false }
