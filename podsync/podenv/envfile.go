// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// addFile defines a variable that a file in a volume holds.
func (b *builder) addFile(ctx context.Context, field, name string, ref *corev1.FileKeySelector) {
	read := b.p.resolver.cfg.ReadFile
	switch {
	case read == nil:
		b.fail(&SourceError{Field: field, Err: errors.New("variables from files are not supported on this node")})
		return
	case !filepath.IsLocal(ref.Path):
		b.fail(&SourceError{Field: field, Err: fmt.Errorf("the path %q leads out of the volume", ref.Path)})
		return
	}
	var value string
	data, err := read(ctx, b.p.pod.DeepCopy(), ref.VolumeName, ref.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = ErrMissing
	case err == nil:
		var ok bool
		if value, ok, err = envFileValue(string(data), ref.Key); err == nil && !ok {
			err = ErrMissing
		}
	}
	switch {
	case err == nil:
		b.set(field, name, value)
	case errors.Is(err, ErrMissing) && ref.Optional != nil && *ref.Optional:
	default:
		b.fail(&SourceError{Field: field, Kind: "file", Name: ref.VolumeName + "/" + ref.Path, Key: ref.Key, Wait: true, Err: err})
	}
}

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
			return value, true, nil
		}
	}
	return "", false, nil
}
