// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"time"

	"github.com/kubewright/kubewright/configcheckpoint"
)

// Files are the files of one configuration, by name. The Data of a ConfigMap with
// several keys has the same type.
type Files map[string]string

// decodeFiles is the Decode of a Codec[Files]. A program goes on to parse each file.
func decodeFiles(data []byte) (Files, error) {
	var files Files
	err := json.Unmarshal(data, &files)
	return files, err
}

// filesSource delivers the files of a mounted ConfigMap, or of a directory with a link
// named ..data that is exchanged when all files are there. Read through the link once,
// the files belong together. The encoding has the names in order, so the same files are
// the same payload.
func filesSource(dir string, every time.Duration) configcheckpoint.Source {
	return configcheckpoint.SourceFunc(func(ctx context.Context) iter.Seq2[configcheckpoint.Payload, error] {
		return func(yield func(configcheckpoint.Payload, error) bool) {
			delivered := ""
			for ctx.Err() == nil {
				target, err := filepath.EvalSymlinks(filepath.Join(dir, "..data"))
				if err != nil || target != delivered {
					var payload configcheckpoint.Payload
					if err == nil {
						payload.Name, payload.Version = dir, filepath.Base(target)
						payload.Data, err = readFiles(os.DirFS(target))
					}
					if !yield(payload, err) {
						return
					}
					if err == nil {
						delivered = target
					}
				}
				select {
				case <-time.After(every):
				case <-ctx.Done():
				}
			}
		}
	})
}

// readFiles encodes the files of a directory as one payload.
func readFiles(dir fs.FS) ([]byte, error) {
	entries, err := fs.ReadDir(dir, ".")
	if err != nil {
		return nil, err
	}
	files := Files{}
	for _, entry := range entries {
		data, err := fs.ReadFile(dir, entry.Name())
		if err != nil {
			return nil, err
		}
		files[entry.Name()] = string(data)
	}
	return json.Marshal(files)
}

// A configuration of several files that change together.
func Example_files() {
	dir, err := os.MkdirTemp("", "files")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	publish := func(version, level string) {
		target := filepath.Join(dir, version)
		for _, err := range []error{
			os.Mkdir(target, 0o700),
			os.WriteFile(filepath.Join(target, "main.yaml"), []byte("level: "+level), 0o600),
			os.WriteFile(filepath.Join(target, "rules.txt"), []byte("drop debug"), 0o600),
			os.Symlink(version, filepath.Join(dir, "..data_tmp")),
			os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")),
		} {
			if err != nil {
				fmt.Println(err)
			}
		}
	}
	publish("v1", "info")
	for p, err := range filesSource(dir, time.Millisecond).Payloads(context.Background()) {
		if err != nil {
			fmt.Println("error:", err)
			return
		}
		files, err := decodeFiles(p.Data)
		fmt.Println(p.Version, len(files), files["main.yaml"], err)
		if p.Version == "v2" {
			break
		}
		publish("v2", "debug")
	}
	// Output:
	// v1 2 level: info <nil>
	// v2 2 level: debug <nil>
}
