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

// A mistake is a break that the tutorial tells the reader to try, and what the test of the
// step must then print.
type mistake struct {
	step      string // the beginning of its title
	page      string // how the page names it
	file      string
	old       string // is removed; it is in the file once
	test      string // which fails
	complaint string
}

var mistakes = []mistake{
	{
		step: "Step 1:", page: "Remove the line `delete(p.runs, id)`", file: "runtime.go",
		old: "\tdelete(p.runs, id)\n", test: "TestRuntime", complaint: "after Remove: ",
	},
	{
		step: "Step 1:", page: "the first `if` of `Start`", file: "runtime.go",
		old:  "\tif p.runs[spec.ID] != nil {\n\t\treturn nil // an earlier call has started it\n\t}\n",
		test: "TestRuntime", complaint: "it ran again: ",
	},
	{
		step: "Step 3:", page: "remove the line `f.processes = 0` of `crash`", file: "explore_test.go",
		old:  "\tf.processes = 0 // and the kernel has killed them: Pdeathsig\n",
		test: "TestExplore", complaint: `problem: invariant "no container runs twice" is broken: 2 containers run`,
	},
}

// makeMistakes makes each mistake of a step in turn, and checks that its test fails.
func makeMistakes(t *testing.T, dir, page string, s step) {
	for _, m := range mistakes {
		if !strings.HasPrefix(s.title, m.step) {
			continue
		}
		if !strings.Contains(strings.Join(strings.Fields(page), " "), m.page) {
			t.Errorf("%s: the page does not have %q", s.title, m.page)
		}
		content := s.files[m.file]
		if n := strings.Count(content, m.old); n != 1 {
			t.Errorf("%s: %s has %d times %q", s.title, m.file, n, m.old)
			continue
		}
		if !strings.Contains(page, m.complaint) {
			t.Errorf("%s: the page does not have %q", s.title, m.complaint)
		}
		write(t, dir, m.file, strings.Replace(content, m.old, "", 1))
		out, err := command(t, dir, "test", "-vet=off", "-count=1", "-v", "-run", "^"+m.test+"$", ".").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "--- FAIL: "+m.test) || !strings.Contains(string(out), m.complaint) {
			t.Errorf("%s: %s does not find that %s lacks %q: %v\n%s", s.title, m.test, m.file, m.old, err, out)
		}
		write(t, dir, m.file, content)
	}
}

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
// is there then. It also makes the mistakes. The module that the reader makes with go get is this one, with this
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
		makeMistakes(t, dir, string(page), s)
	}
	run(t, dir, "vet", ".")
	// It reads the modules that tests of dependencies need, which nothing else here downloads.
	tidy := command(t, dir, "mod", "tidy", "-diff")
	tidy.Env = append(os.Environ(), "GOWORK=off")
	tidy.Stderr = t.Output()
	if out, err := tidy.Output(); err != nil || len(out) > 0 {
		t.Errorf("the module of the tutorial requires something else: %v\n%s", err, out)
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
	out, err := command(t, dir, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func command(t *testing.T, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOPROXY=off", "GOWORK=off", "GOFLAGS="+os.Getenv("GOFLAGS")+" -mod=mod")
	return cmd
}
