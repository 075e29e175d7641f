#!/usr/bin/env bash
# Copyright The Kubewright Authors
# SPDX-License-Identifier: Apache-2.0
#
# Installs Debian's containerd, runc and CNI plugins, and what the test images are
# made from, if they are missing. Without root or apt-get it says so and fails.
set -euo pipefail
packages=(containerd runc containernetworking-plugins busybox-static bash-static curl netcat-openbsd iptables)
missing=
for program in containerd ctr runc busybox bash-static curl nc /usr/lib/cni/bridge; do
  command -v "$program" >/dev/null || missing="$missing $program"
done
if [ "$(id -u)" != 0 ]; then
  echo "Containers need root: run this target as root." >&2
  exit 1
fi
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null; then
  echo "Missing:$missing. Install the equivalents of Debian's packages ${packages[*]}." >&2
  exit 1
fi
echo "installing ${packages[*]}, because of$missing"
# A new machine may have no package lists, or old ones.
apt-get install -y "${packages[@]}" >/dev/null || { apt-get update >/dev/null && apt-get install -y "${packages[@]}" >/dev/null; }
