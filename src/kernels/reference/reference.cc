// Backend "reference": defines every scheme, in double, from canonical weights. Each weight row is
// decoded once and multiplied by all rows of its expert, eight at a time: eight sums do not wait
// for each other. Each sum adds its columns in order.
//
//   y[r, n] = Σ_k x[r, k] · ((code[n, k] - zero) · scale - minimum)   weight-only: x as it is
//   the same with x = x_code · x_scale                             quantized activations
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/text.h"
#include "kernels/cpu/device/cpu_device.h"
#include "kernels/kernel_watch.h"
#include "kernels/kernels.h"
#include "quant/activation.h"
#include "quant/codec.h"

namespace moracle {
namespace reference_row {
namespace {

constexpr const char* kName = "rows dequantized and summed in double";
constexpr int64_t kRows = 8;                   // rows of activations that are summed together
using Pair [[gnu::vector_size(16)]] = double;  // what every x86-64 and Arm CPU adds at once

// Expert e as the canonical matrix that the layout stores.
CanonicalMatrix unpacked(const KernelWeights& weights, int64_t e) {
  const MatrixShape& shape = weights.shape;
  const Sections& s = weights.sections;
  const std::byte* base = weights.expert(e);
  CanonicalMatrix m;
  m.n = shape.n;
  m.k = shape.k;
  m.key = shape.key;
  m.codes = {base + s.codes, static_cast<size_t>(m.n * m.row_bytes())};
  const int64_t num_scales = shape.key.quantized() ? m.scale_rows() * m.scale_cols() : 0;
  auto take = [&](auto& to, size_t at, int64_t count) {
    const auto* from =
        reinterpret_cast<const typename std::decay_t<decltype(to)>::value_type*>(base + at);
    to.assign(from, from + count);
  };
  take(m.scales, s.scales, num_scales);
  take(m.zero_points, s.zero_points, shape.key.symmetric ? 0 : num_scales);
  take(m.minimums, s.minimums, shape.key.minimums ? num_scales : 0);
  take(m.group_index, s.group_index, shape.group_index ? m.k : 0);
  take(m.bias, s.bias, shape.bias ? m.n : 0);
  return m;
}

class ReferenceLinear : public LinearKernel {
 public:
  ReferenceLinear(const KernelWeights& weights, ThreadPool& pool)
      : weights_(weights), pool_(pool) {}

  Status run(const LinearCall& call, Stream) override {
    const GroupedRows& rows = *call.from<GroupedRows>();
    const int32_t one_expert[] = {0, static_cast<int32_t>(rows.num_rows)};
    const int32_t* offsets = rows.expert_offsets ? rows.expert_offsets : one_expert;
    for (int64_t e = 0; e < weights_.num_experts; ++e) {
      const int64_t count = offsets[e + 1] - offsets[e];
      if (count == 0) continue;
      if (kernels_are_watched()) report({kName, weights_.shape, count});
      run_expert(rows, e, offsets[e], offsets[e + 1], call.out);
    }
    return {};
  }

 private:
  void run_expert(const GroupedRows& rows, int64_t e, int64_t begin, int64_t end, const Matrix& y) {
    const CanonicalMatrix matrix = unpacked(weights_, e);
    // Double holds f32 and int8 exactly. [blocks, k, kRows]; rows past the last are 0.
    const int64_t blocks = (end - begin + kRows - 1) / kRows;
    std::vector<double> x(blocks * matrix.k * kRows), row(matrix.k);
    for (int64_t r = begin; r < end; ++r) {
      load_row(rows, r, row.data());
      double* const to = &x[(r - begin) / kRows * matrix.k * kRows + (r - begin) % kRows];
      for (int64_t k = 0; k < matrix.k; ++k) to[k * kRows] = row[k];
    }
    pool_.split(matrix.n, [&](int64_t first, int64_t last) {
      std::vector<double> w(matrix.k);
      for (int64_t n = first; n < last; ++n) {
        dequantize_row(matrix, n, w.data());
        for (int64_t r = begin; r < end; r += kRows) {
          Pair pairs[kRows / 2] = {};
          const double* column = &x[(r - begin) * matrix.k];
          for (int64_t k = 0; k < matrix.k; ++k, column += kRows) {
            for (int64_t i = 0; i < kRows / 2; ++i) {
              Pair two;
              std::memcpy(&two, column + 2 * i, sizeof two);
              pairs[i] += two * w[k];
            }
          }
          double sums[kRows];
          std::memcpy(sums, pairs, sizeof sums);
          for (int64_t i = 0; i < std::min(kRows, end - r); ++i) {
            if (!matrix.bias.empty()) sums[i] += matrix.bias[n];
            static_cast<float*>(y.data)[(r + i) * y.stride + n] = static_cast<float>(sums[i]);
          }
        }
      }
    });
  }

  static int64_t source(const GroupedRows& rows, int64_t r) {
    return rows.row_index ? rows.row_index[r] : r;
  }

  // A code times its scale is exact in double.
  void load_row(const GroupedRows& rows, int64_t r, double* out) const {
    const Matrix& x = rows.x.values;
    const int64_t k = weights_.shape.k, row = source(rows, r);
    if (!weights_.scheme.activation) {
      const float* values = static_cast<const float*>(x.data) + row * x.stride;
      std::copy(values, values + k, out);
      return;
    }
    const QuantKey& key = *weights_.scheme.activation;
    const int64_t group = group_cols(key, k);
    const uint8_t* codes = static_cast<const uint8_t*>(x.data) + row * x.stride;
    const float* scales = rows.x.scales + row * rows.x.num_scales;
    for (int64_t c = 0; c < k; ++c)
      out[c] = static_cast<double>(decode(key, codes[c])) * scales[c / group];
  }

  const KernelWeights& weights_;
  ThreadPool& pool_;
};

KernelPlan plan(const KernelRequest& request, const Machine&) {
  const auto& activation = request.scheme.activation;
  return {activation ? activation->dtype : DType::kF32,
          {{NamedKernel{kName}}},
          0,
          request.deterministic};
}

Result<std::unique_ptr<GroupedLinear>> make(KernelWeights&& weights, const KernelPlan&,
                                            Device& device) {
  auto* cpu = dynamic_cast<CpuDevice*>(&device);
  if (cpu == nullptr) {
    return Error{ErrorKind::kInvalidArgument, "", "backend reference", "the cpu device",
                 "it is " + device.name()};
  }
  auto linear = std::make_unique<GroupedLinear>(std::move(weights));
  linear->add<ReferenceLinear>(cpu->pool());
  return linear;
}

}  // namespace
}  // namespace reference_row

const Kernels kReferenceKernels = {reference_row::plan, reference_row::make};

}  // namespace moracle
