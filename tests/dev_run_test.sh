#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
# dev_run_test.sh ROOT FOLDER
#
# What ./dev run of the source tree ROOT does with its arguments, in FOLDER: files are looked at
# before anything is built, and what it prints to go on with a training does so. Programs and tools
# are stand-ins that write down how they were called.
set -euo pipefail
root=$1 folder=$2
fail() {
  printf 'failed: %s\n' "$*" >&2
  [[ ! -f $folder/words ]] || cat "$folder/words" >&2
  exit 1
}

rm -rf "$folder"
tree="$folder/a tree"
mkdir -p "$tree/build/release/cli" "$tree/build/release/examples/gpt" "$folder/tools" "$folder/here"
cp "$root/dev" "$tree/dev"
echo 'cmake_minimum_required(VERSION 3.1)' >"$tree/CMakeLists.txt"
stand_in() { # FILE COMMANDS: a program that first writes down its arguments
  printf '#!/usr/bin/env bash\nprintf "%%q " %q "$@" >>%q; echo >>%q\n%s\n' "${1##*/}" \
    "$folder/calls" "$folder/calls" "$2" >"$1"
  chmod +x "$1"
}
stand_in "$folder/tools/cmake" 'echo cmake version 9.9.9'
# shellcheck disable=SC2016  # what the stand-ins run
{
  stand_in "$folder/tools/dpkg-query" 'printf "install ok installed"'
  stand_in "$folder/tools/apt-get" 'exit 1'
  stand_in "$tree/build/release/cli/perseid" ''
  stand_in "$tree/build/release/examples/gpt/perseid-gpt" '
while (($#)); do
  case $1 in
    --checkpoint) checkpoint=$2 ;;
    --resume-hint) printf "%s\n" "$2" ;;
  esac
  shift
done
echo model >"$checkpoint"'
}
PATH=$folder/tools:$PATH
unset PERSEID_NUM_THREADS

cd "$folder/here"
head -c 1289 /dev/zero >short
head -c 1290 /dev/zero >"it's a text.txt"

refused() { # WORDS ARGUMENTS...
  local words=$1
  shift
  rm -f "$folder/calls"
  if "../a tree/dev" run "$@" >"$folder/words" 2>&1; then fail "run $* was not refused"; fi
  grep -qF -- "$words" "$folder/words" || fail "run $* does not say: $words"
  [[ ! -e $folder/calls ]] || fail "run $* called $(cat "$folder/calls") before it was refused"
}
refused "cannot read the file 'none'" none
refused "cannot read the file '.'" .
refused "cannot read the file 'none'" none --verbose
refused "'short' has 1289 bytes, too few to learn from" short
refused "run takes one file at most, got 'short' and 'it" short "it's a text.txt"
refused "run has no flag '--quick'" --quick
refused "there is nothing to go on with" "it's a text.txt" --resume
refused "there is nothing to go on with" --resume

# The hint is a command of the folder that dev was called from; a resumed run checks nothing again.
hint_of() {
  rm -f "$folder/calls"
  "../a tree/dev" run "$@" 2>"$folder/words" | tail -n 1
}
called() { grep -qF -- "$1" "$folder/calls" || fail "not called: $1, but $(cat "$folder/calls")"; }
hint=$(hint_of "it's a text.txt")
called "perseid check"
called "-DPERSEID_BUILD_TESTS=OFF" # for want of GoogleTest, which only the tests need
called "--checkpoint checkpoints/it\\'s\\ a\\ text.txt.safetensors"
[[ -f "$tree/checkpoints/it's a text.txt.safetensors" ]] || fail "no checkpoint in checkpoints/"
rm "$folder/calls"
bash -c "$hint" >"$folder/words" 2>&1 || fail "'$hint' does not run"
called "--resume checkpoints/it\\'s\\ a\\ text.txt.safetensors"
called "$(printf '%q' "$folder/here/it's a text.txt")"
if grep -q "perseid check" "$folder/calls"; then fail "a resumed run checks again"; fi
touch "$tree/build/release/CTestTestfile.cmake" # of a build that has the tests
hint=$(hint_of)
called "-DPERSEID_BUILD_TESTS=ON"
bash -c "$hint" >"$folder/words" 2>&1 || fail "'$hint' does not run"
called "--resume checkpoints/repository.safetensors"
hint_of --verbose >"$folder/words"
called "perseid check --problems bench/problems/check.jsonl --verbose"

# Who may not install what is missing is told what to install. In a folder that anybody may read.
bare=$(mktemp -d)
trap 'rm -rf "$bare"' EXIT
chmod 755 "$bare"
cp "$root/dev" "$bare/dev"
for tool in bash dirname grep nproc; do ln -s "$(command -v "$tool")" "$bare/$tool"; done
printf '#!/bin/sh\nexit 1\n' | tee "$bare/dpkg-query" >"$bare/apt-get"
chmod 755 "$bare"/{dev,dpkg-query,apt-get}
nobody=()
[[ $EUID -ne 0 ]] || nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups)
if "${nobody[@]}" true 2>/dev/null; then
  if "${nobody[@]}" env PATH="$bare" "$bare/dev" docs >"$folder/words" 2>&1; then
    fail "goes on without doxygen"
  fi
  grep -q 'packages are missing: doxygen. Installing them needs root' "$folder/words" ||
    fail "does not say what is missing"
fi

# What a run leaves behind is no change of the repository.
grep -qx '/checkpoints/' "$root/.gitignore" || fail "checkpoints are not ignored by git"
