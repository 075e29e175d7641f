// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package codec encodes and decodes the bodies of requests, in JSON, YAML and protobuf.
package codec
