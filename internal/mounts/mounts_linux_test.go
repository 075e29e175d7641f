// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"bufio"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestMountsBelow(t *testing.T) {
	if found, err := Below("/proc"); err != nil || len(found) == 0 {
		t.Errorf("below /proc: %v, %v", found, err)
	}
	if found, err := Below(filepath.Join(t.TempDir(), "x")); err != nil || len(found) > 0 {
		t.Errorf("below a new folder: %v, %v", found, err)
	}
}

// TestAnUnreadMountIsNotTakenForNone says which mount points are found in a mountinfo, and that the
// rest of one that can't be read is an error: its callers delete what is not mounted.
func TestAnUnreadMountIsNotTakenForNone(t *testing.T) {
	line := func(point string) string { return "36 35 98:0 / " + point + " rw - tmpfs tmpfs rw\n" }
	long := func(n int) string {
		s := line("/pods/a/long")
		return s[:len(s)-1] + strings.Repeat("x", n-len(s)+1) + "\n" // n without the end of the line
	}
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		mountinfo io.Reader
		want      []string
		err       error
	}{
		"no mount":              {strings.NewReader(""), nil, nil},
		"the deepest first":     {strings.NewReader(line("/pods/a") + line("/pods/a/b") + line("/pods/a/b/c")), []string{"/pods/a/b/c", "/pods/a/b", "/pods/a"}, nil},
		"neighbours":            {strings.NewReader(line("/") + line("/pods") + line("/pods/ab") + line("/x/pods/a")), nil, nil},
		"escapes":               {strings.NewReader(line(`/pods/a/1\0402\0113\0124\1345`)), []string{"/pods/a/1 2\t3\n4\\5"}, nil},
		"a line too short":      {strings.NewReader("36 35 98:0 /\n" + "36 35 98:0 / /pods/a/b\n"), []string{"/pods/a/b"}, nil},
		"the longest line":      {strings.NewReader(long(longest-1) + line("/pods/a/b")), []string{"/pods/a/b", "/pods/a/long"}, nil},
		"a line too long":       {strings.NewReader(line("/pods/a/b") + long(longest) + line("/pods/a/c")), nil, bufio.ErrTooLong},
		"an error at the start": {iotest.ErrReader(broken), nil, broken},
		"an error later":        {io.MultiReader(strings.NewReader(line("/pods/a/b")), iotest.ErrReader(broken)), nil, broken},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := below(test.mountinfo, "/pods/a")
			if !errors.Is(err, test.err) || (err == nil) != (test.err == nil) || !slices.Equal(found, test.want) {
				t.Errorf("found %q, %v; want %q, %v", found, err, test.want, test.err)
			}
		})
	}
}
