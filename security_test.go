// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kubewright_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTheThreatModelNamesTestsThatExist: a row of SECURITY.md says what shows it.
func TestTheThreatModelNamesTestsThatExist(t *testing.T) {
	data, err := os.ReadFile("SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	_, model, _ := strings.Cut(string(data), "## Threat model")
	model, _, _ = strings.Cut(model, "\n## ")
	var named []string
	for _, m := range regexp.MustCompile("`((?:Test|Fuzz)[A-Z][A-Za-z0-9]*)`").FindAllStringSubmatch(model, -1) {
		named = append(named, m[1])
	}
	if len(named) < 20 {
		t.Errorf("the threat model names %d tests", len(named))
	}
	var tests strings.Builder
	err = filepath.WalkDir(".", func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		tests.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range named {
		if !strings.Contains(tests.String(), "\nfunc "+name+"(") {
			t.Errorf("there is no %s", name)
		}
	}
}

// TestActionsArePinned: a tag of an action can be moved, the hash of a commit can't.
func TestActionsArePinned(t *testing.T) {
	files, err := filepath.Glob(".github/workflows/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(err, files)
	}
	pinned := regexp.MustCompile(`^[a-z-]+/[a-z-]+@[0-9a-f]{40} # v[0-9.]+$`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if _, action, ok := strings.Cut(line, "uses: "); ok && !pinned.MatchString(strings.TrimSpace(action)) {
				t.Errorf("%s: %s", file, action)
			}
		}
	}
}

// TestDependabotKnowsEveryModule: one that it does not know keeps its versions.
func TestDependabotKnowsEveryModule(t *testing.T) {
	config, err := os.ReadFile(".github/dependabot.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"*/go.mod", "*/*/go.mod"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(err, files)
		}
		for _, file := range files {
			if dir := filepath.ToSlash(filepath.Dir(file)); dir != "testdata" && !strings.Contains(string(config), `"/`+dir+"\"\n") {
				t.Errorf("%s is not in dependabot.yml", dir)
			}
		}
	}
}
