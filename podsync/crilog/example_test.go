// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package crilog_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/kubewright/kubewright/podsync/crilog"
)

// The last line of a log, as kubectl logs --tail=1 asks for it.
func Example() {
	dir, err := os.MkdirTemp("", "crilog-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	at := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	log := crilog.Append(nil, at, crilog.Stdout, []byte("hello\n"))
	log = crilog.Append(log, at.Add(time.Second), crilog.Stderr, []byte("bye\n"))
	path := filepath.Join(dir, "0.log")
	if err := os.WriteFile(path, log, 0o600); err != nil {
		fmt.Println(err)
		return
	}
	reader, err := crilog.Open(path, crilog.Options{Tail: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer reader.Close()
	text, err := io.ReadAll(reader)
	fmt.Printf("%s%v", text, err)
	// Output:
	// bye
	// <nil>
}
