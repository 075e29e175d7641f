// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kubewright_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// This file and api_test.go check the rules of CONTRIBUTING.md for every
// package.

var update = flag.Bool("update", false, "rewrite the golden files of the exported API")

const module = "github.com/kubewright/kubewright"

// product lists the six packages.
var product = []string{"lease", "nodestatus", "podsync", "election", "resourceslice", "configcheckpoint"}

// built returns the product packages that exist.
func built(t *testing.T) []string {
	t.Helper()
	var there []string
	for _, pkg := range product {
		if _, err := os.Stat(filepath.Join(pkg, "doc.go")); err == nil {
			there = append(there, pkg)
		}
	}
	if len(there) == 0 {
		t.Fatal("no product package found: is the test run in the root of the module?")
	}
	return there
}

// goFile is a Go file of the repository, nested modules included.
type goFile struct {
	path   string // slash-separated, from the root
	source []byte
	ast    *ast.File
	fset   *token.FileSet
}

func (f goFile) dir() string  { return filepath.ToSlash(filepath.Dir(f.path)) }
func (f goFile) isTest() bool { return strings.HasSuffix(f.path, "_test.go") }

// in reports whether the file is in folder or below it.
func (f goFile) in(folder string) bool { return strings.HasPrefix(f.path, folder+"/") }

// nested reports whether the file belongs to another module, which may have any
// requirements.
func (f goFile) nested(modules []string) bool {
	return slices.ContainsFunc(modules, f.in)
}

// support reports whether the file belongs to a package that exists for tests.
func (f goFile) support() bool {
	for _, folder := range []string{"apitest", "internal/callback/callbacktest", "internal/conformance", "internal/leasestub", "internal/lineartest", "internal/lifecycletest", "internal/nodelifecycle", "internal/requests", "internal/rmtree/rmtreetest", "internal/smalldisk", "internal/statuserr", "internal/testlog", "internal/testmain", "examples/internal/exampletest", "hack/hello", "podsync/podruntimetest", "podsync/podsynctest", "test", "configcheckpoint/internal/slotstore/slottest", "internal/durable/crashfs"} {
		if f.in(folder) {
			return true
		}
	}
	return false
}

func (f goFile) imports() []string {
	var paths []string
	for _, spec := range f.ast.Imports {
		paths = append(paths, strings.Trim(spec.Path.Value, "`\""))
	}
	return paths
}

func walk(t *testing.T, visit func(path string, d fs.DirEntry)) {
	t.Helper()
	err := walkRepo(func(path string, d fs.DirEntry) error {
		visit(path, d)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func walkRepo(visit func(path string, d fs.DirEntry) error) error {
	return filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".git") || d.Name() == "bin") {
			return filepath.SkipDir
		}
		return visit(filepath.ToSlash(path), d)
	})
}

// goFiles returns the Go files of the repository, which are read once. Tests must not
// change their syntax trees.
func goFiles(t *testing.T) []goFile {
	t.Helper()
	files, err := parsedOnce()
	if err != nil {
		t.Fatal(err)
	}
	return files
}

var parsedOnce = sync.OnceValues(func() (files []goFile, _ error) {
	return files, walkRepo(func(path string, d fs.DirEntry) error {
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.Contains(path, "/testdata/") {
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := parse(path, source)
		files = append(files, f)
		return err
	})
})

func parse(path string, source []byte) (goFile, error) {
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, path, source, parser.ParseComments|parser.SkipObjectResolution)
	return goFile{path, source, parsed, fset}, err
}

func nestedModules(t *testing.T) []string {
	t.Helper()
	var folders []string
	walk(t, func(path string, d fs.DirEntry) {
		if !d.IsDir() && d.Name() == "go.mod" && path != "go.mod" {
			folders = append(folders, filepath.ToSlash(filepath.Dir(path)))
		}
	})
	return folders
}

func TestEveryFileHasTheLicenceHeader(t *testing.T) {
	const want = "// Copyright The Kubewright Authors\n// SPDX-License-Identifier: Apache-2.0\n\n"
	for _, f := range goFiles(t) {
		if !bytes.HasPrefix(f.source, []byte(want)) {
			t.Errorf("%s does not begin with the two lines of the licence header and a blank line", f.path)
		}
	}
	walk(t, func(path string, d fs.DirEntry) {
		name := d.Name()
		if d.IsDir() || !(name == "Makefile" || strings.HasSuffix(name, ".sh") || strings.HasSuffix(name, ".yaml")) {
			return
		}
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if head := source[:min(len(source), 300)]; !bytes.Contains(head, []byte("# SPDX-License-Identifier: Apache-2.0")) {
			t.Errorf("%s has no licence header", path)
		}
	})
}

func TestEveryPackageHasOneComment(t *testing.T) {
	type pkg struct{ dir, name string }
	comments := make(map[pkg][]string)
	for _, f := range goFiles(t) {
		if f.isTest() {
			continue
		}
		p := pkg{f.dir(), f.ast.Name.Name}
		if comments[p] == nil {
			comments[p] = []string{}
		}
		if f.ast.Doc != nil {
			comments[p] = append(comments[p], f.path)
			text := f.ast.Doc.Text()
			if strings.Contains(text, "Copyright") || strings.Contains(text, "SPDX") {
				t.Errorf("%s: the package comment has swallowed the licence header", f.path)
			}
			if begin := "Package " + p.name + " "; p.name != "main" && !strings.HasPrefix(text, begin) {
				t.Errorf("%s: the package comment does not begin with %q", f.path, begin)
			}
		}
	}
	for p, where := range comments {
		if len(where) != 1 {
			t.Errorf("package %s in %s has %d package comments (%s), want one", p.name, p.dir, len(where), strings.Join(where, ", "))
		}
	}
}

func TestProductPackagesAreDocumentedUnderTheSameHeadings(t *testing.T) {
	want := []string{"Usage", "Behavior", "Concurrency", "Failure modes", "Compatibility"}
	for _, pkg := range built(t) {
		source, err := os.ReadFile(filepath.Join(pkg, "doc.go"))
		if err != nil {
			t.Fatal(err)
		}
		var headings []string
		for _, match := range regexp.MustCompile(`(?m)^// # (.+)$`).FindAllSubmatch(source, -1) {
			headings = append(headings, string(match[1]))
		}
		if !slices.Equal(headings, want) {
			t.Errorf("%s/doc.go has the headings %q, want %q", pkg, headings, want)
		}
	}
}

func TestOperationsCoverEachProductPackage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, pkg := range built(t) {
		if !bytes.Contains(page, []byte("\n## "+pkg+"\n")) {
			t.Errorf("docs/operations.md has no section %q", pkg)
		}
	}
}

func TestProductPackagesHaveExamples(t *testing.T) {
	files := goFiles(t)
	for _, pkg := range append(built(t), "apitest") {
		examples := 0
		for _, f := range files {
			if f.dir() != pkg || !f.isTest() {
				continue
			}
			for _, decl := range f.ast.Decls {
				if fn, ok := decl.(*ast.FuncDecl); ok && strings.HasPrefix(fn.Name.Name, "Example") {
					examples++
					if !bytes.Contains(f.source, []byte("// Output:")) {
						t.Errorf("%s: the Example has no output to compare, so it never runs", f.path)
					}
				}
			}
		}
		if examples < 2 {
			t.Errorf("package %s has %d runnable Examples, want two or more", pkg, examples)
		}
	}
}

func TestExactlySixDirectRequirements(t *testing.T) {
	gomod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"github.com/google/go-cmp", "k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go", "k8s.io/klog/v2", "k8s.io/utils"}
	var got []string
	for _, match := range regexp.MustCompile(`(?m)^(?:require )?\s*(\S+\.\S+/\S+) v\S+$`).FindAllSubmatch(gomod, -1) {
		got = append(got, string(match[1]))
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("go.mod requires directly %q, want %q", got, want)
	}
	if bytes.Contains(gomod, []byte("replace")) {
		t.Error("go.mod has a replace: it would not hold for those who import us")
	}
}

// requirements returns the modules that a go.mod requires, with their versions.
func requirements(t *testing.T, path string) map[string]string {
	t.Helper()
	gomod, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	versions := make(map[string]string)
	for _, match := range regexp.MustCompile(`(?m)^(?:require )?\s*(\S+\.\S+/\S+) (v\S+)`).FindAllSubmatch(gomod, -1) {
		versions[string(match[1])] = string(match[2])
	}
	return versions
}

// TestModulesRequireTheRelease: replaces hold in this repository only. A module that
// imports one of these, or a copy of an example without the replaces, gets the version that
// is required.
func TestModulesRequireTheRelease(t *testing.T) {
	changes, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	release := regexp.MustCompile(`(?m)^## (\d\S+)`).FindSubmatch(changes)
	if release == nil {
		t.Fatal("CHANGELOG.md has no release")
	}
	for _, folder := range nestedModules(t) {
		for name, version := range requirements(t, folder+"/go.mod") {
			if strings.HasPrefix(name, module) && version != "v"+string(release[1]) {
				t.Errorf("%s requires %s %s, want the release at the top of CHANGELOG.md, %s", folder, name, version, release[1])
			}
		}
	}
}

func TestModulesOfExamplesHaveTheVersionsOfTheRoot(t *testing.T) {
	// With other versions they would not run the code that is tested here, and
	// client-go would be compiled again for them.
	root := requirements(t, "go.mod")
	if root["k8s.io/client-go"] == "" {
		t.Fatalf("go.mod is not read as it is written: %v", root)
	}
	for _, folder := range nestedModules(t) {
		if !strings.HasPrefix(folder, "examples/") {
			continue
		}
		for name, version := range requirements(t, folder+"/go.mod") {
			if want, shared := root[name]; shared && version != want {
				t.Errorf("%s requires %s %s, the root %s", folder, name, version, want)
			}
		}
		if gomod, err := os.ReadFile(folder + "/go.mod"); err != nil || !regexp.MustCompile(`(?m)^(replace|)\s*`+module+` => \.\./\.\.$`).Match(gomod) {
			t.Errorf("%s does not replace %s by the one it lies in (%v)", folder, module, err)
		}
	}
}

func TestImports(t *testing.T) {
	modules := nestedModules(t)
	for _, f := range goFiles(t) {
		if f.nested(modules) {
			continue
		}
		for _, path := range f.imports() {
			if !f.isTest() && !f.support() && (path == "testing" || strings.HasPrefix(path, "testing/") || strings.HasPrefix(path, "github.com/google/go-cmp")) {
				t.Errorf("%s imports %s: that is for tests", f.path, path)
			}
			if !f.isTest() && !f.support() && (strings.HasPrefix(path, module+"/apitest") || strings.HasPrefix(path, module+"/internal/lifecycletest")) {
				t.Errorf("%s imports %s: that is for tests", f.path, path)
			}
			if host, _, _ := strings.Cut(path, "/"); !strings.Contains(host, ".") {
				continue // standard library
			}
			if !strings.HasPrefix(path, module) && !strings.HasPrefix(path, "k8s.io/") && !strings.HasPrefix(path, "github.com/google/go-cmp/") {
				t.Errorf("%s imports %s, which is of none of the six requirements", f.path, path)
			}
		}
	}
}

func TestProductPackagesDoNotImportOneAnother(t *testing.T) {
	for _, f := range goFiles(t) {
		own, _, _ := strings.Cut(f.path, "/")
		if !slices.Contains(product, own) {
			continue
		}
		for _, path := range f.imports() {
			rest, ok := strings.CutPrefix(path, module+"/")
			if other, _, _ := strings.Cut(rest, "/"); ok && other != own && slices.Contains(product, other) {
				t.Errorf("%s imports %s: the six packages meet only in the program's main", f.path, path)
			}
		}
	}
}

// forbidden are calls that a library must leave to the program it is part of,
// with the reason. The arguments are selectors as written in the source.
var forbidden = map[string]string{
	"utilruntime.HandleError":            "it has a process-global limiter; use the context's logger and ErrorHandler",
	"utilruntime.HandleErrorWithContext": "it has a process-global limiter; use the context's logger and ErrorHandler",
	"workqueue.SetProvider":              "global, and the first call wins",
	"klog.Background":                    "the logger comes from the context",
	"klog.InfoS":                         "the logger comes from the context",
	"klog.Infof":                         "the logger comes from the context",
	"klog.ErrorS":                        "the logger comes from the context",
	"klog.Errorf":                        "the logger comes from the context",
	"os.Exit":                            "only main ends the process",
	"context.TODO":                       "every call has a caller",
	"context.Background":                 "every call has a caller",
	"os.Getenv":                          "settings come from Config",
	"signal.Notify":                      "signals are main's",
	"flag.String":                        "flags are main's",
}

func TestProductPackagesLeaveTheProcessAlone(t *testing.T) {
	for _, f := range goFiles(t) {
		top, _, _ := strings.Cut(f.path, "/")
		if f.isTest() || f.support() || !slices.Contains(append(slices.Clone(product), "internal"), top) {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok {
					if why, bad := forbidden[x.Name+"."+n.Sel.Name]; bad {
						t.Errorf("%s uses %s.%s: %s", f.fset.Position(n.Pos()), x.Name, n.Sel.Name, why)
					}
				}
			case *ast.CallExpr:
				if id, ok := n.Fun.(*ast.Ident); ok && id.Name == "panic" {
					t.Errorf("%s panics: a node must not die of it", f.fset.Position(n.Pos()))
				}
			case *ast.FuncDecl:
				if n.Name.Name == "init" && n.Recv == nil {
					t.Errorf("%s: init runs in every program that links us", f.fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

func TestUnfinishedWorkHasAReason(t *testing.T) {
	// TO-DO markers are allowed with a reason: "TODO(why or where): what".
	mark := regexp.MustCompile(`\b(TODO|FIXME|XXX)\b(\([^)]{8,}\))?`)
	for _, f := range goFiles(t) {
		if f.path == "repo_test.go" || !containsAny(f.source, "TODO", "FIXME", "XXX") {
			continue
		}
		for _, match := range mark.FindAllSubmatchIndex(f.source, -1) {
			if match[4] < 0 {
				line := 1 + bytes.Count(f.source[:match[0]], []byte("\n"))
				t.Errorf("%s:%d: a mark for later without its reason", f.path, line)
			}
		}
	}
}

// TestOnlyTestFunctionsAskForShort: the Makefile finds the tests that do less with
// -short by the function that calls testing.Short, and runs them again without it.
func TestOnlyTestFunctionsAskForShort(t *testing.T) {
	asks := regexp.MustCompile(`^(Test|Fuzz|Benchmark)[A-Z]`)
	for _, f := range goFiles(t) {
		for _, decl := range f.ast.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && f.isTest() && asks.MatchString(fn.Name.Name) {
				continue
			}
			ast.Inspect(decl, func(n ast.Node) bool {
				if sel, ok := n.(*ast.SelectorExpr); ok && fmt.Sprint(sel.X) == "testing" && sel.Sel.Name == "Short" {
					t.Errorf("%s: testing.Short is called outside a test function: pass its result as a parameter", f.fset.Position(n.Pos()))
				}
				return true
			})
		}
	}
}

func TestNothingNamesAMachineOrARegistry(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git to know which files belong to the repository")
	}
	out, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		t.Skip("not a git checkout: " + err.Error())
	}
	// Written so that this file does not match itself.
	bad := regexp.MustCompile(`(^|[^A-Za-z0-9_.])/(w` + `ork|r` + `oot)/|prox` + `y\.golang|deb\.debia` + `n|registry\.npmj` + `s`)
	for path := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		if strings.HasSuffix(path, ".sum") {
			continue
		}
		content, err := os.ReadFile(path)
		if err != nil {
			continue // deleted in the work tree, or a link
		}
		if !containsAny(content, "/w"+"ork/", "/r"+"oot/", "xy."+"golang", "deb."+"debian", "ry."+"npmjs") {
			continue // the expression is slow
		}
		if match := bad.Find(content); match != nil {
			t.Errorf("%s contains %q", path, match)
		}
	}
}

// TestNoProgramIsTracked: go build in the folder of a program leaves one beside its sources.
func TestNoProgramIsTracked(t *testing.T) {
	out, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		t.Skip("not a git checkout: " + err.Error())
	}
	for path := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		if info, err := os.Stat(path); err == nil && info.Size() > 2<<20 {
			t.Errorf("%s has %d bytes", path, info.Size())
		}
	}
}

// containsAny reports whether text contains one of the parts.
func containsAny(text []byte, parts ...string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return bytes.Contains(text, []byte(part)) })
}

func TestEveryProgramHasAReadmeAndATest(t *testing.T) {
	mains := make(map[string]bool)
	for _, f := range goFiles(t) {
		if f.in("examples") && f.ast.Name.Name == "main" {
			mains[f.dir()] = true
		}
	}
	for dir := range mains {
		for _, file := range []string{"README.md", "main_test.go"} {
			if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
				t.Errorf("%s has no %s", dir, file)
			}
		}
	}
}

// TestEveryNodeWithPodsHasARuntime: kubectl get nodes -o wide shows it, and <unknown> without.
func TestEveryNodeWithPodsHasARuntime(t *testing.T) {
	nodes, pods, runtimes := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, f := range goFiles(t) {
		if !f.in("examples") || f.isTest() {
			continue
		}
		dir := filepath.Join("examples", strings.Split(filepath.ToSlash(f.path), "/")[1])
		nodes[dir] = nodes[dir] || containsAny(f.source, "nodestatus.New(", "vkadapter.NewNode(")
		pods[dir] = pods[dir] || containsAny(f.source, "podsync.New(", "vkadapter.NewNode(")
		runtimes[dir] = runtimes[dir] || containsAny(f.source, "ContainerRuntime")
	}
	for dir := range nodes {
		if nodes[dir] && pods[dir] && !runtimes[dir] {
			t.Errorf("%s registers a node with pods, and sets no container runtime", dir)
		}
	}
}

// starters are the examples that can be copied into another module.
var starters = []string{"composetest", "devices", "lease", "node"}

// starterModules are the examples that are modules and can be copied with their go.mod,
// and the folders of the modules of this repository that they require.
var starterModules = map[string][]string{
	"controlplane":  {"", "test/controlplane"},
	"customkubelet": {"", "nodeapi", "examples/prometheus"},
	"dradriver":     {"", "nodeapi", "examples/prometheus"},
	"leader":        {"", "nodeapi", "examples/prometheus"},
}

// TestExamplesCanBeCopied copies each starter into a separate module and runs
// its tests there, as a user does.
func TestExamplesCanBeCopied(t *testing.T) {
	for _, f := range goFiles(t) {
		if starter, ok := strings.CutPrefix(f.dir(), "examples/"); ok && (slices.Contains(starters, starter) || starterModules[starter] != nil) {
			for _, path := range f.imports() {
				if rest, ours := strings.CutPrefix(path, module+"/"); ours && !slices.Contains(starterModules[starter], filepath.Dir(rest)) && (strings.HasPrefix(rest, "examples/") || strings.Contains("/"+rest+"/", "/internal/")) {
					t.Errorf("%s imports %s, which a copy of it can't", f.path, path)
				}
			}
		}
	}
	if testing.Short() || os.Getenv("CI") == "" && os.Getenv("KUBEWRIGHT_COPY") == "" {
		t.Skip("links eight programs: set KUBEWRIGHT_COPY=1 to run their tests as copies")
	}
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	gomod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	_, requirements, _ := bytes.Cut(gomod, []byte("\n"))
	gosum, err := os.ReadFile("go.sum")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range starters {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(filepath.Join("examples", name))); err != nil {
				t.Fatal(err)
			}
			copied := fmt.Sprintf("module example.com/%s\n%s\nrequire %s v0.0.0\n\nreplace %s => %s\n", name, requirements, module, module, root)
			for file, content := range map[string][]byte{"go.mod": []byte(copied), "go.sum": gosum} {
				if err := os.WriteFile(filepath.Join(dir, file), content, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			testCopy(t, dir)
		})
	}
	for name, requires := range starterModules {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(filepath.Join("examples", name))); err != nil {
				t.Fatal(err)
			}
			edit := []string{"mod", "edit", "-module=example.com/" + name}
			for _, folder := range requires {
				edit = append(edit, "-replace="+strings.TrimSuffix(module+"/"+folder, "/")+"="+filepath.Join(root, folder))
			}
			before := [][]string{edit}
			if name == "controlplane" {
				before = append(before, []string{"build", "-o", os.DevNull, module + "/test/controlplane"}) // as the harness does
			}
			testCopy(t, dir, before...)
		})
	}
}

// testCopy runs commands of go in the copy of an example, and then its tests.
func testCopy(t *testing.T, dir string, before ...[]string) {
	// go test runs a part of vet only.
	for _, args := range append(before, []string{"vet", "."}, []string{"test", "-vet=off", "."}) {
		cmd := exec.Command("go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -mod=mod", "GOPROXY=off", "GOWORK=off", "KUBEWRIGHT_E2E=")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// TestStartersShareTheirFiles compares the files that starters have in common:
// each has a copy, so that it can be copied, and a change belongs into all.
func TestStartersShareTheirFiles(t *testing.T) {
	packageClause := regexp.MustCompile(`(?m)^package \w+$`)
	first := map[string]string{}
	for _, starter := range append(slices.Collect(maps.Keys(starterModules)), starters...) {
		dir := filepath.Join("examples", starter)
		for _, file := range []string{"setup.go", "heartbeat.go", "probes.go", "rig_test.go"} {
			content, err := os.ReadFile(filepath.Join(dir, file))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			text := packageClause.ReplaceAllString(string(content), "package")
			if first[file] == "" {
				first[file] = text
			} else if first[file] != text {
				t.Errorf("%s/%s differs from the file of that name in another starter", dir, file)
			}
		}
		manifests, err := filepath.Glob(filepath.Join(dir, "rbac", "*.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, manifest := range manifests {
			copied, err := os.ReadFile(manifest)
			if err != nil {
				t.Fatal(err)
			}
			original, err := os.ReadFile(filepath.Join("examples", "rbac", filepath.Base(manifest)))
			if err != nil || !bytes.Equal(copied, original) {
				t.Errorf("%s differs from the file of that name in examples/rbac (%v)", manifest, err)
			}
		}
	}
}

// TestMakefileWorksInAFolderWithSpaces checks that no recipe has the path of the
// repository without quotes.
func TestMakefileWorksInAFolderWithSpaces(t *testing.T) {
	make, err := exec.LookPath("make")
	if err != nil {
		t.Skip("there is no make")
	}
	makefile, err := filepath.Abs("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "a folder")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// git and go find nothing there, which is no matter: the recipes are not run.
	cmd := exec.Command(make, "-n", "-f", makefile, "hello", "scale", "bench-kubelet", "lint", "vuln")
	cmd.Dir = dir
	// The make that runs this test must not have its own directories printed.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS=") })
	recipes, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	quoted := strings.Count(string(recipes), `"`+dir+"/")
	if all := strings.Count(string(recipes), dir); quoted < 5 || quoted != all {
		t.Errorf("%d of %d paths are quoted:\n%s", quoted, all, recipes)
	}
}
