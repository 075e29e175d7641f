#!/usr/bin/env bash
# Copyright The Kubewright Authors
# SPDX-License-Identifier: Apache-2.0
#
# deeper.sh MODULE...
#
# Runs the tests that call testing.Short, without -short. MODULE is the directory of
# a module. TEST_TIMEOUT is the time limit of a package.
set -euo pipefail
root=$PWD

for module in "$@"; do
  cd "$root/$module"
  mapfile -t nested < <(git ls-files '*/go.mod' | sed 's,\(.*\)/go.mod$,:!\1,')
  mapfile -t files < <(git grep -lF 'testing.Short()' -- '*_test.go' "${nested[@]}")
  # A benchmark may call testing.Short too; it is no test.
  mapfile -t found < <(((${#files[@]})) && awk '
    /^func / {name = $2; sub(/\(.*/, "", name)}
    /testing\.Short\(\)/ && name ~ /^(Test|Fuzz)/ {print FILENAME, name}' "${files[@]}")
  ((${#found[@]})) || continue
  names=$(printf '%s\n' "${found[@]##* }" | sort -u | paste -sd '|')
  mapfile -t packages < <(printf './%s\n' "${found[@]% *}" | xargs dirname | sort -u)
  echo "without -short in $module: ${names//|/ }"
  "${GO:-go}" test -timeout "${TEST_TIMEOUT:-30m}" -run "^($names)\$" "${packages[@]}"
done
