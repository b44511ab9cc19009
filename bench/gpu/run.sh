#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, in one go: tests, checks, random problems, compute-sanitizer, speed,
# compared with PyTorch, Triton and cuDNN. Writes one table and the output of every step.
#
#   bench/gpu/run.sh BUILD [OUT] [STEP...]
#
# BUILD: a build of everything, such as build/release. OUT: a folder for results (gpu-results).
# STEP: some of its steps, such as fuzz_attention; all without. In the environment:
#   FUZZ=N             random problems of an operation (10000)
#   SECONDS_A_ROW=S    of perseid bench (0.3)
#   STEP_SECONDS=S     after which random problems and the scripts of peers begin no more (none)
#   STEP_LIMIT=S       after which a step is ended, and has failed (1800)
#   PROCESSES=N        that test, check random problems or are examined by a tool (CPUs, at most 8)
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$(cd "${1:?usage: run.sh BUILD [OUT] [STEP...]}" && pwd) || exit 2
out=${2:-gpu-results}
shift $(($# < 2 ? $# : 2))
wanted=("$@")
mkdir -p "$out"
table=$out/table.md
perseid=$build/cli/perseid
library=$build/src/libperseid.so
problems=$here/../problems
export LD_LIBRARY_PATH=$build/src${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
failed=0
cpus=$(nproc)
processes=${PROCESSES:-$((cpus < 8 ? cpus : 8))}
limited=(timeout -k 5 "${STEP_LIMIT:-1800}")
briefly=(${STEP_SECONDS:+--seconds "$STEP_SECONDS"})

printf '| step | result | seconds | last line |\n|---|---|---|---|\n' >"$table"

# step NAME COMMAND...: skipped where its program is missing, or others were asked for.
step() {
  local name=$1 log=$out/$1.log start=$EPOCHREALTIME result seconds program
  shift
  program=$1
  if [[ $program == shared || $program == alone ]]; then program=$2; fi
  if [[ ${#wanted[@]} -gt 0 && " ${wanted[*]} " != *" $name "* ]]; then return; fi
  if ! command -v "$program" >/dev/null; then
    printf '| %s | skipped | | there is no %s |\n' "$name" "$program" | tee -a "$table"
    return
  fi
  # Functions limit what they start.
  if [[ $(type -t "$1") != function ]]; then set -- "${limited[@]}" "$@"; fi
  if "$@" >"$log" 2>&1; then result=ok; else result="failed ($?)" failed=1; fi
  seconds=$(awk "BEGIN { printf \"%.1f\", $EPOCHREALTIME - $start }")
  printf '| %s | %s | %s | %s |\n' "$name" "$result" "$seconds" \
    "$(grep -v '^ *$' "$log" | tail -1 | cut -c1-120 | tr '|' '/')" | tee -a "$table"
}

# How many tests ended so, in the logs of shared().
ended() { cat "$logs"/* | grep -c "^\\[ $1 \\] .* ms)$"; }

# The tests of a program, in several processes: what takes their time is the compiler of kernels and
# the reference. As a last line how many passed.
shared() {
  local jobs=() status=0 logs
  logs=$(mktemp -d)
  for ((i = 0; i < processes; ++i)); do
    GTEST_TOTAL_SHARDS=$processes GTEST_SHARD_INDEX=$i "${limited[@]}" "$@" >"$logs/$i" 2>&1 &
    jobs+=($!)
  done
  for job in "${jobs[@]}"; do wait "$job" || status=$?; done
  cat "$logs"/*
  printf '%d passed, %d skipped, %d failed\n' "$(ended '      OK')" "$(ended ' SKIPPED')" \
    "$(ended ' FAILED ')"
  rm -r "$logs"
  return "$status"
}
alone() { processes=1 shared "$@"; }

# Random problems of an operation, in parts: each process compiles the kernels of its part and
# checks it, on one CPU, since the compiler lets threads wait for each other. As a last line the
# sums.
fuzz() {
  local operation=$1 count=${FUZZ:-10000} jobs=() status=0 logs
  export PERSEID_CACHE_DIR=$out/cache
  logs=$(mktemp -d)
  for ((i = 0; i < processes; ++i)); do
    "${limited[@]}" taskset -c "$((i % cpus))" "$perseid" check --fuzz "$count" "${briefly[@]}" \
      --part "$i,$processes" --device cuda:0 "$operation" >"$logs/$i" 2>&1 &
    jobs+=($!)
  done
  for job in "${jobs[@]}"; do wait "$job" || status=$?; done
  cat "$logs"/*
  awk '/^[0-9]+ checked, [0-9]+ failed, / { ++parts; checked += $1; failed += $3; refused += $5 }
       END { printf "%d of %d parts: %d checked, %d failed, %d rightly refused\n",
             parts, ARGC - 1, checked, failed, refused }' "$logs"/*
  rm -r "$logs"
  return "$status"
}

# A process for each problem, several at a time: a tool takes seconds to rewrite a kernel, and
# nothing but the kernels of its own process.
per_problem() {
  # shellcheck disable=SC2016 # the inner bash expands these
  grep '^{' "$2" | "${limited[@]}" xargs -d '\n' -P "$processes" -I{} bash -c \
    'compute-sanitizer --tool "$1" --error-exitcode 9 "$2" check --problems <(echo "$3") \
      --device cuda:0 --threads 1' - "$1" "$perseid" {}
}

sanitize() {
  if command -v compute-sanitizer >/dev/null; then
    step "$1_$2" per_problem "$1" "$3"
  else
    step "$1_$2" compute-sanitizer
  fi
}

step info "$perseid" info --device cuda:0
# Some take all of a GPU's memory, or compare it with what it was.
alone_tests=(gpu_api_test gpu_attention_api_test gpu_gpt_test gpu_runtime_test)
# These try the kernels that PERSEID_TEST_KERNELS names.
kernels_tests=(gpu_attention_test gpu_attention_backward_test gpu_float64_attention_test)
for program in "$build"/tests/gpu_*_test; do
  name=${program##*/}
  if [[ " ${alone_tests[*]} " == *" $name "* ]]; then
    step "${name#gpu_}" alone "$program"
  elif [[ " ${kernels_tests[*]} " == *" $name "* ]]; then
    for kernels in sm90 portable float32 reference; do
      export PERSEID_TEST_KERNELS=$kernels
      step "${name#gpu_}_$kernels" shared "$program"
    done
    unset PERSEID_TEST_KERNELS
  else
    step "${name#gpu_}" shared "$program"
  fi
done
step check "$perseid" check --device cuda:0
step check_collective "$perseid" check collective --device cuda:0
for list in gpu_check gpu_attention_check; do
  step "$list" "$perseid" check --problems "$problems/$list.jsonl" --device cuda:0
done
for operation in softmax matmul attention; do step "fuzz_$operation" fuzz "$operation"; done
for tool in memcheck racecheck synccheck initcheck; do
  sanitize "$tool" rows_and_matmul "$problems/gpu_check.jsonl"
  sanitize "$tool" attention "$problems/gpu_attention_check.jsonl"
done
step faults python3 "$here/faults.py" "$build" --jobs "$processes"
step bench "$perseid" bench --device cuda:0 --seconds "${SECONDS_A_ROW:-0.3}"
step peers python3 "$here/softmax.py" "$library" --csv "$out/peers.csv" "${briefly[@]}"
step attention python3 "$here/attention.py" "$library" --csv "$out/attention.csv" "${briefly[@]}"

printf '\n' >>"$table"
for name in bench peers attention; do
  [[ -f $out/$name.log ]] || continue
  printf '%s:\n\n' "$name" >>"$table"
  sed 's/^/    /' "$out/$name.log" >>"$table"
done
printf 'the table is %s\n' "$table"
exit "$failed"
