// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"strings"
	"testing"
)

func TestExpand(t *testing.T) {
	vars := map[string]string{"A": "1", "B": "$(A)", "E": "", "a b": "blank", "$(A": "odd"}
	lookup := func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
	for in, want := range map[string]string{
		"":              "",
		"plain":         "plain",
		"$(A)":          "1",
		"x$(A)y$(A)":    "x1y1",
		"$(B)":          "$(A)", // not expanded again
		"$(E)":          "",
		"$(a b)":        "blank",
		"$(NONE)":       "$(NONE)",
		"$()":           "$()",
		"$$(A)":         "$(A)",
		"$$$(A)":        "$1",
		"$$$$(A)":       "$$(A)",
		"$$":            "$",
		"$":             "$",
		"$A":            "$A",
		"$ (A)":         "$ (A)",
		"a$":            "a$",
		"$(A":           "$(A",
		"$(A $$ $(B":    "$(A $ $(B",
		"$($(A))":       "odd)",
		"($(A))":        "(1)",
		"$(NONE)$(A)":   "$(NONE)1",
		"日$(A)本":        "日1本",
		"\xff$(A)\xff$": "\xff1\xff$",
	} {
		if got := Expand(in, lookup); got != want {
			t.Errorf("Expand(%q) = %q, want %q", in, got, want)
		}
	}
}

// FuzzExpand: text without $ stays; doubled dollars come back single, whatever
// stands between them; nothing is expanded twice.
func FuzzExpand(f *testing.F) {
	f.Add("a$(B)$$c")
	f.Add("$($(x)")
	f.Fuzz(func(t *testing.T, s string) {
		none := func(string) (string, bool) { return "", false }
		if !strings.Contains(s, "$") && Expand(s, none) != s {
			t.Errorf("%q changed", s)
		}
		if got := Expand(strings.ReplaceAll(s, "$", "$$"), none); got != s {
			t.Errorf("escaped %q became %q", s, got)
		}
		dollars := func(string) (string, bool) { return "$(again)", true }
		if strings.Count(Expand(s, dollars), "$(again)") > strings.Count(s, "$(")+strings.Count(s, "$(again)") {
			t.Errorf("%q was expanded twice", s)
		}
	})
}
