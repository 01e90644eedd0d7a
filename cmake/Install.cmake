include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Each component has a file of targets, which the package reads if a program wants it.
function(moracle_install target component)
  install(TARGETS ${target} EXPORT moracle-${component}-targets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT moracle-${component}-targets NAMESPACE moracle::
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/moracle)
endfunction()
set(moracle_shared OFF)
if(BUILD_SHARED_LIBS)
  set(moracle_shared ON)
  moracle_install(moracle-shared moracle)
else()
  foreach(component IN LISTS components)
    moracle_install(moracle-${component} ${component})
  endforeach()
  moracle_install(moracle moracle)
endif()
moracle_install(moracle_c c)
if(MORACLE_COMMAND)
  install(TARGETS moracle-command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
if(MORACLE_WITH_MPI)
  install(TARGETS moracle_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/moracle DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/THIRD-PARTY.md
  DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/moracle)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/moracle-config.cmake.in
  ${PROJECT_BINARY_DIR}/moracle-config.cmake INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/moracle)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/moracle-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/moracle-config.cmake ${PROJECT_BINARY_DIR}/moracle-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/moracle)

# For builds without CMake: pkg-config --cflags --libs moracle, or moracle-experts. Archives need their own libraries
# there.
set(pc_system " -pthread -ldl")
if(MORACLE_CUDA)
  string(APPEND pc_system " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt")
endif()
# The file computes the prefix from its own path, so that the installed folder can move.
file(RELATIVE_PATH pc_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" pc_prefix "${pc_prefix}")
function(moracle_pkg_config pc_name pc_requires pc_libs)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/moracle.pc.in ${PROJECT_BINARY_DIR}/${pc_name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${pc_name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()
set(pc_serve "")
set(pc_tls "")
if("serve" IN_LIST components)
  set(pc_serve "-lmoracle-serve ")
  if(OPENSSL_FOUND)
    set(pc_tls ", openssl")
  endif()
endif()
if(BUILD_SHARED_LIBS)
  moracle_pkg_config(moracle "" " -lmoracle")
  moracle_pkg_config(moracle-experts "Requires: moracle" "")
else()
  moracle_pkg_config(moracle-experts "" " -lmoracle-experts${pc_system}")
  moracle_pkg_config(moracle "Requires: moracle-experts, oniguruma >= 6.9.7, libutf8proc, libsodium${pc_tls}"
    " ${pc_serve}-lmoracle-model -lmoracle-parallel")
endif()
