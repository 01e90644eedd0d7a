#include "kernels/cuda/gemm_sm90/wgmma_plan.h"

#include <algorithm>
#include <iterator>

#include "kernels/cuda/operands/scaling_plan.h"
#include "layout/mma16.h"
#include "quant/activation.h"

namespace moracle::cuda {
namespace {

constexpr int kAllTiles = static_cast<int>(std::size(kWgmmaTiles));
constexpr int kUnpackingTiles = 4;  // unpacking needs the registers that wider tiles take

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

// Tiles for activations in bf16.
int float_tiles(const MatrixShape& shape) {
  if (wgmma_multiplies_values(shape)) {
    const bool serves = !panels_have_zero_points(shape) && !mma16::scale_is_exponent(shape) &&
                        (shape.key.dtype == DType::kI4 || shape.key.dtype == DType::kI8);
    return serves ? kUnpackingTiles : 0;
  }
  switch (shape.key.dtype) {
    case DType::kBF16:
      return kAllTiles;
    case DType::kI8:
    case DType::kI4:
    case DType::kF16:
    case DType::kF8E4M3:
      return kUnpackingTiles;
    case DType::kF4E2M1:
      return mma16::scale_is_exponent(shape) || mma16::has_row_factors(shape) ? kUnpackingTiles : 0;
    default:
      return 0;
  }
}

}  // namespace

int wgmma_tiles(const MatrixShape& shape, const Scheme& scheme) {
  // Rows are read in whole blocks of 32 columns, and stored in pairs.
  if (shape.k % mma16::kCols != 0 || shape.n % 2 != 0 || shape.group_index) return 0;
  const bool in_groups = scales_in_groups(shape, scheme);
  const auto& key = scheme.activation;
  if (key) {
    const int64_t most_columns = 16384;  // that the kernel for quantization keeps
    if (!key->dynamic || shape.k > most_columns) return 0;
    const bool values = wgmma_multiplies_values(shape);
    if (wgmma_input(shape, scheme) == WgmmaInput::kWideCodes)
      return values || mma16::has_row_factors(shape) || shape.key.dtype == DType::kI4
                 ? float_tiles(shape)
                 : 0;
    if (values) return 0;
    if (wgmma_input(shape, scheme) == WgmmaInput::kValues)
      return mma16::scale_is_exponent(shape) && shape.key.dtype == DType::kF8E4M3 &&
                     key->group.cols == mma16::kCols
                 ? kUnpackingTiles
                 : 0;
    if (key->dtype == DType::kI8)
      return shape.key.dtype == DType::kI8 && !in_groups ? kAllTiles : 0;
    const bool by_token = key->group.cols == GroupShape::kAll;
    if (is_four_bits(shape)) return by_token && becomes_fp8(shape) ? kUnpackingTiles : 0;
    // The last group of a row may have fewer columns: zeros fill its stage.
    const bool fits =
        ends_with_stages(shape.key.group.cols, shape.k) && (by_token || key->group.cols == 128);
    return shape.key.dtype == DType::kF8E4M3 && fits ? kUnpackingTiles : 0;
  }
  return float_tiles(shape);
}

int wgmma_choice(int tiles, int64_t rows, int64_t experts) {
  const double mean =
      static_cast<double>(rows) / static_cast<double>(std::max<int64_t>(experts, 1));
  int choice = 0;
  while (choice + 1 < tiles && mean > kWgmmaTiles[choice].most_rows) ++choice;
  return choice;
}

int wgmma_dense_choice(int64_t rows) {
  return rows <= kWgmmaTiles[1].rows ? 1 : rows <= kWgmmaTiles[2].rows ? 2 : 3;
}

int64_t wgmma_least_tokens(const KernelRequest& request) {
  const MatrixShape& shape = request.shape;
  const MatrixShape& other = request.other != nullptr ? *request.other : shape;
  if (wgmma_tiles(shape, request.scheme) == 0 || wgmma_tiles(other, request.scheme) == 0 ||
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

CudaForm wgmma_form(const MatrixShape& shape, const Scheme& scheme, int tile_rows) {
  const auto& activation = scheme.activation;
  // Fp8TokenChannels, which has the tile of most rows.
  const bool is_wide = shape.key.dtype == DType::kF8E4M3 && !scales_in_groups(shape, scheme) &&
                       tile_rows == kWgmmaTiles[kUnpackingTiles - 1].rows;
  CudaProducts products =
      wgmma_multiplies_values(shape) ? CudaProducts::kTwoBf16 : CudaProducts::kBf16;
  if (activation && wgmma_input(shape, scheme) == WgmmaInput::kCodes)
    products = activation->dtype == DType::kI8 ? CudaProducts::kInt8
               : is_wide                       ? CudaProducts::kFp8Wide
                                               : CudaProducts::kFp8Groups;
  return {CudaForm::Kernel::kWgmma, products, tile_rows, has_one_exponent(scheme)};
}

}  // namespace moracle::cuda
