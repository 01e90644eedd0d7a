// Operations around the layers of a model, on host memory.
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "base/try.h"
#include "kernels/check_ops.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/top_k.h"
#include "quant/blocks/gguf_blocks.h"
#include "quant/codec.h"

namespace moracle {

Status CpuOps::embed(const TensorView& table, const int32_t* ids, const Matrix& out, Stream) {
  const int64_t bytes = row_bytes(table.dtype, table.shape[1]);
  if (is_gguf_block(table.dtype)) {
    const int64_t blocks = out.cols / block(table.dtype).elements;
    split_rows(out.rows, out.cols, [&](int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t)
        decode_blocks(table.dtype, table.data + ids[t] * bytes, blocks, f32_row(out, t));
    });
    return {};
  }
  const bool known = visit_codec(table.dtype, [&]<class Codec>() {
    for (int64_t t = 0; t < out.rows; ++t) {
      const std::byte* row = table.data + ids[t] * bytes;
      float* to = f32_row(out, t);
      for (int64_t c = 0; c < out.cols; ++c) to[c] = static_cast<float>(Codec::decode(row, c));
    }
  });
  if (known) return {};
  return Error{ErrorKind::kUnsupported, "", "embedding", "bf16, f16 or f32",
               str("it is ", name(table.dtype))};
}

Status CpuOps::rms_norm(const Matrix& x, const float* weight, int64_t weight_size, float epsilon,
                        const Matrix& out, Stream) {
  split_rows(x.rows, x.cols, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      for (int64_t begin = 0; begin < x.cols; begin += weight_size) {
        const float* from = f32_row(x, r) + begin;
        const double squares = vector_.sum_of_squares(from, weight_size);
        const float scale = 1.0f / std::sqrt(static_cast<float>(squares / weight_size) + epsilon);
        vector_.scale_by(from, scale, weight, weight_size, f32_row(out, r) + begin);
      }
    }
  });
  return {};
}

Status CpuOps::layer_norm(const Matrix& x, const float* weight, const float* bias, float epsilon,
                          const Matrix& out, Stream) {
  split_rows(x.rows, x.cols, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const float* const from = f32_row(x, r);
      double sum = 0, squares = 0;
      for (int64_t c = 0; c < x.cols; ++c) sum += from[c];
      const double mean = sum / static_cast<double>(x.cols);
      for (int64_t c = 0; c < x.cols; ++c) squares += (from[c] - mean) * (from[c] - mean);
      const double scale = 1 / std::sqrt(squares / static_cast<double>(x.cols) + epsilon);
      float* const to = f32_row(out, r);
      for (int64_t c = 0; c < x.cols; ++c)
        to[c] = static_cast<float>((from[c] - mean) * scale) * weight[c] + bias[c];
    }
  });
  return {};
}

Status CpuOps::add(const Matrix& x, const Matrix& y, Stream) {
  split_rows(x.rows, x.cols, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) vector_.add(f32_row(y, r), x.cols, f32_row(x, r));
  });
  return {};
}

Status CpuOps::find_top_k(const Matrix& numbers, int64_t k, int32_t* ids, float* values, std::byte*,
                          Stream) {
  MORACLE_CHECK(check_top_k(numbers, k));
  split_rows(numbers.rows, numbers.cols, [&](int64_t first, int64_t last) {
    cpu::TopK largest;
    for (int64_t r = first; r < last; ++r) {
      const float* const row = f32_row(numbers, r);
      int32_t* const found = ids + r * k;
      largest.find({row, static_cast<size_t>(numbers.cols)}, {found, static_cast<size_t>(k)});
      std::transform(found, found + k, values + r * k, [row](int32_t id) { return row[id]; });
    }
  });
  return {};
}

}  // namespace moracle
