# Ranks connected by MPI: a module that the library loads when a launcher of MPI started the process. Programs that
# run alone need no MPI.
set(MORACLE_WITH_MPI OFF)
if(NOT MORACLE_MPI STREQUAL OFF)
  find_package(MPI COMPONENTS CXX QUIET)
  set(MORACLE_WITH_MPI ${MPI_CXX_FOUND})
  if(NOT MPI_CXX_FOUND AND MORACLE_MPI STREQUAL AUTO)
    message(STATUS "MPI not found (libopenmpi-dev): ranks connect by sockets only")
  elseif(NOT MPI_CXX_FOUND)
    message(FATAL_ERROR "MORACLE_MPI needs MPI: install libopenmpi-dev and openmpi-bin")
  endif()
endif()
if(MORACLE_WITH_MPI)
  add_library(moracle_mpi MODULE ${PROJECT_SOURCE_DIR}/src/parallel/mpi/mpi_module.cc)
  # The C interface; MPI's C++ bindings are no longer part of MPI.
  target_compile_definitions(moracle_mpi PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  target_include_directories(moracle_mpi PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_include_directories(moracle_mpi SYSTEM PRIVATE ${MPI_CXX_INCLUDE_DIRS})
  target_link_libraries(moracle_mpi PRIVATE moracle_warnings ${MPI_CXX_LIBRARIES})
  # Beside the command, where the library searches it.
  set_target_properties(moracle_mpi PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
endif()
