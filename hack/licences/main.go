// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Licences prints a Markdown page with the modules that the modules of this
// repository are built from, and the licence of each. It fails if a licence is
// missing or unknown; a maintainer then has to check the licence and add it.
//
//	go run ./hack/licences examples/prometheus bench >DEPENDENCIES.md
//
// The arguments are the directories of the nested modules.
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(1)
	}
}

// module is a dependency of this repository.
type module struct {
	path, version, folder string
}

func run(nested []string) error {
	users := map[module][]string{}
	note := func(user, folder string, flags ...string) error {
		found, err := linked(folder, flags)
		for _, m := range found {
			users[m] = append(users[m], user)
		}
		return err
	}
	if err := note("the packages", ".", packages()...); err != nil {
		return err
	}
	if err := note("tests and examples", ".", "-test", "./..."); err != nil {
		return err
	}
	for _, folder := range nested {
		if err := note("`"+folder+"`", folder, "-test", "./...", "tool"); err != nil {
			return err
		}
	}

	fmt.Print(header)
	for _, m := range slices.SortedFunc(maps.Keys(users), func(a, b module) int {
		return strings.Compare(a.path+" "+a.version, b.path+" "+b.version)
	}) {
		licence, err := licenceOf(m.folder)
		if err != nil {
			return fmt.Errorf("%s %s: %w", m.path, m.version, err)
		}
		// A dependency of the packages is also a dependency of everything that
		// imports them.
		who := users[m]
		if who[0] == "the packages" {
			who = who[:1]
		}
		fmt.Printf("| %s | %s | %s | %s |\n", m.path, m.version, licence, strings.Join(who, ", "))
	}
	return nil
}

const header = `# Dependencies

Every module that this repository is built from, and its licence. ` + "`make licences`" + `
writes this page, and ` + "`make lint`" + ` checks it. Rows for "the packages" are modules that
a program links if it imports all six packages; the others are used only here.

The page omits the control plane of the end-to-end tests and the programs of the
conformance tests. They are built on the machine that runs the tests, from the modules
that [test/controlplane/versions](test/controlplane/versions) and
[test/conformance/versions](test/conformance/versions) pin, and never distributed.

| module | version | licence | for |
|---|---|---|---|
`

// packages returns the arguments that select the importable packages.
func packages() []string {
	return []string{"./lease/...", "./nodestatus/...", "./podsync/...", "./election/...", "./resourceslice/...", "./configcheckpoint/..."}
}

// linked returns the modules that the packages selected by args in folder are
// built from, except for those of this repository.
func linked(folder string, args []string) ([]module, error) {
	format := "{{with .Module}}{{if not .Main}}{{.Path}}\t{{with .Replace}}{{.Version}}{{else}}{{.Version}}{{end}}\t{{.Dir}}{{end}}{{end}}"
	list := exec.Command("go", append([]string{"list", "-deps", "-f", format}, args...)...)
	list.Dir, list.Stderr = folder, os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list in %s: %w", folder, err)
	}
	seen := map[module]bool{}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		// A module without a version is a folder of this repository, by replace.
		if f := strings.Split(lines.Text(), "\t"); len(f) == 3 && f[1] != "" && !strings.HasPrefix(f[0], "github.com/kubewright/") {
			seen[module{f[0], f[1], f[2]}] = true
		}
	}
	return slices.Collect(maps.Keys(seen)), nil
}

// licenceOf returns the SPDX identifiers of the licences in a module's
// directory.
func licenceOf(folder string) (string, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return "", err
	}
	var ids []string
	for _, entry := range entries {
		name := strings.ToUpper(entry.Name())
		if !entry.Type().IsRegular() || strings.HasSuffix(name, ".GO") || !strings.HasPrefix(name, "LICEN") && !strings.HasPrefix(name, "COPYING") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if err != nil {
			return "", err
		}
		found := classify(string(text))
		if len(found) == 0 {
			return "", fmt.Errorf("%s holds no licence that this program knows", entry.Name())
		}
		ids = append(ids, found...)
	}
	if len(ids) == 0 {
		return "", fmt.Errorf("no licence file")
	}
	slices.Sort(ids)
	return strings.Join(slices.Compact(ids), " AND "), nil
}
