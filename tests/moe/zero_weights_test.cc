// Tests experts whose weights are all zero: a quantizer gives them the scale 0. No step may divide
// by zero, including the input of GEMM 2. The result is the bias.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/text.h"
#include "moe/layer_on_rows.h"

namespace moracle::zero_weights_test {
namespace {

using testing::cpu_rows;
using testing::odd_layer;
using testing::output_on;
using testing::TokenBatch;

/// Weights that are all zero. w2 has a bias that depends on row and expert.
CanonicalMatrix zeros(const MatrixShape& shape, float bias) {
  CanonicalMatrix m = conformance::random_matrix(shape, 1);
  std::fill(m.storage.begin(), m.storage.end(), std::byte{0});
  // A power of two as scale is never zero: the smallest one.
  const float least = shape.key.scale_dtype == DType::kF8E8M0 ? 0x1p-127f : 0.0f;
  std::fill(m.scales.begin(), m.scales.end(), least);
  if (shape.key.scale_dtype != DType::kI8)
    std::fill(m.zero_points.begin(), m.zero_points.end(), int8_t{0});
  std::fill(m.minimums.begin(), m.minimums.end(), 0.0f);
  for (size_t r = 0; r < m.bias.size(); ++r) m.bias[r] = bias * static_cast<float>(r + 1);
  return m;
}

DescribedWeights zero_experts(const LayerSpec& spec) {
  const std::vector<MatrixShape> shapes = spec.matrices();
  std::vector<CanonicalMatrix> w13, w2;
  for (int64_t e = 0; e < spec.num_experts; ++e) {
    w13.push_back(zeros(shapes[0], 0));
    w2.push_back(zeros(shapes[1], 1000.0f * static_cast<float>(e + 1)));
  }
  const DescribedWeights random = conformance::random_weights(spec, 1);
  DescribedWeights weights{spec, DescribedMatrix::from(spec.scheme, std::move(w13)),
                           DescribedMatrix::from(spec.scheme, std::move(w2))};
  weights.w13.set_input_scales(random.w13.input_scales());
  weights.w2.set_input_scales(random.w2.input_scales());
  return weights;
}

template <class Check>
void for_each_row_and_scheme(Check check) {
  for (const Scheme& scheme : conformance::schemes()) {
    for (const std::string& row : cpu_rows(odd_layer(scheme))) {
      SCOPED_TRACE(str(row, ", ", name(scheme)));
      check(row, odd_layer(scheme));
    }
  }
}

// The result is zero, not 0/0.
TEST(ZeroWeights, GiveZero) {
  for_each_row_and_scheme([](const std::string& row, const LayerSpec& spec) {
    for (float value : output_on(row, zero_experts(spec), testing::random_batch(spec, 5)))
      ASSERT_EQ(value, 0);
  });
}

// The router's weight scales the bias of an expert, too. Unweighted biases of this size would
// be off by thousands.
TEST(ZeroWeights, GiveBiasTimesRouterWeight) {
  for_each_row_and_scheme([](const std::string& row, LayerSpec spec) {
    spec.bias = true;
    const TokenBatch batch = testing::random_batch(spec, 5);
    const std::vector<float> got = output_on(row, zero_experts(spec), batch);
    for (int64_t t = 0; t < batch.tokens; ++t) {
      double weight_times_expert = 0;
      for (int64_t slot = t * spec.top_k; slot < (t + 1) * spec.top_k; ++slot)
        weight_times_expert += double{batch.weights[slot]} * (batch.ids[slot] + 1);
      for (int64_t c = 0; c < spec.hidden_size; ++c) {
        const double want = 1000.0 * static_cast<double>(c + 1) * weight_times_expert;
        ASSERT_NEAR(got[t * spec.hidden_size + c], want, 1e-6 * want);
      }
    }
  });
}

}  // namespace
}  // namespace moracle::zero_weights_test
