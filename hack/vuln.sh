#!/usr/bin/env bash
# Copyright The Kubewright Authors
# SPDX-License-Identifier: Apache-2.0
#
# vuln.sh GOVULNCHECK DATABASE FOLDER...
#
# Runs govulncheck in the modules of the given directories; DATABASE may be empty.
# Many build machines can reach only a module proxy. If the database can't be
# reached, the script reports that nothing was checked and succeeds, unless
# VULN_REQUIRED is set.
set -euo pipefail
govulncheck=$1 database=$2
shift 2

unreachable='i/o timeout|no such host|connection refused|network is unreachable|lookup |Forbidden|403|proxyconnect'
for folder in "$@"; do
  echo "govulncheck $folder"
  if out=$(cd "$folder" && "$govulncheck" ${database:+-db "$database"} ./... 2>&1); then
    continue
  fi
  if grep -q 'fetching vulnerabilities' <<<"$out" && grep -qE "$unreachable" <<<"$out"; then
    echo "NOT CHECKED for vulnerabilities, the database can't be reached: $(tail -n 1 <<<"$out")"
    [[ -z "${VULN_REQUIRED:-}" ]]
    exit
  fi
  echo "$out"
  exit 1
done
