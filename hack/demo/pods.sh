# Copyright The Kubewright Authors
# SPDX-License-Identifier: Apache-2.0
#
# Part of demo.sh: package podsync, as examples/kubelet uses it to run pods as
# processes of this machine. The kubelet keeps running after this part.
node=demo-kubelet

say "A kubelet joins; its pods are processes of this machine"
start "$dir/kubelet" --kubeconfig="$(credentials "$node")" --node-name="$node" --node-credentials --client-ca-file="$dir/client-ca.crt" \
  --root-dir="$dir/pods" --port=0 --min-free-disk=0 --register-taint=false
show kubectl wait --for=create --timeout=60s "node/$node"
show kubectl wait --for=condition=Ready --timeout=60s "node/$node"

say "The scheduler gives it a Deployment, a DaemonSet and a Job"
kubectl apply -f - <<'YAML'
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 5
      containers:
        - name: web
          image: none
          command: [sh, -c, 'trap "echo asked to stop; exit 0" TERM; echo "version $VERSION in $HOSTNAME"; while :; do sleep 1 & wait; done']
          env: [{name: VERSION, value: "1"}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: everywhere}
spec:
  selector: {matchLabels: {app: everywhere}}
  template:
    metadata: {labels: {app: everywhere}}
    spec:
      terminationGracePeriodSeconds: 5
      containers:
        - {name: agent, image: none, command: [sleep, "100000"]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: sum}
spec:
  completions: 2
  template:
    spec:
      restartPolicy: Never
      containers:
        - {name: sum, image: none, command: [sh, -c, 'echo $((20 + 22))']}
YAML
show kubectl rollout status --timeout=90s deployment/web
show kubectl rollout status --timeout=90s daemonset/everywhere
show kubectl wait --for=condition=Complete --timeout=90s job/sum
show kubectl get pods -o wide

say "kubectl logs, exec and top reach into the pods"
pod=$(kubectl get pods -l app=web -o 'jsonpath={.items[0].metadata.name}')
show kubectl logs "$pod"
show kubectl logs --tail=1 job/sum
show kubectl exec "$pod" -- sh -c 'echo "inside $HOSTNAME: version $VERSION"'
# kubectl top asks metrics-server, which reads this from the node. The API server
# does not proxy to loopback addresses, so kubectl asks the node itself.
port=$(kubectl get node "$node" -o 'jsonpath={.status.daemonEndpoints.kubeletEndpoint.Port}')
kubectl create serviceaccount scraper >/dev/null
kubectl create clusterrole scraper --verb=get --resource=nodes/metrics >/dev/null
kubectl create clusterrolebinding scraper --clusterrole=scraper --serviceaccount=default:scraper >/dev/null
token=$(kubectl create token scraper)
printf '$ kubectl --server=https://127.0.0.1:%s get --raw /metrics/resource\n' "$port"
kubectl --kubeconfig=/dev/null --server="https://127.0.0.1:$port" --insecure-skip-tls-verify --token="$token" get --raw /metrics/resource | grep 'container="web"'

say "A rolling update"
show kubectl set env deployment/web VERSION=2
show kubectl rollout status --timeout=90s deployment/web
show kubectl get pods -l app=web

say "A graceful deletion: the process gets SIGTERM and ends, and only then is the pod gone"
pod=$(kubectl get pods -l app=web -o 'jsonpath={.items[0].metadata.name}')
show kubectl delete pod "$pod" --timeout=60s
show kubectl rollout status --timeout=90s deployment/web

say "kill -9 of the kubelet: the pods keep running, and the next kubelet finds them"
before=$(kubectl get pods -l app=web -o 'jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[0].restartCount}{"\n"}{end}' | sort)
kill -KILL "$example_pid"
wait "$example_pid" 2>/dev/null || true
start "$dir/kubelet" --kubeconfig="$(credentials "$node")" --node-name="$node" --node-credentials --client-ca-file="$dir/client-ca.crt" \
  --root-dir="$dir/pods" --port=0 --min-free-disk=0 --register-taint=false
until_log "Ready=True\|registered"
show kubectl rollout status --timeout=90s deployment/web
after=$(kubectl get pods -l app=web -o 'jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[0].restartCount}{"\n"}{end}' | sort)
printf 'pods and restarts before:\n%s\nafter:\n%s\n' "$before" "$after"
[[ $before == "$after" ]]

say "Everything is deleted"
show kubectl delete deployment/web daemonset/everywhere job/sum --timeout=90s
show kubectl wait --for=delete --timeout=90s pod --all
