#include "kernels/cuda/gemv/gemv_plan.h"

#include <algorithm>

#include "kernels/cuda/operands/scaling_plan.h"
#include "layout/mma16.h"

namespace moracle::cuda {
namespace {

// True if scales are folded into codes of e2m1.
bool folds_fp4(const MatrixShape& shape, const Scheme& scheme) {
  const bool eight_bits = mma16::scale_is_exponent(shape) || mma16::has_row_factors(shape);
  const bool floats = !scheme.activation || scheme.activation->dtype == DType::kF8E4M3;
  return shape.key.dtype == DType::kF4E2M1 && eight_bits && floats;
}

// True if a stage has whole groups of these columns, or a group has whole stages.
bool fits(int64_t group_cols, const MatrixShape& shape, const Scheme& scheme) {
  if (group_cols == GroupShape::kAll || group_cols >= shape.k) return true;
  if (mma16::groups_in_halves(shape)) return group_cols == mma16::kHalfCols;
  if (group_cols % mma16::kCols != 0) return false;
  const int64_t blocks = group_cols / mma16::kCols, stage = gemv_stage_blocks(shape, scheme);
  return blocks < stage ? stage % blocks == 0 : blocks % stage == 0;
}

}  // namespace

int gemv_stage_blocks(const MatrixShape& shape, const Scheme& scheme) {
  const bool halves = mma16::groups_in_halves(shape) && !folds_fp4(shape, scheme);
  return (halves ? 16 : 32) / static_cast<int>(bits(shape.key.dtype));
}

bool gemv_serves(const MatrixShape& shape, const Scheme& scheme) {
  const auto& key = scheme.activation;
  if (shape.group_index) return false;
  if (key && (!key->dynamic || (key->dtype == DType::kI8 && panels_have_zero_points(shape))))
    return false;
  if (mma16::groups_in_halves(shape) &&
      (shape.key.dtype == DType::kF8E4M3 ||
       (shape.key.dtype == DType::kF4E2M1 && !mma16::has_row_factors(shape))))
    return false;
  // A lane reads a whole stage of a row of activations. Past the end it reads the last columns
  // again.
  if ((shape.k + 15) / 16 * 16 < gemv_stage_blocks(shape, scheme) * mma16::kCols) return false;
  return fits(shape.key.group.cols, shape, scheme) &&
         (!key || fits(key->group.cols, shape, scheme));
}

int gemv_choice(int64_t tokens, int64_t top_k, int64_t num_experts) {
  if (tokens <= 8) return 0;
  return tokens * top_k <= 4 * num_experts ? 0 : 1;
}

bool gemv_combines(int64_t tokens, int64_t top_k, int64_t outputs) {
  // Two panels at once read the activations half as often, which pays where there are many panels.
  if (tokens > 1 && outputs >= 4096) return false;
  return tokens <= kMostAddedTokens && tokens * top_k <= kMostAddedSlots;
}

int64_t gemv_most_tokens(const KernelRequest& request, int64_t wgmma_tokens) {
  if (request.rows_per_token <= 0) return 0;
  const int64_t of_slots = kMostGemvSlots / request.rows_per_token;
  // With more rows per expert, tiles that share activations among more weights are faster (H200).
  const int64_t of_rows =
      std::max<int64_t>(8, 3 * request.num_experts / (2 * request.rows_per_token));
  const int64_t before_wgmma = wgmma_tokens > 0 ? wgmma_tokens - 1 : kMostGemvTokens;
  const int64_t most = std::min({kMostGemvTokens, of_slots, request.max_num_tokens});
  return std::min(
      most, before_wgmma <= kMostAddedTokens ? before_wgmma : std::min(of_rows, before_wgmma));
}

int64_t gemv_before_wgmma(const KernelRequest& request) {
  // Folded scales: Mixtral's layer in mxfp4 takes 236 instead of 361 us with 8 tokens (H200). wgmma
  // takes more instructions for a value than for such a code.
  const auto unpacks_long = [&](const MatrixShape& shape) {
    return !request.scheme.activation &&
           (mma16::scale_is_exponent(shape) || wgmma_multiplies_values(shape));
  };
  const bool serves =
      unpacks_long(request.shape) || (request.other != nullptr && unpacks_long(*request.other));
  if (!serves || request.rows_per_token <= 0) return 0;
  return std::min<int64_t>(8, kMostGemvSlots / request.rows_per_token);
}

CudaForm gemv_form(const MatrixShape& shape, const Scheme& scheme, int rows, bool adds) {
  return {adds ? CudaForm::Kernel::kStreamedToken : CudaForm::Kernel::kStreamed,
          folds_fp4(shape, scheme) ? CudaProducts::kBf16 : mma_products(scheme), rows,
          has_one_exponent(scheme)};
}

}  // namespace moracle::cuda
