# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0

# What the C++ compiler links by itself and the C compiler does not: a C program names it to link
# the static library.
set(PERSEID_CXX_RUNTIME ${CMAKE_CXX_IMPLICIT_LINK_LIBRARIES})
list(REMOVE_ITEM PERSEID_CXX_RUNTIME ${CMAKE_C_IMPLICIT_LINK_LIBRARIES})

# What every target of the project is compiled with.
function(perseid_compile_options target)
  target_compile_features(${target} PRIVATE cxx_std_20)
  set_target_properties(
    ${target}
    PROPERTIES CXX_EXTENSIONS OFF
               C_VISIBILITY_PRESET hidden
               CXX_VISIBILITY_PRESET hidden
               VISIBILITY_INLINES_HIDDEN ON
               POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wconversion -Wshadow)
  # g++ 12 sees overlapping copies in std::string's own code where there are none.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE -Wno-restrict)
  endif()
  if(PERSEID_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(PERSEID_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${PERSEID_SANITIZE}
                                             -fno-omit-frame-pointer -fno-sanitize-recover=all)
    target_link_options(${target} PRIVATE -fsanitize=${PERSEID_SANITIZE})
  else()
    target_compile_options(${target} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O3>)
  endif()
endfunction()

# Compiles these files of a target as one: they share headers, such as those of CLI11, that take the
# compiler longer than the files themselves. PERSEID_JOIN_FILES=OFF compiles each by itself.
function(perseid_join_files target)
  if(PERSEID_JOIN_FILES)
    list(GET ARGN 0 first)
    set_source_files_properties(${ARGN} PROPERTIES UNITY_GROUP ${first})
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  endif()
endfunction()
