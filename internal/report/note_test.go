// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"
	"testing"
)

func TestTextsThatTheAPITakes(t *testing.T) {
	x := strings.Repeat("x", 1020)
	for text, want := range map[string]string{
		"":              "",
		x + "1234":      x + "1234",
		x + "12345":     x + "1...",
		x + "é123":      x + "...", // not a half of a letter
		"no \xff UTF-8": "no \uFFFD UTF-8",
	} {
		if got := Note(text); got != want {
			t.Errorf("the note %q became %q, want %q", text, got, want)
		}
	}
	if got := Reason(x); got != x[:125]+"..." || Reason(x[:128]) != x[:128] {
		t.Errorf("the reason became %q", got)
	}
}
