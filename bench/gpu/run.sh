#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, in one go: tests, checks, random problems, compute-sanitizer, speed,
# and the speed of PyTorch and Triton beside it. Leaves one table and every step's output.
#
#   bench/gpu/run.sh BUILD [OUT] [STEP...]
#
# BUILD: a build of everything, such as build/release. OUT: a folder for results (gpu-results).
# FUZZ=N random problems; SECONDS_A_ROW=S of speed.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$(cd "${1:?usage: run.sh BUILD [OUT] [STEP...]}" && pwd) || exit 2
out=${2:-gpu-results}
shift $(($# < 2 ? $# : 2))
wanted=("$@")
mkdir -p "$out"
table=$out/table.md
perseid=$build/cli/perseid
small=$here/../problems/gpu_check.jsonl
export LD_LIBRARY_PATH=$build/src${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
failed=0

printf '| step | result | seconds | last line |\n|---|---|---|---|\n' >"$table"

# step NAME COMMAND...: skipped where its program is missing, or others were asked for.
step() {
  local name=$1 log=$out/$1.log start=$EPOCHREALTIME result seconds
  shift
  if [[ ${#wanted[@]} -gt 0 && " ${wanted[*]} " != *" $name "* ]]; then return; fi
  if ! command -v "$1" >/dev/null; then
    printf '| %s | skipped | | there is no %s |\n' "$name" "$1" | tee -a "$table"
    return
  fi
  if "$@" >"$log" 2>&1; then result=ok; else result="failed ($?)" failed=1; fi
  seconds=$(awk "BEGIN { printf \"%.1f\", $EPOCHREALTIME - $start }")
  printf '| %s | %s | %s | %s |\n' "$name" "$result" "$seconds" \
    "$(grep -v '^ *$' "$log" | tail -1 | cut -c1-120 | tr '|' '/')" | tee -a "$table"
}

# Random problems, a seed for each CPU: processes compile at the same time, threads hardly.
fuzz() {
  local cpu status=0 jobs=() cpus
  cpus=$(nproc)
  for ((cpu = 0; cpu < cpus; ++cpu)); do
    taskset -c "$cpu" "$perseid" check softmax --fuzz $(((${FUZZ:-10000} + cpus - 1) / cpus)) \
      --seed $((cpu + 1)) --device cuda:0 --threads 1 &
    jobs+=($!)
  done
  for job in "${jobs[@]}"; do wait "$job" || status=1; done
  return "$status"
}

sanitize() {
  step "$1" compute-sanitizer --tool "$1" --error-exitcode 9 "$perseid" check softmax \
    --problems "$small" --device cuda:0 --threads 1
}

step info "$perseid" info --device cuda:0
step runtime_test "$build/tests/gpu_runtime_test"
step softmax_test "$build/tests/gpu_softmax_test"
step api_test "$build/tests/gpu_api_test"
step check "$perseid" check softmax --device cuda:0
step check_small "$perseid" check --problems "$small" --device cuda:0
step fuzz fuzz
for tool in memcheck racecheck synccheck; do sanitize "$tool"; done
step bench "$perseid" bench --device cuda:0 --seconds "${SECONDS_A_ROW:-0.3}"
step peers python3 "$here/softmax.py" "$build/src/libperseid.so" --csv "$out/peers.csv"

printf '\n' >>"$table"
for name in bench peers; do
  [[ -f $out/$name.log ]] || continue
  printf '%s:\n\n' "$name" >>"$table"
  sed 's/^/    /' "$out/$name.log" >>"$table"
done
printf 'the table is %s\n' "$table"
exit "$failed"
