#!/usr/bin/env bash
# Copyright The Kubewright Authors
# SPDX-License-Identifier: Apache-2.0
#
# Shows the library at work: a real control plane on loopback, and examples that
# join it with the credentials of kubelets. `make demo` calls it; `make demo
# KEEP=1` leaves the control plane and the example kubelet running at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

keep=false
[[ "${1:-}" == --keep ]] && keep=true

cluster=demo-$$
dir=$(mktemp -d)
log=$dir/example.log
example_pid=

bold=$(tput bold 2>/dev/null || true)
plain=$(tput sgr0 2>/dev/null || true)
say() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }
# show prints a command as a person would type it, and runs it.
show() { printf '$ %s\n' "$*"; "$@"; }
kubectl() { "$dir/controlplane" kubectl --name="$cluster" "$@"; }
credentials() { "$dir/controlplane" kubeconfig --name="$cluster" --node="$1"; }

# start runs an example in the background, with its output in a log.
start() {
  printf '$ %s &\n' "$*"
  "$@" >"$log" 2>&1 &
  example_pid=$!
}

# supervise starts a program again until it ends with status 0, as systemd does
# with Restart=on-failure.
supervise() {
  local child status
  trap 'kill -TERM "$child" 2>/dev/null' TERM
  while :; do
    "$@" &
    child=$!
    while :; do
      wait "$child" && status=0 || status=$?
      kill -0 "$child" 2>/dev/null || break # else a signal came in between
    done
    [[ $status -eq 0 ]] && return 0
    echo "supervisor: exit status $status"
  done
}

# stop ends it as a service manager would.
stop() {
  kill -TERM "$example_pid"
  wait "$example_pid"
  example_pid=
}

# until_log waits until the example has printed a line that matches.
until_log() {
  for _ in $(seq 300); do
    grep -q -- "$1" "$log" && return
    kill -0 "$example_pid" 2>/dev/null || break
    sleep 0.2
  done
  echo "the example did not print: $1" >&2
  return 1
}

# show_condition prints a condition of a node.
show_condition() {
  show kubectl get node "$1" -o "jsonpath={range .status.conditions[?(@.type==\"$2\")]}{.status} {.reason}: {.message}{\"\\n\"}{end}"
}

cleanup() {
  status=$?
  trap - EXIT
  if [[ $status -ne 0 && $status -ne 130 ]]; then
    printf '\nThe demo failed. The example printed:\n' >&2
    cat "$log" >&2 2>/dev/null || true
  fi
  if [[ -n $example_pid ]]; then
    kill "$example_pid" 2>/dev/null || true
    wait "$example_pid" 2>/dev/null || true
  fi
  # Pods outlive their kubelet. All of ours have the demo's folder in their
  # command line or environment.
  for p in /proc/[0-9]*; do
    pid=${p#/proc/}
    [[ $pid == $$ ]] && continue
    if grep -qsF "$dir/" "$p/environ" "$p/cmdline" && [[ $(readlink "$p/exe") != */controlplane ]]; then
      kill -KILL "$pid" 2>/dev/null || true
    fi
  done
  "$dir/controlplane" down --name="$cluster" >/dev/null 2>&1 || true
  rm -rf "$dir"
  exit "$status"
}
# fail ends the demo with the reason and the remedy.
fail() {
  printf 'demo: %s\n' "$*" >&2
  rm -rf "$dir"
  exit 1
}

command -v go >/dev/null || fail "no go command in PATH: install Go, or add its bin directory to PATH"
[[ $(uname -s) == Linux ]] || fail "the control plane and the pods of the demo need Linux; run it in a virtual machine"
available=$(awk '/^MemAvailable:/ {print int($2 / 1024)}' /proc/meminfo)
[[ ${available:-9999} -ge 1500 ]] || fail "$available MB of memory are available and the control plane needs about 1,500: close other programs"

trap cleanup EXIT
trap 'exit 130' INT TERM

cat <<TEXT
This starts etcd, kube-apiserver, kube-controller-manager and kube-scheduler on loopback
ports and shows, one after the other:

  examples/node     a Node with its conditions and Lease
  examples/kubelet  a Deployment, a DaemonSet and a Job that run as processes, kubectl
                    logs and exec, metrics, a configuration that is rolled back,
                    devices that a pod claims
  examples/leader   three candidates that elect a leader

It takes a minute or two, and the first time five to eight more on two cores, while
the control plane is built, with 4 GB in the user's caches. Files of the demo are below
$dir and are removed at the end.
TEXT

say "Building"
# As the control plane is compiled, from the same version of Kubernetes' modules: the
# examples find most of their packages in Go's cache, if they come after it.
export CGO_ENABLED=0
go build -C test/controlplane -o "$dir/controlplane" .
"$dir/controlplane" build
go build -o "$dir/" ./examples/node
go build -C examples/leader -o "$dir/" .
go build -C examples/kubelet -o "$dir/" .

say "Starting etcd, kube-apiserver, kube-controller-manager and kube-scheduler"
"$dir/controlplane" up --detach --name="$cluster"
admin=$("$dir/controlplane" kubeconfig --name="$cluster")
# By the certificates of this CA the nodes recognize the API server.
kubectl get configmap --namespace=kube-system extension-apiserver-authentication -o 'jsonpath={.data.client-ca-file}' >"$dir/client-ca.crt"

. hack/demo/node.sh
. hack/demo/pods.sh
. hack/demo/settings.sh
. hack/demo/devices.sh
. hack/demo/election.sh

if $keep; then
  say "Still running, until Ctrl-C"
  printf 'kubectl:  KUBECONFIG=%s\nkubelet:  process %s, log %s, pods below %s\n' "$admin" "$example_pid" "$log" "$dir/pods"
  wait "$example_pid"
  exit 0
fi
say "The kubelet stops gracefully"
stop

say "Done. The kubeconfig was $admin; \`make demo KEEP=1\` keeps everything running."
