// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kubewright_test

import (
	"bytes"
	"go/ast"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestExportedAPI compares the exported declarations of every importable
// package with its golden file, so that review shows every change of the API.
// "make api" rewrites the files.
func TestExportedAPI(t *testing.T) {
	byPackage := make(map[string][]goFile)
	for _, f := range goFiles(t) {
		if top, _, _ := strings.Cut(f.path, "/"); !f.isTest() && (f.dir() == "." || slices.Contains(product, top) || top == "apitest" || top == "vkadapter") && !strings.Contains(f.path, "/internal/") {
			byPackage[f.dir()] = append(byPackage[f.dir()], f)
		}
	}
	for dir, files := range byPackage {
		t.Run(dir, func(t *testing.T) {
			got := exported(t, files)
			name := strings.ReplaceAll(dir, "/", "_")
			if dir == "." {
				name = "kubewright"
			}
			golden := filepath.Join("testdata", "api", name+".txt")
			if *update {
				if err := os.MkdirAll(filepath.Dir(golden), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatalf("%v; `make api` writes it", err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("the exported API of %s differs from %s (`make api` rewrites it) (-golden +source):\n%s", dir, golden, diff)
			}
		})
	}
}

// exported returns the exported declarations of a package, sorted, without
// comments and bodies.
func exported(t *testing.T, files []goFile) string {
	t.Helper()
	var lines []string
	for _, f := range files {
		f, err := parse(f.path, f.source) // a copy of the tree, for this function changes it
		if err != nil {
			t.Fatal(err)
		}
		if !ast.FileExports(f.ast) {
			continue
		}
		for _, decl := range f.ast.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				if decl.Recv != nil && !exportedReceiver(decl.Recv.List[0].Type) {
					continue // part of an interface that a type implements
				}
				decl.Doc, decl.Body = nil, nil
			case *ast.GenDecl:
				if decl.Tok == token.IMPORT {
					continue
				}
				dropComments(decl)
			}
			var out bytes.Buffer
			if err := (&printer.Config{Mode: printer.UseSpaces | printer.TabIndent, Tabwidth: 8}).Fprint(&out, token.NewFileSet(), decl); err != nil {
				t.Fatal(err)
			}
			lines = append(lines, out.String())
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

// exportedReceiver reports whether expr is the receiver of an exported type.
func exportedReceiver(expr ast.Expr) bool {
	switch x := expr.(type) {
	case *ast.StarExpr:
		return exportedReceiver(x.X)
	case *ast.IndexExpr: // of a generic type
		return exportedReceiver(x.X)
	case *ast.Ident:
		return x.IsExported()
	}
	return true
}

func dropComments(decl *ast.GenDecl) {
	decl.Doc = nil
	ast.Inspect(decl, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			n.Doc, n.Comment = nil, nil
		case *ast.TypeSpec:
			n.Doc, n.Comment = nil, nil
		case *ast.ValueSpec:
			n.Doc, n.Comment = nil, nil
		}
		return true
	})
}
