#!/bin/sh
# Copyright The Kubewright Authors
# SPDX-License-Identifier: Apache-2.0
#
# usage: versions/pin.sh VERSION...      (for example: versions/pin.sh v1.37.2 v1.36.3)
#
# Writes versions/VERSION.mod and versions/VERSION.sum: the go.mod and go.sum with which ../_program is built as that
# Kubernetes version. k8s.io/kubernetes requires its staging modules at v0.0.0 and replaces them with directories of its
# own tree, which other modules do not see. So each staging module needs a replacement with the tag that was cut from that
# tree. etcd has the version that was released with this Kubernetes.
set -eu
cd "$(dirname "$0")"
for version; do
	mod=$(go mod download -json "k8s.io/kubernetes@$version" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
	staging=v0.${version#v1.}
	etcd=$(sed -n 's/^[[:space:]]go.etcd.io\/etcd\/server\/v3 \(v[^ ]*\).*/\1/p' "$mod")
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	cp ../_program/*.go "$work"
	{
		printf 'module github.com/kubewright/kubewright/test/controlplane/program\n\n%s\n\n' "$(grep '^go ' "$mod")"
		printf 'require (\n\tgo.etcd.io/etcd/server/v3 %s\n\tk8s.io/kubernetes %s\n)\n\nreplace (\n' "$etcd" "$version"
		sed -n "s/^[[:space:]]\(k8s.io\/[a-z-]*\) => \.\/staging.*/\t\1 => \1 $staging/p" "$mod"
		printf ')\n'
	} >"$work/go.mod"
	(cd "$work" && GOWORK=off GOFLAGS= go mod tidy)
	mv "$work/go.mod" "$version.mod"
	mv "$work/go.sum" "$version.sum"
	rm -rf "$work"
done
