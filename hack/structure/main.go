// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Structure prints how the files of packages use one another.
//
//	go run ./hack/structure ./podsync ./lease
//	go run ./hack/structure -v ./...
//
// A file uses another file of its package if it names a function, method, type,
// field, variable or constant that the other file declares. A circle is a set of
// files of which each uses each other one, directly or through files of the set:
// a reader can't understand one of them without the rest.
//
// For each package Structure prints the number of files and the size of each
// circle. With -v it prints the uses inside each circle with the names that cause
// them, fewest names first: these are the uses that cost least to remove. Test
// files are left out.
//
// A circle is nothing bad: hack/walk measures the way that a reader has to go, and a
// larger circle may make it shorter.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	verbose := flag.Bool("v", false, "print the uses inside each circle")
	dir := flag.String("C", ".", "the directory of the module")
	flag.Parse()
	patterns := flag.Args()
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	if err := run(os.Stdout, *dir, patterns, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "structure:", err)
		os.Exit(1)
	}
}

// listed is what structure needs of a package in the output of go list.
type listed struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Export     string
	DepOnly    bool
	ImportMap  map[string]string
	Error      *struct{ Err string }
}

// run prints the structure of the packages.
func run(out io.Writer, dir string, patterns []string, verbose bool) error {
	packages, err := list(dir, patterns)
	if err != nil {
		return err
	}
	exports := map[string]string{}
	for _, p := range packages {
		exports[p.ImportPath] = p.Export
	}
	for _, p := range packages {
		if p.DepOnly || len(p.GoFiles) == 0 {
			continue
		}
		uses, err := usesOf(p, exports)
		if err != nil {
			return fmt.Errorf("%s: %w", p.ImportPath, err)
		}
		circles := circlesOf(p.GoFiles, uses)
		largest := 1
		if len(circles) > 0 {
			largest = len(circles[0])
		}
		fmt.Fprintf(out, "%-60s %2d files, largest circle %2d\n", p.ImportPath, len(p.GoFiles), largest)
		if verbose {
			for _, c := range circles {
				printCircle(out, c, uses)
			}
		}
	}
	return nil
}

// list returns the packages that the patterns match and all that they import, compiled.
func list(dir string, patterns []string) ([]listed, error) {
	cmd := exec.Command("go", append([]string{"list", "-export", "-deps", "-json=ImportPath,Dir,GoFiles,Export,DepOnly,ImportMap,Error"}, patterns...)...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var packages []listed
	for decoder := json.NewDecoder(strings.NewReader(string(text))); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		if p.Error != nil {
			return nil, errors.New(p.Error.Err)
		}
		packages = append(packages, p)
	}
}

// uses has, for each file and each other file that it uses, the names that it uses of it.
type uses map[string]map[string][]string

func usesOf(p listed, exports map[string]string) (uses, error) {
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	lookup := func(path string) (io.ReadCloser, error) {
		if real, ok := p.ImportMap[path]; ok {
			path = real
		}
		return os.Open(exports[path])
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: importer.ForCompiler(fset, "gc", lookup)}
	checked, err := config.Check(p.ImportPath, fset, files, info)
	if err != nil {
		return nil, err
	}
	found := uses{}
	fileOf := func(pos token.Pos) string { return filepath.Base(fset.Position(pos).Filename) }
	for id, object := range info.Uses {
		if object.Pkg() != checked {
			continue
		}
		from, to := fileOf(id.Pos()), fileOf(object.Pos())
		if from == to {
			continue
		}
		if found[from] == nil {
			found[from] = map[string][]string{}
		}
		if !slices.Contains(found[from][to], object.Name()) {
			found[from][to] = append(found[from][to], object.Name())
		}
	}
	return found, nil
}

// circlesOf returns the circles of more than one file, the largest first, each sorted.
func circlesOf(files []string, u uses) [][]string {
	reach := map[string]map[string]bool{}
	for _, f := range files {
		reach[f] = map[string]bool{}
		for rest := []string{f}; len(rest) > 0; {
			next := rest[0]
			rest = rest[1:]
			for to := range u[next] {
				if !reach[f][to] {
					reach[f][to] = true
					rest = append(rest, to)
				}
			}
		}
	}
	var circles [][]string
	seen := map[string]bool{}
	for _, f := range files {
		if seen[f] || !reach[f][f] {
			continue
		}
		var circle []string
		for _, other := range files {
			if reach[f][other] && reach[other][f] {
				circle = append(circle, other)
				seen[other] = true
			}
		}
		slices.Sort(circle)
		circles = append(circles, circle)
	}
	slices.SortStableFunc(circles, func(a, b []string) int { return len(b) - len(a) })
	return circles
}

func printCircle(out io.Writer, circle []string, u uses) {
	fmt.Fprintf(out, "  circle of %d: %s\n", len(circle), strings.Join(circle, " "))
	type edge struct {
		from, to string
		names    []string
	}
	var edges []edge
	for _, from := range circle {
		for _, to := range circle {
			if names := slices.Sorted(slices.Values(u[from][to])); len(names) > 0 {
				edges = append(edges, edge{from, to, names})
			}
		}
	}
	slices.SortStableFunc(edges, func(a, b edge) int { return len(a.names) - len(b.names) })
	for _, e := range edges {
		fmt.Fprintf(out, "    %s uses %s: %s\n", e.from, e.to, strings.Join(e.names, " "))
	}
}
