// Gates and short convolutions on host memory.
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "kernels/cpu/ops/recurrent/recurrent_tokens.h"

namespace moracle {
namespace recurrent {
namespace {

constexpr int64_t kMostTaps = 16;

// Calls run(from, to, count) for columns that are adjacent in both orders of HeadSplit.
template <class Run>
void each_run(const HeadSplit& split, int64_t cols, const Run& run) {
  if (split.num_heads == 0) return run(0, 0, cols);
  int64_t before = 0, to = 0;
  for (const int64_t size : split.sizes) {
    for (int64_t head = 0; head < split.num_heads; ++head, to += size)
      run(head * split.head_dim + before, to, size);
    before += size;
  }
}

float softplus(float x) {
  return x > 20 ? x : std::log1p(std::exp(x));
}

// What one gate multiplies with.
float factor(float by, Gate function) {
  if (function == Gate::kIdentity) return by;
  if (function == Gate::kSoftplus) return softplus(by);
  return (function == Gate::kSilu ? by : 1.0f) / (1.0f + std::exp(-by));
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
        else if (function == Gate::kSoftplus)
          for (int64_t c = 0; c < count; ++c) to[c] *= recurrent::softplus(from[c]);
        else
          vector_.gate_sigmoid(from, count, to);
      }
    }
  });
  return {};
}

Status CpuOps::gate_heads(const Matrix& x, const Matrix& by, int64_t head_dim, Gate function,
                          Stream) {
  split_rows(x.rows, x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t head = 0; head < x.cols / head_dim; ++head) {
        float* const to = f32_row(x, r) + head * head_dim;
        vector_.scale(to, recurrent::factor(f32_row(by, r)[head], function), head_dim, to);
      }
    }
  });
  return {};
}

Status CpuOps::gate_and_norm(const Matrix& x, const Matrix& by, const float* weight, int64_t size,
                             float epsilon, Stream) {
  const ActivationSpec silu{Activation::kSilu};
  split_rows(x.rows, x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* const to = f32_row(x, r);
      vector_.activate(silu, f32_row(by, r), to, x.cols, to);
      for (int64_t at = 0; at < x.cols; at += size) {
        const double squares = vector_.sum_of_squares(to + at, size);
        const auto scale =
            static_cast<float>(1 / std::sqrt(squares / static_cast<double>(size) + epsilon));
        vector_.scale_by(to + at, scale, weight + at, size, to + at);
      }
    }
  });
  return {};
}

Status CpuOps::convolve(const Matrix& x, const float* weight, const ConvolutionShape& shape,
                        const Batch& batch, const Matrix& out, Stream) {
  const int64_t past = shape.kernel - 1, cols = out.cols;
  const int64_t kept_rows = past * shape.dilation;
  if (shape.kernel < 1 || shape.kernel > recurrent::kMostTaps) {
    return Error{ErrorKind::kUnsupported, "", "convolution",
                 str("1 to ", recurrent::kMostTaps, " taps"), str("it has ", shape.kernel)};
  }
  split_rows(x.rows, cols * shape.kernel, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const RecurrentTokens tokens = recurrent_tokens(batch, batch.sequences[r], shape.state);
      const int64_t t = r - tokens.first;
      const int64_t absent =
          tokens.before == nullptr ? std::max<int64_t>(0, past - t / shape.dilation) : 0;
      recurrent::each_run(shape.split, cols, [&](int64_t from, int64_t to, int64_t count) {
        // Row t of a sequence, counted from the step's first token; rows below 0 are in the state.
        const float* rows[recurrent::kMostTaps];
        for (int64_t j = absent; j < shape.kernel; ++j) {
          const int64_t at = t - (past - j) * shape.dilation;
          rows[j] = at >= 0 ? f32_row(x, tokens.first + at) + from
                            : tokens.before + (kept_rows + at) * cols + to;
        }
        vector_.convolve(rows + absent, weight + absent * cols + to, cols, shape.kernel - absent,
                         count, shape.bias == nullptr ? nullptr : shape.bias + to, shape.silu,
                         f32_row(out, r) + to);
      });
    }
  });
  for (int64_t s = 0; s < batch.num_sequences; ++s) {
    const RecurrentTokens tokens = recurrent_tokens(batch, s, shape.state);
    const int64_t count = tokens.last - tokens.first;
    for (int64_t i = 0; count > 0 && i < kept_rows; ++i) {
      const int64_t t = count - kept_rows + i;
      float* const kept = tokens.after + i * cols;
      if (t >= 0) {
        recurrent::each_run(shape.split, cols, [&](int64_t from, int64_t to, int64_t run) {
          std::copy_n(f32_row(x, tokens.first + t) + from, run, kept + to);
        });
      } else if (tokens.before == nullptr) {
        std::fill_n(kept, cols, 0.0f);
      } else {
        std::copy_n(tokens.before + (kept_rows + t) * cols, cols, kept);
      }
    }
  }
  return {};
}

}  // namespace moracle
