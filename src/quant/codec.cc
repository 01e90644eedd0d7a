#include "quant/codec.h"

namespace moracle {

void unpack_row(const CanonicalMatrix& matrix, int64_t r, double* out) {
  const std::byte* row = matrix.codes.data() + r * matrix.row_bytes();
  visit_codec(matrix.key.dtype, [&]<class Codec>() {
    for (int64_t c = 0; c < matrix.k; ++c) out[c] = Codec::decode(row, c);
  });
}

void dequantize_row(const CanonicalMatrix& matrix, int64_t r, double* out) {
  unpack_row(matrix, r, out);
  if (matrix.scales.empty()) return;
  const int64_t rows = matrix.key.group.rows == GroupShape::kAll ? matrix.n : matrix.key.group.rows;
  const int64_t first = r / rows * matrix.scale_cols();
  const int64_t cols = matrix.group_cols();
  for (int64_t c = 0; c < matrix.k; ++c) {
    const int64_t group = matrix.group_index.empty() ? c / cols : matrix.group_index[c];
    if (!matrix.zero_points.empty()) out[c] -= matrix.zero_points[first + group];
    out[c] *= matrix.scales[first + group];
    if (!matrix.minimums.empty()) out[c] -= matrix.minimums[first + group];
  }
}

}  // namespace moracle
