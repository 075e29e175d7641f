// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package dirlock

import (
	"errors"
	"os"
	"testing"
)

func TestALockLastsAsLongAsTheFileIsOpen(t *testing.T) {
	path := t.TempDir()
	open := func() *os.File {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	first, second := open(), open()
	defer second.Close()
	if err := Lock(first); err != nil {
		t.Fatal(err)
	}
	if err := Lock(second); !errors.Is(err, ErrHeld) {
		t.Errorf("a second lock: %v, want ErrHeld", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Lock(second); err != nil {
		t.Errorf("after the first was closed: %v", err)
	}
}
