# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
# cmake -DNM=<nm> -DREADELF=<readelf> -DLIBRARY=<so> -DHEADERS=<folder> -P exports.cmake
#
# The shared library exports the functions of its headers and nothing else. Its soname holds what a
# program was linked against: major and minor version before 1.0, the major version from then on.
execute_process(
  COMMAND ${NM} -D --defined-only ${LIBRARY}
  OUTPUT_VARIABLE table COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^ \n]+\n" exported "${table}")
list(TRANSFORM exported STRIP)
list(SORT exported)

file(GLOB headers ${HEADERS}/*.h)
set(header)
foreach(path IN LISTS headers)
  file(READ ${path} text)
  string(APPEND header "${text}")
endforeach()
string(REGEX MATCHALL "PERSEID_API [^(;]*perseid_[a-z0-9_]+\\(" declared "${header}")
list(TRANSFORM declared REPLACE ".*(perseid_[a-z0-9_]+)\\($" "\\1")
list(SORT declared)

if(NOT declared OR NOT exported STREQUAL declared)
  message(FATAL_ERROR "exported: ${exported}\ndeclared: ${declared}")
endif()
string(REGEX MATCH "VERSION_MAJOR ([0-9]+)" ignored "${header}")
set(soname libperseid.so.${CMAKE_MATCH_1})
string(REGEX MATCH "VERSION_MINOR ([0-9]+)" ignored "${header}")
if(soname STREQUAL "libperseid.so.0")
  string(APPEND soname .${CMAKE_MATCH_1})
endif()
execute_process(
  COMMAND ${READELF} -d ${LIBRARY}
  OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
string(FIND "${dynamic}" "[${soname}]" found)
if(found EQUAL -1)
  message(FATAL_ERROR "expected the soname ${soname}, got:\n${dynamic}")
endif()
