#include "kernels/cuda/gemm_sm90/row_exponents_plan.h"

#include "layout/mma16.h"
#include "quant/activation.h"

namespace moracle::cuda {

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
