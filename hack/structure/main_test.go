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
	if err := run(&out, dir, []string{"./..."}, map[string]int{}, true); err != nil {
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
	if err := run(&out, dir, []string{"./..."}, map[string]int{"example.test/m": 3}, false); err == nil {
		t.Error("an exception for a circle that needs none was accepted")
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		largest, exception int
		ok                 bool
	}{
		{largest: 4, ok: true},
		{largest: 5},
		{largest: 5, exception: 5, ok: true},
		{largest: 6, exception: 5},
		{largest: 5, exception: 6},
		{largest: 4, exception: 4},
	} {
		exceptions := map[string]int{}
		if c.exception > 0 {
			exceptions["p"] = c.exception
		}
		if why := check("p", c.largest, exceptions); (why == "") != c.ok {
			t.Errorf("circle of %d with exception %d: %q", c.largest, c.exception, why)
		}
	}
}

func TestReadLimits(t *testing.T) {
	file := filepath.Join(t.TempDir(), "limits")
	for text, ok := range map[string]bool{
		"# comment\n\nexample.test/m 5\n": true,
		"example.test/m\n":                false,
	} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		limits, err := readLimits(file)
		if (err == nil) != ok || ok && limits["example.test/m"] != 5 {
			t.Errorf("%q: %v, %v", text, limits, err)
		}
	}
}
