// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestPhrasesMatchTheirExamples(t *testing.T) {
	for name, lines := range map[string][]string{
		"headless what":             {"it starts what is to run", "what it failed with"},
		"somebody, nobody, whoever": {"because somebody set it", "Nobody renews it."},
		"where for if":              {"It does nothing where the node exists.", "nil where there is none", "Where it fails, the caller retries."},
		"anew, for ever":            {"created anew", "blocks for ever"},
		"told":                      {"the hook is told of it"},
	} {
		for _, p := range phrases {
			for _, line := range lines {
				if got := p.matches(line); got != (p.name == name) {
					t.Errorf("%q matches the pattern for %q: %t", line, p.name, got)
				}
			}
		}
	}
}

func TestPhrasesLeavePlainProseAlone(t *testing.T) {
	for _, line := range []string{
		"the directory where slots are stored", "This avoids a race where the server closes the connection.",
		"What: a Lease.", "It blocks without limit.", "Another client set a terminal phase.",
	} {
		for _, p := range phrases {
			if p.matches(line) {
				t.Errorf("%q matches the pattern for %q", line, p.name)
			}
		}
	}
}

func TestCommentsAreReadWithoutHeaderAndCode(t *testing.T) {
	source := "// Copyright The Kubewright Authors\n// SPDX-License-Identifier: Apache-2.0\n\n// Package p does x.\npackage p\n\n/* one\n   two */\nvar s = \"// nobody\" // told\n"
	var got []string
	for _, line := range comments("p.go", []byte(source)) {
		got = append(got, line.place+" "+line.line)
	}
	if want := "p.go:4 Package p does x.|p.go:7 one|p.go:8 two|p.go:9 told"; strings.Join(got, "|") != want {
		t.Errorf("got %q, want %q", strings.Join(got, "|"), want)
	}
}

func TestProseIsReadWithoutCodeBlocks(t *testing.T) {
	got := prose("r.md", []byte("# Title\n\ntext\n```\ncode, told\n```\nmore\n"))
	if len(got) != 3 || got[2].place != "r.md:7" || got[2].line != "more" {
		t.Errorf("got %v", got)
	}
}

func TestCompareFailsAboveTwiceTheRateOfThePeer(t *testing.T) {
	plain := make([]text, 1000)
	withOne := append([]text{{"a.go:1", "nobody reads it"}}, plain...)
	withTwo := append([]text{{"a.go:1", "nobody reads it"}, {"a.go:2", "nobody writes it"}}, plain...)
	withThree := append([]text{{"a.go:3", "nobody"}}, withTwo...)
	if err := compare(withTwo[:1001], withOne, false); err != nil {
		t.Errorf("twice the rate: %v", err)
	}
	if err := compare(withThree, withOne, false); err == nil || !strings.Contains(err.Error(), "somebody") {
		t.Errorf("three times the rate: %v", err)
	}
}
