// Hyper-connections on host memory. The projections of a token are dot products of their own, so
// that one token uses all threads, too.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/ops/cpu_ops.h"

namespace moracle {
namespace ops_hyper {
namespace {

constexpr int64_t kMostStreams = 16;

float sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}

// Divides by the sums of columns, then in turn by those of rows and columns (Sinkhorn and Knopp,
// "Concerning Nonnegative Matrices and Doubly Stochastic Matrices", 1967).
void normalize_in_turn(float* matrix, int64_t n, const HyperShape& shape) {
  const auto divide = [&](int64_t along, int64_t across) {
    for (int64_t line = 0; line < n; ++line) {
      float sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += matrix[line * across + i * along];
      for (int64_t i = 0; i < n; ++i) matrix[line * across + i * along] /= sum + shape.epsilon;
    }
  };
  divide(n, 1);
  for (int64_t i = 1; i < shape.iterations; ++i) {
    divide(1, n);
    divide(n, 1);
  }
}

// x [n + n²]: projections without the input weights. Fills [hyper_floats].
void mix(const float* x, const HyperWeights& weights, const HyperShape& shape, float* kept) {
  const int64_t n = shape.num_streams;
  const float* const base = weights.base + n;
  for (int64_t i = 0; i < n; ++i) kept[i] = 2 * sigmoid(x[i] * weights.scale[1] + base[i]);
  for (int64_t row = 1; row <= n; ++row) {
    float* const to = kept + row * n;
    for (int64_t i = 0; i < n; ++i) to[i] = x[row * n + i] * weights.scale[2] + base[row * n + i];
    const float largest = *std::max_element(to, to + n);
    float sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += to[i] = std::exp(to[i] - largest);
    for (int64_t i = 0; i < n; ++i) to[i] = to[i] / sum + shape.epsilon;
  }
  normalize_in_turn(kept + n, n, shape);
}

}  // namespace
}  // namespace ops_hyper

void CpuOps::average_streams(const Matrix& streams, int64_t n, const Matrix& out) {
  split_rows(streams.rows, streams.cols, [&](int64_t first, int64_t last) {
    const float* inputs[ops_hyper::kMostStreams];
    float weights[ops_hyper::kMostStreams];
    std::fill_n(weights, n, 1.0f / static_cast<float>(n));
    for (int64_t t = first; t < last; ++t) {
      for (int64_t i = 0; i < n; ++i) inputs[i] = f32_row(streams, t) + i * out.cols;
      vector_.weighted_sum(inputs, weights, n, out.cols, false, f32_row(out, t));
    }
  });
}

Status CpuOps::collapse_streams(const Matrix& streams, const HyperWeights& weights,
                                const HyperShape& shape, const Matrix& out, float* kept, Stream) {
  if (weights.projection == nullptr) {
    average_streams(streams, shape.num_streams, out);
    return {};
  }
  const int64_t n = shape.num_streams, rows = kept == nullptr ? n : n + hyper_floats(n);
  const std::lock_guard lock(attending_.mutex);
  std::vector<float>& projected = attending_.scores;
  projected.resize(std::max(projected.size(), static_cast<size_t>(streams.rows * rows)));
  split_rows(streams.rows * rows, streams.cols, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      projected[i] = vector_.dot(f32_row(streams, i / rows),
                                 weights.projection + i % rows * streams.cols, streams.cols);
    }
  });
  split_rows(streams.rows, 2 * streams.cols, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      float* const x = projected.data() + t * rows;
      const float* const row = f32_row(streams, t);
      const double mean =
          vector_.sum_of_squares(row, streams.cols) / static_cast<double>(streams.cols);
      const float factor = 1.0f / std::sqrt(static_cast<float>(mean) + shape.norm_epsilon);
      for (int64_t i = 0; i < rows; ++i) x[i] *= factor;
      const float* inputs[ops_hyper::kMostStreams];
      for (int64_t i = 0; i < n; ++i) {
        inputs[i] = row + i * out.cols;
        x[i] = ops_hyper::sigmoid(x[i] * weights.scale[0] + weights.base[i]) + shape.epsilon;
      }
      vector_.weighted_sum(inputs, x, n, out.cols, false, f32_row(out, t));
      if (kept != nullptr) ops_hyper::mix(x + n, weights, shape, kept + t * hyper_floats(n));
    }
  });
  return {};
}

Status CpuOps::expand_streams(const Matrix& streams, const Matrix& branch, int64_t num_streams,
                              const float* kept, Stream) {
  constexpr int64_t kColumns = 256, kMost = ops_hyper::kMostStreams;
  split_rows(streams.rows, streams.cols * num_streams, [&](int64_t first, int64_t last) {
    float copies[kMost][kColumns];  // of a block of columns, all of whose streams change
    const float* summands[kMost + 1];
    float factors[kMost + 1];
    for (int64_t t = first; t < last; ++t) {
      const float* const own = kept + t * hyper_floats(num_streams);
      float* const row = f32_row(streams, t);
      for (int64_t c = 0; c < branch.cols; c += kColumns) {
        const int64_t count = std::min(kColumns, branch.cols - c);
        summands[0] = f32_row(branch, t) + c;
        for (int64_t i = 0; i < num_streams; ++i) {
          std::copy_n(row + i * branch.cols + c, count, copies[i]);
          summands[i + 1] = copies[i];
        }
        for (int64_t k = 0; k < num_streams; ++k) {
          factors[0] = own[k];
          for (int64_t i = 0; i < num_streams; ++i) factors[i + 1] = own[(i + 1) * num_streams + k];
          vector_.weighted_sum(summands, factors, num_streams + 1, count, false,
                               row + k * branch.cols + c);
        }
      }
    }
  });
  return {};
}

}  // namespace moracle
