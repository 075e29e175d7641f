// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package tutorial

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A step is a section of the tutorial, with the files that it adds.
type step struct {
	title string
	files map[string]string
}

var (
	heading = regexp.MustCompile(`(?m)^## (Step \d+: .*)$`)
	file    = regexp.MustCompile("(?ms)^`([a-z0-9_]+\\.go)`:\n\n```go\n(.*?)^```$")
)

// read returns the steps of a page.
func read(page string) (steps []step) {
	titles := heading.FindAllStringSubmatchIndex(page, -1)
	for i, at := range titles {
		end := len(page)
		if i+1 < len(titles) {
			end = titles[i+1][0]
		}
		s := step{title: page[at[2]:at[3]], files: map[string]string{}}
		for _, match := range file.FindAllStringSubmatch(page[at[1]:end], -1) {
			s.files[match[1]] = match[2]
		}
		steps = append(steps, s)
	}
	return steps
}

// TestTutorial writes the files of each step into an empty folder, and vets and tests what
// is there then. The module that the reader makes with go get is this one, with this
// repository in place of the released modules. TestCluster needs KUBEWRIGHT_E2E=1.
func TestTutorial(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "tutorial.md"))
	if err != nil {
		t.Fatal(err)
	}
	steps := read(string(page))
	if n := strings.Count(string(page), "\n```go\n"); len(steps) != 5 || n != count(steps) {
		t.Fatalf("%d steps with %d files, of %d blocks of code", len(steps), count(steps), n)
	}
	dir := t.TempDir()
	for _, name := range []string{"go.mod", "go.sum"} {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		write(t, dir, name, string(content))
	}
	run(t, dir, "mod", "edit", "-module=example.com/mynode",
		"-replace=github.com/kubewright/kubewright="+root,
		"-replace=github.com/kubewright/kubewright/nodeapi="+filepath.Join(root, "nodeapi"),
		"-replace=github.com/kubewright/kubewright/test/controlplane="+filepath.Join(root, "test", "controlplane"))
	for _, s := range steps {
		if len(s.files) == 0 {
			t.Errorf("%s has no files", s.title)
		}
		var tests []string
		for name, content := range s.files {
			write(t, dir, name, content)
			for _, match := range regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`).FindAllStringSubmatch(content, -1) {
				tests = append(tests, match[1])
			}
		}
		if len(tests) == 0 {
			t.Errorf("%s has no test", s.title)
		}
		out := run(t, dir, "test", "-vet=off", "-count=1", "-v", "-run", "^("+strings.Join(tests, "|")+")$", ".")
		for _, name := range tests {
			if !strings.Contains(out, "--- PASS: "+name) && (name != "TestCluster" || os.Getenv("KUBEWRIGHT_E2E") != "") {
				t.Errorf("%s: %s did not pass:\n%s", s.title, name, out)
			}
		}
	}
	run(t, dir, "vet", ".")
	if out := run(t, dir, "mod", "tidy", "-diff"); out != "" {
		t.Errorf("the module of the tutorial requires something else:\n%s", out)
	}
}

func count(steps []step) (files int) {
	for _, s := range steps {
		files += len(s.files)
	}
	return files
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// run runs a command of go, which works without a network.
func run(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOPROXY=off", "GOWORK=off", "GOFLAGS="+os.Getenv("GOFLAGS")+" -mod=mod")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
