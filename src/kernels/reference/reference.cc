// Backend "reference": defines every scheme, in double, from canonical weights. Each weight row is
// decoded once and multiplied by all rows of its expert. There are no other optimizations.
//
//   y[r, n] = Σ_k x[r, k] · (code[n, k] - zero) · scale            weight-only: x as it is
//   the same with x = x_code · x_scale                             quantized activations
#include <algorithm>
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

constexpr const char* kName = "rows decoded and summed in double";

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
  take(m.group_index, s.group_index, shape.group_index ? m.k : 0);
  take(m.bias, s.bias, shape.bias ? m.n : 0);
  return m;
}

class ReferenceLinear : public GroupedLinear {
 public:
  ReferenceLinear(KernelWeights weights, ThreadPool& pool)
      : weights_(std::move(weights)), pool_(pool) {}

  Status run(const GroupedRows& rows, const Matrix& y, Stream) override {
    const int32_t one_expert[] = {0, static_cast<int32_t>(rows.num_rows)};
    const int32_t* offsets = rows.expert_offsets ? rows.expert_offsets : one_expert;
    for (int64_t e = 0; e < weights_.num_experts; ++e) {
      const int64_t count = offsets[e + 1] - offsets[e];
      if (count == 0) continue;
      if (kernels_are_watched()) report({kName, weights_.shape, count});
      run_expert(rows, e, offsets[e], offsets[e + 1], y);
    }
    return {};
  }
  const KernelWeights& weights() const override { return weights_; }

 private:
  void run_expert(const GroupedRows& rows, int64_t e, int64_t begin, int64_t end, const Matrix& y) {
    const CanonicalMatrix matrix = unpacked(weights_, e);
    // Double holds f32 and int8 exactly.
    std::vector<double> x((end - begin) * matrix.k);
    for (int64_t r = begin; r < end; ++r) load_row(rows, r, &x[(r - begin) * matrix.k]);
    pool_.split(matrix.n, [&](int64_t first, int64_t last) {
      std::vector<double> w(matrix.k);
      for (int64_t n = first; n < last; ++n) {
        dequantize_row(matrix, n, w.data());
        for (int64_t r = begin; r < end; ++r) {
          double sum = 0;
          const double* row = &x[(r - begin) * matrix.k];
          for (int64_t k = 0; k < matrix.k; ++k) sum += row[k] * w[k];
          if (!matrix.bias.empty()) sum += matrix.bias[n];
          static_cast<float*>(y.data)[r * y.stride + n] = static_cast<float>(sum);
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

  KernelWeights weights_;
  ThreadPool& pool_;
};

KernelPlan plan(const KernelRequest& request, const Machine&) {
  const auto& activation = request.scheme.activation;
  return {activation ? activation->dtype : DType::kF32, {{1, kName}}, 0, request.deterministic};
}

Result<std::unique_ptr<GroupedLinear>> make(KernelWeights&& weights, const KernelPlan&,
                                            Device& device) {
  auto* cpu = dynamic_cast<CpuDevice*>(&device);
  if (cpu == nullptr) {
    return Error{ErrorKind::kInvalidArgument, "", "backend reference", "the cpu device",
                 "it is " + device.name()};
  }
  return std::unique_ptr<GroupedLinear>(new ReferenceLinear(std::move(weights), cpu->pool()));
}

}  // namespace
}  // namespace reference_row

const Kernels kReferenceKernels = {reference_row::plan, reference_row::make};

}  // namespace moracle
