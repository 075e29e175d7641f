// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kubewright_test

import (
	"bytes"
	"go/ast"
	"os"
	"strings"
	"testing"
)

// TestNodeapiHasTheSameCheckOfMethods compares the two copies of a package: nodeapi
// does not require this module. The tests of one copy hold for the other.
func TestNodeapiHasTheSameCheckOfMethods(t *testing.T) {
	ours, err := os.ReadFile("internal/optional/optional.go")
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.ReadFile("nodeapi/internal/optional/optional.go")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(ours, theirs) {
		t.Error("the copies differ")
	}
}

// TestTheLinkerMayDropMethods: if a program looks methods up in a type by a number, or by a
// name that is not a constant, the linker keeps all exported methods of all types. A
// small program with a clientset then has 66 MB instead of 39. Tests use apitest, which
// may.
func TestTheLinkerMayDropMethods(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.isTest() || strings.HasPrefix(f.path, "apitest/") {
			continue
		}
		imports := false
		for _, i := range f.ast.Imports {
			imports = imports || i.Path.Value == `"reflect"`
		}
		if !imports {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 1 {
				return true
			}
			selector, ok := call.Fun.(*ast.SelectorExpr)
			_, literal := call.Args[0].(*ast.BasicLit)
			if ok && (selector.Sel.Name == "Method" || selector.Sel.Name == "MethodByName" && !literal) {
				t.Errorf("%s: calls %s", f.path, selector.Sel.Name)
			}
			return true
		})
	}
}
