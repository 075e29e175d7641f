// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Walk measures the way that a reader has to go through a package to follow one object.
//
//	go run ./hack/walk
//	go run ./hack/walk -v lease-renewal
//
// A trip is a test of this package, for example the renewal of a lease, or a pod from
// the watch to its status. Walk runs the tests with each function of the library
// rewritten so that its calls are recorded. It changes no file, because go test
// -overlay gives the rewritten files to the compiler. For each trip Walk prints how many
// files of the package and of its internal packages were entered, and how many different
// calls led into another file. The same numbers for the whole module follow in brackets.
// With -v it prints the calls too. Arguments are the names of the trips to print.
//
// Walk fails if a trip is longer than its line in hack/walk/ceilings.txt allows. The
// numbers there may only fall: -lower writes those of shorter trips. Goroutines that run
// in another order make other calls, so a trip is run several times on one CPU, and the
// calls that most of its rounds make count.
//
// Walk also fails if more than four packages call one another in a circle on a trip,
// through functions and interfaces that they were given. Inside a package, and between
// it and its internal packages, there is no such limit: the trip is the measure.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kubewright/kubewright/hack/walk/record"
)

const (
	// rounds is the number of times that each trip is run.
	rounds = 15
	// most is the number of packages that a circle may have.
	most = 4
)

func main() {
	w := walk{out: os.Stdout}
	flag.BoolVar(&w.verbose, "v", false, "print the calls between files")
	flag.BoolVar(&w.lower, "lower", false, "write the numbers of shorter trips to the ceilings")
	flag.StringVar(&w.ceilings, "ceilings", "hack/walk/ceilings.txt", "the file with the ceilings")
	flag.Parse()
	trips, err := traced()
	if err == nil {
		err = w.judge(trips, flag.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "walk:", err)
		os.Exit(1)
	}
}

type walk struct {
	out            io.Writer
	ceilings       string
	verbose, lower bool
}

// length is the length of a trip: the files that it enters, and the calls between files.
type length struct{ files, calls int }

func (l length) String() string { return fmt.Sprintf("%d files / %d calls", l.files, l.calls) }

// shorter returns the smaller numbers of both.
func (l length) shorter(other length) length {
	return length{min(l.files, other.files), min(l.calls, other.calls)}
}

// judge prints the trips, and compares them with their ceilings.
func (w *walk) judge(trips []record.Trip, names []string) error {
	ceilings, err := readCeilings(w.ceilings)
	if err != nil {
		return err
	}
	usual := usualOf(trips)
	var broken []string
	for name := range ceilings {
		if _, ok := usual[name]; !ok {
			broken = append(broken, fmt.Sprintf("%s has a ceiling, but there is no such trip", name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(usual)) {
		trip := usual[name]
		own := lengthOf(trip, within(trip.Room))
		if len(names) == 0 || slices.Contains(names, name) {
			fmt.Fprintf(w.out, "%-26s %-20s %s (%s)\n", name, trip.Room, own, lengthOf(trip, record.Recorded))
			if w.verbose {
				w.print(trip)
			}
		}
		ceiling, ok := ceilings[name]
		if !ok && w.lower {
			ceiling = own // a new trip
		}
		switch {
		case !ok && !w.lower:
			broken = append(broken, fmt.Sprintf("%s has %s, and no ceiling: -lower adds it", name, own))
		case own.files > ceiling.files || own.calls > ceiling.calls:
			broken = append(broken, fmt.Sprintf("%s has %s, of %s at most: go run ./hack/walk -v %[1]s prints them", name, own, ceiling))
		case own != ceiling && !w.lower:
			fmt.Fprintf(w.out, "%s may have %s: lower that with go run ./hack/walk -lower\n", name, ceiling)
		}
		ceilings[name] = ceiling.shorter(own)
		for _, circle := range circlesOf(trip) {
			if len(circle) > most {
				broken = append(broken, fmt.Sprintf("%s has a circle of %d packages, of %d at most: %s", name, len(circle), most, strings.Join(circle, " ")))
			}
		}
	}
	if len(broken) > 0 {
		return errors.New(strings.Join(broken, "\n"))
	}
	if w.lower {
		return writeCeilings(w.ceilings, ceilings)
	}
	return nil
}

// usualOf returns one trip of each name, with the calls that most of its rounds made.
func usualOf(trips []record.Trip) map[string]record.Trip {
	usual, rounds := map[string]record.Trip{}, map[string]int{}
	made := map[string]map[record.Call]int{}
	for _, trip := range trips {
		usual[trip.Name] = record.Trip{Name: trip.Name, Room: trip.Room}
		rounds[trip.Name]++
		if made[trip.Name] == nil {
			made[trip.Name] = map[record.Call]int{}
		}
		for _, c := range trip.Calls {
			made[trip.Name][c]++
		}
	}
	for name, trip := range usual {
		for c, n := range made[name] {
			if 2*n > rounds[name] {
				trip.Calls = append(trip.Calls, c)
			}
		}
		usual[name] = trip
	}
	return usual
}

// print prints the calls of a trip that lead into another file of its room.
func (w *walk) print(trip record.Trip) {
	calls := slices.DeleteFunc(slices.Clone(trip.Calls), func(c record.Call) bool {
		return !within(trip.Room)(c.To.Package) || fileOf(c.From) == fileOf(c.To)
	})
	slices.SortFunc(calls, func(a, b record.Call) int {
		return cmp.Or(cmp.Compare(fileOf(a.From), fileOf(b.From)), cmp.Compare(a.From.Function, b.From.Function),
			cmp.Compare(fileOf(a.To), fileOf(b.To)), cmp.Compare(a.To.Function, b.To.Function))
	})
	for _, c := range calls {
		fmt.Fprintf(w.out, "    %s %s -> %s %s\n", fileOf(c.From), c.From.Function, fileOf(c.To), c.To.Function)
	}
}

// within returns whether a package is the room or an internal package of it.
func within(room string) func(pkg string) bool {
	return func(pkg string) bool { return ownerOf(pkg) == room }
}

// ownerOf returns the package that an internal package belongs to, or else the package.
func ownerOf(pkg string) string {
	owner, _, _ := strings.Cut(pkg, "/internal/")
	return owner
}

// fileOf returns the path of a file in the module.
func fileOf(p record.Place) string {
	if p == (record.Place{}) {
		return "outside"
	}
	return p.Package + "/" + p.File
}

// lengthOf counts what a trip does in the packages that in is true for.
func lengthOf(trip record.Trip, in func(pkg string) bool) length {
	files, calls := map[string]bool{}, 0
	for _, c := range trip.Calls {
		if !in(c.To.Package) {
			continue
		}
		files[fileOf(c.To)] = true
		if fileOf(c.From) != fileOf(c.To) {
			calls++
		}
	}
	return length{len(files), calls}
}

// circlesOf returns the packages that call one another, directly or through others. An
// internal package counts as the one that it belongs to.
func circlesOf(trip record.Trip) [][]string {
	uses := map[string]map[string]bool{}
	for _, c := range trip.Calls {
		if c.From == (record.Place{}) {
			continue
		}
		from, to := ownerOf(c.From.Package), ownerOf(c.To.Package)
		if uses[from] == nil {
			uses[from] = map[string]bool{}
		}
		uses[from][to] = true
	}
	reach := map[string]map[string]bool{}
	for from := range uses {
		reach[from] = map[string]bool{}
		for rest := []string{from}; len(rest) > 0; {
			next := rest[0]
			rest = rest[1:]
			for to := range uses[next] {
				if !reach[from][to] {
					reach[from][to] = true
					rest = append(rest, to)
				}
			}
		}
	}
	var circles [][]string
	seen := map[string]bool{}
	for _, from := range slices.Sorted(maps.Keys(reach)) {
		var circle []string
		for to := range reach[from] {
			if reach[to][from] && !seen[to] {
				circle = append(circle, to)
			}
		}
		for _, p := range circle {
			seen[p] = true
		}
		if len(circle) > 1 {
			circles = append(circles, slices.Sorted(slices.Values(circle)))
		}
	}
	return circles
}

const header = `# The length of each trip: its name, the files that it enters, and the calls between files.
# The numbers may only fall: go run ./hack/walk -lower
`

func readCeilings(file string) (map[string]length, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	ceilings := map[string]length{}
	for i, line := range strings.Split(string(text), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		var name string
		var l length
		if _, err := fmt.Sscanf(line, "%s %d %d", &name, &l.files, &l.calls); err != nil {
			return nil, fmt.Errorf("%s:%d: want the name of a trip and two numbers: %w", file, i+1, err)
		}
		ceilings[name] = l
	}
	return ceilings, nil
}

func writeCeilings(file string, ceilings map[string]length) error {
	var text strings.Builder
	text.WriteString(header)
	for _, name := range slices.Sorted(maps.Keys(ceilings)) {
		fmt.Fprintf(&text, "%-26s %3d %3d\n", name, ceilings[name].files, ceilings[name].calls)
	}
	return os.WriteFile(file, []byte(text.String()), 0o644)
}

// traced runs the trips and returns them.
func traced() ([]record.Trip, error) {
	dir, err := os.MkdirTemp("", "walk")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	overlay, err := rewriteAll(dir)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "trips")
	cmd := exec.Command("go", "test", "-overlay", overlay, "-run", "^TestTrip", fmt.Sprintf("-count=%d", rounds), "-cpu", "1", "./hack/walk")
	cmd.Env = append(os.Environ(), record.Variable+"="+file)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var trips []record.Trip
	for decoder := json.NewDecoder(bytes.NewReader(text)); ; {
		var trip record.Trip
		if err := decoder.Decode(&trip); errors.Is(err, io.EOF) {
			return trips, nil
		} else if err != nil {
			return nil, err
		}
		trips = append(trips, trip)
	}
}

// rewriteAll writes the rewritten files of all packages that the trips use to a
// directory, and returns the file for go test -overlay.
func rewriteAll(dir string) (string, error) {
	cmd := exec.Command("go", "list", "-deps", "-test", "-json=ImportPath,Dir,GoFiles,ForTest", "./hack/walk")
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", cmd, err)
	}
	var overlay struct{ Replace map[string]string }
	overlay.Replace = map[string]string{}
	for decoder := json.NewDecoder(bytes.NewReader(text)); ; {
		var p struct {
			ImportPath, Dir, ForTest string
			GoFiles                  []string
		}
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return "", fmt.Errorf("%s: %w", cmd, err)
		}
		inside, ok := strings.CutPrefix(p.ImportPath, record.Module)
		if !ok || p.ForTest != "" || !record.Recorded(inside) {
			continue
		}
		for _, name := range p.GoFiles {
			original := filepath.Join(p.Dir, name)
			source, err := os.ReadFile(original)
			if err == nil {
				source, err = rewrite(original, source)
			}
			copied := filepath.Join(dir, fmt.Sprintf("%d.go", len(overlay.Replace)))
			if err == nil {
				err = os.WriteFile(copied, source, 0o600)
			}
			if err != nil {
				return "", err
			}
			overlay.Replace[original] = copied
		}
	}
	text, err = json.Marshal(overlay)
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, text, 0o600)
}

// rewrite adds a call of [record.Enter] to the begin of each function, on the same line.
// Methods called String are left out: they are called by whatever is printed.
func rewrite(file string, source []byte) ([]byte, error) {
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, file, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	from := 0
	insert := func(after token.Pos, text string) {
		to := fset.Position(after).Offset
		out.Write(source[from:to])
		out.WriteString(text)
		from = to
	}
	for _, decl := range parsed.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Body == nil || f.Name.Name == "String" {
			continue
		}
		if from == 0 {
			insert(parsed.Name.End(), `; import walkrecord "`+record.Module+`hack/walk/record"`)
		}
		insert(f.Body.Lbrace+1, " walkrecord.Enter();")
	}
	out.Write(source[from:])
	return out.Bytes(), nil
}
