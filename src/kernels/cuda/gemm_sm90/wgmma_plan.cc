#include "kernels/cuda/gemm_sm90/wgmma_plan.h"

#include <algorithm>
#include <array>
#include <limits>
#include <span>

#include "kernels/cuda/operands/scaling_plan.h"
#include "layout/mma16.h"
#include "quant/activation.h"

namespace moracle::cuda {
namespace {

// True if groups of these columns end where stages of 128 columns end.
bool ends_with_stages(int64_t group_cols, int64_t k) {
  return group_cols == GroupShape::kAll || group_cols >= k || group_cols % 128 == 0;
}

// True if the scales of e2m1 can move into e4m3: each k-block has one, a power of two. A stage has
// four of them.
bool is_rebased(const MatrixShape& shape) {
  return mma16::scale_is_exponent(shape) && shape.key.group.cols == mma16::kCols &&
         mma16::num_blocks(shape.k) >= 4;
}

bool is_four_bits(const MatrixShape& shape) {
  return shape.key.dtype == DType::kI4 || shape.key.dtype == DType::kF4E2M1;
}

// True if 4-bit weights can become e4m3: a stage then has one scale for each output.
bool becomes_fp8(const MatrixShape& shape) {
  if (wgmma_multiplies_values(shape)) return false;
  return shape.key.dtype == DType::kI4 ? ends_with_stages(shape.key.group.cols, shape.k)
                                       : is_rebased(shape);
}

// True if these weights are multiplied with activations in bf16.
bool multiplies_floats(const MatrixShape& shape) {
  if (wgmma_multiplies_values(shape))
    return !panels_have_zero_points(shape) && !mma16::scale_is_exponent(shape) &&
           (shape.key.dtype == DType::kI4 || shape.key.dtype == DType::kI8);
  switch (shape.key.dtype) {
    case DType::kBF16:
    case DType::kI8:
    case DType::kI4:
    case DType::kF16:
    case DType::kF8E4M3:
      return true;
    case DType::kF4E2M1:
      return mma16::scale_is_exponent(shape) || mma16::has_row_factors(shape);
    default:
      return false;
  }
}

// Scales of groups of weights multiply sums, not weights.
bool promotes_groups(const MatrixShape& shape, const Scheme& scheme) {
  return scales_in_groups(shape, scheme) && !wgmma_multiplies_values(shape) &&
         !mma16::scale_is_exponent(shape) && !mma16::has_row_factors(shape);
}

bool multiplies_codes(const MatrixShape& shape, const Scheme& scheme) {
  return scheme.activation && wgmma_input(shape, scheme) == WgmmaInput::kCodes;
}

// True if neither unpacking nor promotion needs the registers that tiles of 192 rows take.
bool is_wide(const MatrixShape& shape, const Scheme& scheme) {
  return multiplies_codes(shape, scheme) ? scheme.activation->dtype == DType::kI8
                                         : !scheme.activation && shape.key.dtype == DType::kBF16;
}

// Tiles, and the mean rows per expert up to which no later tiles are faster. Measured
// (bench/lab/wgmma.md).
struct Step {
  int64_t most_rows;
  WgmmaTiles tiles;
};
constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
using enum WgmmaTiles;
constexpr Step kWide[] = {{100, k128}, {134, k144}, {190, kMost}, {270, kTwo144}, {kAny, kMost}};
constexpr Step kUnpacked[] = {{114, k128}, {140, k144}, {232, k128}, {276, kTwo144}, {kAny, kMost}};
constexpr Step kFourBitCodes[] = {{114, k128},  {140, k144},    {232, k128},  {276, kTwo144},
                                  {350, kMost}, {440, kTwo144}, {485, kMost}, {kAny, kTwo144}};
constexpr Step kChannels[] = {{114, k128}, {146, k144}, {276, k128}, {kAny, kMost}};
constexpr Step kPromoted[] = {{114, k128}, {134, k144}, {276, k128}, {kAny, kMost}};
constexpr Step kNever144[] = {{276, k128}, {kAny, kMost}};

std::array<Step, 3> few_rows_steps(const MatrixShape& shape, const Scheme& scheme,
                                   int64_t experts) {
  // An expert with more rows than a tile costs a tile more, but among few large experts a wave of
  // the SMs. Measured with 8, 32 and 128 experts.
  const bool many = experts >= 32;
  if (is_four_bits(shape)) {
    if (many) return {{{12, k16}, {24, k32}, {56, k64}}};
    return {{{10, k16}, {20, k32}, {52, k64}}};
  }
  const bool fp8 = multiplies_codes(shape, scheme) && scheme.activation->dtype == DType::kF8E4M3;
  return {{{many ? 10 : 9, k16}, {many ? 22 : 20, k32}, {fp8 ? 40 : 52, k64}}};
}

// For more rows per expert than few_rows_steps.
std::span<const Step> steps_for(const MatrixShape& shape, const Scheme& scheme) {
  if (is_wide(shape, scheme)) return kWide;
  if (!multiplies_codes(shape, scheme)) {
    if (!promotes_groups(shape, scheme)) return kUnpacked;
    // No mainloop of 144 rows promotes groups that end within a stage.
    if (ends_with_stages(shape.key.group.cols, shape.k)) return kPromoted;
    return kNever144;
  }
  // These have no kernel of 144 rows (wgmma_kernels).
  const bool in_groups = scales_in_groups(shape, scheme);
  if (scheme.activation->group.cols != GroupShape::kAll || (in_groups && shape.key.group.rows > 1))
    return kNever144;
  if (is_four_bits(shape)) return kFourBitCodes;
  if (in_groups) return kUnpacked;
  return kChannels;
}

}  // namespace

bool wgmma_serves(const MatrixShape& shape, const Scheme& scheme) {
  // Rows are read in whole blocks of 32 columns, and stored in pairs.
  if (shape.k % mma16::kCols != 0 || shape.n % 2 != 0 || shape.group_index) return false;
  const bool in_groups = scales_in_groups(shape, scheme);
  const auto& key = scheme.activation;
  if (!key) return multiplies_floats(shape);
  const int64_t most_columns = 16384;  // that the kernel for quantization keeps
  if (!key->dynamic || shape.k > most_columns) return false;
  const bool values = wgmma_multiplies_values(shape);
  if (wgmma_input(shape, scheme) == WgmmaInput::kWideCodes)
    return (values || mma16::has_row_factors(shape) || shape.key.dtype == DType::kI4) &&
           multiplies_floats(shape);
  if (values) return false;
  if (wgmma_input(shape, scheme) == WgmmaInput::kValues)
    return mma16::scale_is_exponent(shape) && shape.key.dtype == DType::kF8E4M3 &&
           key->group.cols == mma16::kCols;
  if (key->dtype == DType::kI8) return shape.key.dtype == DType::kI8 && !in_groups;
  const bool by_token = key->group.cols == GroupShape::kAll;
  if (is_four_bits(shape)) return by_token && becomes_fp8(shape);
  // The last group of a row may have fewer columns: zeros fill its stage.
  return shape.key.dtype == DType::kF8E4M3 && ends_with_stages(shape.key.group.cols, shape.k) &&
         (by_token || key->group.cols == 128);
}

WgmmaChoice wgmma_choice(const MatrixShape& shape, const Scheme& scheme, int64_t rows,
                         int64_t experts) {
  experts = std::max<int64_t>(experts, 1);
  const int64_t mean = (rows + experts - 1) / experts;  // steps are whole numbers
  const std::array<Step, 3> few = few_rows_steps(shape, scheme, experts);
  for (const std::span<const Step> steps : {std::span<const Step>(few), steps_for(shape, scheme)}) {
    for (const Step& step : steps) {
      if (mean <= step.most_rows)
        return {step.tiles, step.most_rows == kAny ? kAny : step.most_rows * experts};
    }
  }
  return {kMost, kAny};
}

WgmmaChoice wgmma_dense_choice(int64_t rows) {
  if (rows <= 32) return {k32, 32};
  if (rows <= 64) return {k64, 64};
  return {k128, kAny};
}

int64_t wgmma_least_tokens(const KernelRequest& request) {
  const MatrixShape& shape = request.shape;
  const MatrixShape& other = request.other != nullptr ? *request.other : shape;
  if (!wgmma_serves(shape, request.scheme) || !wgmma_serves(other, request.scheme) ||
      request.rows_per_token <= 0)
    return 0;
  // Both matrices of a layer must get the same answer: [2 · inner, hidden] and [hidden, inner].
  const bool first = request.activation != nullptr;
  const auto hidden = static_cast<double>(first ? shape.k : shape.n);
  const auto inner = first ? static_cast<double>(shape.n) / 2 : static_cast<double>(shape.k);
  const double tiles = std::min(hidden, 2 * inner) / 256;  // of an expert, in the smaller matrix
  const double stages = hidden * inner / (256 * 128);
  const auto is_int4 = [](const MatrixShape& of) { return of.key.dtype == DType::kI4; };
  const auto has_octets = [&](const MatrixShape& of) {
    return (is_int4(of) && !wgmma_multiplies_values(of)) || mma16::has_row_factors(of);
  };
  const auto is_slow = [&](const MatrixShape& of) {
    return is_int4(of) || wgmma_multiplies_values(of);
  };
  const bool octets = has_octets(shape) && has_octets(other) && !request.scheme.activation;
  // GEMV folds scales of NVFP4, which takes fewer instructions than their products here.
  const int64_t octets_from = is_int4(shape) && is_int4(other) ? 2 : 5;
  const WgmmaLeast& one = octets || is_slow(shape) || is_slow(other) ? kLeastSlow : kLeast;
  const auto experts = static_cast<double>(request.num_experts);
  const auto per_token = std::min(static_cast<double>(request.rows_per_token), experts);
  double missed = experts;  // experts without a token, on average
  for (int64_t tokens = 1;; ++tokens) {
    missed *= 1 - per_token / experts;
    const double found = experts - missed;
    const WgmmaLeast& least = octets && tokens >= octets_from ? kLeastOctets : one;
    const bool enough = found * tiles >= least.tiles && found * stages >= least.stages;
    if (enough ||
        static_cast<double>(tokens) * per_token >= static_cast<double>(kLeastRows) * experts)
      return tokens;
  }
}

WgmmaInput wgmma_input(const MatrixShape& shape, const Scheme& scheme) {
  const auto& key = scheme.activation;
  if (key == kMxfp8Dynamic) return WgmmaInput::kValues;
  const bool fp8 = key && key->dtype == DType::kF8E4M3 && key->group.cols == GroupShape::kAll;
  return fp8 && is_four_bits(shape) && !becomes_fp8(shape) ? WgmmaInput::kWideCodes
                                                           : WgmmaInput::kCodes;
}

CudaForm wgmma_form(const MatrixShape& shape, const Scheme& scheme, WgmmaTiles tiles) {
  constexpr int kRows[] = {16, 32, 64, 128, 144, 144};
  const int rows = tiles != kMost           ? kRows[static_cast<int>(tiles)]
                   : is_wide(shape, scheme) ? 192
                                            : 128;
  const bool codes = multiplies_codes(shape, scheme);
  // Fp8TokenChannels, which has the tiles of 128 rows.
  const bool two_stages =
      shape.key.dtype == DType::kF8E4M3 && !scales_in_groups(shape, scheme) && rows == 128;
  CudaProducts products =
      wgmma_multiplies_values(shape) ? CudaProducts::kTwoBf16 : CudaProducts::kBf16;
  if (codes)
    products = scheme.activation->dtype == DType::kI8 ? CudaProducts::kInt8
               : two_stages                           ? CudaProducts::kFp8Wide
                                                      : CudaProducts::kFp8Groups;
  return {CudaForm::Kernel::kWgmma, products, rows, has_one_exponent(scheme)};
}

}  // namespace moracle::cuda
