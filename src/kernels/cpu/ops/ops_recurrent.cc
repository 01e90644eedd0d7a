// Layers with a recurrent state, on host memory: gates, short convolutions, the gated delta rule.
// The state before a step is read, and the state after it is written elsewhere, so that a failed
// step changes nothing.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/text.h"
#include "kernels/cpu/ops/cpu_ops.h"

namespace moracle {
namespace recurrent {
namespace {

constexpr int64_t kMostTaps = 16;
constexpr int64_t kMostKeyDim = 1024;

struct Tokens {
  int64_t first, last;
  const float* before;  // null: zeros
  float* after;
};
Tokens tokens_of(const Batch& batch, int64_t sequence, int64_t state) {
  const auto at = [state](std::byte* base) {
    return base == nullptr ? nullptr : reinterpret_cast<float*>(base + state);
  };
  return {batch.first_token[sequence], batch.first_token[sequence + 1],
          at(batch.states[2 * sequence]), at(batch.states[2 * sequence + 1])};
}

// Calls run(from, to, count) for columns that are adjacent in both orders of HeadPieces.
template <class Run>
void each_run(const HeadPieces& pieces, int64_t cols, const Run& run) {
  if (pieces.num_heads == 0) return run(0, 0, cols);
  int64_t before = 0, to = 0;
  for (const int64_t size : pieces.sizes) {
    for (int64_t head = 0; head < pieces.num_heads; ++head, to += size)
      run(head * pieces.head_dim + before, to, size);
    before += size;
  }
}

// y = x · factor / |x|
void normalize(const cpu::VectorOps& vector, const float* x, int64_t count, float factor,
               float* y) {
  const auto squares = static_cast<float>(vector.sum_of_squares(x, count));
  vector.scale(x, factor / std::sqrt(squares + 1e-6f), count, y);
}

float decay_of(float a, float a_log, float dt_bias) {
  const double x = static_cast<double>(a) + dt_bias;
  const double softplus = x > 20 ? x : std::log1p(std::exp(x));
  return static_cast<float>(std::exp(-std::exp(static_cast<double>(a_log)) * softplus));
}

}  // namespace
}  // namespace recurrent

Status CpuOps::gate(const Matrix& x, int64_t x_dim, const Matrix& by, int64_t by_dim,
                    int64_t num_heads, int64_t count, Gate function, Stream) {
  const ActivationSpec silu{Activation::kSilu};
  split_rows(x.rows, num_heads * count, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t head = 0; head < num_heads; ++head) {
        float* const to = f32_row(x, r) + head * x_dim;
        const float* const from = f32_row(by, r) + head * by_dim;
        if (function == Gate::kIdentity)
          vector_.scale_by(to, 1, from, count, to);
        else if (function == Gate::kSilu)
          vector_.activate(silu, from, to, count, to);
        else
          vector_.gate_sigmoid(from, count, to);
      }
    }
  });
  return {};
}

Status CpuOps::convolve(const Matrix& x, const float* weight, const ConvolutionShape& shape,
                        const Batch& batch, const Matrix& out, Stream) {
  const int64_t past = shape.kernel - 1, cols = out.cols;
  if (shape.kernel < 1 || shape.kernel > recurrent::kMostTaps) {
    return Error{ErrorKind::kUnsupported, "", "convolution",
                 str("1 to ", recurrent::kMostTaps, " taps"), str("it has ", shape.kernel)};
  }
  split_rows(x.rows, cols * shape.kernel, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const recurrent::Tokens tokens = recurrent::tokens_of(batch, batch.sequences[r], shape.state);
      const int64_t t = r - tokens.first;
      const int64_t absent = tokens.before == nullptr ? std::max<int64_t>(0, past - t) : 0;
      recurrent::each_run(shape.pieces, cols, [&](int64_t from, int64_t to, int64_t count) {
        // Row t of a sequence, counted from the step's first token; rows below 0 are in the state.
        const float* rows[recurrent::kMostTaps];
        for (int64_t j = absent; j < shape.kernel; ++j) {
          const int64_t at = t - past + j;
          rows[j] = at >= 0 ? f32_row(x, tokens.first + at) + from
                            : tokens.before + (past + at) * cols + to;
        }
        vector_.convolve(rows + absent, weight + absent * cols + to, cols, shape.kernel - absent,
                         count, shape.silu, f32_row(out, r) + to);
      });
    }
  });
  for (int64_t s = 0; s < batch.num_sequences; ++s) {
    const recurrent::Tokens tokens = recurrent::tokens_of(batch, s, shape.state);
    const int64_t count = tokens.last - tokens.first;
    for (int64_t i = 0; count > 0 && i < past; ++i) {
      const int64_t t = count - past + i;
      float* const kept = tokens.after + i * cols;
      if (t >= 0) {
        recurrent::each_run(shape.pieces, cols, [&](int64_t from, int64_t to, int64_t run) {
          std::copy_n(f32_row(x, tokens.first + t) + from, run, kept + to);
        });
      } else if (tokens.before == nullptr) {
        std::fill_n(kept, cols, 0.0f);
      } else {
        std::copy_n(tokens.before + (past + t) * cols, cols, kept);
      }
    }
  }
  return {};
}

Status CpuOps::gated_delta(const Matrix& qkv, const Matrix& ba, const float* a_log,
                           const float* dt_bias, const GatedDeltaShape& shape, const Batch& batch,
                           const Matrix& out, std::byte*, Stream) {
  const int64_t keys = shape.num_key_heads * shape.key_dim, size = shape.key_dim * shape.value_dim;
  const int64_t per_key = shape.num_value_heads / shape.num_key_heads;
  if (shape.key_dim > recurrent::kMostKeyDim) {
    return Error{ErrorKind::kUnsupported, "", "gated DeltaNet",
                 str("keys of at most ", recurrent::kMostKeyDim, " columns"),
                 str("they have ", shape.key_dim)};
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.key_dim));
  const auto run_head = [&](int64_t sequence, int64_t head) {
    const recurrent::Tokens tokens = recurrent::tokens_of(batch, sequence, shape.state);
    if (tokens.first == tokens.last) return;
    const int64_t key_at = head / per_key * shape.key_dim,
                  b_at = head / shape.ba_group * 2 * shape.ba_group + head % shape.ba_group;
    float* const after = tokens.after + head * size;
    const float* before = tokens.before == nullptr ? after : tokens.before + head * size;
    if (tokens.before == nullptr) std::memset(after, 0, static_cast<size_t>(size) * sizeof(float));
    float q[recurrent::kMostKeyDim], k[recurrent::kMostKeyDim];
    for (int64_t t = tokens.first; t < tokens.last; ++t) {
      const float *const row = f32_row(qkv, t), *const gates = f32_row(ba, t);
      recurrent::normalize(vector_, row + key_at, shape.key_dim, scale, q);
      recurrent::normalize(vector_, row + keys + key_at, shape.key_dim, 1, k);
      const float decay =
          recurrent::decay_of(gates[b_at + shape.ba_group], a_log[head], dt_bias[head]);
      const float strength = 1.0f / (1.0f + std::exp(-gates[b_at]));
      vector_.delta_step({q, k, row + 2 * keys + head * shape.value_dim, before, after,
                          f32_row(out, t) + head * shape.value_dim, decay, strength, shape.key_dim,
                          shape.value_dim});
      before = after;
    }
  };
  pool_.split(batch.num_sequences * shape.num_value_heads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      run_head(i / shape.num_value_heads, i % shape.num_value_heads);
  });
  return {};
}

}  // namespace moracle
