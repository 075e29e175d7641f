// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kubewright_test

import (
	"go/ast"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// cores are the packages that decide what a controller does next. They are pure:
// what they return depends on their arguments and their state only.
var cores = []string{
	"resourceslice/claimstore/internal/journal",
	"lease/internal/plan",
	"election/internal/machine",
	"election/coordinator/internal/contest",
	"resourceslice/internal/core",
	"nodestatus/internal/status",
	"podsync/internal/pod",
	"podsync/podruntime/internal/container",
	"configcheckpoint/internal/rollout",
}

// pureImports are what a core may import in addition to types of the API,
// other cores and the packages of the standard library that are not in impure.
var pureImports = []string{
	"k8s.io/api/",
	"k8s.io/apimachinery/",
	"k8s.io/utils/",
	module + "/internal/backoff",
	module + "/election/internal/spec",
	module + "/podsync/podstatus",
}

// impureImports are packages of the standard library and of the prefixes above
// that do I/O, wait, or start goroutines.
var impureImports = []string{
	"context", "io/fs", "log", "log/slog", "net", "net/http", "os", "os/exec", "os/signal", "runtime", "sync", "sync/atomic", "syscall", "testing",
	"k8s.io/apimachinery/pkg/util/wait", "k8s.io/apimachinery/pkg/watch", "k8s.io/apimachinery/pkg/util/runtime",
}

// impureCalls are functions of package time that read the clock or wait.
var impureCalls = []string{"time.Now", "time.Since", "time.Until", "time.Sleep", "time.After", "time.AfterFunc", "time.NewTimer", "time.NewTicker", "time.Tick"}

// impurities returns what in a file of a core is not pure.
func impurities(f goFile) (found []string) {
	for _, path := range f.imports() {
		host, _, _ := strings.Cut(path, "/")
		allowed := !strings.Contains(host, ".") || slices.ContainsFunc(pureImports, func(p string) bool { return strings.HasPrefix(path, p) }) ||
			slices.Contains(cores, strings.TrimPrefix(path, module+"/"))
		if !allowed || slices.Contains(impureImports, path) {
			found = append(found, "imports "+path)
		}
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = append(found, "starts a goroutine")
		case *ast.ChanType:
			found = append(found, "has a channel")
		case *ast.SelectStmt:
			found = append(found, "waits")
		case *ast.UnaryExpr:
			if n.Op == token.ARROW {
				found = append(found, "receives from a channel")
			}
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && slices.Contains(impureCalls, x.Name+"."+n.Sel.Name) {
				found = append(found, "calls "+x.Name+"."+n.Sel.Name)
			}
		}
		return true
	})
	return found
}

func TestCoresArePure(t *testing.T) {
	for _, core := range cores {
		files, checks := 0, false
		for _, f := range goFiles(t) {
			if f.dir() != core || f.isTest() {
				continue
			}
			files++
			for _, what := range impurities(f) {
				t.Errorf("%s %s: a core decides, its driver acts", f.path, what)
			}
			for _, decl := range f.ast.Decls {
				if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv != nil && fn.Name.Name == "Check" {
					checks = true
				}
			}
		}
		if files == 0 {
			t.Errorf("there is no package %s", core)
		}
		if !checks {
			t.Errorf("%s has no method Check that says which invariant is broken", core)
		}
		if scripts, _ := filepath.Glob(filepath.Join(filepath.FromSlash(core), "testdata", "*.txt")); len(scripts) == 0 {
			t.Errorf("%s has no scripts in testdata", core)
		}
	}
	// An internal package with scripts and a Check is meant to be a core.
	for _, top := range product {
		dirs, err := filepath.Glob(filepath.Join(top, "internal", "*", "testdata"))
		nested, err2 := filepath.Glob(filepath.Join(top, "*", "internal", "*", "testdata"))
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		for _, dir := range append(dirs, nested...) {
			core := filepath.ToSlash(filepath.Dir(dir))
			if scripts, _ := filepath.Glob(filepath.Join(dir, "*.txt")); len(scripts) > 0 && !slices.Contains(cores, core) {
				t.Errorf("%s has scripts and is not among the cores of this test", core)
			}
		}
	}
}

func TestImpurities(t *testing.T) {
	for body, want := range map[string]string{
		`import "time"; func f(now time.Time) time.Time { return now.Add(time.Second) }`: "",
		`import corev1 "k8s.io/api/core/v1"; var _ corev1.Pod`:                           "",
		`import "context"`:                                        "imports context",
		`import "k8s.io/client-go/kubernetes"`:                    "imports k8s.io/client-go/kubernetes",
		`import "` + module + `/lease"`:                           "imports " + module + "/lease",
		`import "k8s.io/apimachinery/pkg/util/wait"`:              "imports k8s.io/apimachinery/pkg/util/wait",
		`import "time"; func f() time.Time { return time.Now() }`: "calls time.Now",
		`func f() { go f() }`:                                     "starts a goroutine",
		`var c chan int`:                                          "has a channel",
		`func f() { <-done }`:                                     "receives from a channel",
		`func f() { select {} }`:                                  "waits",
	} {
		f, err := parse("core/core.go", []byte("package core; "+body))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(impurities(f), ", "); got != want {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
}
