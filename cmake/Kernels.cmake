# Kernels for one instruction set lie in the folders of src/kernels/cpu, in files named after it: *_avx2.cc and so
# on. The suffix decides the flags. Only a CPU that reports the instruction set calls these files' code.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # A file does not use every loop of the headers that it shares with others.
  set(avx2 -mavx2 -mfma -mf16c -Wno-unused-function)
  set(avx_vnni ${avx2} -mavxvnni)
  set(avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -Wno-unused-function)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC 12 takes the undefined operands of its own intrinsics for mistakes.
    list(APPEND avx512 -Wno-uninitialized -Wno-maybe-uninitialized)
  endif()
  set(avx512_vnni ${avx512} -mavx512vnni)
  set(avx512_bf16 ${avx512_vnni} -mavx512bf16)
  set(amx ${avx512_vnni} -mamx-tile -mamx-int8 -mamx-bf16)
  foreach(isa avx2 avx_vnni avx512 avx512_vnni avx512_bf16 amx)
    file(GLOB files ${PROJECT_SOURCE_DIR}/src/kernels/cpu/*/*_${isa}.cc)
    set_source_files_properties(${files} PROPERTIES COMPILE_OPTIONS "${${isa}}" SKIP_UNITY_BUILD_INCLUSION ON)
  endforeach()
endif()
# The same loops without flags of their own.
file(GLOB files ${PROJECT_SOURCE_DIR}/src/kernels/cpu/*/*_portable.cc)
set_source_files_properties(${files} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
# Draws give the same bits on every CPU, so none of them contracts products and sums.
file(GLOB files ${PROJECT_SOURCE_DIR}/src/kernels/cpu/sampling/draw_ops_*.cc)
set_property(SOURCE ${files} APPEND PROPERTY COMPILE_OPTIONS -ffp-contract=off)
