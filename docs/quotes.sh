#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
# quotes.sh [--check]
#
# Keeps the programs that pages quote equal to their sources, which the tests compile and run. In a
# page the line
#   <!-- quote examples/decode.cpp plan -->
# stands above a code block. The block gets what lies in that file between two lines "//! [plan]",
# without their indentation; without a name, the file without its licence lines. --check changes
# nothing and fails where a block differs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# What a page should be.
renew() {
  awk -v page="$1" '
    function fail(sentence) {
      printf "%s, line %d: %s\n", page, NR, sentence > "/dev/stderr"
      failed = 1
      exit 1
    }
    function quote(file, name,    line, inside, indent, count, number) {
      while ((getline line < file) > 0) {
        ++number
        if (name == "" && number <= 2) continue
        if (name != "" && index(line, "//! [" name "]") > 0) {
          inside = !inside
          indent = index(line, "//!")
          continue
        }
        if (line ~ /^ *\/\/! \[/ || (name != "" && !inside)) continue
        print name == "" ? line : substr(line, indent)
        ++count
      }
      close(file)
      if (count == 0) fail("there is nothing to quote: " file " " name)
      if (inside) fail(file " has one line //! [" name "], expected two")
    }
    /^<!-- quote [^ ]+( [^ ]+)? -->$/ {
      print
      file = $3
      name = $4 == "-->" ? "" : $4
      if ((getline) <= 0 || $0 !~ /^```/) fail("expected a code block below the quote of " file)
      print
      quote(file, name)
      while ((getline) > 0 && $0 !~ /^```$/) continue
      print
      next
    }
    { print }
    END { exit failed }
  ' "$1"
}

status=0
while IFS= read -r page; do
  renewed=$(mktemp)
  renew "$page" >"$renewed" || status=1
  if [[ $status -eq 0 ]] && ! cmp -s "$page" "$renewed"; then
    if [[ ${1:-} == --check ]]; then
      diff -u "$page" "$renewed" >&2 || true
      printf '%s differs from what it quotes: run docs/quotes.sh\n' "$page" >&2
      status=1
    else
      cat "$renewed" >"$page"
    fi
  fi
  rm -f "$renewed"
done < <(find README.md docs examples -name '*.md' | sort)
exit $status
