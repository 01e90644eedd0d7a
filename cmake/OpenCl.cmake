# Kernels for OpenCL devices: the .cl files become strings of the library.
set(opencl_folder ${PROJECT_SOURCE_DIR}/src/kernels/opencl)
file(GLOB_RECURSE opencl_files CONFIGURE_DEPENDS ${opencl_folder}/*.cl)
set(opencl_embedded ${PROJECT_BINARY_DIR}/opencl/kernels/opencl/embedded_sources.h)
add_custom_command(OUTPUT ${opencl_embedded}
  COMMAND ${CMAKE_COMMAND} -DFOLDER=${opencl_folder} -DOUT=${opencl_embedded} -P ${PROJECT_SOURCE_DIR}/cmake/EmbedOpenCl.cmake
  DEPENDS ${opencl_files} ${PROJECT_SOURCE_DIR}/cmake/EmbedOpenCl.cmake)
add_custom_target(moracle_opencl_sources DEPENDS ${opencl_embedded})
add_dependencies(moracle_kernels moracle_opencl_sources)
target_include_directories(moracle_kernels PRIVATE ${PROJECT_BINARY_DIR}/opencl)
foreach(room oracle kernels)
  target_include_directories(moracle_${room} SYSTEM PRIVATE ${MORACLE_OPENCL_HEADERS})
  target_compile_definitions(moracle_${room} PRIVATE MORACLE_WITH_OPENCL)
endforeach()
