// Gated residual streams and embeddings of n-grams on host memory.
#include <cmath>

#include "kernels/cpu/ops/recurrent/recurrent_tokens.h"

namespace moracle {
namespace ops_streams {
namespace {

float sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}

// The last tokens of a sequence before a step.
struct History {
  const Batch& batch;
  const NgramShape& shape;
  int64_t first;          // token of the step
  const int32_t* before;  // [size - 1]; null: the sequence begins

  History(const Batch& step, const NgramShape& of, int64_t sequence)
      : batch(step), shape(of), first(step.first_token[sequence]) {
    const std::byte* const state = step.states[2 * sequence];
    before = state == nullptr ? nullptr : reinterpret_cast<const int32_t*>(state + of.state);
  }
  // Token `at` of the sequence, counted from the step's first one.
  int32_t token(int64_t at) const {
    if (at >= 0) return batch.ids[first + at];
    return before == nullptr ? shape.boundary : before[shape.size - 1 + at];
  }
};

}  // namespace
}  // namespace ops_streams

Status CpuOps::inject_streams(const Matrix& streams, const Matrix& branch, const Matrix& weights,
                              Stream) {
  const int64_t n = weights.cols;
  split_rows(streams.rows, streams.cols, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t k = 0; k < n; ++k) {
        const float weight =
            2 * ops_streams::sigmoid(f32_row(weights, t)[k] / static_cast<float>(n));
        float* const to = f32_row(streams, t) + k * branch.cols;
        const float* const from = f32_row(branch, t);
        for (int64_t c = 0; c < branch.cols; ++c) to[c] += weight * from[c];
      }
    }
  });
  return {};
}

Status CpuOps::hash_ngrams(const NgramShape& shape, const Batch& batch, int32_t* rows, Stream) {
  const int64_t kept = shape.size - 1, heads = kept * shape.heads;
  for (int64_t s = 0; s < batch.num_sequences; ++s) {
    const ops_streams::History history(batch, shape, s);
    const int64_t count = batch.first_token[s + 1] - history.first;
    if (count == 0) continue;
    for (int64_t t = 0; t < count; ++t) {
      int32_t* const to = rows + (history.first + t) * heads;
      uint64_t mixed = static_cast<uint64_t>(history.token(t)) * shape.multipliers[0];
      bool ended = false;
      for (int64_t j = 1; j <= kept; ++j) {
        const int32_t id = ended ? shape.boundary : history.token(t - j);
        ended = ended || id == shape.boundary;
        mixed ^= static_cast<uint64_t>(id) * shape.multipliers[j];
        for (int64_t head = (j - 1) * shape.heads; head < j * shape.heads; ++head) {
          to[head] = static_cast<int32_t>(static_cast<uint64_t>(shape.offsets[head]) +
                                          mixed % static_cast<uint64_t>(shape.sizes[head]));
        }
      }
    }
    auto* const after = reinterpret_cast<int32_t*>(batch.states[2 * s + 1] + shape.state);
    for (int64_t i = 0; i < kept; ++i) after[i] = history.token(count - kept + i);
  }
  return {};
}

Status CpuOps::gate_streams(const Matrix& keys, const Matrix& queries, const Matrix& value,
                            const Matrix& out, Stream) {
  const int64_t size = value.cols, n = keys.cols / size;
  const float scale = 1.0f / std::sqrt(static_cast<float>(size));
  split_rows(out.rows, 2 * out.cols, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t k = 0; k < n; ++k) {
        const int64_t at = k * size;
        const float product =
            vector_.dot(f32_row(keys, t) + at, f32_row(queries, t) + at, size) * scale;
        const float root = std::sqrt(std::max(std::abs(product), 1e-6f));
        const float signed_root = product > 0 ? root : product < 0 ? -root : product;
        vector_.scale(f32_row(value, t), ops_streams::sigmoid(signed_root), size,
                      f32_row(out, t) + at);
      }
    }
  });
  return {};
}

}  // namespace moracle
