# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
# Compiles the consumers with what pkg-config says of the install at PREFIX, and runs them. STATIC:
# the C compiler links the static library.
file(GLOB_RECURSE pc ${PREFIX}/perseid.pc)
cmake_path(GET pc PARENT_PATH pc_dir)
set(ENV{PKG_CONFIG_PATH} ${pc_dir})
file(MAKE_DIRECTORY ${BINARY})
set(static)
if(STATIC)
  set(static --static)
endif()
set(command_echo COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)

execute_process(
  COMMAND ${PKG_CONFIG} ${static} --cflags --libs perseid
  OUTPUT_VARIABLE flags
  OUTPUT_STRIP_TRAILING_WHITESPACE ${command_echo})
execute_process(
  COMMAND ${PKG_CONFIG} --variable=libdir perseid
  OUTPUT_VARIABLE libdir
  OUTPUT_STRIP_TRAILING_WHITESPACE ${command_echo})
separate_arguments(flags UNIX_COMMAND "${flags}")
execute_process(COMMAND ${C_COMPILER} -std=c11 ${SOURCE}/consumer.c -o ${BINARY}/consumer_c ${flags}
                        -Wl,-rpath,${libdir} ${command_echo})
execute_process(COMMAND ${CXX_COMPILER} -std=c++20 ${SOURCE}/consumer.cpp -o ${BINARY}/consumer_cpp
                        ${flags} -Wl,-rpath,${libdir} ${command_echo})
execute_process(COMMAND ${BINARY}/consumer_c ${command_echo})
execute_process(COMMAND ${BINARY}/consumer_cpp ${command_echo})
