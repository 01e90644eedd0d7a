// A backend: a kernel, its plan, its maker and its row. In the tree the kernel would be
// src/kernels/cpu/minimal.cc and the row one line of src/oracle/backends.inc; here the row stands
// first in a table of its own. The program compares it with the reference.
//
//   y[r, n] = Σ_k x[r, k] · w[n, k]        bf16 weights, f32 activations and sums
#include <cmath>
#include <cstdio>

#include "base/scalar.h"
#include "kernels/cpu/device/cpu_device.h"
#include "kernels/grouped_linear.h"
#include "kernels/kernel_watch.h"
#include "layout/layout.h"
#include "moracle/moe.h"
#include "oracle/backend.h"
#include "timing/random_layer.h"

namespace moracle {
namespace minimal_row {
namespace {

constexpr const char* kName = "bf16 rows, f32 sums";

// ---- the kernel

class MinimalLinear : public LinearKernel {
 public:
  MinimalLinear(const KernelWeights& weights, ThreadPool& pool) : weights_(weights), pool_(pool) {}

  Status run(const LinearCall& call, Stream) override {
    const GroupedRows& rows = *call.from<GroupedRows>();
    const int32_t one_expert[] = {0, static_cast<int32_t>(rows.num_rows)};
    const int32_t* const offsets = rows.expert_offsets ? rows.expert_offsets : one_expert;
    for (int64_t e = 0; e < weights_.num_experts; ++e) {
      const int64_t count = offsets[e + 1] - offsets[e];
      if (count == 0) continue;
      if (kernels_are_watched()) report({kName, weights_.shape, count});
      pool_.split(weights_.shape.n, [&](int64_t first, int64_t last) {
        for (int64_t n = first; n < last; ++n)
          for (int64_t r = offsets[e]; r < offsets[e + 1]; ++r) multiply(rows, e, n, r, call.out);
      });
    }
    return {};
  }

 private:
  void multiply(const GroupedRows& rows, int64_t e, int64_t n, int64_t r, const Matrix& out) const {
    const int64_t k = weights_.shape.k, row = rows.row_index ? rows.row_index[r] : r;
    const auto* const w =
        reinterpret_cast<const uint16_t*>(weights_.expert(e) + weights_.sections.codes) + n * k;
    const float* const x =
        static_cast<const float*>(rows.x.values.data) + row * rows.x.values.stride;
    float sum = 0;
    for (int64_t i = 0; i < k; ++i) sum += x[i] * bf16_to_float(w[i]);
    static_cast<float*>(out.data)[r * out.stride + n] = sum;
  }

  const KernelWeights& weights_;
  ThreadPool& pool_;
};

KernelPlan plan(const KernelRequest&, const Machine&) {
  KernelPlan plan;
  plan.kernels = {{NamedKernel{kName}}};
  plan.deterministic = true;
  return plan;
}

Result<std::unique_ptr<GroupedLinear>> make(KernelWeights&& weights, const KernelPlan&,
                                            Device& device) {
  auto linear = std::make_unique<GroupedLinear>(std::move(weights));
  linear->add<MinimalLinear>(kernel_device(device).host_threads());
  return linear;
}

constexpr Kernels kKernels = {plan, make};

// ---- the row

constexpr DType kWeights[] = {DType::kBF16};
const Backend kRow{.name = "minimal",
                   .summary = "one loop",
                   .weights = kWeights,
                   .features = Feature::kExpertParallel | Feature::kBatched | Feature::kLora |
                               Feature::kDeterministic,
                   .layout = &kCanonicalLayout,
                   .kernels = &kKernels};

}  // namespace
}  // namespace minimal_row

// ---- the comparison

Result<std::vector<float>> output_of(const Selection& selection, const std::vector<float>& hidden) {
  const LayerSpec& layer = selection.request.layer;
  auto device = open_device("cpu", 2);
  if (!device) return device.error();
  auto moe = FusedMoe::make(timing::random_layer(layer, 3), selection, *device);
  if (!moe) return moe.error();
  const auto tokens = static_cast<int64_t>(hidden.size()) / layer.hidden_size;
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < tokens * layer.top_k; ++i)
    ids.push_back(static_cast<int32_t>(i * 3 % layer.num_experts));
  const std::vector<float> weights(ids.size(), 0.5f);
  std::vector<float> output(hidden.size());
  const Status done =
      moe->apply(ConstMatrix::f32(hidden.data(), tokens, layer.hidden_size), {ids.data()},
                 {weights.data()}, Matrix::f32(output.data(), tokens, layer.hidden_size));
  if (!done) return done.error();
  return output;
}

Result<double> relative_error() {
  Request request;
  request.layer = {
      .name = "experts", .num_experts = 6, .hidden_size = 70, .intermediate_size = 34, .top_k = 2};
  request.layer.scheme = *parse_scheme("bf16");
  request.max_num_tokens = 9;
  request.platform = Platform::kCpu;
  std::vector<Backend> table{minimal_row::kRow};
  table.insert(table.end(), backends().begin(), backends().end());
  const Selection own = select(request, Machine::here(), table);
  std::printf("%s", explain(own, false).c_str());
  request.backend = "reference";
  const Selection exact = select(request, Machine::here());
  std::vector<float> hidden(9 * 70);
  for (size_t i = 0; i < hidden.size(); ++i) hidden[i] = std::sin(0.37f * static_cast<float>(i));
  const auto got = output_of(own, hidden), want = output_of(exact, hidden);
  if (!got) return got.error();
  if (!want) return want.error();
  double error = 0, norm = 0;
  for (size_t i = 0; i < got->size(); ++i) {
    error += std::pow((*got)[i] - (*want)[i], 2);
    norm += std::pow((*want)[i], 2);
  }
  return std::sqrt(error / norm);
}

}  // namespace moracle

int main() {
  const auto error = moracle::relative_error();
  if (!error) {
    std::fprintf(stderr, "%s\n", error.error().to_string().c_str());
    return 1;
  }
  std::printf("relative error: %s\n", *error < 1e-5 ? "below 1e-5" : "too large");
}
