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
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/moracle)
install(EXPORT moracle-targets NAMESPACE moracle:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/moracle)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/moracle-config.cmake.in
  ${PROJECT_BINARY_DIR}/moracle-config.cmake INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/moracle)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/moracle-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/moracle-config.cmake ${PROJECT_BINARY_DIR}/moracle-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/moracle)
