# Kernels for one instruction set live in files named *_avx2.cc and so on: only they are built with
# its flags, and only a CPU that reports it ever calls them.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/kernels/cpu/tile_avx2.cc
    PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/kernels/cpu/vector_ops_avx2.cc
    PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/kernels/cpu/vector_ops_avx512.cc
    PROPERTIES COMPILE_OPTIONS "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mfma")
  # The loops of lines_avx2.inc and lines.inc that a file does not take.
  set(avx2 -mavx2 -mfma -mf16c -Wno-unused-function)
  foreach(file lines_avx2 lines_codes_avx2 lines_decode_avx2)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/src/kernels/cpu/${file}.cc
      PROPERTIES COMPILE_OPTIONS "${avx2}")
  endforeach()
  foreach(file lines_avx_vnni lines_codes_avx_vnni)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/src/kernels/cpu/${file}.cc
      PROPERTIES COMPILE_OPTIONS "${avx2};-mavxvnni")
  endforeach()
  set(avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma -Wno-unused-function)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC 12 takes the undefined operands of its own intrinsics for mistakes.
    list(APPEND avx512 -Wno-uninitialized -Wno-maybe-uninitialized)
  endif()
  foreach(file lines_avx512 lines_codes_avx512 lines_decode_avx512)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/src/kernels/cpu/${file}.cc
      PROPERTIES COMPILE_OPTIONS "${avx512}")
  endforeach()
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/kernels/cpu/lines_avx512_bf16.cc
    PROPERTIES COMPILE_OPTIONS "${avx512};-mavx512bf16")
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/kernels/cpu/lines_amx.cc
    PROPERTIES COMPILE_OPTIONS "${avx512};-mamx-tile;-mamx-int8;-mamx-bf16")
endif()
# These include the code of every instruction set, and so define the same names.
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/kernels/cpu/tile_portable.cc
  ${PROJECT_SOURCE_DIR}/src/kernels/cpu/vector_ops_portable.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
