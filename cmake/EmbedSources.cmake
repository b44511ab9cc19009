# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0

# cmake -DROOT=<src> -DFILES=<paths from src, with commas> -DOUTPUT=<cpp> -P EmbedSources.cmake
#
# Writes the kernel sources as a table of strings: cuda/runtime/sources.hpp. A string literal may
# not be long everywhere, so that a file is several of them, side by side.
string(REPLACE "," ";" files "${FILES}")
set(table "")
foreach(file IN LISTS files)
  file(READ "${ROOT}/${file}" text)
  set(literals "")
  string(LENGTH "${text}" length)
  set(begin 0)
  while(begin LESS length)
    string(SUBSTRING "${text}" ${begin} 8000 piece)
    string(APPEND literals "\n     R\"__source__(${piece})__source__\"")
    math(EXPR begin "${begin} + 8000")
  endwhile()
  string(APPEND table "    {\"${file}\",${literals}},\n")
endforeach()
file(
  WRITE "${OUTPUT}"
  "#include \"cuda/runtime/sources.hpp\"

namespace perseid::internal::cuda {
namespace {

constexpr Source kSources[] = {
${table}};

}  // namespace

std::span<const Source> sources() { return kSources; }

}  // namespace perseid::internal::cuda
")
