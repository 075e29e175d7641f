// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// testModule writes a module with a circle of three files, which a method, a field
// and a function close, and a file that stands outside of it.
func testModule(t *testing.T) string {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":    "module example.test/m\n\ngo 1.26\n",
		"a.go":      "package m\n\ntype A struct{ field int }\n\nfunc (a A) First() { last() }\n",
		"b.go":      "package m\n\nfunc second(a A) int { return a.field }\n",
		"c.go":      "package m\n\nfunc last() { second(A{}) }\n",
		"d.go":      "package m\n\nfunc Outside() { A{}.First() }\n",
		"d_test.go": "package m\n\nfunc last2() { Outside() }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestRun(t *testing.T) {
	dir := testModule(t)
	var out bytes.Buffer
	if err := run(&out, dir, []string{"./..."}, true); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		" 4 files, largest circle  3\n",
		"  circle of 3: a.go b.go c.go\n",
		"    a.go uses c.go: last\n",
		"    b.go uses a.go: A field\n",
		"    c.go uses b.go: second\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output has no %q:\n%s", want, &out)
		}
	}
}
