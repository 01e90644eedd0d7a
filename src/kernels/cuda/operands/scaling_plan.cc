#include "kernels/cuda/operands/scaling_plan.h"

#include "layout/mma16.h"
#include "quant/activation.h"

namespace moracle::cuda {

bool scales_in_groups(const MatrixShape& shape, const Scheme& scheme) {
  const bool weights_in_groups = mma16::num_groups(shape) > 1;
  const auto& key = scheme.activation;
  switch (shape.key.dtype) {
    case DType::kI8:
      return weights_in_groups || !shape.key.symmetric || shape.key.minimums;
    case DType::kI4:
    case DType::kF4E2M1:
      return true;
    case DType::kF8E4M3: {
      const bool fp8 = key && key->dtype == DType::kF8E4M3;
      return weights_in_groups || (fp8 && num_groups(*key, shape.k) > 1);
    }
    default:
      return false;
  }
}

bool wgmma_multiplies_values(const MatrixShape& shape) {
  return shape.key.minimums || (mma16::groups_in_halves(shape) && !mma16::has_row_factors(shape));
}

CudaProducts mma_products(const Scheme& scheme) {
  const auto& activation = scheme.activation;
  if (!activation) return CudaProducts::kBf16;
  return activation->dtype == DType::kI8 ? CudaProducts::kInt8 : CudaProducts::kF16;
}

bool has_row_exponents(const MatrixShape& shape, const Scheme& scheme, bool first) {
  // The scales of rows lie where the exponents of at least four groups were.
  constexpr int64_t kLeastColumns = 4 * mma16::kCols;
  const auto fits = [](int64_t columns) {
    return columns % mma16::kCols == 0 && columns >= kLeastColumns;
  };
  return scheme.activation == kMxfp8Dynamic && shape.key == kMxfp8Static && !shape.group_index &&
         fits(shape.k) && fits(first ? shape.n / 2 : shape.n);
}

MatrixShape with_row_exponents(MatrixShape shape) {
  shape.key = kFp8StaticChannelSym;
  return shape;
}

Scheme product_scheme(const MatrixShape& shape, Scheme scheme) {
  if (scheme.activation == kMxfp8Dynamic && shape.key == kFp8StaticChannelSym)
    scheme.activation = kFp8DynamicTokenPowerOfTwo;
  return scheme;
}

bool has_one_exponent(const Scheme& products) {
  return products.activation == kFp8DynamicTokenPowerOfTwo;
}

}  // namespace moracle::cuda
