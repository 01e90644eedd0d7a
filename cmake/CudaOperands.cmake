# The operands of the CUDA kernels: one line for each weight type (and activations, where they are codes). Each kernel is
# compiled in one file for a type: a function <kernel>_<type>[_<variant>]() that returns its instances for the operand.
#   type      | variant | mma.sync (gemm_sm80) | GEMV | wgmma (gemm_sm90) | skinny GEMM (gemm_skinny) | further header
set(MORACLE_CUDA_OPERANDS
  "bf16      |        | Bf16Operand           | Bf16Operand           | Bf16Wgmma"
  "f16       |        | F16Operand            | F16Operand            | F16Wgmma"
  "int8      |        | Int8Operand<false>    | Int8Operand<false>    | Wgmma<Int8Operand<false>> | Int8Operand<false>"
  "int8      | groups | Int8Operand<true>     | Int8Operand<true>     | Wgmma<Int8Operand<true>> | Int8Operand<true>"
  "int8_blocks |      |                       |                       | BlocksWgmma<Int8Operand<false>>"
  "int8      | halves | InHalves<Int8Operand<true>> | InHalves<Int8Operand<true>> | "
  "int8      | values   | | | ValuesWgmma<Int8Operand<false>>"
  "int8      | minimums | WithMinimums<Int8Operand<false>> | WithMinimums<Int8Operand<false>> | "
  "int8      | halves_minimums | InHalves<WithMinimums<Int8Operand<false>>> | InHalves<WithMinimums<Int8Operand<false>>> | "
  "int4      |        | Int4Operand           | Int4Operand           | Wgmma<Int4By64Operand> | Int4Operand"
  "int4_blocks |      |                       |                       | BlocksWgmma<Int4By64Operand>"
  "int4      | halves | InHalves<Int4Operand> | InHalves<Int4Operand> | "
  "int4      | values   | | | ValuesWgmma<Int4Operand>"
  "int4      | minimums | WithMinimums<Int4Operand> | WithMinimums<Int4Operand> | "
  "int4      | halves_minimums | InHalves<WithMinimums<Int4Operand>> | InHalves<WithMinimums<Int4Operand>> | "
  "fp8       |        | Fp8Operand<false>     | Fp8Operand<false>     | Wgmma<Fp8Operand<false>> | Fp8Operand<false>"
  "fp8       | groups | Fp8Operand<true>      | Fp8Operand<true>      | Wgmma<Fp8Operand<true>> | Fp8Operand<true>"
  "fp8       | halves | InHalves<Fp8Operand<true>> | | "
  "fp4       |        | Fp4Operand            | Fp4Operand            | "
  "fp4       | halves | InHalves<Fp4Operand> | | "
  "nvfp4     |        |                       | Fp4Scaled             | Fp4Scaled | | operands/folded_operands.cuh"
  "mxfp8     |        |                       | Fp8FoldedPairs        | Fp8Folded | | operands/folded_operands.cuh"
  "mxfp4     |        |                       | Fp4Folded             | Fp4Folded | | operands/folded_operands.cuh"
  "fp8_fp8   |        | Fp8Fp8Operand<false>  | Fp8Fp8Operand<false>  | Fp8Wgmma<false>, Fp8TokenChannels | Fp8Fp8Operand<false> | gemm_sm90/wgmma_token_epilogue.cuh"
  "fp8_fp8   | groups | Fp8Fp8Operand<true>   | Fp8Fp8Operand<true>   | Fp8Wgmma<true> | Fp8Fp8Operand<true>"
  "fp8_fp8_tokens |   |                       |                       | Fp8Wgmma<true, XScales::kToken>"
  "fp8_fp8   | halves | InHalves<Fp8Fp8Operand<true>> | | "
  "fp8_fp8   | blocks |                       |                       | Fp8Wgmma<true>, Fp8Tokens, OrderedRows<Fp8Tokens>, WholeLines<Fp8Tokens>, OrderedGates<Fp8Tokens> | | gemm_sm90/wgmma_token_epilogue.cuh"
  "fp8_fp8   | blocks_by_32 |                |                       | Fp8Wgmma<true>, ScaledBy32<Fp8Tokens> | | gemm_sm90/wgmma_token_epilogue.cuh"
  "int8_int8 |        | Int8Int8Operand<false> | Int8Int8Operand<false> | Int8Int8Wgmma | Int8Int8Operand<false>"
  "int8_int8 | groups | Int8Int8Operand<true> | Int8Int8Operand<true> | "
  "int8_int8 | halves | InHalves<Int8Int8Operand<true>> | InHalves<Int8Int8Operand<true>> | "
  "int8_int8 | minimums | WithMinimums<Int8Int8Operand<false>> | WithMinimums<Int8Int8Operand<false>> | "
  "int8_int8 | halves_minimums | InHalves<WithMinimums<Int8Int8Operand<false>>> | InHalves<WithMinimums<Int8Int8Operand<false>>> | "
  "int4_int8 |        | Int4Int8Operand       | Int4Int8Operand       | "
  "int4_int8 | halves | InHalves<Int4Int8Operand> | InHalves<Int4Int8Operand> | "
  "int4_int8 | minimums | WithMinimums<Int4Int8Operand> | WithMinimums<Int4Int8Operand> | "
  "int4_int8 | halves_minimums | InHalves<WithMinimums<Int4Int8Operand>> | InHalves<WithMinimums<Int4Int8Operand>> | "
  "int4_fp8  |        | Int4Fp8Operand        | Int4Fp8Operand        | Int4Fp8Wgmma<false> | Int4Fp8Operand"
  "int4_fp8_zeros |   |                       |                       | Int4Fp8Wgmma<true>"
  "int4_fp8_wide | groups |                  |                       | Wgmma<WideCodes<Int4By64Operand>>"
  "int4_fp8_wide | values |                  |                       | ValuesWgmma<WideCodes<Int4Operand>>"
  "nvfp4_fp8_wide |  |                       |                       | WideCodes<Fp4Scaled> | | operands/folded_operands.cuh"
  "int4_fp8  | halves | InHalves<Int4Fp8Operand> | InHalves<Int4Fp8Operand> | "
  "int4_fp8  | minimums | WithMinimums<Int4Fp8Operand> | WithMinimums<Int4Fp8Operand> | "
  "int4_fp8  | halves_minimums | InHalves<WithMinimums<Int4Fp8Operand>> | InHalves<WithMinimums<Int4Fp8Operand>> | "
  "mxfp4_fp8 |        |                       | ByFp8<Fp4Folded>      |  | | operands/folded_operands.cuh"
  "nvfp4_fp8 |        |                       | ByFp8<Fp4Scaled>      |  | | operands/folded_operands.cuh"
  "fp4_fp8   |        | Fp4Fp8Operand         | Fp4Fp8Operand         | Fp4Fp8Wgmma"
  "fp4_fp8   | halves | InHalves<Fp4Fp8Operand> | | "
  "fp4_int8  |        | Fp4Int8Operand        | Fp4Int8Operand        | "
  "fp4_int8  | halves | InHalves<Fp4Int8Operand> | | "
  "nvfp4_int8 |       |                       | WithRowFactors<Fp4Int8Operand> | ")

# Adds one file for each kernel and type to the target. PTX alone (architectures "90a-virtual") takes hardly longer to
# compile than the headers: then a kernel's types share one file.
function(moracle_cuda_operands target)
  set(headers gemm_sm80/mma_kernel.cuh gemv/gemv_kernels.cuh gemm_sm90/wgmma_kernel.cuh
    gemm_skinny/skinny_kernels.cuh)
  set(lists Mma Gemv Wgmma Skinny)
  foreach(column RANGE 3)
    list(GET headers ${column} HEADER)
    list(GET lists ${column} LIST)
    string(TOLOWER ${LIST} kernel)
    set(types)
    foreach(line IN LISTS MORACLE_CUDA_OPERANDS)
      string(REPLACE "|" ";" line "${line}")
      list(TRANSFORM line STRIP)
      list(GET line 0 type)
      list(GET line 1 variant)
      math(EXPR at "${column} + 2")
      list(LENGTH line columns)
      set(operand)
      if(at LESS columns)
        list(GET line ${at} operand)
      endif()
      if(operand)
        string(REGEX REPLACE "_$" "" name "${type}_${variant}")
        string(APPEND functions_${type}
          "${LIST}Kernels ${kernel}_${name}() {\n  return ${kernel}_kernels<${operand}>();\n}\n")
        list(APPEND types ${type})
        if(columns GREATER 6)
          list(GET line 6 header)
          string(APPEND includes_${type} "#include \"kernels/cuda/${header}\"\n")
        endif()
      endif()
    endforeach()
    list(REMOVE_DUPLICATES types)
    if(CMAKE_CUDA_ARCHITECTURES MATCHES "^[0-9a]+-virtual$")
      foreach(type IN LISTS types)
        string(APPEND functions_all "${functions_${type}}")
        string(APPEND includes_all "${includes_${type}}")
        unset(functions_${type})
        unset(includes_${type})
      endforeach()
      set(types all)
    endif()
    foreach(type IN LISTS types)
      set(FUNCTIONS "${functions_${type}}")
      set(INCLUDES "${includes_${type}}")
      unset(functions_${type})
      unset(includes_${type})
      set(file ${PROJECT_BINARY_DIR}/kernels/${kernel}_${type}.cu)
      configure_file(${PROJECT_SOURCE_DIR}/cmake/cuda_operand.cu.in ${file} @ONLY)
      set_source_files_properties(${file} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
      target_sources(${target} PRIVATE ${file})
    endforeach()
  endforeach()
endfunction()
