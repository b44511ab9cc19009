#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
# dev_install.sh INSTALL_SCRIPT CMAKE BUILD SOURCE CXX FOLDER
#
# What ./dev install and ./dev uninstall do with a build, in FOLDER: a program starts by the words of
# the install, and an uninstall leaves what was there before and nothing else.
set -euo pipefail
script=$1 cmake=$2 build=$3 source=$4 cxx=$5 folder=$6
fail() {
  printf 'failed: %s\n' "$*" >&2
  [[ ! -f $folder/words ]] || cat "$folder/words" >&2
  exit 1
}
contents() { (cd "$1" && find . -printf '%p %y %m\n' | sort); }
install_to() {
  rm -rf "$folder/stage"
  "$cmake" --install "$build" --prefix "$folder/stage" >/dev/null
  "$script" add "$folder/stage" "$1" 2>"$folder/words"
}

rm -rf "$folder"
mkdir -p "$folder/tools" "$folder/prefix/share/doc" "$folder/prefix/empty" "$folder/prefix/lib"
chmod 2775 "$folder/prefix/lib"
echo foreign >"$folder/prefix/share/doc/perseid.txt"
contents "$folder/prefix" >"$folder/before"

# A prefix that the loader does not search: what to set is said, and does it.
install_to "$folder/prefix"
contents "$folder/prefix" >"$folder/installed"
library=$(find "$folder/prefix" -name 'libperseid.so*' -print -quit)
if [[ -n $library ]]; then
  setting=$(grep -o 'LD_LIBRARY_PATH=[^ ,]*' "$folder/words") || fail "nothing is said of the loader"
  package=$(grep -o 'PKG_CONFIG_PATH=[^ ,]*' "$folder/words") || fail "nothing is said of pkg-config"
  read -ra flags <<<"$(env "$package" pkg-config --cflags --libs perseid)"
  "$cxx" -std=c++20 "$source" "${flags[@]}" -o "$folder/app"
  env "$setting" "$folder/app" >/dev/null || fail "the program does not start with $setting"
fi

# Installed over itself and removed: as before.
install_to "$folder/prefix"
contents "$folder/prefix" | diff "$folder/installed" - || fail "a second install differs"
"$script" remove "$folder/prefix" 2>"$folder/words"
grep -q "removed [1-9][0-9]* files and [1-9]" "$folder/words" || fail "nothing is said of the removal"
contents "$folder/prefix" | diff "$folder/before" - || fail "not as before the install"
if "$script" remove "$folder/prefix" 2>"$folder/words"; then fail "removed what is not there"; fi
grep -q installed.txt "$folder/words" || fail "no reason is given"

# A prefix that was not there, in a folder that was not there.
install_to "$folder/new/prefix"
"$script" remove "$folder/new/prefix" 2>"$folder/words"
[[ ! -e $folder/new ]] || fail "the new folders are left"

# A folder of the loader's, as root: its table is made anew, without a word of what to set.
cat >"$folder/tools/ldconfig" <<TEXT
#!/bin/sh
if [ "\$1" = -v ]; then
  echo "$folder/loader/lib: (from /etc/ld.so.conf:1)"
else
  echo called >>"$folder/calls"
fi
TEXT
chmod +x "$folder/tools/ldconfig"
mkdir -p "$folder/loader/lib"
PATH=$folder/tools:$PATH
install_to "$folder/loader"
if [[ -z $library ]]; then exit 0; fi
if grep -q LD_LIBRARY_PATH "$folder/words"; then fail "told to set what need not be set"; fi
if [[ $EUID -eq 0 ]]; then
  [[ $(cat "$folder/calls") == called ]] || fail "ldconfig was not run"
  "$script" remove "$folder/loader" 2>"$folder/words"
  [[ $(wc -l <"$folder/calls") -eq 2 ]] || fail "ldconfig was not run after the removal"
else
  grep -q "run ldconfig as root" "$folder/words" || fail "nothing is said of ldconfig"
fi
