// What surrounds the layers of a model, on host memory.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/text.h"
#include "kernels/cpu/cpu_ops.h"
#include "quant/codec.h"

namespace moracle {

Status CpuOps::embed(const TensorView& table, std::span<const int32_t> ids, const Matrix& out,
                     Stream) {
  const int64_t row_bytes = table.shape[1] * bits(table.dtype) / 8;
  const bool known = visit_codec(table.dtype, [&]<class Codec>() {
    for (size_t t = 0; t < ids.size(); ++t) {
      const std::byte* row = table.data + ids[t] * row_bytes;
      float* to = f32_row(out, static_cast<int64_t>(t));
      for (int64_t c = 0; c < out.cols; ++c) to[c] = static_cast<float>(Codec::decode(row, c));
    }
  });
  if (known) return {};
  return Error{ErrorKind::kUnsupported, "", "embedding", "bf16, f16 or f32",
               str("it is ", name(table.dtype))};
}

Status CpuOps::rms_norm(const Matrix& x, const float* weight, int64_t weight_size, float epsilon,
                        const Matrix& out, Stream) {
  pool_.split(x.rows, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      for (int64_t begin = 0; begin < x.cols; begin += weight_size) {
        const float* from = f32_row(x, r) + begin;
        float* to = f32_row(out, r) + begin;
        double squares = 0;
        for (int64_t c = 0; c < weight_size; ++c) squares += static_cast<double>(from[c]) * from[c];
        const float scale = 1.0f / std::sqrt(static_cast<float>(squares / weight_size) + epsilon);
        for (int64_t c = 0; c < weight_size; ++c) to[c] = from[c] * scale * weight[c];
      }
    }
  });
  return {};
}

Status CpuOps::add(const Matrix& x, const Matrix& y, Stream) {
  pool_.split(x.rows, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      float* to = f32_row(x, r);
      const float* from = f32_row(y, r);
      for (int64_t c = 0; c < x.cols; ++c) to[c] += from[c];
    }
  });
  return {};
}

Status CpuOps::rotate(const Matrix& x, int64_t head_dim, const float* frequencies,
                      std::span<const int64_t> positions, Stream) {
  const int64_t half = head_dim / 2;
  pool_.split(x.rows, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      float* row = f32_row(x, r);
      for (int64_t i = 0; i < half; ++i) {
        // The angle is a float product, as the models were trained with.
        const float angle = static_cast<float>(positions[r]) * frequencies[i];
        const float cosine = std::cos(angle), sine = std::sin(angle);
        for (int64_t head = 0; head < x.cols; head += head_dim) {
          const float a = row[head + i], b = row[head + i + half];
          row[head + i] = a * cosine - b * sine;
          row[head + i + half] = b * cosine + a * sine;
        }
      }
    }
  });
  return {};
}

namespace {

// Sixteen partial sums let the compiler use vectors without reordering a single sum behind our
// back.
float dot(const float* a, const float* b, int64_t count) {
  constexpr int64_t kLanes = 16;
  float partial[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) partial[lane] += a[i + lane] * b[i + lane];
  }
  float sum = 0;
  for (; i < count; ++i) sum += a[i] * b[i];
  for (float value : partial) sum += value;
  return sum;
}

// out = softmax(q · keys · scale) · values over `count` keys, in blocks with a running maximum, so
// that no buffer grows with the context (Milakov and Gimelshein, "Online normalizer calculation for
// softmax", 2018).
void attend_one(const float* q, const float* keys, const float* values, int64_t count,
                int64_t stride, const AttentionShape& shape, float* out) {
  constexpr int64_t kBlock = 64;
  float scores[kBlock];
  float largest = -INFINITY, sum = 0;
  std::fill(out, out + shape.head_dim, 0.0f);
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t block = std::min(kBlock, count - begin);
    float block_largest = largest;
    for (int64_t i = 0; i < block; ++i) {
      scores[i] = dot(q, keys + (begin + i) * stride, shape.head_dim) * shape.scale;
      block_largest = std::max(block_largest, scores[i]);
    }
    const float shrink = std::exp(largest - block_largest);
    largest = block_largest;
    sum *= shrink;
    for (int64_t c = 0; c < shape.head_dim; ++c) out[c] *= shrink;
    for (int64_t i = 0; i < block; ++i) {
      const float weight = std::exp(scores[i] - largest);
      sum += weight;
      const float* value = values + (begin + i) * stride;
      for (int64_t c = 0; c < shape.head_dim; ++c) out[c] += weight * value[c];
    }
  }
  for (int64_t c = 0; c < shape.head_dim; ++c) out[c] /= sum;
}

}  // namespace

Status CpuOps::attend(const Matrix& q, const Matrix& k, const Matrix& v,
                      std::span<const Span> spans, const AttentionShape& shape, const Matrix& out,
                      Stream) {
  const int64_t row = shape.num_kv_heads * shape.head_dim;
  const int64_t heads_per_kv = shape.num_heads / shape.num_kv_heads;
  for (const Span& span : spans) {
    auto* keys = static_cast<float*>(span.keys);
    auto* values = static_cast<float*>(span.values);
    for (int64_t t = 0; t < span.num_tokens; ++t) {
      const int64_t at = (span.position + t) * row;
      std::memcpy(keys + at, f32_row(k, span.first_token + t), row * sizeof(float));
      std::memcpy(values + at, f32_row(v, span.first_token + t), row * sizeof(float));
    }
    // Item i is head i % num_heads of token i / num_heads. Later tokens see more keys, so threads
    // take every size()-th item rather than a run of them.
    const int64_t items = span.num_tokens * shape.num_heads;
    pool_.run([&](int thread) {
      for (int64_t i = thread; i < items; i += pool_.size()) {
        const int64_t t = i / shape.num_heads, head = i % shape.num_heads;
        const int64_t kv = head / heads_per_kv * shape.head_dim;
        const int64_t token = span.first_token + t;
        attend_one(f32_row(q, token) + head * shape.head_dim, keys + kv, values + kv,
                   span.position + t + 1, row, shape, f32_row(out, token) + head * shape.head_dim);
      }
    });
  }
  return {};
}

}  // namespace moracle
