// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package alerts has no code. Its module requires promtool, which runs the tests of
// docs/alerts.yaml in rules.yaml: `make alerts`.
package alerts
