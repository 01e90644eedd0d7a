// The GEMV kernels of one operand.
#pragma once

#include "kernels/cuda/gemv/gemv_combine.cuh"
#include "kernels/cuda/gemv/gemv_experts.cuh"
#include "kernels/cuda/gemv/gemv_linear.cuh"
#include "kernels/cuda/gemv/gemv_token.cuh"

namespace moracle::cuda {

template <class Operand, int kOctets, int kClose>
GemvKernel experts_kernel() {
  return {gemv_experts<Operand, kOctets, kClose>, 8 * kOctets, 2, kGemvWarps<kOctets>,
          sizeof(ExpertsShared<kOctets>)};
}
template <class Operand, int kOctets, int kClose>
GemvKernel combine_kernel() {
  return {gemv_combine<Operand, kOctets, kClose>, 8 * kOctets, 1, kGemvWarps<kOctets>,
          sizeof(CombineShared<kOctets>)};
}
template <class Operand, int kClose>
GemvKernel linear_kernel() {
  return {gemv_linear<Operand, kClose>, 8, 1, kGemvWarps<1>, sizeof(RingBarriers<kGemvWarps<1>>)};
}
template <class Operand, int kClose>
GemvKernel norm_linear_kernel() {
  if constexpr (Operand::kXBytes == 2)
    return {gemv_norm_linear<Operand, kClose>, 8, 1, kGemvWarps<1>, sizeof(NormedShared)};
  else
    return {};
}

template <class Operand, int kClose>
GemvKernel token_kernel() {
  return {gemv_token<Operand, kClose>, 8, 2, kGemvWarps<1>, sizeof(TokenShared)};
}

template <class Operand>
GemvKernels gemv_kernels() {
  // Groups of 128 columns and more, or of 32 and more. Folded scales end no sums.
  constexpr int kAll = kStageBlocks<Operand>;
  constexpr int kLong = kFoldsScales<Operand> || kAll < 4 ? kAll : 4;
  constexpr int kNarrow = Operand::kGroups && !kFoldsScales<Operand> ? 1 : kLong;
  constexpr int kWide = Operand::kHalves ? kNarrow : kLong;
  return {{{experts_kernel<Operand, 1, kWide>(), experts_kernel<Operand, 1, kNarrow>()},
           {experts_kernel<Operand, 2, kWide>(), experts_kernel<Operand, 2, kNarrow>()}},
          {{combine_kernel<Operand, 1, kWide>(), combine_kernel<Operand, 1, kNarrow>()},
           {combine_kernel<Operand, 2, kWide>(), combine_kernel<Operand, 2, kNarrow>()}},
          {linear_kernel<Operand, kWide>(), linear_kernel<Operand, kNarrow>()},
          {norm_linear_kernel<Operand, kWide>(), norm_linear_kernel<Operand, kNarrow>()},
          {token_kernel<Operand, kWide>(), token_kernel<Operand, kNarrow>()}};
}

}  // namespace moracle::cuda
