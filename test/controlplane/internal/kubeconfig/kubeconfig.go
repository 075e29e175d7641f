// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubeconfig writes kubeconfig files.
package kubeconfig

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Credentials is an identity in a cluster: either Cert and Key or Token is set.
type Credentials struct {
	User   string `json:"user"` // the name by which the API server knows the identity
	Server string `json:"server"`
	CA     []byte `json:"ca"`             // PEM
	Cert   []byte `json:"cert,omitempty"` // PEM
	Key    []byte `json:"key,omitempty"`  // PEM
	Token  string `json:"token,omitempty"`
}

// YAML returns the content of a kubeconfig file. namespace is the context's, or "" for none.
func (c Credentials) YAML(namespace string) []byte {
	var b strings.Builder
	b64 := base64.StdEncoding.EncodeToString
	// For the characters that occur in names, %q writes JSON strings, which are valid YAML.
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Config\ncurrent-context: kubewright\n")
	fmt.Fprintf(&b, "clusters:\n- name: kubewright\n  cluster:\n    server: %q\n    certificate-authority-data: %s\n", c.Server, b64(c.CA))
	fmt.Fprintf(&b, "contexts:\n- name: kubewright\n  context:\n    cluster: kubewright\n    user: %q\n", c.User)
	if namespace != "" {
		fmt.Fprintf(&b, "    namespace: %q\n", namespace)
	}
	fmt.Fprintf(&b, "users:\n- name: %q\n  user:\n", c.User)
	if c.Token != "" {
		fmt.Fprintf(&b, "    token: %q\n", c.Token)
	} else {
		fmt.Fprintf(&b, "    client-certificate-data: %s\n    client-key-data: %s\n", b64(c.Cert), b64(c.Key))
	}
	return []byte(b.String())
}

// Write writes a kubeconfig file that only its owner can read. A reader sees either the old file or the new one.
func Write(file string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".kubeconfig-")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// FileName returns a unique and readable file name for a user's kubeconfig.
func FileName(user string) string {
	return strings.NewReplacer("%", "%25", "/", "%2F", ":", "_", "_", "%5F").Replace(user) + ".kubeconfig"
}
