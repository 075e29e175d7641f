// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import "testing"

func TestChangesOfARecordingApply(t *testing.T) {
	const was, now = "> a\n< 200\n> a\n< 200\n> b\n< 404\n", "> a\n< 200\n> a\n< 409\n> b\n< 400\n"
	diff := changes(was, now)
	if want := "> a\n4 < 409\n> b\n6 < 400\n"; diff != want {
		t.Errorf("changes %q, want %q", diff, want)
	}
	if got, err := applyChanges(was, diff); err != nil || got != now {
		t.Errorf("applied: %q, %v", got, err)
	}
	if got, err := applyChanges(was, changes(was, was)); err != nil || got != was {
		t.Errorf("without changes: %q, %v", got, err)
	}
	for _, bad := range []string{"> b\n4 < 409\n", "> a\n40 < 409\n", "> a\nx\n"} {
		if _, err := applyChanges(was, bad); err == nil {
			t.Errorf("%q applies", bad)
		}
	}
}
