// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"fmt"
	"strings"
)

// envFileValue returns the value of key in an environment file as KEP-3721 defines
// it, a strict subset of a shell's syntax: lines NAME='value', whose value extends
// to the next quote, over lines if need be, and has no escapes; blank lines;
// comments, at the beginning of a line or after a value. A blank after the = makes
// the value empty, as in a shell; a name has no blank before the =. Lines end with LF
// or CRLF. The first definition counts; text after it is ignored.
func envFileValue(text, key string) (value string, ok bool, err error) {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	for line := 1; text != ""; line++ {
		text = strings.TrimLeft(text, " \t")
		if text == "" || text[0] == '\n' || text[0] == '#' {
			_, text, _ = strings.Cut(text, "\n")
			continue
		}
		name, rest, ok := strings.Cut(text, "=")
		if !ok || name == "" || strings.ContainsRune(name, '\n') || strings.TrimRight(name, " \t") != name {
			return "", false, fmt.Errorf("line %d: not of the form NAME='value'", line)
		}
		value, text = "", rest
		switch {
		case strings.HasPrefix(text, "'"):
			if value, text, ok = strings.Cut(text[1:], "'"); !ok {
				return "", false, fmt.Errorf("line %d: a quote is not closed", line)
			}
			line += strings.Count(value, "\n")
			rest, text, _ = strings.Cut(text, "\n")
			if rest = strings.TrimLeft(rest, " \t"); rest != "" && rest[0] != '#' {
				return "", false, fmt.Errorf("line %d: text after the closing quote", line)
			}
		case strings.HasPrefix(text, " "), strings.HasPrefix(text, "\t"):
			_, text, _ = strings.Cut(text, "\n")
		default:
			return "", false, fmt.Errorf("line %d: the value is not in single quotes", line)
		}
		if name == key {
			return strings.Clone(value), true, nil // it must not keep the text in memory
		}
	}
	return "", false, nil
}
