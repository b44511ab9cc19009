#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
# dev_install.sh ROOT CMAKE BUILD CXX FOLDER
#
# What ./dev install and ./dev uninstall of the source tree ROOT do with a build, in FOLDER: a
# program starts by the words of the install, and an uninstall leaves what was there before and
# nothing else.
set -euo pipefail
root=$1 cmake=$2 build=$3 cxx=$4 folder=$5
script=$root/cmake/install.sh source=$root/tests/install/consumer/consumer.cpp
fail() {
  printf 'failed: %s\n' "$*" >&2
  [[ ! -f $folder/words ]] || cat "$folder/words" >&2
  exit 1
}
contents() { (cd "$1" && find . -printf '%p %y %m\n' | sort); }
install_to() {
  rm -rf "$folder/stage"
  "$cmake" --install "$build" --prefix "$folder/stage" >/dev/null
  pkgconfig=$(find "$folder/stage" -type d -name pkgconfig -printf '%P')
  libdir=${pkgconfig%/pkgconfig}
  head -c 1500000 /dev/zero >"$folder/stage/$libdir/perseid.pack"
  "$script" add "$folder/stage" "$1" 2>"$folder/words"
}

rm -rf "$folder"
mkdir -p "$folder/tools" "$folder/prefix/share/doc" "$folder/prefix/empty" "$folder/prefix/lib"
chmod 2775 "$folder/prefix/lib"
echo foreign >"$folder/prefix/share/doc/perseid.txt"
contents "$folder/prefix" >"$folder/before"

# A prefix that the loader does not search: what to set is said, and does it.
install_to "$folder/prefix"
grep -q '1.5 MB of it are perseid.pack' "$folder/words" || fail "the pack is not announced"
contents "$folder/prefix" >"$folder/installed"
if [[ -e $folder/prefix/bin/perseid ]]; then
  for page in man/man1/perseid.1 man/man1/perseid-run.1 bash-completion/completions/perseid \
    zsh/site-functions/_perseid fish/vendor_completions.d/perseid.fish; do
    [[ -s $folder/prefix/share/$page ]] || fail "the install has no share/$page"
  done
fi
library=$(find "$folder/prefix" -name 'libperseid.so*' -print -quit)
if [[ -n $library ]]; then
  setting=$(grep -o 'LD_LIBRARY_PATH=[^ ,]*' "$folder/words") ||
    fail "nothing is said of the loader"
  package=$(grep -o 'PKG_CONFIG_PATH=[^ ,]*' "$folder/words") ||
    fail "nothing is said of pkg-config"
  read -ra flags <<<"$(env "$package" pkg-config --cflags --libs perseid)"
  "$cxx" -std=c++20 "$source" "${flags[@]}" -o "$folder/app"
  env "$setting" "$folder/app" >/dev/null || fail "the program does not start with $setting"
fi

# Installed over itself and removed: as before.
install_to "$folder/prefix"
contents "$folder/prefix" | diff "$folder/installed" - || fail "a second install differs"
"$script" remove "$folder/prefix" 2>"$folder/words"
grep -q "removed [1-9][0-9]* files and [1-9]" "$folder/words" ||
  fail "nothing is said of the removal"
contents "$folder/prefix" | diff "$folder/before" - || fail "not as before the install"
if "$script" remove "$folder/prefix" 2>"$folder/words"; then fail "removed what is not there"; fi
grep -q installed.txt "$folder/words" || fail "no reason is given"

# A prefix that was not there, in a folder that was not there.
install_to "$folder/new/prefix"
"$script" remove "$folder/new/prefix" 2>"$folder/words"
[[ ! -e $folder/new ]] || fail "the new folders are left"

# An older CMake is refused before it sees the presets. Nothing else is in PATH, least of all
# apt-get.
mkdir "$folder/old"
for tool in bash cat dirname head nproc sed sort; do
  ln -s "$(command -v "$tool")" "$folder/old/$tool"
done
printf '#!/bin/sh\necho cmake version 3.24.4\n' >"$folder/old/cmake"
chmod +x "$folder/old/cmake"
if PATH=$folder/old "$root/dev" bench >"$folder/words" 2>&1; then fail "CMake 3.24 is taken"; fi
grep -q 'Perseid needs CMake 3.25 or newer, got 3.24.4' "$folder/words" ||
  fail "not refused by version"
[[ -n $library ]] || exit 0

# A folder of the loader's, as root: its table is made anew, without a word of what to set.
cat >"$folder/tools/ldconfig" <<TEXT
#!/bin/sh
if [ "\$1" = -v ]; then
  echo "$folder/loader/$libdir: (from /etc/ld.so.conf:1)"
else
  echo called >>"$folder/calls"
fi
TEXT
chmod +x "$folder/tools/ldconfig"
mkdir -p "$folder/loader/$libdir"
PATH=$folder/tools:$PATH
install_to "$folder/loader"
if grep -q LD_LIBRARY_PATH "$folder/words"; then fail "told to set what need not be set"; fi
if [[ $EUID -eq 0 ]]; then
  [[ $(cat "$folder/calls") == called ]] || fail "ldconfig was not run"
  "$script" remove "$folder/loader" 2>"$folder/words"
  [[ $(wc -l <"$folder/calls") -eq 2 ]] || fail "ldconfig was not run after the removal"
else
  grep -q "run ldconfig as root" "$folder/words" || fail "nothing is said of ldconfig"
fi

