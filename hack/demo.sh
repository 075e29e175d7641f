#!/usr/bin/env bash
# Copyright The Kubewright Authors
# SPDX-License-Identifier: Apache-2.0
#
# Shows the library at work: a real control plane on loopback, and an example
# node with the credentials of a kubelet. `make demo` calls it; `make demo
# KEEP=1` leaves everything running.
set -euo pipefail
cd "$(dirname "$0")/.."

keep=false
[[ "${1:-}" == --keep ]] && keep=true

node=demo-1
cluster=demo-$$
dir=$(mktemp -d)
log=$dir/node.log
node_pid=

bold=$(tput bold 2>/dev/null || true)
plain=$(tput sgr0 2>/dev/null || true)
say() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }
# show prints a command as a person would type it, and runs it.
show() { printf '$ %s\n' "$*"; "$@"; }
kubectl() { "$dir/controlplane" kubectl --name="$cluster" "$@"; }

cleanup() {
  status=$?
  trap - EXIT
  if [[ $status -ne 0 ]]; then
    printf '\nThe demo failed. The node printed:\n' >&2
    cat "$log" >&2 2>/dev/null || true
  fi
  if [[ -n $node_pid ]]; then
    kill "$node_pid" 2>/dev/null || true
    wait "$node_pid" 2>/dev/null || true
  fi
  "$dir/controlplane" down --name="$cluster" >/dev/null 2>&1 || true
  rm -rf "$dir"
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# until_log waits until the node has printed a line that matches.
until_log() {
  for _ in $(seq 300); do
    grep -q -- "$1" "$log" && return
    kill -0 "$node_pid" 2>/dev/null || break
    sleep 0.2
  done
  echo "the node did not print: $1" >&2
  return 1
}

say "Building (the control plane is built once, in six to eight minutes, and kept in the user's cache)"
(cd test/controlplane && go build -o "$dir/controlplane" .)
"$dir/controlplane" build
go build -o "$dir/node" ./examples/node

say "Starting etcd, kube-apiserver, kube-controller-manager and kube-scheduler"
"$dir/controlplane" up --detach --name="$cluster"
admin=$("$dir/controlplane" kubeconfig --name="$cluster")
credentials=$("$dir/controlplane" kubeconfig --name="$cluster" --node="$node")

say "A node joins, as system:node:$node"
"$dir/node" --kubeconfig="$credentials" --node-name="$node" --node-credentials \
  --unhealthy-file="$dir/unhealthy" --sync-interval=1s >"$log" 2>&1 &
node_pid=$!
show kubectl wait --for=create --timeout=60s "node/$node"
show kubectl wait --for=condition=Ready --timeout=60s "node/$node"
show kubectl get nodes -o wide

say "Its lease is renewed every 10 s"
renew_time() { kubectl get lease -n kube-node-lease "$node" -o 'jsonpath={.spec.renewTime}'; }
show kubectl wait --for=create --timeout=60s -n kube-node-lease "lease/$node"
first=$(renew_time)
echo "renewTime $first"
for _ in $(seq 60); do
  [[ $(renew_time) != "$first" ]] && break
  sleep 0.5
done
second=$(renew_time)
[[ $second != "$first" ]]
echo "renewTime $second"
show kubectl get lease -n kube-node-lease "$node" -o 'jsonpath={.metadata.ownerReferences}{"\n"}'

say "Its health check fails: it says so itself, at once, and why"
echo "fan 2 stands still, 91 degrees" >"$dir/unhealthy"
show kubectl wait --for=condition=Ready=false --timeout=30s "node/$node"
show kubectl get node "$node" -o 'jsonpath={range .status.conditions[?(@.type=="Ready")]}{.status} {.reason}: {.message}{"\n"}{end}'

say "It recovers"
rm "$dir/unhealthy"
show kubectl wait --for=condition=Ready --timeout=30s "node/$node"

say "Somebody deletes its Node: this example registers again (a kubelet on a real machine should end; see --exit-when-deleted)"
show kubectl delete node "$node"
until_log "deleted by somebody else"
show kubectl wait --for=create --timeout=60s "node/$node"
show kubectl wait --for=condition=Ready --timeout=60s "node/$node"

say "What the node printed"
cat "$log"

if $keep; then
  say "Still running, until Ctrl-C"
  printf 'kubectl:    KUBECONFIG=%s\nnode:       process %s, credentials %s, log %s\nunhealthy:  echo "any reason" > %s\n' \
    "$admin" "$node_pid" "$credentials" "$log" "$dir/unhealthy"
  wait "$node_pid"
  exit 0
fi

say "The node stops in order"
kill -TERM "$node_pid"
wait "$node_pid"
node_pid=
show kubectl get node "$node" -o 'jsonpath={range .status.conditions[?(@.type=="Ready")]}{.status} {.reason}: {.message}{"\n"}{end}'

say "Done. The kubeconfig was $admin; \`make demo KEEP=1\` keeps everything running."
