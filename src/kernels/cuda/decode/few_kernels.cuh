// The kernels for few tokens of one operand.
#pragma once

#include "kernels/cuda/decode/few_rows.cuh"
#include "kernels/cuda/decode/few_tokens.cuh"

namespace moracle::cuda {

/// As many stages as fit into an SM's shared memory: the more in flight, the faster memory reads.
template <class Operand, int kOctets, int kClose>
FewKernel few_rows_kernel() {
  constexpr int kStages = kOctets == 1 && kClose > 1 ? 4 : 3;
  return {few_rows<Operand, kOctets, kStages, kClose>, 8 * kOctets, 2, kStages,
          sizeof(FewRowsShared<kOctets>)};
}
template <class Operand, int kOctets, int kClose>
FewKernel few_tokens_kernel() {
  constexpr int kStages = kOctets == 1 && kClose > 1 ? 7 : 5;
  return {few_tokens<Operand, kOctets, kStages, kClose>, 8 * kOctets, 1, kStages,
          sizeof(FewTokensShared<kOctets>)};
}

/// Fewer stages, beside which the rows of x have room.
template <class Operand, int kClose>
FewKernel few_normed_kernel() {
  constexpr int kStages = 3;
  if constexpr (Operand::kXBytes == 2)
    return {few_normed_rows<Operand, kStages, kClose>, 8, 2, kStages, sizeof(FewNormedShared)};
  else
    return {};
}

template <class Operand>
FewKernels few_kernels() {
  // Groups of 128 columns and more, or of 32 and more.
  constexpr int kWide = kFewBlocks<Operand> < 4 ? kFewBlocks<Operand> : 4;
  constexpr int kNarrow = Operand::kGroups ? 1 : kWide;
  return {{{few_rows_kernel<Operand, 1, kWide>(), few_rows_kernel<Operand, 1, kNarrow>()},
           {few_rows_kernel<Operand, 2, kWide>(), few_rows_kernel<Operand, 2, kNarrow>()}},
          {{few_tokens_kernel<Operand, 1, kWide>(), few_tokens_kernel<Operand, 1, kNarrow>()},
           {few_tokens_kernel<Operand, 2, kWide>(), few_tokens_kernel<Operand, 2, kNarrow>()}},
          {few_normed_kernel<Operand, kWide>(), few_normed_kernel<Operand, kNarrow>()}};
}

}  // namespace moracle::cuda
