// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestText(t *testing.T) {
	for _, tc := range []struct {
		in    string
		limit int
		want  string
	}{
		{"", 4, ""},
		{"abcd", 4, "abcd"},
		{"abcde", 4, "abcd"},
		{"abcé", 4, "abc"},
		{"é", 1, ""},
		{"日本", 5, "日"},
		{"a\xffb", 10, "a\uFFFDb"},
		{"\xff\xff\xff", 2, ""},
		{"ab\xe2\x82", 10, "ab\uFFFD"},
		{"x", 0, ""},
	} {
		if got := text(tc.in, tc.limit); got != tc.want {
			t.Errorf("text(%q, %d) = %q, want %q", tc.in, tc.limit, got, tc.want)
		}
	}
}

// FuzzText: valid, within the limit, a fixed point, and the input if it fits.
func FuzzText(f *testing.F) {
	f.Add("a\xffé日\xf0\x9f", 5)
	f.Add(strings.Repeat("é", 100), 99)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		limit = min(max(limit, 0), 1<<16)
		got := text(s, limit)
		if !utf8.ValidString(got) || len(got) > limit || text(got, limit) != got {
			t.Errorf("text(%q, %d) = %q", s, limit, got)
		}
		if utf8.ValidString(s) && (len(got) < min(len(s), limit)-utf8.UTFMax+1 || !strings.HasPrefix(s, got)) {
			t.Errorf("text(%q, %d) = %q cuts too much", s, limit, got)
		}
	})
}

func TestStorable(t *testing.T) {
	for _, tc := range []struct {
		in   time.Time
		want bool
	}{
		{time.Time{}, false},
		{time.Time{}.Add(time.Millisecond), false}, // zero once it is cut
		{time.Time{}.Add(time.Second), true},
		{time.Unix(0, 0), true},
		{time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), true},
		{time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), false},
		{time.Date(9999, 12, 31, 23, 59, 59, 0, time.FixedZone("", -3600)), false},
		{time.Date(-5, 1, 1, 0, 0, 0, 0, time.UTC), false},
	} {
		if got := storable(metav1.NewTime(tc.in)); got != tc.want {
			t.Errorf("storable(%v) = %v, want %v", tc.in, got, tc.want)
		}
	}
}
