# Kernels for one instruction set live in files named *_avx2.cc and so on: only they are built with
# its flags, and only a CPU that reports it ever calls them.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/kernels/cpu/tile_avx2.cc
    PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/kernels/cpu/vector_ops_avx2.cc
    PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma")
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/kernels/cpu/vector_ops_avx512.cc
    PROPERTIES COMPILE_OPTIONS "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mfma")
endif()
