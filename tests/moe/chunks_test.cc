// Tests that rows processed in parts through both GEMMs give the bits of small batches.
#include <algorithm>
#include <functional>

#include "moe/layer_on_rows.h"

namespace moracle::chunks_test {
namespace {

using testing::TokenBatch;

constexpr int64_t kTokens = 12'000, kSmallBatch = 500, kTopK = 3;

/// Tokens [first, first + count) of a batch.
TokenBatch cut(const LayerSpec& spec, const TokenBatch& all, int64_t first, int64_t count) {
  auto cut_of = [&](const auto& from, int64_t each) {
    return std::decay_t<decltype(from)>(from.begin() + first * each,
                                        from.begin() + (first + count) * each);
  };
  return {count, cut_of(all.hidden, spec.hidden_size), cut_of(all.ids, spec.top_k),
          cut_of(all.weights, spec.top_k)};
}

struct Routing {
  const char* name;
  std::function<void(TokenBatch&)> change;
};

const Routing kRoutings[] = {
    {"spread", [](TokenBatch&) {}},
    {"with holes",
     [](TokenBatch& b) {
       for (size_t i = 0; i < b.ids.size(); i += 4) b.ids[i] = -1;
     }},
    {"one expert, longer than a part",
     [](TokenBatch& b) { std::fill(b.ids.begin(), b.ids.end(), 4); }},
    {"nothing at all", [](TokenBatch& b) { std::fill(b.ids.begin(), b.ids.end(), -1); }},
};

// The output of the same tokens in batches of kSmallBatch.
std::vector<float> in_small_batches(FusedMoe& moe, const TokenBatch& all) {
  std::vector<float> output;
  for (int64_t t = 0; t < all.tokens; t += kSmallBatch) {
    const std::vector<float> some =
        testing::output_of(moe, cut(moe.plan().layer, all, t, kSmallBatch));
    output.insert(output.end(), some.begin(), some.end());
  }
  return output;
}

TEST(Chunks, MatchSmallBatchesBitForBit) {
  int compared = 0;
  for (const char* text :
       {"int8-w8a8", "int4-w4a8-g128", "int4-w4a16-g32-asym", "fp8-w8a8-block128x128", "bf16"}) {
    const auto scheme = parse_scheme(text);
    ASSERT_TRUE(scheme) << text;
    LayerSpec spec = testing::odd_layer(*scheme, 9, kTopK);
    spec.bias = true;
    spec.intermediate_size = 48;  // whole panels: GEMM 1 applies the activation itself
    for (const std::string& row : testing::cpu_rows(spec)) {
      Request request;
      request.layer = spec;
      request.backend = row;
      request.max_num_tokens = kTokens;
      request.deterministic = true;
      const Selection selection = select(request, Machine::here());
      if (!selection.plan || selection.plan->chunk_rows == kTokens * kTopK) continue;
      EXPECT_LT(selection.plan->chunk_rows, kTokens * kTopK) << row;
      auto moe =
          FusedMoe::make(conformance::random_weights(spec, 3), selection, *open_device("cpu", 2));
      ASSERT_TRUE(moe) << moe.error().to_string();
      for (const Routing& routing : kRoutings) {
        TokenBatch all = testing::random_batch(spec, kTokens);
        routing.change(all);
        ++compared;
        EXPECT_EQ(testing::output_of(*moe, all), in_small_batches(*moe, all))
            << row << ", " << text << ", " << routing.name;
      }
    }
  }
  if (compared == 0) GTEST_SKIP() << "no row that runs here takes its rows in parts";
  EXPECT_GE(compared, 5 * static_cast<int>(std::size(kRoutings)));
}

// The buffer between the two GEMMs holds one part.
TEST(Chunks, TakeLessMemoryThanAllRowsAtOnce) {
  const auto scheme = parse_scheme("int8-w8a8");
  LayerSpec spec = testing::odd_layer(*scheme, 9, kTopK);
  spec.intermediate_size = 512;
  for (const std::string& row : testing::cpu_rows(spec)) {
    Request request;
    request.layer = spec;
    request.backend = row;
    int64_t bytes[2];
    for (int i = 0; i < 2; ++i) {
      request.max_num_tokens = i == 0 ? 16384 : 32768;
      const Selection selection = select(request, Machine::here());
      ASSERT_TRUE(selection.plan);
      bytes[i] = selection.plan->workspace_bytes;
      if (selection.plan->chunk_rows == request.max_num_tokens * kTopK) bytes[i] = -1;
    }
    if (bytes[0] < 0) continue;
    // Only per-token arrays grow, not [rows, intermediate_size].
    EXPECT_LT(bytes[1] - bytes[0],
              16384 * kTopK * spec.intermediate_size * int64_t{sizeof(float)} / 2)
        << row;
  }
}

}  // namespace
}  // namespace moracle::chunks_test
