# Copyright The Kubewright Authors
# SPDX-License-Identifier: Apache-2.0
#
# Part of demo.sh: package configcheckpoint, as examples/kubelet uses it for its
# own settings. The kubelet keeps running after this part.
settings() {
  kubectl create configmap kubelet -n kubewright --from-literal=settings.yaml="$1" --dry-run=client -o yaml | kubectl apply -f - >/dev/null
  printf 'ConfigMap kubewright/kubelet, settings.yaml: %s\n' "$1"
}
until_reason() {
  show kubectl wait --timeout=90s "node/$node" --for="jsonpath={.status.conditions[?(@.type==\"KubeletConfigOK\")].reason}=$1"
}

say "The kubelet takes settings from a ConfigMap (and publishes this machine's CPUs, for later)"
stop
show kubectl create namespace kubewright
show kubectl apply -f examples/rbac/kubelet.yaml
settings 'labels: {room: blue}'
start supervise "$dir/kubelet" --kubeconfig="$(credentials "$node")" --node-name="$node" --node-credentials --client-ca-file="$dir/client-ca.crt" \
  --root-dir="$dir/pods" --port=0 --min-free-disk=0 --register-taint=false --sync-interval=1s \
  --config-map=kubewright/kubelet/settings.yaml --config-soak=5s --publish-cpus

say "Good settings: checked, stored, on trial after a restart, then the last-known-good ones"
until_reason Good
show kubectl get node "$node" -L room
show_condition "$node" KubeletConfigOK

say "Invalid settings: rejected, nothing is restarted"
settings 'maxPods: -1'
until_reason ValidationFailed
show_condition "$node" KubeletConfigOK

say "Settings that make the kubelet end: three starts, then back to the good ones"
settings 'labels: {node-role.kubernetes.io/king: "yes"}'
until_reason CrashLoop
show_condition "$node" KubeletConfigOK
show kubectl get node "$node" -L room
