// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// The names under which the images are imported: those that Kubernetes' tests use.
const (
	PauseImage      = "registry.k8s.io/pause:3.10.2"
	NonewprivsImage = "registry.k8s.io/e2e-test-images/nonewprivs:1.4"
	GlibcImage      = "registry.k8s.io/e2e-test-images/glibc-dns-testing:2.1.1"
	BusyboxImage    = "registry.k8s.io/e2e-test-images/busybox:1.37.0-2"
	AgnhostImage    = "registry.k8s.io/e2e-test-images/agnhost:2.66.1"
	NonrootImage    = "registry.k8s.io/e2e-test-images/nonroot:1.5"
	IPCUtilsImage   = "registry.k8s.io/e2e-test-images/ipc-utils:1.4"
)

// An image is an image with one layer.
type image struct {
	names  []string
	config map[string]any // as in Docker's image configuration
	layer  func(*layer)
}

// images returns the images of the tests. They need no registry: pause and agnhost are
// compiled, busybox comes from Debian, as do curl and nc.
func images(b Binaries) []image {
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	shell := func(l *layer) { l.busybox("/bin/busybox", b.Sh) }
	// The shell of Debian's busybox runs its own nc and hostname whatever PATH says.
	bash := func(l *layer) { l.busybox("/bin/busybox", "/bin/bash-static") }
	return []image{
		{[]string{PauseImage}, map[string]any{"Entrypoint": []string{"/pause"}, "User": "65535:65535"}, func(l *layer) {
			l.file("pause", b.Pause, 0o755)
		}},
		{[]string{BusyboxImage, "registry.k8s.io/e2e-test-images/busybox:1.36.1-1"}, map[string]any{"Cmd": []string{"sh"}, "Env": env}, shell},
		{[]string{NonrootImage}, map[string]any{"Cmd": []string{"sh"}, "Env": env, "User": "1234"}, shell},
		{[]string{GlibcImage}, map[string]any{"Cmd": []string{"sh"}, "Env": env}, func(l *layer) {
			bash(l)
			l.program("usr/bin/hostname") // resolves names as glibc does
		}},
		{[]string{IPCUtilsImage}, map[string]any{"Cmd": []string{"sh"}, "Env": env}, shell},
		{[]string{NonewprivsImage}, map[string]any{"Cmd": []string{"nnp"}, "Env": env}, func(l *layer) {
			shell(l)
			l.file("usr/local/bin/nnp", b.Nonewprivs, 0o6755)
		}},
		// Some tests replace an image by its successor: both names have the same content.
		{[]string{AgnhostImage, "registry.k8s.io/e2e-test-images/agnhost:2.55"}, map[string]any{"Entrypoint": []string{"/agnhost"}, "Cmd": []string{"pause"}, "Env": env}, func(l *layer) {
			bash(l)
			l.file("agnhost", b.Agnhost, 0o755)
			l.link("agnhost-2", "agnhost")
			l.dir("uploads", 0o755)
			cert, key, err := localhost()
			if l.err == nil {
				l.err = err
			}
			l.text("localhost.crt", cert)
			l.text("localhost.key", key)
			l.program("usr/bin/curl")
			l.program("usr/bin/nc")
			l.text("etc/passwd", passwd+"user-defined-in-image:x:1000:1000::/home:/bin/sh\n")
			l.text("etc/group", group+"user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n")
		}},
	}
}

const (
	passwd = "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1::/:/bin/false\nnobody:x:65534:65534::/home:/bin/false\n"
	group  = "root:x:0:\ndaemon:x:1:\nmail:x:8:\nnogroup:x:65534:\n"
)

// A layer is a file system of an image. The first error is kept.
type layer struct {
	*tar.Writer
	seen map[string]bool
	err  error
}

func (l *layer) add(h *tar.Header, data io.Reader) {
	if l.err != nil {
		return
	}
	if l.err = l.WriteHeader(h); l.err == nil && data != nil {
		_, l.err = io.Copy(l, data)
	}
}

func (l *layer) dir(name string, mode int64) {
	if l.seen[name] || name == "." {
		return
	}
	l.seen[name] = true
	l.dir(filepath.Dir(name), 0o755)
	l.add(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode}, nil)
}

func (l *layer) file(name, from string, mode int64) {
	l.dir(filepath.Dir(name), 0o755)
	data, err := os.ReadFile(from)
	if l.err == nil {
		l.err = err
	}
	l.add(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(data))}, bytes.NewReader(data))
}

func (l *layer) text(name, data string) {
	l.dir(filepath.Dir(name), 0o755)
	l.add(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data))}, strings.NewReader(data))
}

func (l *layer) link(name, to string) {
	l.dir(filepath.Dir(name), 0o755)
	l.add(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777}, nil)
}

// program adds a program of this machine with its libraries.
func (l *layer) program(name string) {
	path, err := filepath.EvalSymlinks("/" + name)
	var out []byte
	if err == nil {
		out, err = exec.Command("ldd", path).Output()
	}
	if err != nil && l.err == nil {
		l.err = fmt.Errorf("%s: %w", name, err)
	}
	for word := range strings.FieldsSeq(string(out)) {
		if library := strings.TrimPrefix(word, "/"); library != word && !l.seen[library] {
			l.seen[library] = true
			l.file(library, word, 0o755)
		}
	}
	l.file(name, path, 0o755)
}

// busybox adds a busybox with a link for each of its programs, and a shell.
func (l *layer) busybox(path, shell string) {
	out, err := exec.Command(path, "--list").Output()
	if err != nil && l.err == nil {
		l.err = fmt.Errorf("busybox --list: %w", err)
	}
	for _, dir := range []string{"root", "home", "var", "usr/bin", "usr/sbin", "sbin", "dev", "proc", "sys"} {
		l.dir(dir, 0o755)
	}
	l.dir("tmp", 0o1777)
	l.text("etc/passwd", passwd)
	l.text("etc/group", group)
	l.file("bin/busybox", path, 0o755)
	for name := range strings.FieldsSeq(string(out)) {
		if name != "busybox" && name != "sh" {
			l.link("bin/"+name, "busybox")
		}
	}
	l.file("bin/sh", shell, 0o755)
	l.file("bin/bash", "/bin/bash-static", 0o755)
}

// archive writes the image in the format of docker save.
func (i image) archive(w io.Writer) error {
	var content bytes.Buffer
	l := &layer{Writer: tar.NewWriter(&content), seen: map[string]bool{}}
	i.layer(l)
	if l.err == nil {
		l.err = l.Close()
	}
	if l.err != nil {
		return l.err
	}
	sum := sha256.Sum256(content.Bytes())
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "config": i.config, "created": "2026-01-01T00:00:00Z",
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]any{map[string]any{"Config": "config.json", "RepoTags": i.names, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	out := tar.NewWriter(w)
	for _, f := range []struct {
		name string
		data []byte
	}{{"layer.tar", content.Bytes()}, {"config.json", config}, {"manifest.json", manifest}} {
		if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: 0o644, Size: int64(len(f.data))}); err != nil {
			return err
		}
		if _, err := out.Write(f.data); err != nil {
			return err
		}
	}
	return out.Close()
}

// importImages makes all images and imports them.
func (r *Runtime) importImages(b Binaries) error {
	for _, i := range images(b) {
		file := filepath.Join(r.Dir, "image.tar")
		f, err := os.Create(file)
		if err != nil {
			return err
		}
		err = i.archive(f)
		if closed := f.Close(); err == nil {
			err = closed
		}
		if err != nil {
			return fmt.Errorf("image %s: %w", i.names[0], err)
		}
		if out, err := exec.Command("ctr", "-a", r.socket(), "-n", "k8s.io", "images", "import", file).CombinedOutput(); err != nil {
			return fmt.Errorf("import %s: %w: %s", strings.Join(slices.Clone(i.names), " "), err, out)
		}
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	return nil
}
