// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kubewright_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// TestLinksOfDocumentsResolve checks the relative links of every Markdown file: the
// file exists and is committed, and a document has the heading.
func TestLinksOfDocumentsResolve(t *testing.T) {
	listed, err := exec.Command("git", "ls-files").Output()
	if err != nil {
		t.Skip("not a git checkout:", err)
	}
	files := map[string]bool{} // and the folders above them
	for path := range strings.Lines(string(listed)) {
		for path = strings.TrimSpace(path); path != "."; path = filepath.Dir(path) {
			files[path] = true
		}
	}
	links := 0
	for path := range files {
		if filepath.Ext(path) != ".md" || strings.Contains(path, "testdata/") {
			continue
		}
		for _, target := range linksOf(readDocument(t, path)) {
			links++
			name, anchor, _ := strings.Cut(target, "#")
			to := path
			if name != "" {
				to = filepath.Join(filepath.Dir(path), name)
			}
			switch {
			case to != "." && !files[to]:
				t.Errorf("%s: %s does not exist", path, target)
			case anchor != "" && !anchorsOf(readDocument(t, to))[anchor]:
				t.Errorf("%s: %s has no heading %q", path, to, anchor)
			}
		}
	}
	if links < 50 {
		t.Errorf("%d links were found, want many more", links)
	}
}

func readDocument(t *testing.T, path string) string {
	t.Helper()
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile("(?ms)^```.*?^```").ReplaceAllString(string(source), "")
}

// linksOf returns the relative targets of the links and pictures of a document.
func linksOf(document string) (targets []string) {
	for _, match := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(document, -1) {
		if target := match[1]; !strings.Contains(target, "://") && !strings.HasPrefix(target, "mailto:") {
			targets = append(targets, target)
		}
	}
	return targets
}

// anchorsOf returns the anchors that GitHub gives to the headings of a document.
func anchorsOf(document string) map[string]bool {
	anchors := map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^#+ +(.+?)\s*$`).FindAllStringSubmatch(document, -1) {
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r) || unicode.IsNumber(r) || r == '-' || r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, regexp.MustCompile(`\]\([^)]*\)`).ReplaceAllString(match[1], "]"))
		unique := anchor
		for n := 1; anchors[unique]; n++ {
			unique = fmt.Sprintf("%s-%d", anchor, n)
		}
		anchors[unique] = true
	}
	return anchors
}

func TestAnchorsAreThoseOfGitHub(t *testing.T) {
	got := anchorsOf("# API servers\n## `Run`, and its end: why?\n## Run_2\n## API servers\n### [A link](to/a.md) – a dash\n")
	for _, want := range []string{"api-servers", "run-and-its-end-why", "run_2", "api-servers-1", "a-link--a-dash"} {
		if !got[want] {
			t.Errorf("no anchor %q in %v", want, got)
		}
	}
}

// TestMigrationGuideNamesTheAPI checks that the column "here" of docs/migrate.md has
// only names of the exported API.
func TestMigrationGuideNamesTheAPI(t *testing.T) {
	var api strings.Builder
	golden, err := filepath.Glob(filepath.Join("testdata", "api", "*.txt"))
	if err != nil || len(golden) == 0 {
		t.Fatal("no golden files", err)
	}
	for _, file := range golden {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		api.Write(content)
	}
	guide, err := os.ReadFile(filepath.Join("docs", "migrate.md"))
	if err != nil {
		t.Fatal(err)
	}
	quoted := regexp.MustCompile("`[^`]*`")
	exported := regexp.MustCompile(`\b[A-Z]\w*\b`)
	names := 0
	for line := range strings.Lines(string(guide)) {
		columns := strings.Split(line, " | ")
		if len(columns) < 2 {
			continue
		}
		for _, code := range quoted.FindAllString(columns[1], -1) {
			for _, name := range exported.FindAllString(code, -1) {
				if names++; name != "Cause" && !regexp.MustCompile(`\b`+name+`\b`).MatchString(api.String()) {
					t.Errorf("%s: no package exports %s", strings.TrimSpace(line), name)
				}
			}
		}
	}
	if names < 100 {
		t.Errorf("only %d names found", names)
	}
}
