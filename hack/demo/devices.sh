# Copyright The Kubewright Authors
# SPDX-License-Identifier: Apache-2.0
#
# Part of demo.sh: package resourceslice, as examples/kubelet uses it to publish
# the CPUs of this machine.
say "The kubelet has published the CPUs of this machine as devices"
show kubectl wait --for=condition=Ready --timeout=60s "node/$node"
show kubectl get resourceslices

say "A pod claims one of them: the scheduler allocates it"
kubectl apply -f - <<'YAML'
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: cpu.kubewright.dev}
spec:
  selectors: [{cel: {expression: 'device.driver == "cpu.kubewright.dev"'}}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: one-cpu}
spec:
  devices: {requests: [{name: cpu, exactly: {deviceClassName: cpu.kubewright.dev}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: pinned}
spec:
  restartPolicy: Never
  resourceClaims: [{name: cpu, resourceClaimName: one-cpu}]
  containers:
    - name: main
      image: none
      command: [sh, -c, 'grep Cpus_allowed_list /proc/self/status; sleep 5']
      resources: {claims: [{name: cpu}]}
YAML
show kubectl wait --timeout=90s pod/pinned --for=jsonpath={.status.phase}=Running
show kubectl get resourceclaim one-cpu -o 'jsonpath={.status.allocation.devices.results}{"\n"}'
show kubectl wait --timeout=90s pod/pinned --for=jsonpath={.status.phase}=Succeeded
printf 'the pod printed: '
kubectl logs pinned
show kubectl delete pod/pinned resourceclaim/one-cpu --timeout=60s
