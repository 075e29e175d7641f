# Copyright The Kubewright Authors
# SPDX-License-Identifier: Apache-2.0
#
# Part of demo.sh: packages nodestatus and lease, as examples/node puts them
# together.
node=demo-1

say "A node joins, as system:node:$node"
start "$dir/node" --kubeconfig="$(credentials "$node")" --node-name="$node" --node-credentials \
  --unhealthy-file="$dir/unhealthy" --sync-interval=1s
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

say "Its health check fails: it becomes NotReady at once, with the reason"
echo "fan 2 has stopped, 91 degrees" >"$dir/unhealthy"
show kubectl wait --for=condition=Ready=false --timeout=30s "node/$node"
show_condition "$node" Ready

say "It recovers"
rm "$dir/unhealthy"
show kubectl wait --for=condition=Ready --timeout=30s "node/$node"

say "Another client deletes its Node: this example registers again (a kubelet on a real machine should end; see --exit-when-deleted)"
show kubectl delete node "$node"
until_log "deleted by another client"
show kubectl wait --for=create --timeout=60s "node/$node"
show kubectl wait --for=condition=Ready --timeout=60s "node/$node"

say "The output of the node"
cat "$log"

say "The node stops gracefully"
stop
show_condition "$node" Ready
show kubectl delete node "$node"
