// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kubewright_test

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// TestExportedNamesAreDocumented checks that all exported names have comments.
// A field without a comment must be named in the comment above it; a constant
// may share the comment of its group.
func TestExportedNamesAreDocumented(t *testing.T) {
	for _, f := range goFiles(t) {
		if top, _, _ := strings.Cut(f.path, "/"); f.isTest() || !slices.Contains(product, top) {
			continue
		}
		missing := func(pos token.Pos, name string) {
			t.Errorf("%s: %s has no comment", f.fset.Position(pos), name)
		}
		for _, decl := range f.ast.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				if decl.Name.IsExported() && decl.Doc == nil && (decl.Recv == nil || exportedReceiver(decl.Recv.List[0].Type)) {
					missing(decl.Pos(), decl.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						if !spec.Name.IsExported() {
							continue
						}
						if decl.Doc == nil && spec.Doc == nil {
							missing(spec.Pos(), spec.Name.Name)
						}
						checkMembers(spec, missing)
					case *ast.ValueSpec:
						if spec.Names[0].IsExported() && decl.Doc == nil && spec.Doc == nil && spec.Comment == nil {
							missing(spec.Pos(), spec.Names[0].Name)
						}
					}
				}
			}
		}
	}
}

// checkMembers checks the fields of a struct and the methods of an interface.
func checkMembers(spec *ast.TypeSpec, missing func(token.Pos, string)) {
	var members *ast.FieldList
	switch kind := spec.Type.(type) {
	case *ast.StructType:
		members = kind.Fields
	case *ast.InterfaceType:
		members = kind.Methods
	default:
		return
	}
	above := ""
	for _, member := range members.List {
		if doc := member.Doc.Text() + member.Comment.Text(); doc != "" {
			above = doc
			continue
		}
		for _, name := range member.Names {
			if name.IsExported() && !strings.Contains(above, name.Name) {
				missing(name.Pos(), spec.Name.Name+"."+name.Name)
			}
		}
	}
}
