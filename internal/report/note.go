// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"
	"unicode/utf8"
)

// The API refuses an event with a longer reason or note, in bytes.
const (
	maxReason = 128
	maxNote   = 1024
)

// Reason returns s as the API takes it for the reason of an event.
func Reason(s string) string { return cut(s, maxReason) }

// Note returns s as the API takes it for the note of an event.
func Note(s string) string { return cut(s, maxNote) }

// cut returns s as valid UTF-8 of at most limit bytes.
func cut(s string, limit int) string {
	s = strings.ToValidUTF8(s, string(utf8.RuneError))
	if len(s) <= limit {
		return s
	}
	const dots = "..."
	return strings.ToValidUTF8(s[:limit-len(dots)], "") + dots
}
