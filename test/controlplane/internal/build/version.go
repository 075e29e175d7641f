// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// DefaultVersion is the default Kubernetes version: the one that matches the library's client-go.
const DefaultVersion = "v1.37.2"

// Versions returns the Kubernetes versions that source pins, newest first.
func Versions(source fs.FS) ([]string, error) {
	mods, err := fs.Glob(source, "versions/*.mod")
	if err != nil {
		return nil, err
	}
	var versions []string
	for _, mod := range mods {
		versions = append(versions, strings.TrimSuffix(path.Base(mod), ".mod"))
	}
	slices.SortFunc(versions, func(a, b string) int { return compareVersions(b, a) })
	return versions, nil
}

// ResolveVersion returns the pinned version for s: the default for "", v1.36.3 for "v1.36.3" or "1.36.3", and the
// pinned version of the minor for "1.36".
func ResolveVersion(source fs.FS, s string) (string, error) {
	if s == "" {
		return DefaultVersion, nil
	}
	versions, err := Versions(source)
	if err != nil {
		return "", err
	}
	want := "v" + strings.TrimPrefix(s, "v")
	for _, v := range versions {
		if v == want || strings.HasPrefix(v, want+".") {
			return v, nil
		}
	}
	return "", fmt.Errorf("no Kubernetes version %q here; there are %s", s, strings.Join(versions, ", "))
}

// compareVersions orders versions of the form v1.2.3 by number.
func compareVersions(a, b string) int {
	as, bs := strings.Split(a[1:], "."), strings.Split(b[1:], ".")
	return slices.CompareFunc(as, bs, func(a, b string) int {
		x, _ := strconv.Atoi(a)
		y, _ := strconv.Atoi(b)
		return x - y
	})
}
