#!/usr/bin/env bash
# Copyright The Kubewright Authors
# SPDX-License-Identifier: Apache-2.0
#
# fuzz.sh TIME PATTERN CORPUS
#
# Runs each fuzz target whose package and name match PATTERN for TIME, one after the
# other, and goes on with the next one after a failure. The folder CORPUS has the
# inputs of all runs.
set -euo pipefail
cd "$(dirname "$0")/.."
time=$1 pattern=$2 corpus=$3

failed=
while IFS=: read -r file target; do
  package=$(dirname "$file")
  [[ $package/$target =~ $pattern ]] || continue
  echo "== $package $target"
  mkdir -p "$corpus/$package"
  # A program of its own, whose corpus is not in Go's cache.
  (cd "$package" && "${GO:-go}" test -c -fuzz "^$target\$" -o "$corpus/test" . &&
    "$corpus/test" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$time" -test.fuzzcachedir "$corpus/$package") || failed+=" $package/$target"
done < <(git grep -oE '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | sed 's/func //')
rm -f "$corpus/test"
if [[ -n $failed ]]; then
  echo "failed:$failed"
  exit 1
fi
