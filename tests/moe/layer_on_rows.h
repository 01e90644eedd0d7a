// Shared by the tests of expert features: one layer of experts on every CPU row of this build.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "conformance/conformance.h"
#include "moracle/moe.h"
#include "oracle/backend.h"
#include "support/floats.h"
#include "support/must.h"

namespace moracle::testing {

/// The plan of this row on this machine. None if the row does not serve the layer.
inline std::optional<Plan> plan_on(std::string_view row, const LayerSpec& spec) {
  Request request;
  request.layer = spec;
  request.backend = row;
  return select(request, Machine::here()).plan;
}

/// The CPU rows that serve the layer here. "reference" always does, "cpu" unless groups are no
/// multiple of 16 columns.
inline std::vector<std::string> cpu_rows(const LayerSpec& spec) {
  std::vector<std::string> rows;
  for (const Backend& row : backends()) {
    if (row.platform == Platform::kCpu && plan_on(row.name, spec)) rows.emplace_back(row.name);
  }
  const int64_t group = spec.scheme.weight.group.cols;
  const bool whole =
      !spec.scheme.weight.quantized() || group == GroupShape::kAll || group % 16 == 0;
  EXPECT_GE(rows.size(), whole ? 2u : 1u);
  return rows;
}

/// Sizes that no tile divides.
inline LayerSpec odd_layer(const Scheme& scheme, int64_t num_experts = 5, int64_t top_k = 2) {
  return {.name = "layers.3.experts",
          .num_experts = num_experts,
          .hidden_size = 70,
          .intermediate_size = 34,
          .top_k = top_k,
          .scheme = scheme};
}

struct TokenBatch {
  int64_t tokens = 0;
  std::vector<float> hidden;   ///< [tokens, hidden_size]
  std::vector<int32_t> ids;    ///< [tokens, top_k]
  std::vector<float> weights;  ///< likewise
};

inline TokenBatch random_batch(const LayerSpec& spec, int64_t tokens, uint32_t seed = 5) {
  std::mt19937 random(seed);
  TokenBatch batch{.tokens = tokens};
  batch.hidden = normal_floats(random, tokens * spec.hidden_size);
  for (int64_t i = 0; i < tokens * spec.top_k; ++i) {
    batch.ids.push_back(static_cast<int32_t>(random() % spec.num_experts));
    batch.weights.push_back(0.1f + static_cast<float>(random() % 1000) / 1000);
  }
  return batch;
}

/// Runs the layer on the batch in host memory. Returns [tokens, hidden_size].
inline std::vector<float> output_of(FusedMoe& moe, TokenBatch batch) {
  const int64_t hidden = moe.plan().layer.hidden_size;
  std::vector<float> output(batch.hidden.size(), NAN);
  must(moe.apply(Matrix::f32(batch.hidden.data(), batch.tokens, hidden), {batch.ids.data()},
                 {batch.weights.data()}, Matrix::f32(output.data(), batch.tokens, hidden)));
  return output;
}
/// Makes the layer on the row of this name and runs the batch.
inline std::vector<float> output_on(const std::string& row, DescribedWeights weights,
                                    TokenBatch batch) {
  const LayerSpec spec = weights.spec;
  const Selection selection =
      select({.layer = spec, .max_num_tokens = batch.tokens, .backend = row}, Machine::here());
  FusedMoe moe = must(FusedMoe::make(std::move(weights), selection, *open_device("cpu", 2)));
  return output_of(moe, std::move(batch));
}

/// The expected output of this row. Empty: of any row that multiplies floats unrounded.
inline conformance::Expected expected_of(const DescribedWeights& weights, const TokenBatch& batch,
                                         std::string_view row = "cpu") {
  return conformance::expected(weights.spec, weights, batch.hidden, batch.ids, batch.weights, {},
                               {}, conformance::precision_of(*plan_on(row, weights.spec)));
}

/// The largest error divided by its bound. At most 1 passes.
inline double share_of_bound(const conformance::Expected& want, const std::vector<float>& got) {
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double share = std::fabs(got[i] - want.output[i]) / (want.bound[i] + 0x1p-126);
    worst = std::isnan(share) ? INFINITY : std::max(worst, share);
  }
  return worst;
}

}  // namespace moracle::testing
