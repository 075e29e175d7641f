// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"syscall"
	"testing"

	"github.com/kubewright/kubewright/internal/testmain"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(runChild())
	}
	testmain.Run(m)
}

// identifiers returns every identifier in a Go file.
func identifiers(t *testing.T, file string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	ast.Inspect(parsed, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			names = append(names, id.Name)
		}
		return true
	})
	return names
}

// healthy is a Trial.Health that is content.
func healthy(context.Context) error { return nil }

const errReadOnly = syscall.EROFS

// frame makes a slot of any JSON.
func frame(text []byte) []byte {
	slot := fmt.Appendf(nil, "%s %d %x\n%s\n", slotMagic, len(text), sha256.Sum256(text), text)
	return append(slot, bytes.Repeat([]byte{' '}, max(0, slotSize-len(slot)))...)
}
