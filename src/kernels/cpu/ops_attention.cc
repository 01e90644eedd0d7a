// Attention on host memory: positions, heads, softmax.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/cpu_ops.h"

namespace moracle {

Status CpuOps::rotate(const Matrix& x, const RotaryShape& shape, const float* frequencies,
                      std::span<const int64_t> positions, Stream) {
  const int64_t step = shape.interleaved ? 2 : 1;
  const int64_t partner = shape.interleaved ? 1 : shape.num_pairs;
  pool_.split(x.rows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* row = f32_row(x, r) + shape.first;
      for (int64_t i = 0; i < shape.num_pairs; ++i) {
        // The angle is a float product, as the models were trained with.
        const float angle = static_cast<float>(positions[r]) * frequencies[i];
        const float cosine = std::cos(angle) * shape.factor, sine = std::sin(angle) * shape.factor;
        for (int64_t head = 0; head < x.cols; head += shape.head_dim) {
          float* pair = row + head + i * step;
          const float a = pair[0], b = pair[partner];
          pair[0] = a * cosine - b * sine;
          pair[partner] = b * cosine + a * sine;
        }
      }
    }
  });
  return {};
}

Status CpuOps::copy_heads(const Matrix& from, int64_t from_dim, const Matrix& to, int64_t to_dim,
                          int64_t num_heads, int64_t count, Stream) {
  pool_.split(from.rows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t head = 0; head < num_heads; ++head) {
        std::memcpy(f32_row(to, r) + head * to_dim, f32_row(from, r) + head * from_dim,
                    count * sizeof(float));
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
// softmax", 2018). A sink is a score that has no value.
void attend_one(const float* q, const float* keys, const float* values, int64_t count,
                const AttentionShape& shape, const float* sink, float* out) {
  constexpr int64_t kBlock = 64;
  float scores[kBlock];
  const int64_t key_stride = shape.num_kv_heads * shape.head_dim;
  const int64_t value_stride = shape.num_kv_heads * shape.value_dim;
  float largest = sink != nullptr ? *sink : -INFINITY, sum = sink != nullptr ? 1 : 0;
  std::fill(out, out + shape.value_dim, 0.0f);
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t block = std::min(kBlock, count - begin);
    float block_largest = largest;
    for (int64_t i = 0; i < block; ++i) {
      scores[i] = dot(q, keys + (begin + i) * key_stride, shape.head_dim) * shape.scale;
      block_largest = std::max(block_largest, scores[i]);
    }
    const float shrink = std::exp(largest - block_largest);
    largest = block_largest;
    sum *= shrink;
    for (int64_t c = 0; c < shape.value_dim; ++c) out[c] *= shrink;
    for (int64_t i = 0; i < block; ++i) {
      const float weight = std::exp(scores[i] - largest);
      sum += weight;
      const float* value = values + (begin + i) * value_stride;
      for (int64_t c = 0; c < shape.value_dim; ++c) out[c] += weight * value[c];
    }
  }
  for (int64_t c = 0; c < shape.value_dim; ++c) out[c] /= sum;
}

}  // namespace

Status CpuOps::attend(const Matrix& q, const Matrix& k, const Matrix& v,
                      std::span<const Span> spans, const AttentionShape& shape, const Matrix& out,
                      Stream) {
  const int64_t key_row = shape.num_kv_heads * shape.head_dim;
  const int64_t value_row = shape.num_kv_heads * shape.value_dim;
  const int64_t heads_per_kv = shape.num_heads / shape.num_kv_heads;
  for (const Span& span : spans) {
    auto* keys = static_cast<float*>(span.keys);
    auto* values = static_cast<float*>(span.values);
    for (int64_t t = 0; t < span.num_tokens; ++t) {
      const int64_t at = span.position + t, token = span.first_token + t;
      std::memcpy(keys + at * key_row, f32_row(k, token), key_row * sizeof(float));
      std::memcpy(values + at * value_row, f32_row(v, token), value_row * sizeof(float));
    }
    // Item i is head i % num_heads of token i / num_heads. Later tokens see more keys, so threads
    // take every size()-th item rather than a run of them.
    const int64_t items = span.num_tokens * shape.num_heads;
    pool_.run([&](int thread) {
      for (int64_t i = thread; i < items; i += pool_.size()) {
        const int64_t t = i / shape.num_heads, head = i % shape.num_heads;
        const int64_t kv = head / heads_per_kv, token = span.first_token + t;
        const int64_t end = span.position + t + 1;
        const int64_t begin = shape.window > 0 ? std::max<int64_t>(0, end - shape.window) : 0;
        attend_one(f32_row(q, token) + head * shape.head_dim,
                   keys + begin * key_row + kv * shape.head_dim,
                   values + begin * value_row + kv * shape.value_dim, end - begin, shape,
                   shape.sinks != nullptr ? shape.sinks + head : nullptr,
                   f32_row(out, token) + head * shape.value_dim);
      }
    });
  }
  return {};
}

}  // namespace moracle
