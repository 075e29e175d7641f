# Copyright The Kubewright Authors
# SPDX-License-Identifier: Apache-2.0
#
# Part of demo.sh: package election, as examples/leader uses it.
declare -A candidates
candidate() {
  printf '$ leader --identity=%s &\n' "$*"
  "$dir/leader" --kubeconfig="$account" --lease-duration=8s --min-tenure=3s --interval=200ms --identity="$@" >"$dir/leader-$1.log" 2>&1 &
  candidates[$1]=$!
}
# leads waits until a candidate that is named, or any, leads, and sets leader.
leads() {
  for _ in $(seq 300); do
    leader=$(kubectl get lease -n kubewright example -o 'jsonpath={.spec.holderIdentity}' 2>/dev/null | cut -d_ -f1)
    [[ -n $leader && $leader != "${not:-}" && $leader == "${1:-$leader}" ]] && return
    sleep 0.1
  done
  echo "no ${1:-candidate} leads" >&2
  return 1
}
# story prints the new output of the candidates in order, without the work itself.
told=0
story() {
  local log all
  sleep 0.5 # until it is in the logs
  all=$(for log in "$dir"/leader-*.log; do
    sed "s/^\([0-9:.]*\) /\1 $(basename "${log#*leader-}" .log): /" "$log"
  done | grep -v ': counted ' | sort)
  tail -n +$((told + 1)) <<<"$all"
  told=$(wc -l <<<"$all")
}

say "Three candidates for one Lease, with the permissions of a ServiceAccount: one works"
account=$("$dir/controlplane" kubeconfig --name="$cluster" --serviceaccount=kubewright/virtual-node)
show kubectl apply -f examples/rbac/election.yaml -f examples/rbac/election-work.yaml
for name in one two three; do candidate "$name"; done
leads
sleep 1
story

say "kill -9 of the leader: another one leads when the lease of 8 s has expired, not earlier"
not=$leader
date +%T.%3N
show kill -KILL "${candidates[$leader]}"
wait "${candidates[$leader]}" 2>/dev/null || true
leads
story

say "The leader ends gracefully: the next one works at once"
not=$leader
show kill -TERM "${candidates[$leader]}"
leads
story

say "A better candidate joins: the leader offers it the lease, lets its work end, and hands over"
not=
candidate better --priority=1
leads better
story
show kubectl get lease -n kubewright example
show kubectl get lease -n kubewright example -o 'jsonpath={.spec.leaseTransitions} transitions{"\n"}'

say "The work: no number is counted twice, and the token grows with every term"
show kubectl get configmap -n kubewright example -o 'jsonpath={.data}{"\n"}'
grep -h 'counted' "$dir"/leader-*.log | awk '{print $3}' | sort -n | uniq -d | if grep .; then exit 1; else echo "no number was counted twice"; fi
for name in "${!candidates[@]}"; do
  kill -TERM "${candidates[$name]}" 2>/dev/null || true
  wait "${candidates[$name]}" 2>/dev/null || true
done
