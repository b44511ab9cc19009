#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
# install.sh add STAGE PREFIX      copies what `cmake --install` put into STAGE to PREFIX
# install.sh remove PREFIX         removes it again
#
# PREFIX/share/perseid/installed.txt lists what was added, relative to PREFIX: every file, and the
# directories (ending in /) that were not there before, PREFIX and its parents included.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin # of ldconfig
umask 022
list=share/perseid/installed.txt

say() { printf '==> %s\n' "$*" >&2; }
fail() {
  printf 'install: %s\n' "$*" >&2
  exit 1
}
megabytes() { awk '{ printf "%.1f MB", $1 / 1e6 }' <<<"$1"; }

in_loader_path() {
  local line
  while IFS= read -r line; do
    [[ $line != /*:* || ! ${line%%:*} -ef $1 ]] || return 0
  done < <(ldconfig -v -N -X 2>/dev/null)
  return 1
}

# After a change in FOLDER: of its own folders the loader keeps a table.
refresh_loader() {
  if ! in_loader_path "$1"; then
    return 1
  elif [[ $EUID -eq 0 ]]; then
    ldconfig
  else
    say "run ldconfig as root: until then the loader does not know what changed in $1"
  fi
}

# What adding STAGE to PREFIX creates, and what an earlier install created.
entries() {
  local stage=$1 prefix=$2 path=$2 name=./ entry
  while [[ ! -e $path ]]; do
    printf '%s\n' "$name"
    name=../${name#./}
    path=$(dirname "$path")
  done
  while IFS= read -r entry; do
    [[ $entry == */ && -e $prefix/$entry ]] || printf '%s\n' "$entry"
  done < <(find "$stage" -mindepth 1 -type d -printf '%P/\n' -o -printf '%P\n')
  if [[ -f $prefix/$list ]]; then cat "$prefix/$list"; fi
}

add() {
  local stage=$1 prefix=$2 added entry pack library folder
  [[ -d $stage ]] || fail "expected a folder that 'cmake --install' has filled, got '$stage'"
  mkdir -p "$stage/${list%/*}"
  added=$(entries "$stage" "$prefix" | LC_ALL=C sort -u)
  added=$(printf '%s\n%s\n' "$added" "$list" | LC_ALL=C sort -u)
  say "installing to $prefix: $(megabytes "$(du -sb "$stage" | cut -f1)")"
  pack=$(find "$stage" -name perseid.pack -size +0 -printf '%s')
  [[ -z $pack ]] || say "$(megabytes "$pack") of it are perseid.pack, compiled GPU kernels;" \
    "without that file kernels are compiled when a plan needs them"
  while IFS= read -r entry; do
    mkdir -p "$prefix/$(dirname "$entry")"
    # Unlinked first: a process that has the old library mapped keeps it.
    cp -d --preserve=mode --remove-destination "$stage/$entry" "$prefix/$entry"
  done < <(cd "$stage" && find . ! -type d -printf '%P\n')
  mkdir -p "$prefix/${list%/*}"
  printf '%s\n' "$added" >"$prefix/$list"

  library=$(find "$stage" -name libperseid.so -printf '%P')
  folder=$prefix/$(dirname "$library")
  if [[ -n $library ]] && ! refresh_loader "$folder"; then
    say "the loader does not search $folder: set LD_LIBRARY_PATH=$folder, or link with" \
      "-Wl,-rpath,$folder"
    say "set PKG_CONFIG_PATH=$folder/pkgconfig for pkg-config, CMAKE_PREFIX_PATH=$prefix for CMake"
  fi
}

remove() {
  local prefix=$1 entry path library files=0 folders=0
  [[ -f $prefix/$list ]] ||
    fail "expected the list of what was installed, $prefix/$list, and there is none; give the" \
      "PREFIX of ./dev install"
  library=$(grep -m1 '/libperseid\.so$' "$prefix/$list" || true)
  # Backwards: what a directory holds comes before the directory itself.
  while IFS= read -r entry; do
    path=$(realpath -ms "$prefix/$entry")
    if [[ $entry != */ ]]; then
      if [[ -e $path || -L $path ]]; then
        rm -f "$path"
        files=$((files + 1))
      fi
    elif rmdir "$path" 2>/dev/null; then
      folders=$((folders + 1))
    fi
  done < <(while IFS= read -r entry; do
    printf '%s\t%s\n' "$(realpath -ms "$prefix/$entry")" "$entry"
  done <"$prefix/$list" | LC_ALL=C sort -r | cut -f2)
  say "removed $files files and $folders directories from $prefix"
  if [[ -n $library ]]; then refresh_loader "$prefix/$(dirname "$library")" || true; fi
}

case ${1:-} in
  add) add "$2" "$(realpath -ms "$3")" ;;
  remove) remove "$(realpath -ms "$2")" ;;
  *) fail "expected 'add STAGE PREFIX' or 'remove PREFIX'" ;;
esac
