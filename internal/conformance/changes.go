// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"strconv"
	"strings"
)

// changes returns the lines of now that differ from those of was, each after its number,
// a line with the request before it. Both have the same requests.
func changes(was, now string) string {
	old, lines := strings.Split(was, "\n"), strings.Split(now, "\n")
	if len(old) != len(lines) {
		return now // of other requests: applyChanges refuses it
	}
	var out strings.Builder
	for i := range lines {
		if lines[i] != old[i] {
			fmt.Fprintf(&out, "%s\n%d %s\n", old[max(0, i-1)], i+1, lines[i])
		}
	}
	return out.String()
}

// applyChanges returns the transcript that differs from was by changes.
func applyChanges(was, changes string) (string, error) {
	lines := strings.Split(was, "\n")
	entries := strings.Split(strings.TrimSuffix(changes, "\n"), "\n")
	for i := 0; i+1 < len(entries); i += 2 {
		number, line, _ := strings.Cut(entries[i+1], " ")
		n, err := strconv.Atoi(number)
		if err != nil || n < 2 || n > len(lines) || lines[n-2] != entries[i] {
			return "", fmt.Errorf("line %q does not follow %q in the newer recording", entries[i+1], entries[i])
		}
		lines[n-1] = line
	}
	return strings.Join(lines, "\n"), nil
}
