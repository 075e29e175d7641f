// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kubewright_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// configured are the packages to which programs hand functions in a Config.
var configured = []string{
	"lease", "nodestatus", "podsync", "podsync/podenv", "podsync/podruntime", "election", "election/coordinator",
	"resourceslice", "resourceslice/claimstore", "configcheckpoint", "nodeapi", "vkadapter", "apitest",
}

// The sentences that a program needs before it can write the function.
var contract = map[string]*regexp.Regexp{
	"when it is called":         regexp.MustCompile(`\b(called|calls?)\b`),
	"whether calls overlap":     regexp.MustCompile(`at the same time|at a time|concurrent|any goroutine|by several goroutines|[Oo]ne goroutine|one after another|own goroutine|by the goroutine of`),
	"how long a call may take":  regexp.MustCompile(`must not block|must (then )?return|from memory|no deadline|is done after|context ends|may take \d+ s|within \d+ s`),
	"what an error of it means": regexp.MustCompile(`(?i)\b(an|the|its|any|any other) errors?\b`),
}

// Each function that a program hands to New has a contract: its comment, with those of its
// type and its struct, says when it is called, whether calls overlap, how long a call may
// take and what its error means.
func TestEachFunctionOfAProgramHasAContract(t *testing.T) {
	found := 0
	for _, dir := range configured {
		types := typesOf(t, dir)
		for name, spec := range types {
			fields, ok := spec.Type.(*ast.StructType)
			if !ok || !ast.IsExported(name) || name == "Controller" || name == "Hooks" {
				continue
			}
			above := ""
			for _, field := range fields.Fields.List {
				if field.Doc != nil {
					above = field.Doc.Text() // of this field and those that follow without a comment
				}
				function, doc := functionOf(field.Type, types)
				if methods := methodsOf(field.Type, types); len(field.Names) > 0 && methods != "" {
					if doc := above + methods; !contract["whether calls overlap"].MatchString(strings.Join(strings.Fields(doc), " ")) {
						t.Errorf("%s: the comments of %s.%s and its methods do not say whether calls overlap", dir, name, field.Names[0])
					}
				}
				if function == nil || len(field.Names) == 0 || !field.Names[0].IsExported() {
					continue
				}
				found++
				doc = spec.Doc.Text() + above + doc
				for says, words := range contract {
					if says == "what an error of it means" && !returnsError(function) {
						continue
					}
					if !words.MatchString(strings.Join(strings.Fields(doc), " ")) {
						t.Errorf("%s: the comment of %s.%s does not say %s", dir, name, field.Names[0], says)
					}
				}
			}
		}
	}
	if found < 40 {
		t.Errorf("%d functions were found: the test does not see them", found)
	}
}

// typesOf returns the types that a package declares.
func typesOf(t *testing.T, dir string) map[string]*ast.TypeSpec {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]*ast.TypeSpec{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range parsed.Decls {
			general, ok := decl.(*ast.GenDecl)
			if !ok || general.Tok != token.TYPE {
				continue
			}
			for _, spec := range general.Specs {
				spec := spec.(*ast.TypeSpec)
				if spec.Doc == nil {
					spec.Doc = general.Doc
				}
				types[spec.Name.Name] = spec
			}
		}
	}
	return types
}

// functionOf returns the function that a field of this type holds, and the comment of the
// function's own type. It returns nil if the field holds none.
func functionOf(expr ast.Expr, types map[string]*ast.TypeSpec) (*ast.FuncType, string) {
	if list, ok := expr.(*ast.ArrayType); ok {
		expr = list.Elt
	}
	switch x := expr.(type) {
	case *ast.FuncType:
		return x, ""
	case *ast.Ident:
		if spec, ok := types[x.Name]; ok {
			if function, ok := spec.Type.(*ast.FuncType); ok {
				return function, spec.Doc.Text()
			}
		}
	}
	return nil, ""
}

// methodsOf returns the comments of the interface that a field of this type holds. It returns
// nothing if the field holds none of this package.
func methodsOf(expr ast.Expr, types map[string]*ast.TypeSpec) string {
	switch x := expr.(type) {
	case *ast.ArrayType:
		return methodsOf(x.Elt, types)
	case *ast.MapType:
		return methodsOf(x.Value, types)
	case *ast.Ident:
		if spec, ok := types[x.Name]; ok {
			if methods, ok := spec.Type.(*ast.InterfaceType); ok {
				doc := spec.Doc.Text()
				for _, method := range methods.Methods.List {
					doc += method.Doc.Text()
				}
				return doc
			}
		}
	}
	return ""
}

func returnsError(f *ast.FuncType) bool {
	if f.Results == nil {
		return false
	}
	last, ok := f.Results.List[len(f.Results.List)-1].Type.(*ast.Ident)
	return ok && last.Name == "error"
}
