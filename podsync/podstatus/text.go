// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxTerminationMessageBytes is the size that the termination messages of one pod may
// have together, as the API documents for terminationMessagePath: each container,
// of whatever kind, gets an equal share of it.
const MaxTerminationMessageBytes = 12 * 1024

// Texts longer than these are cut, so that no report makes a request that is
// too large to be stored. They are the limits of metav1.Condition.
const (
	maxReason  = 1024
	maxMessage = 32 * 1024
)

// text returns s as the API can store it: valid UTF-8 of at most limit bytes.
// A text that can't be stored would differ from the stored one at each comparison,
// and be sent without end.
func text(s string, limit int) string {
	if len(s) <= limit && utf8.ValidString(s) {
		return s
	}
	if len(s) > limit+utf8.UTFMax {
		s = s[:limit+utf8.UTFMax]
	}
	s = strings.ToValidUTF8(s, string(utf8.RuneError))
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

// seconds cuts t to the resolution of the API, in UTC and without a monotonic
// part.
func seconds(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return time.Unix(t.Unix(), 0).UTC()
}

func cut(t metav1.Time) metav1.Time { return metav1.Time{Time: seconds(t.Time)} }

// storable reports whether t is a time that RFC 3339 can spell and that comes
// back as it was sent.
func storable(t metav1.Time) bool {
	year := t.UTC().Year()
	return !t.IsZero() && year >= 1 && year <= 9999 && !seconds(t.Time).IsZero()
}

// terminationShare is the number of bytes of termination message that a container of the
// pod may have.
func terminationShare(spec *corev1.PodSpec) int {
	n := len(spec.Containers) + len(spec.InitContainers) + len(spec.EphemeralContainers)
	return MaxTerminationMessageBytes / max(n, 1)
}
