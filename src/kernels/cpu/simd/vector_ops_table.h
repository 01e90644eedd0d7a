// The functions of VectorOps for the instruction set that the including file is compiled for.
#pragma once

#include "kernels/cpu/simd/vector_activate.h"
#include "kernels/cpu/simd/vector_attend.h"
#include "kernels/cpu/simd/vector_attend_int8.h"
#include "kernels/cpu/simd/vector_codes.h"
#include "kernels/cpu/simd/vector_convert.h"
#include "kernels/cpu/simd/vector_delta.h"
#include "kernels/cpu/simd/vector_epilogue.h"
#include "kernels/cpu/simd/vector_index.h"
#include "kernels/cpu/simd/vector_mamba2.h"
#include "kernels/cpu/simd/vector_ops.h"
#include "kernels/cpu/simd/vector_quantize.h"
#include "kernels/cpu/simd/vector_recurrent.h"
#include "kernels/cpu/simd/vector_rotate.h"
#include "kernels/cpu/simd/vector_sums.h"

namespace moracle::cpu {
namespace {

constexpr VectorOps table(const char* isa) {
  return {isa,
          activate,
          store_rows,
          subtract_minimums,
          scale_steps,
          widen_scales,
          powers_of_two,
          unpack_codes,
          quantize_int8,
          quantize_e4m3,
          encode_e4m3,
          dequantize_e4m3,
          dequantize_int8,
          to_bf16,
          from_bf16,
          to_f16,
          from_f16,
          weighted_sum,
          add,
          scale,
          scale_by,
          dot,
          group_sums,
          code_sums,
          sum_of_squares,
          largest,
          cos_sin,
          rotate_halves,
          rotate_neighbours,
          attend,
          attend_int8,
          attend_merge,
          index_scores,
          gate_sigmoid,
          convolve,
          delta_step,
          delta_products,
          delta_chunk,
          mamba2_step,
          mamba2_chunk,
          delta_decays,
          delta_channels,
          silu_of};
}

}  // namespace
}  // namespace moracle::cpu
