// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"strings"
)

// Expand replaces references $(NAME) in s by what lookup returns for NAME, by the
// rules of the API for env values, command and args: a name that lookup doesn't
// know leaves the reference as it is; $$ becomes $ and is never part of a
// reference, so that $$(NAME) gives $(NAME); any other $ stays. What lookup
// returns isn't expanded again. The result has no limit of its own: a lookup that must
// bound it counts what it has returned, as [Pod.Container] does.
func Expand(s string, lookup func(name string) (string, bool)) string {
	at := strings.IndexByte(s, '$')
	if at < 0 {
		return s
	}
	var b strings.Builder
	b.Grow(len(s))
	for at >= 0 {
		b.WriteString(s[:at])
		s = s[at+1:]
		switch {
		case strings.HasPrefix(s, "$"):
			b.WriteByte('$')
			s = s[1:]
		case strings.HasPrefix(s, "("):
			end := strings.IndexByte(s, ')')
			if end < 0 {
				// Nothing closes it, nor any reference after it.
				b.WriteString("$(")
				s = s[1:]
				break
			}
			if value, ok := lookup(s[1:end]); ok {
				b.WriteString(value)
			} else {
				b.WriteByte('$')
				b.WriteString(s[:end+1])
			}
			s = s[end+1:]
		default:
			b.WriteByte('$')
		}
		at = strings.IndexByte(s, '$')
	}
	b.WriteString(s)
	return b.String()
}
