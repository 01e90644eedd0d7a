// Tests batch-invariant backends. A token has the same bits for any neighbours, any position in the
// batch and any thread count.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "conformance/conformance.h"
#include "moracle/moracle.h"
#include "oracle/backend.h"
#include "support/must.h"

namespace moracle::deterministic_test {
namespace {

constexpr int64_t kHidden = 130, kTopK = 3, kExperts = 8, kTokens = 17;

struct Batch {
  std::vector<float> hidden, weights;
  std::vector<int32_t> ids;
};

Batch batch_of(int64_t tokens) {
  Batch batch;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t c = 0; c < kHidden; ++c)
      batch.hidden.push_back(std::sin(static_cast<float>(t * 131 + c * 7)));
    for (int64_t j = 0; j < kTopK; ++j) {
      batch.ids.push_back(static_cast<int32_t>((t + j * 2) % kExperts));
      batch.weights.push_back(0.2f + 0.1f * static_cast<float>(j));
    }
  }
  return batch;
}

LayerSpec layer_of(const Scheme& scheme) {
  return {.name = "layer",
          .num_experts = kExperts,
          .hidden_size = kHidden,
          .intermediate_size = 34,
          .top_k = kTopK,
          .scheme = scheme};
}

/// Output of tokens [first, first + count) of the batch, run as a separate batch.
std::vector<float> run(const Request& request, const Batch& all, int64_t first, int64_t count,
                       int threads) {
  FusedMoe moe =
      testing::must(FusedMoe::make(conformance::random_weights(request.layer, 5),
                                   select(request, Machine::here()), *open_device("cpu", threads)));
  std::vector<float> hidden(all.hidden.begin() + first * kHidden,
                            all.hidden.begin() + (first + count) * kHidden);
  std::vector<float> output(hidden.size());
  testing::must(moe.apply(Matrix::f32(hidden.data(), count, kHidden),
                          {all.ids.data() + first * kTopK}, {all.weights.data() + first * kTopK},
                          Matrix::f32(output.data(), count, kHidden)));
  return output;
}

TEST(Deterministic, RowsGiveTokenSameBitsInEveryBatch) {
  const Batch all = batch_of(kTokens);
  int promising = 0;
  for (const Backend& row : backends()) {
    if (!row.built() || row.platform != Platform::kCpu ||
        missing(Feature::kDeterministic, row.features) != Feature::kNone)
      continue;
    for (const Scheme& scheme : conformance::schemes()) {
      SCOPED_TRACE(std::string(row.name) + ", " + name(scheme));
      Request request;
      request.layer = layer_of(scheme);
      request.max_num_tokens = kTokens;
      request.deterministic = true;
      request.backend = row.name;
      const Selection selection = select(request, Machine::here());
      if (!selection.plan) continue;  // a plan of another machine or format
      ++promising;
      const std::vector<float> together = run(request, all, 0, kTokens, 3);
      for (int64_t t : {int64_t{0}, int64_t{5}, kTokens - 1}) {
        const std::vector<float> alone = run(request, all, t, 1, 1);
        EXPECT_EQ(std::memcmp(alone.data(), together.data() + t * kHidden, kHidden * sizeof(float)),
                  0)
            << "token " << t;
      }
    }
  }
  // Every machine has backends "cpu" and "reference", which serve every scheme.
  EXPECT_GE(promising, 2 * static_cast<int>(conformance::schemes().size()));
}

TEST(Deterministic, AutoChoosesOnlyBatchInvariantRow) {
  for (const Scheme& scheme : conformance::schemes()) {
    Request request;
    request.layer = layer_of(scheme);
    request.deterministic = true;
    for (const Machine& machine : Machine::known()) {
      const Selection selection = select(request, machine);
      ASSERT_TRUE(selection.plan) << machine.name;
      EXPECT_EQ(missing(Feature::kDeterministic, selection.plan->backend->features),
                Feature::kNone);
    }
  }
}

}  // namespace
}  // namespace moracle::deterministic_test
