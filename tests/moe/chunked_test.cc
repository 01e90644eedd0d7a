// Tests calls of more tokens than planned, which run in chunks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conformance/conformance.h"
#include "layer_on_rows.h"
#include "support/must.h"

namespace moracle::chunked_test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMost = 8, kTokens = 19;

FusedMoe layer_with_adapter() {
  const LayerSpec spec = testing::odd_layer({kF32Weight, {}});
  const Request request{
      .layer = spec, .max_num_tokens = kMost, .lora_rank = 2, .max_adapters = 1, .backend = "cpu"};
  FusedMoe moe = testing::must(FusedMoe::make(conformance::random_weights(spec, 1),
                                              select(request, Machine::here()),
                                              testing::must(open_device("cpu", 2))));
  std::mt19937 random(3);
  const LoraPair down{2, 0.5f, testing::normal_floats(random, 2 * spec.intermediate_size),
                      testing::normal_floats(random, 2 * spec.hidden_size)};
  testing::must(moe.set_adapter(
      0, {{}, {}, std::vector<LoraPair>(static_cast<size_t>(spec.num_experts), down)}));
  return moe;
}

TEST(ApplyChunked, GivesTheBitsOfOneApplyForEachChunk) {
  FusedMoe moe = layer_with_adapter();
  const LayerSpec& spec = moe.plan().layer;
  const int64_t size = spec.hidden_size, gap = 3, top_k = spec.top_k;
  testing::TokenBatch batch = testing::random_batch(spec, kTokens);
  std::vector<int32_t> adapters;
  for (int64_t t = 0; t < kTokens; ++t) adapters.push_back(t % 3 == 0 ? 0 : -1);
  std::vector<float> want(kTokens * (size + gap), -7), got = want;
  const auto rows_of = [&](std::vector<float>& output) {
    return Matrix{output.data(), DType::kF32, kTokens, size, size + gap};
  };
  const Matrix hidden = Matrix::f32(batch.hidden.data(), kTokens, size);
  for (int64_t first = 0; first < kTokens; first += kMost) {
    const int64_t count = std::min(kMost, kTokens - first);
    testing::must(moe.apply(hidden.slice(first, count), {&batch.ids[first * top_k]},
                            {&batch.weights[first * top_k]}, rows_of(want).slice(first, count), {},
                            {&adapters[first]}));
  }
  testing::must(moe.apply_chunked(hidden, {batch.ids.data()}, {batch.weights.data()}, rows_of(got),
                                  {}, {adapters.data()}));
  EXPECT_EQ(got, want);
  // The adapter changes the output, so its ids count.
  testing::must(
      moe.apply_chunked(hidden, {batch.ids.data()}, {batch.weights.data()}, rows_of(got)));
  EXPECT_NE(got, want);
}

TEST(ApplyChunked, RefusesWhatApplyRefuses) {
  FusedMoe moe = layer_with_adapter();
  const int64_t size = moe.plan().layer.hidden_size;
  testing::TokenBatch batch = testing::random_batch(moe.plan().layer, kTokens);
  std::vector<float> output(kTokens * size);
  const Matrix hidden = Matrix::f32(batch.hidden.data(), kTokens, size);
  const Matrix out = Matrix::f32(output.data(), kTokens, size);
  const auto refused = [&](const Matrix& x, TopkIds ids, const Matrix& y) {
    const Status status = moe.apply_chunked(x, ids, {batch.weights.data()}, y);
    return status ? "accepted" : status.error().to_string();
  };
  const TopkIds ids{batch.ids.data()};
  EXPECT_THAT(refused(hidden, ids, out.slice(0, kTokens - 1)), HasSubstr("they have 18 and 19"));
  EXPECT_THAT(refused(hidden, {}, out), HasSubstr("topk_ids"));
  EXPECT_THAT(refused(hidden.slice(0, 3), ids, out), HasSubstr("same number of rows"));
  Matrix wrong = hidden;
  wrong.dtype = DType::kI8;
  EXPECT_THAT(refused(wrong, ids, out), HasSubstr("hidden: needs"));
}

}  // namespace
}  // namespace moracle::chunked_test
