// The kernels for few tokens of one operand.
#pragma once

#include "kernels/cuda/gemv/gemv_combine.cuh"
#include "kernels/cuda/gemv/gemv_experts.cuh"
#include "kernels/cuda/gemv/gemv_linear.cuh"
#include "kernels/cuda/gemv/gemv_token.cuh"

namespace moracle::cuda {

template <class Operand, int kOctets, int kClose>
FewKernel few_rows_kernel() {
  return {few_rows<Operand, kOctets, kClose>, 8 * kOctets, 2, kFewWarps<kOctets>,
          sizeof(FewRowsShared<kOctets>)};
}
template <class Operand, int kOctets, int kClose>
FewKernel few_tokens_kernel() {
  return {few_tokens<Operand, kOctets, kClose>, 8 * kOctets, 1, kFewWarps<kOctets>,
          sizeof(FewTokensShared<kOctets>)};
}
template <class Operand, int kClose>
FewKernel few_dense_kernel() {
  return {few_dense<Operand, kClose>, 8, 1, kFewWarps<1>, sizeof(FewBarriers<kFewWarps<1>>)};
}
template <class Operand, int kClose>
FewKernel few_normed_kernel() {
  if constexpr (Operand::kXBytes == 2)
    return {few_normed<Operand, kClose>, 8, 1, kFewWarps<1>, sizeof(FewNormedShared)};
  else
    return {};
}

template <class Operand, int kClose>
FewKernel few_one_kernel() {
  return {few_one<Operand, kClose>, 8, 2, kFewWarps<1>, sizeof(FewOneShared)};
}

template <class Operand>
FewKernels few_kernels() {
  // Groups of 128 columns and more, or of 32 and more. Folded scales end no sums.
  constexpr int kAll = kFewBlocks<Operand>;
  constexpr int kWide = kFewFolded<Operand> || kAll < 4 ? kAll : 4;
  constexpr int kNarrow = Operand::kGroups && !kFewFolded<Operand> ? 1 : kWide;
  return {{{few_rows_kernel<Operand, 1, kWide>(), few_rows_kernel<Operand, 1, kNarrow>()},
           {few_rows_kernel<Operand, 2, kWide>(), few_rows_kernel<Operand, 2, kNarrow>()}},
          {{few_tokens_kernel<Operand, 1, kWide>(), few_tokens_kernel<Operand, 1, kNarrow>()},
           {few_tokens_kernel<Operand, 2, kWide>(), few_tokens_kernel<Operand, 2, kNarrow>()}},
          {few_dense_kernel<Operand, kWide>(), few_dense_kernel<Operand, kNarrow>()},
          {few_normed_kernel<Operand, kWide>(), few_normed_kernel<Operand, kNarrow>()},
          {few_one_kernel<Operand, kWide>(), few_one_kernel<Operand, kNarrow>()}};
}

}  // namespace moracle::cuda
