#include "kernels/cuda/gemm_sm90/row_exponents_plan.h"

#include "layout/mma16.h"
#include "quant/activation.h"

namespace moracle::cuda {

bool has_row_exponents(const MatrixShape& shape, const Scheme& scheme) {
  // The scales of rows lie where the exponents of at least four groups were.
  constexpr int64_t kLeastGroups = 4;
  return scheme.activation == kMxfp8Dynamic && shape.key == kMxfp8Static && !shape.group_index &&
         shape.k % mma16::kCols == 0 && mma16::num_groups(shape) >= kLeastGroups;
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

std::string_view row_exponents_note(const Scheme& products) {
  return products.activation == kFp8DynamicTokenPowerOfTwo ? ", one exponent per row" : "";
}

}  // namespace moracle::cuda
