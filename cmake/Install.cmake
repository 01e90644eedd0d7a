include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS moracle moracle_c EXPORT moracle-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(MORACLE_COMMAND)
  install(TARGETS moracle-command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
if(MORACLE_WITH_MPI)
  install(TARGETS moracle_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/moracle DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/THIRD-PARTY.md
  DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/moracle)
install(EXPORT moracle-targets NAMESPACE moracle:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/moracle)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/moracle-config.cmake.in
  ${PROJECT_BINARY_DIR}/moracle-config.cmake INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/moracle)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/moracle-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/moracle-config.cmake ${PROJECT_BINARY_DIR}/moracle-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/moracle)

# For builds without CMake: pkg-config --cflags --libs moracle. A static library needs its own libraries there.
set(pc_requires Requires)
set(pc_libs " -pthread -ldl")
if(MORACLE_CUDA)
  string(APPEND pc_libs " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt")
endif()
if(BUILD_SHARED_LIBS)
  set(pc_requires Requires.private)
  set(pc_libs "")
endif()
# The file computes the prefix from its own path, so that the installed folder can move.
file(RELATIVE_PATH pc_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" pc_prefix "${pc_prefix}")
configure_file(${PROJECT_SOURCE_DIR}/cmake/moracle.pc.in ${PROJECT_BINARY_DIR}/moracle.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/moracle.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
