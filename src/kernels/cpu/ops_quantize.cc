// Quantizing activations, on host memory.
#include <algorithm>

#include "base/text.h"
#include "kernels/cpu/cpu_ops.h"
#include "quant/activation.h"

namespace moracle {
namespace {

Error unsupported(const QuantKey& key) {
  return {ErrorKind::kUnsupported, "", "activations", "int8 or fp8 per token, fp8 per group, mxfp8",
          str("the scheme asks for ", name(key.dtype), " of another kind")};
}

// Codes to the numbers they stand for.
void decode_row(const QuantKey& key, const uint8_t* codes, const float* scales, int64_t begin,
                int64_t count, int64_t group, float* out) {
  for (int64_t i = 0; i < count; ++i)
    out[begin + i] = decode(key, codes[i]) * scales[(begin + i) / group];
}

}  // namespace

Status CpuOps::quantize(const Matrix& from, const QuantKey& key, const Rows& to, Stream) {
  if (!can_quantize(key)) return unsupported(key);
  const bool decoded = to.values.dtype == DType::kF32;
  const int64_t group = group_cols(key, from.cols);
  pool_.split(from.rows, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const float* x = f32_row(from, r);
      float* scales = to.scales + r * to.num_scales;
      if (!decoded) {
        auto* codes = static_cast<uint8_t*>(to.values.data) + r * to.values.stride;
        quantize_row(key, x, from.cols, codes, scales);
        std::fill(codes + from.cols, codes + to.values.cols, uint8_t{0});
        continue;
      }
      // The codes of a row take a quarter of its floats' room: they lie at its end until decoded
      // from the front, where no code is overwritten before it has been read.
      float* out = f32_row(to.values, r);
      auto* codes = reinterpret_cast<uint8_t*>(out) + 3 * from.cols;
      quantize_row(key, x, from.cols, codes, scales);
      decode_row(key, codes, scales, 0, from.cols, group, out);
      std::fill(out + from.cols, out + to.values.cols, 0.0f);
    }
  });
  return {};
}

Status CpuOps::quantize_static(const Matrix& from, const int32_t* row_index,
                               const int32_t* expert_offsets, int64_t num_experts,
                               const float* scales, const QuantKey& key, const Rows& to, Stream) {
  if (key != kFp8StaticTensorSym) return unsupported(key);
  const bool decoded = to.values.dtype == DType::kF32;
  const int32_t all[] = {0, static_cast<int32_t>(to.values.rows)};
  const int32_t* offsets = expert_offsets ? expert_offsets : all;
  for (int64_t e = 0; e < num_experts; ++e) {
    const int64_t begin = offsets[e];
    pool_.split(offsets[e + 1] - begin, [&](int64_t first, int64_t last) {
      for (int64_t r = begin + first; r < begin + last; ++r) {
        const float* x = f32_row(from, row_index ? row_index[r] : r);
        auto* codes = static_cast<uint8_t*>(to.values.data) + r * to.values.stride;
        to.scales[r] = scales[e];
        for (int64_t c = 0; c < to.values.cols; ++c) {
          const uint8_t code =
              c < from.cols ? encode(key, x[c], scales[e]) : encode(key, 0.0f, 1.0f);
          if (decoded)
            f32_row(to.values, r)[c] = decode(key, code) * scales[e];
          else
            codes[c] = code;
        }
      }
    });
  }
  return {};
}

}  // namespace moracle
