// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"fmt"
	"strings"
)

// An envFile is the content of an environment file.
type envFile struct {
	values map[string]string // the first definition of each name
	err    error             // of the line that ends the file; the definitions before it count
}

// parseEnvFile parses an environment file as KEP-3721 defines it, a strict subset of a shell's
// syntax: lines NAME='value', whose value extends to the next quote, over lines if need be, and has
// no escapes; blank lines; comments, at the beginning of a line or after a value. A blank after the
// = makes the value empty, as in a shell; a name has no blank before the =. Lines end with LF or
// CRLF. Only the names in wanted are kept, and text after the last of them is ignored.
func parseEnvFile(text string, wanted map[string]bool) envFile {
	f := envFile{values: map[string]string{}}
	text = strings.ReplaceAll(text, "\r\n", "\n")
	for line := 1; text != "" && len(f.values) < len(wanted); line++ {
		text = strings.TrimLeft(text, " \t")
		if text == "" || text[0] == '\n' || text[0] == '#' {
			_, text, _ = strings.Cut(text, "\n")
			continue
		}
		first, _, _ := strings.Cut(text, "\n") // a text without = must not be searched to its end for each line
		name, _, ok := strings.Cut(first, "=")
		if !ok || name == "" || strings.TrimRight(name, " \t") != name {
			f.err = fmt.Errorf("line %d: not of the form NAME='value'", line)
			return f
		}
		value := ""
		text = text[len(name)+1:]
		switch {
		case strings.HasPrefix(text, "'"):
			if value, text, ok = strings.Cut(text[1:], "'"); !ok {
				f.err = fmt.Errorf("line %d: a quote is not closed", line)
				return f
			}
			line += strings.Count(value, "\n")
			var rest string
			rest, text, _ = strings.Cut(text, "\n")
			if rest = strings.TrimLeft(rest, " \t"); rest != "" && rest[0] != '#' {
				f.err = fmt.Errorf("line %d: text after the closing quote", line)
				return f
			}
		case strings.HasPrefix(text, " "), strings.HasPrefix(text, "\t"):
			_, text, _ = strings.Cut(text, "\n")
		default:
			f.err = fmt.Errorf("line %d: the value is not in single quotes", line)
			return f
		}
		if _, defined := f.values[name]; !defined && wanted[name] {
			f.values[strings.Clone(name)] = strings.Clone(value) // they must not keep the text in memory
		}
	}
	return f
}
