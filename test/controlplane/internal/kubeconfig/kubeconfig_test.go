// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kubeconfig

import (
	"os"
	"path/filepath"
	"testing"
)

func TestYAML(t *testing.T) {
	c := Credentials{User: "system:node:a", Server: "https://127.0.0.1:6443", CA: []byte("ca"), Cert: []byte("cert"), Key: []byte("key")}
	const want = `apiVersion: v1
kind: Config
current-context: kubewright
clusters:
- name: kubewright
  cluster:
    server: "https://127.0.0.1:6443"
    certificate-authority-data: Y2E=
contexts:
- name: kubewright
  context:
    cluster: kubewright
    user: "system:node:a"
users:
- name: "system:node:a"
  user:
    client-certificate-data: Y2VydA==
    client-key-data: a2V5
`
	if got := string(c.YAML("")); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	c.Token, c.Cert, c.Key = "secret", nil, nil
	const wantToken = `    user: "system:node:a"
    namespace: "ns"
users:
- name: "system:node:a"
  user:
    token: "secret"
`
	if got := string(c.YAML("ns")); got[len(got)-len(wantToken):] != wantToken {
		t.Errorf("with a token:\n%s", got)
	}
}

func TestWriteReplacesPrivately(t *testing.T) {
	file := filepath.Join(t.TempDir(), "dir", FileName("system:serviceaccount:a:b"))
	for _, content := range []string{"first", "second"} {
		if err := Write(file, []byte(content)); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(file)
		if err != nil || string(got) != content {
			t.Errorf("read %q, %v, want %q", got, err, content)
		}
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v: others may read it", info.Mode(), err)
	}
	if entries, _ := os.ReadDir(filepath.Dir(file)); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestFileNamesAreDistinct(t *testing.T) {
	seen := map[string]string{}
	for _, user := range []string{"a:b", "a_b", "a/b", "a%3Ab", "a", "..", "a%5Fb", "A:B"} {
		name := FileName(user)
		if other, ok := seen[name]; ok {
			t.Errorf("%q and %q have the file name %q", user, other, name)
		}
		seen[name] = user
		if filepath.Base(name) != name {
			t.Errorf("%q leads elsewhere: %q", user, name)
		}
	}
}
