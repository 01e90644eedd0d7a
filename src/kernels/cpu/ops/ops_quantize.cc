// Quantizes activations, on host memory.
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/quantize_row.h"
#include "quant/activation.h"

namespace moracle {
namespace {

Error unsupported(const QuantKey& key) {
  return {ErrorKind::kUnsupported, "", "activations", "int8 or fp8 per token, fp8 per group, mxfp8",
          str("the scheme has another kind of ", name(key.dtype))};
}

// Dequantizes codes.
void dequantize_row(const cpu::VectorOps& vector, const QuantKey& key, const uint8_t* codes,
                    const float* scales, int64_t cols, float* out) {
  const int64_t group = group_cols(key, cols);
  for (int64_t begin = 0; begin < cols; begin += group) {
    const int64_t count = std::min(group, cols - begin);
    const float scale = scales[begin / group];
    if (key.dtype == DType::kI8)
      vector.dequantize_int8(reinterpret_cast<const int8_t*>(codes) + begin, count, scale,
                             out + begin);
    else
      vector.dequantize_e4m3(codes + begin, count, scale, out + begin);
  }
}

// Codes of one row by a stored scale. Returns the row's scale: NaN if int8 codes cannot represent a
// value that is not finite.
float encode_row(const cpu::VectorOps& vector, const QuantKey& key, const float* x, int64_t cols,
                 float scale, uint8_t* codes) {
  if (key.dtype != DType::kI8) {
    vector.encode_e4m3(x, cols, scale, codes);
    return scale;
  }
  bool finite = true;
  for (int64_t c = 0; c < cols; ++c) {
    finite &= std::isfinite(x[c]);
    codes[c] = quotient_to_int8(x[c] / scale);
  }
  if (finite) return scale;
  std::fill(codes, codes + cols, uint8_t{0});
  return NAN;
}

}  // namespace

Status CpuOps::quantize(const Matrix& from, const QuantKey& key, const Rows& to, Stream) {
  if (!can_quantize(key)) return unsupported(key);
  const bool decoded = to.values.dtype == DType::kF32;
  split_rows(from.rows, from.cols, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      if (!decoded) {
        cpu::quantize_row(vector_, key, f32_row(from, r), from.cols, to, r);
        continue;
      }
      // The codes of a row take a quarter of its floats' memory. They lie at the end of the row,
      // which is decoded from the front in blocks of 16. No block overwrites a code that is still
      // unread.
      float* out = f32_row(to.values, r);
      auto* codes = reinterpret_cast<uint8_t*>(out) + 3 * from.cols;
      Rows at_end{{codes, key.dtype, 1, from.cols, from.cols},
                  to.scales + r * to.num_scales,
                  to.num_scales};
      cpu::quantize_row(vector_, key, f32_row(from, r), from.cols, at_end, 0);
      dequantize_row(vector_, key, codes, at_end.scales, from.cols, out);
      std::fill(out + from.cols, out + to.values.cols, 0.0f);
    }
  });
  return {};
}

Status CpuOps::quantize_static(const Matrix& from, const int32_t* row_index,
                               const int32_t* expert_offsets, int64_t num_experts,
                               const float* scales, const QuantKey& key, const Rows& to, Stream) {
  if (key != kFp8StaticTensorSym && key != kInt8StaticTensorSym) return unsupported(key);
  const bool decoded = to.values.dtype == DType::kF32;
  const int32_t all[] = {0, static_cast<int32_t>(to.values.rows)};
  const int32_t* offsets = expert_offsets ? expert_offsets : all;
  for (int64_t e = 0; e < num_experts; ++e) {
    const int64_t begin = offsets[e];
    split_rows(offsets[e + 1] - begin, from.cols, [&](int64_t first, int64_t last) {
      for (int64_t r = begin + first; r < begin + last; ++r) {
        const float* x = f32_row(from, row_index ? row_index[r] : r);
        auto* codes = static_cast<uint8_t*>(to.values.data) + r * to.values.stride;
        if (!decoded) {
          to.scales[r] = encode_row(vector_, key, x, from.cols, scales[e], codes);
          std::fill(codes + from.cols, codes + to.values.cols, uint8_t{0});
          continue;
        }
        // As above: codes lie at the end of their row.
        float* out = f32_row(to.values, r);
        codes = reinterpret_cast<uint8_t*>(out) + 3 * from.cols;
        to.scales[r] = encode_row(vector_, key, x, from.cols, scales[e], codes);
        dequantize_row(vector_, key, codes, &to.scales[r], from.cols, out);
        std::fill(out + from.cols, out + to.values.cols, 0.0f);
      }
    });
  }
  return {};
}

}  // namespace moracle
