# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
# What an install holds: the library and its headers, and what find_package(perseid) and pkg-config
# look for. All of it may be moved to another prefix afterwards.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/perseid)
install(TARGETS perseid EXPORT perseidTargets FILE_SET HEADERS)
get_property(mpis GLOBAL PROPERTY PERSEID_MPI)
foreach(mpi IN LISTS mpis)
  # Optional, as the pack.
  install(TARGETS perseid_${mpi} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} OPTIONAL)
endforeach()
install(EXPORT perseidTargets NAMESPACE perseid:: DESTINATION ${package_dir})

configure_package_config_file(cmake/perseidConfig.cmake.in perseidConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(perseidConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/perseidConfig.cmake
              ${PROJECT_BINARY_DIR}/perseidConfigVersion.cmake DESTINATION ${package_dir})

# A static library leaves its own needs to whoever links it.
get_target_property(type perseid TYPE)
if(type STREQUAL "STATIC_LIBRARY")
  set(PERSEID_PC_CFLAGS " -DPERSEID_STATIC")
  list(TRANSFORM PERSEID_CXX_RUNTIME PREPEND " -l" OUTPUT_VARIABLE runtime)
  list(TRANSFORM CMAKE_DL_LIBS PREPEND " -l" OUTPUT_VARIABLE loader)
  string(CONCAT PERSEID_PC_LIBS ${runtime} ${loader} " -pthread")
endif()
cmake_path(SET pc_dir NORMALIZE ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH PERSEID_PC_PREFIX ${pc_dir} ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/perseid.pc.in perseid.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/perseid.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(PERSEID_PACK_FILE)
  # Optional: who builds the library's target alone has none.
  install(FILES ${PERSEID_PACK_FILE} DESTINATION ${CMAKE_INSTALL_LIBDIR} OPTIONAL)
endif()

if(TARGET perseid-cli)
  file(RELATIVE_PATH library_from_program ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  set_target_properties(perseid-cli PROPERTIES INSTALL_RPATH $ORIGIN/${library_from_program})
  install(TARGETS perseid-cli)
  if(PERSEID_MANUAL_DIR)
    # Optional, as the pack.
    install(DIRECTORY ${PERSEID_MANUAL_DIR}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1
            FILES_MATCHING PATTERN *.1)
    foreach(completion IN ITEMS "perseid.bash bash-completion/completions perseid"
                                "_perseid zsh/site-functions _perseid"
                                "perseid.fish fish/vendor_completions.d perseid.fish")
      separate_arguments(completion)
      list(GET completion 0 file)
      list(GET completion 1 folder)
      list(GET completion 2 name)
      install(FILES ${PERSEID_MANUAL_DIR}/${file} DESTINATION ${CMAKE_INSTALL_DATADIR}/${folder}
              RENAME ${name} OPTIONAL)
    endforeach()
  endif()
endif()
